"""Files that a user names, before anything reads them: regular files of bounded size.

A pipe would be waited for without end, a device read without end, also by libraries that are only
given the path.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING

from recallkit import config
from recallkit.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

MAX_JSON_BYTES = 1 << 26
"""Longest config, index of weights or other small file that is read: those of the largest public
models have some 10 MB."""

_TOKENIZERS = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "added_tokens.json",
)
_NOT_READ = frozenset({"trainer_state.json"})
"""JSON that no library reads, and that grows with training."""

_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory"}


def check_file(path: Path, most: int | None = None) -> Path:
    """The path. Raises UserError if a pipe, a device or a directory is there, or a file of more
    than `most` bytes; not if nothing is."""
    try:
        _check(path.stat(), path, most)
    except OSError:  # opening it will say why it cannot be opened
        return path
    return path


def check_files_in(folder: Path) -> None:
    """Raises UserError if a library that reads a model or tokenizer in this folder would meet a
    pipe, a device or JSON without end."""
    for path in sorted(folder.iterdir()):
        if not path.is_dir():
            check_file(path, _most_bytes(path))


def _most_bytes(path: Path) -> int | None:
    if path.name in _TOKENIZERS:
        return config.MAX_TOKENIZER_BYTES
    return (
        MAX_JSON_BYTES
        if path.suffix in (".json", ".jinja") and path.name not in _NOT_READ
        else None
    )


def read_file(path: Path, most: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a file. Raises UserError as `check_file` does, OSError if it cannot be
    opened."""
    # which opens a pipe without waiting for who writes to it
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _check(os.fstat(descriptor), path, most)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _check(state: os.stat_result, path: Path, most: int | None) -> None:
    if not stat.S_ISREG(state.st_mode):
        kind = _KINDS.get(stat.S_IFMT(state.st_mode), "a device")
        raise UserError(f"{kind}, but a file is expected", where=path, remedy="give a regular file")
    if most is not None and state.st_size > most:
        problem = (
            f"a file of {state.st_size:,} bytes, more than the {most:,} that such a file may have"
        )
        raise UserError(problem, where=path, remedy="check that it is the right file")


def check_regular(path: Path) -> None:
    """Raises UserError if `path` exists and is not a regular file: a device, pipe, socket or
    directory is never replaced, nor opened."""
    if path.is_dir():
        raise UserError(
            "a directory, but a file is to be written",
            where=path,
            remedy="give another name with -o",
        )
    if path.exists() and not path.is_file():
        raise UserError(
            "a device, pipe or socket, but a file is to be written",
            where=path,
            remedy="give another name with -o",
        )


def check_folders(path: Path) -> None:
    """Raises UserError if a file has the path of a folder that `path` is in."""
    in_the_way = next(
        (folder for folder in path.parents if folder.exists() and not folder.is_dir()), None
    )
    if in_the_way is not None:
        raise UserError(
            "a file, but a directory is expected",
            where=in_the_way,
            remedy="give another name with -o",
        )


def check_part(size: int) -> None:
    """Raises OSError if so many bytes are more than are read together."""
    if size > config.MAX_PART_BYTES:
        raise OSError(
            f"a part of {size:,} bytes, more than the {config.MAX_PART_BYTES:,} that are read "
            "together"
        )


def check_room(folder: Path, size: int, where: str) -> None:
    """Raises UserError if so many bytes, of what errors call `where`, are more than a folder's disk
    has free."""
    free = shutil.disk_usage(folder).free
    if size > free:
        remedy = "make room, or name another folder in RECALLKIT_HOME"
        raise UserError(
            f"it has {size:,} bytes, but {folder} has {free:,} free", where=where, remedy=remedy
        )
