"""The command line as a program: a command run, one line on stderr for whatever a user can mend, the exit status.

Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from recallkit.commands import app
from recallkit.commands.app import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from recallkit.errors import UsageError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


def run(arguments: list[str] | None = None) -> None:
    """Runs a command; exits 0, 1 (it failed), 2 (usage) or 130 (interrupted; the same command goes on)."""
    interrupts: list[threading.Timer] = []
    try:
        with _insistent_interrupts(interrupts):
            status: Any = app(args=arguments, standalone_mode=False)
    except BaseException as error:  # whatever an interrupt was turned into on its way is an interrupt still
        if not interrupts:
            _explain(error)
            raise
        status = EXIT_INTERRUPTED
    if status == EXIT_INTERRUPTED:  # typer turns Ctrl-C inside a command into this status
        given = sys.argv[1:] if arguments is None else arguments
        anew = next((word for word in given if not word.startswith("-")), "") == "bench"  # what times itself keeps nothing
        _stop("interrupted; nothing was written" if anew else "interrupted; the same command goes on from here", EXIT_INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


@contextlib.contextmanager
def _insistent_interrupts(waiting: list[threading.Timer]) -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt where it is safe, and again until it is heard.

    Python drops an exception that falls into a destructor. One that falls into an import can leave the import lock
    taken, and the program waits for ever, or is taken by a library for a missing package: there it waits for the end.
    `waiting` is empty as long as nobody pressed Ctrl-C.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        importing = _is_importing(frame)
        again = threading.Timer(0.02 if importing else 1.0, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        waiting.append(again)
        if not importing:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for timer in waiting:
            timer.cancel()
        signal.signal(signal.SIGINT, before)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported somewhere up the stack."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _stop(line: str, status: int = EXIT_FAILED) -> None:
    sys.stderr.write(f"recallkit: {line}\n")
    sys.exit(status)


def _explain_os_error(error: OSError) -> str:
    where = error.filename if error.filename is not None else "writing"
    if error.errno == errno.ENOSPC:
        return UserError(
            "no space left on the disk", where=where, remedy="free some and run the same command again: it goes on from here"
        ).line()
    return UserError(error.strerror or str(error), where=where).line()


def _explain(error: BaseException) -> None:
    """Ends the program with a line for what a user can mend: our errors, usage errors, the system's, a full disk."""
    if isinstance(error, UserError):
        _stop(error.line(), EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED)
    if isinstance(error, OSError):
        _stop(_explain_os_error(error))
    show = getattr(error, "show", None)
    if callable(show):
        show()
        sys.exit(int(getattr(error, "exit_code", 2)))
    if "no space left" in str(error).lower():
        _stop(UserError("no space left on the disk", remedy="free some and run the same command again").line())
