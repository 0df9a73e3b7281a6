"""Whether results are as they were written: `verify`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from recallkit.commands.adapter import Argument, File, Option, Outcome, command

if TYPE_CHECKING:
    from recallkit.verification.run import Verified


@command("verify", examples=("recallkit verify slices", "recallkit verify . --clean", "recallkit verify slices --json"))
def verify(
    folder: Annotated[File, Argument("A directory of results; the directories in it are read too.", metavar="DIR")],
    *,
    clean: Annotated[bool, Option("First remove what killed runs left: temporary files, parts of complete results.")] = False,
) -> Outcome["Verified"]:
    """Check that results are as they were written and fit together: every digest, id, number of rows and reference.

    The exit status is 1 if one is damaged or does not fit; unfinished work and leftovers are only reported.
    """
    from recallkit.verification.run import to_json
    from recallkit.verification.run import verify as verify_folder
    from recallkit.verification.view import print_verified

    found = verify_folder(Path(folder), clean=clean)
    return Outcome(
        value=lambda: found,
        show=lambda: print_verified(found),
        json=lambda: to_json(found),
        failure=None if found.is_sound else f"{folder} has results that are damaged or do not fit together; the remedy is given with each",
    )
