"""Processes that end themselves at a chosen place, at once, as by SIGKILL: no block is left, no buffer written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.conftest import commit_often

NAMES = ("replace", "rename", "link", "unlink", "rmdir", "fsync", "mkdir")
"""The calls that decide what is there after a kill; pathlib and shutil make them through `os`, too."""
DEAD = 77


def place_of(path: int | str | Path, dir_fd: int | None = None) -> str:
    """The path that a call is about, which may be an open file, or a name in an open folder."""
    if isinstance(path, int):
        return str(Path(f"/proc/self/fd/{path}").readlink())
    return str((Path() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()) / os.fspath(path))


def die_at(number: int, folder: Path, tally: Path) -> None:
    """Ends this process before the call of one of NAMES with this number, from 0, in `folder`; writes how many calls there were."""
    commit_often()
    done, on_disk = 0, set()

    def watch(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(path: Any, *args: Any, **options: Any) -> Any:
            nonlocal done
            if not place_of(path, options.get("dir_fd")).startswith(str(folder)):
                return call(path, *args, **options)
            if done == number:
                os._exit(DEAD)
            done += 1
            tally.write_text(str(done))
            if name == "fsync":
                on_disk.add(os.fstat(path).st_ino)
            if name in ("replace", "rename") and Path(path).stat().st_ino not in on_disk:
                tally.write_text(f"{path} is renamed before it is on the disk")
                os._exit(DEAD + 1)
            return call(path, *args, **options)

        return watched

    for name in NAMES:
        setattr(os, name, watch(name, getattr(os, name)))
