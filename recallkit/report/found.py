"""Which results are in a folder: a comparison, recall evaluations, MQAR, a profile, each known by its file's name and manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit.errors import UserError
from recallkit.storage import artifacts
from recallkit.storage.artifacts import DamagedError
from recallkit.storage.result import KINDS
from recallkit.storage.unfinished import PARTIAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DEEPEST = 3
_MOST_NAMED = 5


def find_results(folder: Path, more: Sequence[Path] = ()) -> dict[str, Path]:
    """Kind -> the folder of its results, in `folder` and in up to three levels of folders in it; kinds that are not there are left out.

    What one of the folders `more` contains is taken in place of what `folder` does. Folders that are hidden, contain unfinished
    work, or are links are not looked into. Raises UserError where a folder is none, where there is no result at all, and where there
    are several of a kind to choose from.
    """
    for place in (folder, *more):
        if not place.is_dir():
            remedy = "name one that `recallkit gap`, `eval-recall`, `mqar` or `profile` wrote"
            raise UserError("no such directory", where=place, remedy=remedy)
    named, own = _results(more), _results([folder])
    found = {kind: _only(kind, named.get(kind) or own[kind], folder) for kind in KINDS if named.get(kind) or own.get(kind)}
    if not found:
        remedy = "make some with `recallkit gap REFERENCE MODEL... --slices DIR`"
        raise UserError("no results here, nor in the folders within", where=folder, remedy=remedy)
    return found


def _results(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """The folders of each kind of result, each once however it is reached."""
    found: dict[str, dict[Path, Path]] = {}
    for top in folders:
        for folder in _within(top):
            for kind in KINDS:
                if _contains(folder, kind):
                    found.setdefault(kind, {}).setdefault(folder.resolve(), folder)
    return {kind: list(places.values()) for kind, places in found.items()}


def _within(top: Path) -> Iterator[Path]:
    """`top` and the folders in it, in order of their names."""
    for path, names, _ in os.walk(top):
        is_deepest = len(Path(path).relative_to(top).parts) >= _DEEPEST
        names[:] = sorted(name for name in names if not (is_deepest or name.startswith(".") or name.endswith(PARTIAL)))
        yield Path(path)


def _contains(folder: Path, kind: str) -> bool:
    """Whether a result of this kind is right here. A file of the name that is no table of ours is not one."""
    path = folder / f"{kind}.parquet"
    try:
        return path.is_file() and bool(artifacts.read_manifest(path).get("kind") == kind)
    except UserError as error:
        # One that is damaged is one all the same, as is a comparison of another version: reading it says what is wrong with it.
        return kind == "gap" or isinstance(error, DamagedError)


def _only(kind: str, folders: Sequence[Path], top: Path) -> Path:
    if len(folders) > 1:
        names = [str(folder.relative_to(top)) if folder.is_relative_to(top) else str(folder) for folder in folders]
        named = ", ".join(names[:_MOST_NAMED]) + (" ..." if len(names) > _MOST_NAMED else "")
        raise UserError(f"{len(folders)} {KINDS[kind].called} here ({named})", where=top, remedy="name one of them, or add it with --with")
    return folders[0]
