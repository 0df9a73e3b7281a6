"""Whether recallkit can work here, and what it takes: `doctor`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import Option, Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.doctor.checks import Check
    from recallkit.doctor.installation import Part


@dataclass(frozen=True, kw_only=True)
class Doctor(Options):
    """What is examined."""

    full: Annotated[bool, Option("Also start Ray, and give slow checks two minutes instead of 20 seconds.")] = False
    sizes: Annotated[bool, Option("Instead, list what each required package takes on disk, and what it is for.")] = False


@command("doctor", Doctor, examples=("recallkit doctor", "recallkit doctor --json", "recallkit doctor --sizes"))
def doctor(asked: Doctor) -> Outcome["Sequence[Check] | Sequence[Part]"]:
    """Check this installation and machine: versions, devices, memory, disks, kernels, tokenizers, the hub; for bug reports too."""
    from recallkit.doctor.examine import doctor_json, examine, failure_line, print_doctor
    from recallkit.doctor.installation import installed_parts, print_sizes, sizes_json

    if asked.sizes:
        parts = installed_parts()
        return Outcome(value=lambda: parts, show=lambda: print_sizes(parts), json=lambda: sizes_json(parts))
    checks = examine(full=asked.full)
    return Outcome(
        value=lambda: checks,
        show=lambda: print_doctor(checks),
        json=lambda: doctor_json(checks),
        failure=failure_line(checks),
    )
