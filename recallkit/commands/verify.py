"""Whether results are as they were written: `verify`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import Argument, File, Option, Options

if TYPE_CHECKING:
    from recallkit.verification.run import Verified


@dataclass(frozen=True)
class Verify(Options):
    """Which results are checked."""

    folder: Annotated[File, Argument("A directory of results; the directories in it are read too.", metavar="DIR")]
    _: KW_ONLY
    clean: Annotated[bool, Option("First remove what killed runs left: temporary files, parts of complete results.")] = False


@command("verify", Verify, examples=("recallkit verify slices", "recallkit verify . --clean", "recallkit verify slices --json"))
def verify(asked: Verify) -> Outcome["Verified"]:
    """Check that results are as they were written and fit together: every digest, id, number of rows and reference.

    The exit status is 1 if one is damaged or does not fit; unfinished work and leftovers are only reported.
    """
    from recallkit.verification.run import to_json
    from recallkit.verification.run import verify as verify_folder
    from recallkit.verification.view import print_verified

    found = verify_folder(Path(asked.folder), clean=asked.clean)
    problem = f"{asked.folder} has results that are damaged or do not fit together; the remedy is given with each"
    return Outcome(
        value=lambda: found,
        show=lambda: print_verified(found),
        json=lambda: to_json(found),
        failure=None if found.is_sound else problem,
    )
