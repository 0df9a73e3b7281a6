"""Processes that end themselves at a chosen place, at once, as by SIGKILL: no block is left, no
buffer written."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from recallkit import cli
from recallkit.commands import COMMANDS
from tests.faults.conftest import commit_often

NAMES = ("replace", "rename", "link", "unlink", "rmdir", "fsync", "mkdir")
"""The calls that decide what is there after a kill; pathlib and shutil make them through `os`,
too."""
DEAD = 77
NEVER = -1


def place_of(path: int | str | Path, dir_fd: int | None = None) -> str:
    """The path that a call is about, which may be an open file, or a name in an open folder."""
    if isinstance(path, int):
        return str(Path(f"/proc/self/fd/{path}").readlink())
    return str(
        (Path() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()) / os.fspath(path)
    )


def die_at(number: int, folder: Path, tally: Path) -> None:
    """Ends this process before the call of one of NAMES with this number, from 0, in `folder`;
    writes how many calls there were."""
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


def serve(asked: Connection, folder: Path, environment: dict[str, str]) -> None:
    """Answers (words of a command, point) with (exit status, calls, stderr) of a copy of this
    process that dies there."""
    os.environ.update(environment)
    for module in set(COMMANDS.values()):
        importlib.import_module(module)
    for module in _IMPORTED:
        importlib.import_module(module)
    while (request := asked.recv()) is not None:
        words, number = request
        tally, err = folder / "tally", folder / "err"
        tally.write_text("0")
        child = os.fork()
        if not child:
            _be_command(words, number, folder, tally, err)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        asked.send((status, tally.read_text(), err.read_text()))


_IMPORTED = (
    "numpy",
    "numba",
    "tokenizers",
    "recallkit.slicing.run",
    "recallkit.scoring.run",
    "recallkit.counting.run",
)
"""What takes long to import and starts no threads."""


def _be_command(words: list[str], number: int, folder: Path, tally: Path, err: Path) -> None:
    status = 1
    try:
        for stream, path in ((1, Path(os.devnull)), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        die_at(number, folder / "out", tally)
        cli.run(words)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0
    finally:
        sys.stderr.flush()
        os._exit(status)
