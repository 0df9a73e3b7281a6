"""The command line as a program: runs a command, prints one line on stderr for errors a user can
correct, sets the exit status.

Nothing heavy is imported before a command needs it, so that `--help` is fast.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import events
from recallkit.commands.app import (
    EXIT_DEFECT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    EXIT_USAGE,
    app,
)
from recallkit.errors import UsageError, UserError, lacks_resources, redacted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


_FULL = {
    "no space left": "no space left on the disk",
    "quota exceeded": "no space left of the quota on this disk",
}
"""What is full, by words of the system's error."""

_REMEDIES = {
    errno.EIO: "check the disk, and run the same command again",
    errno.ENODEV: "this file system maps no files into memory: use a local disk",
}
_MAY_NOT_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS)


def run(arguments: list[str] | None = None) -> None:
    """Runs a command; exits 0, 1 (it failed), 2 (usage), 70 (a defect of recallkit), 130
    (interrupted) or 143 (terminated; the same command resumes).

    `--log-json` may be given before or after the command's name.
    """
    os.environ["RUST_BACKTRACE"] = (
        "0"  # a panic of a library in Rust becomes one line, without sixty of its stack before it
    )
    # names that are not UTF-8 are printed escaped, as JSON has them
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if arguments is None else arguments
    command = next((word for word in words if not word.startswith("-")), None)
    words = _start_events(words, command)
    interrupts: list[signal.Signals] = []
    try:
        with _insistent_interrupts(interrupts):
            status: Any = app(args=words, standalone_mode=False)
            sys.stdout.flush()
    except (
        BaseException
    ) as error:  # an interrupt is an interrupt, whatever it was converted to on its way
        if not interrupts:
            _explain(error)
            raise
        status = EXIT_INTERRUPTED
    if status == EXIT_INTERRUPTED:  # typer turns Ctrl-C inside a command into this status
        _stop_interrupted(is_terminated=signal.SIGTERM in interrupts)
    sys.exit(status if isinstance(status, int) else 0)


def _start_events(words: list[str], command: str | None) -> list[str]:
    """Writes events to stderr if requested, before anything can fail; returns the remaining
    arguments."""
    options = words[: words.index("--")] if "--" in words else words
    if events.OPTION in options or events.are_on():
        events.start(command)
    return [word for word in options if word != events.OPTION] + words[len(options) :]


@contextlib.contextmanager
def _insistent_interrupts(heard: list[signal.Signals]) -> Iterator[None]:
    """Ctrl-C, and SIGTERM, which batch systems send before they kill, raise KeyboardInterrupt where
    it is safe, until it takes effect.

    Python drops an exception that is raised in a destructor. One raised in an import can leave the
    import lock taken, so that the program waits for ever, or a library takes it for a missing
    package: there it waits for the end, as in `uncut`. `heard` is empty until an end is requested.
    Once the block has ended on such a request, further ones are ignored: a repetition already under
    way, or a second Ctrl-C, would otherwise end the interpreter by the signal.
    """
    waiting: list[threading.Timer] = []
    has_ended = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        if has_ended:
            return
        waits = events.is_uncut or _is_importing(frame)
        again = threading.Timer(0.02 if waits else 1.0, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        waiting.append(again)
        heard.append(signal.Signals(number))
        if not waits:
            raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        has_ended = True
        for timer in waiting:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if heard else handler)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported somewhere up the stack."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _stop_interrupted(*, is_terminated: bool) -> None:
    status = EXIT_TERMINATED if is_terminated else EXIT_INTERRUPTED
    line = f"{'terminated' if is_terminated else 'interrupted'}; the same command resumes from here"
    if events.are_on():
        events.emit("interrupted", line, level="warning", status=status)
    else:
        sys.stderr.write(f"recallkit: {line}\n")
    sys.exit(status)


def _stop(error: UserError, status: int = EXIT_FAILED, **facts: str) -> None:
    """Ends the program with a line, or an event that has these facts, too."""
    if events.are_on():
        events.emit_error(
            error.problem, where=error.where, remedy=error.remedy, status=status, **facts
        )
    else:
        sys.stderr.write(f"recallkit: {error.line()}\n")
    sys.exit(status)


