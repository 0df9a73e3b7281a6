"""Folders of unfinished work, `.NAME.partial`, and their locks: a folder is ours if our mark is in
it, which is made before anything else.

The mark lists the files that may be in the folder. Only those are ever removed, one by one, and
then the folder if it is empty: what somebody else put there stays, and so does a folder of such a
name without a mark. The mark is also what processes lock. A wait for another process that lasts is
explained. Where a file system has no locks, work continues without.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import threading
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from recallkit import config, events
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

PARTIAL = ".partial"
"""Suffix of the folders of unfinished work."""
NEW = f".new{PARTIAL}"
"""Suffix of those whose files, once they are complete, are renamed to where they belong."""
MARK = "recallkit.mark"
_TEMPORARY = ".*.part"
"""Files that are being written in such a folder."""

_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Answers of file systems without locks; of NFS for a file that is open for reading (EBADF)."""


@contextlib.contextmanager
def new_folder(target: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yields `.TARGET.new.partial`, empty, for files of these `names`; removes what is left of
    them. One process waits for another."""
    folder = target.with_name(f".{target.name}{NEW}")
    lock = open_marked(folder, [glob.escape(name) for name in names], target)
    try:
        _remove_listed(folder)  # what a killed run left
        yield folder
    finally:
        remove(folder)
        os.close(lock)


def open_marked(
    folder: Path,
    files: Iterable[str],
    target: Path,
    kind: int = fcntl.LOCK_EX,
    *,
    wait: bool = True,
) -> int:
    """The descriptor of a folder's mark, locked; folder and mark are made if they are missing.
    `files`: patterns of names.

    Raises UserError for a folder that is not ours, BlockingIOError if another process has locked
    it, unless this is to `wait`.
    """
    while True:
        with contextlib.suppress(FileExistsError):  # by a file or a dangling link
            folder.mkdir(parents=True, exist_ok=True)
        check_ours(folder)
        try:
            lock = os.open(folder / MARK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except FileNotFoundError:  # the process before removed it meanwhile
            continue
        try:
            acquire(lock, kind, target, wait=wait)
            if (folder / MARK).exists() and os.path.samestat(
                os.fstat(lock), (folder / MARK).stat()
            ):
                _list_files(lock, files)
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def check_ours(folder: Path) -> None:
    """Raises UserError if there is something other than an empty folder or one with our mark."""
    another = "move it away, or give another name with -o"
    if folder.is_symlink():
        raise UserError("a link, where unfinished work is kept", where=folder, remedy=another)
    mark = folder / MARK
    try:  # one look at it: another process may remove it meanwhile, files first and the mark last
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        names = [folder.name]
    if names and (MARK not in names or mark.is_symlink() or mark.is_dir()):
        raise UserError(
            "not made by recallkit, but in the place of its unfinished work",
            where=folder,
            remedy=another,
        )


def is_marked(folder: Path) -> bool:
    """Whether a folder is ours."""
    mark = folder / MARK
    return (
        folder.name.endswith(PARTIAL)
        and not folder.is_symlink()
        and mark.is_file()
        and not mark.is_symlink()
    )


def _list_files(mark: int, files: Iterable[str]) -> None:
    """Writes a mark. Its length does not depend on the process, so that of two that share the lock
    neither leaves half of the other's."""
    text = json.dumps(
        {"made_by": "recallkit", "process": f"{os.getpid():>10}", "files": [*files, _TEMPORARY]}
    ).encode()
    os.pwrite(mark, text, 0)
    os.ftruncate(mark, len(text))


def _remove_listed(folder: Path) -> None:
    """Removes the files that a folder's mark lists; of folders among them, which have marks of
    their own, likewise."""
    try:
        patterns = json.loads((folder / MARK).read_bytes())["files"]
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
    ):  # a process was killed as it made the mark: there is nothing else
        patterns = []
    for pattern in patterns:
        for path in [path for path in folder.iterdir() if fnmatchcase(path.name, str(pattern))]:
            if path.is_dir() and not path.is_symlink():
                remove(path)
            else:
                path.unlink(missing_ok=True)


def remove(folder: Path) -> bool:
    """Removes what is ours of a folder of unfinished work; returns whether all of it was. An empty
    one was being removed before."""
    if not is_marked(folder):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return True
        return False
    _remove_listed(folder)
    if any(path.name != MARK for path in folder.iterdir()):
        return False
    (folder / MARK).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
    return True


# -------------------------------------------------------------------------------------------- locks


def acquire(descriptor: int, kind: int, where: Path, *, wait: bool = True) -> bool:
    """Takes the lock of an open mark (`fcntl.flock`) of the work at `where`; `kind` is LOCK_EX or
    LOCK_SH. False if there are no locks.

    Only the lock says whether a process is at work, since it ends with the process; names of hosts
    and numbers of processes may be those of several, where containers share a folder. Waits for
    other processes, or raises BlockingIOError. After `config.SECONDS_BEFORE_NOTICE` a line on
    stderr says for which.
    """

    def note() -> None:
        process = _holder(descriptor)
        message = f"{where}: waiting for {describe(process)}, which has locked it"
        events.note(message, event="waiting", level="warning", process=process)

    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            raise
        timer = threading.Timer(config.SECONDS_BEFORE_NOTICE, note)
        timer.daemon = True
        timer.start()
        try:
            fcntl.flock(descriptor, kind)
        finally:
            timer.cancel()
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise OSError(error.errno, error.strerror, str(where)) from error
        return False
    return True


def holder_of(folder: Path) -> int | None:
    """The process that locked a folder's mark last, as it wrote there itself; None if that is not
    known."""
    with contextlib.suppress(OSError), (folder / MARK).open("rb") as mark:
        return _holder(mark.fileno())
    return None


def _holder(mark: int) -> int | None:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return int(json.loads(os.pread(mark, 1 << 16, 0))["process"])
    return None


def describe(process: int | None) -> str:
    """A process as messages name it."""
    return "another process" if process is None else f"process {process}"
