"""Folders that `Dataset.save_to_disk` and `DatasetDict.save_to_disk` of `datasets` wrote: which Arrow files, in which order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError

if TYPE_CHECKING:
    from recallkit.text.remote import AnyPath

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


def is_saved(path: AnyPath) -> bool:
    """Whether this is such a folder."""
    if isinstance(path, Path):
        return has_splits(path) or all((path / name).is_file() for name in (_STATE, _INFO))
    names = path.below()
    return _SPLITS in names or {_STATE, _INFO} <= set(names)


def has_splits(path: AnyPath) -> bool:
    """Whether it is one of several splits."""
    return (path / _SPLITS).is_file() if isinstance(path, Path) else _SPLITS in path.below()


def saved_files(name: str, path: AnyPath, split: str) -> list[AnyPath]:
    """The Arrow files of a saved data set, of its split `split` if it has splits.

    Raises UserError for a split that it lacks, and for a description that is damaged; OSError where a file cannot be read.
    """
    splits = _described(path / _SPLITS, "splits", str) if has_splits(path) else None
    if splits is not None and split not in splits:
        remedy = f"choose {' or '.join(f'{name}:{each}' for each in splits)}"
        raise UserError(f"no split {split}" if split else "several splits", where=name, remedy=remedy)
    folder = path if splits is None else path / split
    names = [each.get("filename") for each in _described(folder / _STATE, "_data_files", dict)]
    if not names or any(not isinstance(each, str) or "/" in each or not each.endswith(".arrow") for each in names):
        raise _damaged(folder / _STATE)
    files = [folder / each for each in names]
    if gone := next((file for file in files if isinstance(file, Path) and not file.is_file()), None):
        raise UserError("no such file", where=gone, remedy="save the data set again")
    return files


def _described(path: AnyPath, name: str, kind: type) -> list[Any]:
    """A list in a JSON file."""
    try:
        found = json.loads(path.read_bytes())[name]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _damaged(path) from error
    if not isinstance(found, list) or not all(isinstance(each, kind) for each in found):
        raise _damaged(path)
    return found


def _damaged(path: AnyPath) -> UserError:
    return UserError("not as save_to_disk writes it", where=path, remedy="save the data set again")
