"""Whether recallkit can work here: `doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from recallkit.commands.app import EXIT_FAILED, app
from recallkit.options import Json


@app.command()
def doctor(
    full: Annotated[bool, typer.Option("--full", help="Also start Ray, and give slow checks two minutes instead of 20 seconds.")] = False,
    as_json: Json = False,
) -> None:
    """Check this installation and machine: versions, devices, memory, disks, kernels, tokenizers, the hub; for bug reports too."""
    from recallkit.display import console
    from recallkit.doctor.checks import worst
    from recallkit.doctor.examine import examine
    from recallkit.doctor.view import doctor_json, print_doctor

    checks = examine(full=full)
    if as_json:
        console.print_json(doctor_json(checks))
    else:
        print_doctor(checks)
    if worst(checks) == "fail":
        raise typer.Exit(EXIT_FAILED)
