"""Locks of files and folders between processes: a wait that lasts is explained, with the number of the process that is waited for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit import config, events

if TYPE_CHECKING:
    from collections.abc import Iterator


def acquire(descriptor: int, kind: int, where: Path) -> None:
    """Takes the lock of an open file or folder (`fcntl.flock`), `where` it is; `kind` is LOCK_EX or LOCK_SH.

    Waits for other processes. After `config.SECONDS_BEFORE_NOTICE` a line on stderr says for which.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        with _noting(descriptor, where):
            fcntl.flock(descriptor, kind)


@contextlib.contextmanager
def _noting(descriptor: int, where: Path) -> Iterator[None]:
    def note() -> None:
        process = holder(descriptor)
        message = f"{where}: waiting for {describe(process)}, which has locked it"
        events.note(message, event="waiting", level="warning", process=process)

    timer = threading.Timer(config.SECONDS_BEFORE_NOTICE, note)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def holder(descriptor: int) -> int | None:
    """The number of the first other process that has a lock of this open file or folder; None if it is not known, as outside Linux."""
    state = os.fstat(descriptor)
    place = f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}:{state.st_ino}"
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError):
        return None
    # 3: FLOCK  ADVISORY  WRITE 15982 fe:00:2220795 0 EOF; one that waits has an arrow after its number
    held = [int(words[4]) for words in lines if len(words) > 5 and words[1] == "FLOCK" and words[5] == place]
    return next((process for process in held if process > 0 and process != os.getpid()), None)


def describe(process: int | None) -> str:
    """A process as messages name it, and how a stopped one goes on."""
    if process is None:
        return "another process"
    return f"process {process}" + (f" (it is stopped: `kill -CONT {process}` lets it go on)" if is_stopped(process) else "")


def is_stopped(process: int) -> bool:
    """Whether a process was stopped, by Ctrl-Z or a debugger; False where that cannot be known."""
    if sys.platform != "linux":
        return False
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] in ("T", "t")
