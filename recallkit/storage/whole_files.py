"""Files written aside and renamed: whole on the disk, or not there."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from typing import TYPE_CHECKING

from recallkit.storage import given_files
from recallkit.storage.unfinished import PARTIAL, new_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EROFS)
"""Answers of file systems that cannot sync, most of them only folders: network disks, and FUSE."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields an empty temporary file; renames it to `path` if the block succeeds, removes it
    otherwise."""
    given_files.check_regular(path)
    with contextlib.ExitStack() as stack:
        if path.parent.name.endswith(PARTIAL):  # cleaned as a whole
            temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
            stack.callback(temporary.unlink, missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = stack.enter_context(new_folder(path, [path.name])) / path.name
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
        yield temporary
        sync(temporary, path)
        temporary.replace(path)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes what was created, renamed and removed in a folder survive a power cut."""
    with contextlib.suppress(PermissionError):  # a folder that may be written and not read
        sync(folder, folder)


def sync(path: Path, shown: Path) -> None:
    """Puts a file or folder on the disk, if its file system can do that.

    Raises OSError for a disk that fails or is full, which names the file as `shown`.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise OSError(error.errno, error.strerror, str(shown)) from error
    finally:
        os.close(descriptor)
