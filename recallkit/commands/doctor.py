"""Whether recallkit can work here: `doctor`."""

from typing import TYPE_CHECKING, Annotated

from recallkit.commands.adapter import Option, Outcome, command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.doctor.checks import Check


@command(
    "doctor",
    examples=(
        "recallkit doctor",
        "recallkit doctor --json",
    ),
)
def doctor(
    *, full: Annotated[bool, Option("Also start Ray, and give slow checks two minutes instead of 20 seconds.")] = False
) -> Outcome["Sequence[Check]"]:
    """Check this installation and machine: versions, devices, memory, disks, kernels, tokenizers, the hub; for bug reports too."""
    from recallkit.doctor.checks import worst
    from recallkit.doctor.examine import examine
    from recallkit.doctor.view import doctor_json, print_doctor

    checks = examine(full=full)
    return Outcome(
        value=lambda: checks,
        show=lambda: print_doctor(checks),
        json=lambda: doctor_json(checks),
        failure="" if worst(checks) == "fail" else None,
    )