def _explain(error: BaseException) -> None:
    """Ends the program with one line for an error a user can correct: ours, usage errors, the
    system's, a full disk; or for a defect."""
    if isinstance(error, UserError):
        _stop(error, EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED)
    if callable(getattr(error, "show", None)):
        _show_usage(error)
    if isinstance(error, BrokenPipeError) and error.filename == events.OUTPUT:
        sys.exit(EXIT_FAILED)  # what reads it wants no more
    correctable = _of_system(error)
    if correctable is not None:
        _stop(correctable)
    if not isinstance(error, SystemExit | KeyboardInterrupt):
        _stop_defective(error)


def _of_system(error: BaseException) -> UserError | None:
    """An error of the system's with what to do about it; None for any other."""
    where = getattr(error, "filename", None) or "writing"
    for words, problem in _FULL.items():
        if words in str(error).lower():
            return UserError(
                problem,
                where=where,
                remedy="free some and run the same command again: it resumes from here",
            )
    if (
        isinstance(error, OSError)
        and error.errno != errno.ENOMEM
        and (error.errno is not None or not lacks_resources(error))
    ):
        remedy = _REMEDIES.get(error.errno or 0)
        if error.errno in _MAY_NOT_WRITE and _is_new(error.filename):
            remedy = (
                "write elsewhere: to a place that -o names, or beside a copy of the slices, "
                "named with --slices"
            )
        return UserError(error.strerror or str(error), where=where, remedy=remedy)
    if lacks_resources(error):
        remedy = (
            "free some, or give fewer --workers, a smaller --batch-tokens, shorter --seq-len; "
            "the same command resumes from here"
        )
        return UserError(
            "not enough memory, threads or open files", where=_first_line(error), remedy=remedy
        )
    # Python has bytes of names that are not UTF-8 as characters that cannot be written
    if isinstance(error, UnicodeEncodeError):
        return UserError("a name with characters that are not text", remedy="rename it")
    return None


def _is_new(name: object) -> bool:
    """Whether it is the name of something new in a folder that may be searched and not written."""
    if not isinstance(name, str) or os.path.lexists(name):
        return False
    folders = Path(name).absolute().parents
    folder = next(parent for parent in folders if os.path.lexists(parent))
    return os.access(folder, os.X_OK) and not os.access(folder, os.W_OK)


def _first_line(error: BaseException) -> str | None:
    return next(iter(str(error).splitlines()), None)


def _stop_defective(error: BaseException) -> None:
    """Reports a defect of recallkit in one line as well; its traceback is in the event, or in a
    file of its own."""
    import platform
    import shlex
    import tempfile

    from recallkit.config import VERSION

    problem = f"internal error ({type(error).__name__}: {_first_line(error)})"
    lines = "".join(traceback.format_exception(error))
    if events.are_on():
        _stop(UserError(problem), EXIT_DEFECT, traceback=lines)
    temporary: dict[str, Any] = {"delete": False, "encoding": "utf-8", "errors": "replace"}
    with tempfile.NamedTemporaryFile(
        "w", prefix="recallkit-error-", suffix=".txt", **temporary
    ) as file:
        where = f"recallkit {VERSION}, Python {platform.python_version()}, {platform.platform()}"
        report = f"{where}\n{shlex.join(map(redacted, sys.argv))}\n\n{lines}"
        file.write(
            "".join(
                c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in redacted(report)
            )
        )
    _stop(
        UserError(
            problem,
            remedy=(
                f"this is a bug in recallkit, not in your input: please report it with {file.name}"
            ),
        ),
        EXIT_DEFECT,
    )


def _show_usage(error: Any) -> None:
    """Ends the program with a line about words that typer cannot accept, and its status; where none
    are given, with the help."""
    status = int(getattr(error, "exit_code", EXIT_USAGE))
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "recallkit"
    said = error.format_message().rstrip(".")
    is_help = "\n" in said
    if is_help and not events.are_on():
        error.show()
        sys.exit(status)
    problem, _, meant = ("no command is given" if is_help else said).partition(". ")
    _stop(UserError(problem, remedy=meant or f"see {command} --help"), status)
