"""The files of a checkpoint in a folder: those that decide its scores, what may be in their place, and how many weights they have."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.storage.given_files import MAX_JSON_BYTES, check_file, check_files_in, read_file

if TYPE_CHECKING:
    from collections.abc import Iterator

_DECIDING_FILES = ("config.json", "*.index.json", "*.safetensors", "*.bin")
_TRAINING_FILES = frozenset({"training_args.bin", "optimizer.bin", "scheduler.bin", "scaler.bin"})
"""Files that trainers leave next to the weights. They do not affect scores; neither does a tokenizer or a README."""

_CODE_FILES = ("*.py",)
"""They affect scores where the code of a checkpoint may run."""

_REMEDY = "check that the directory is whole"


def check_folder(folder: Path) -> None:
    """Raises UserError as `check_files_in` does, and for an index that cannot be read, or names a file that is missing or outside."""
    check_files_in(folder)
    indexed_files(folder)


def deciding_files(folder: Path, *, with_code: bool = False) -> list[Path]:
    """The files that decide scores, by name: config, weights, also those in folders inside that an index names, `with_code` Python files.

    Raises UserError for an index that cannot be read, or names a file outside the folder, or one that is to be read and is missing.
    """
    patterns = (*_DECIDING_FILES, *(_CODE_FILES if with_code else ()))
    found = {file for pattern in patterns for file in folder.glob(pattern) if file.name not in _TRAINING_FILES}
    return sorted(found | set(indexed_files(folder)))


def indexed_files(folder: Path) -> list[Path]:
    """The files that indexes of weights in a folder name, or its config.json at `transformers_weights`, and that are there.

    Raises UserError as `deciding_files` does.
    """
    return [folder / name for name in sorted({name for index in _indexes(folder) for name in _named_in(index, folder)})]


def _indexes(folder: Path) -> list[Path]:
    return [*sorted(folder.glob("*.index.json")), *(path for path in [folder / "config.json"] if path.is_file())]


def _named_in(index: Path, folder: Path) -> Iterator[str]:
    for name in names_in_index(index):
        if check_file(folder / name).is_file():
            yield name
        elif _is_read(index, folder):
            raise UserError(f"{name} is missing, which {index.name} names", where=folder, remedy=_REMEDY)
        if index.name == "config.json" and name.endswith(".index.json"):
            yield from _named_in(folder / name, folder)


def _is_read(index: Path, folder: Path) -> bool:
    """Whether what an index names is read: of a model in several formats, often only one is downloaded, and safetensors comes first."""
    return not index.name.endswith((".h5.index.json", ".msgpack.index.json")) and (
        not index.name.endswith(".bin.index.json") or not any(folder.glob("*.safetensors*"))
    )


def names_in_index(index: Path) -> list[str]:
    """The files that an index of weights, or config.json, names, relative to its folder. Raises UserError for one outside."""
    names = sorted(_names(index))
    for name in names:
        within = PurePosixPath(name)
        if within.is_absolute() or ".." in within.parts or not name.isprintable():
            raise UserError(f"{index.name} names {name}, which is outside", where=index.parent, remedy="put all weights into the folder")
    return names


def _names(index: Path) -> set[str]:
    try:
        content = json.loads(read_file(index))
    except (OSError, ValueError, RecursionError) as error:
        if index.name == "config.json":  # which the kind of the model is found from, and tells
            return set()
        raise UserError(f"{index.name} cannot be read ({error})", where=index.parent, remedy=_REMEDY) from error
    named = content.get("transformers_weights" if index.name == "config.json" else "weight_map") if isinstance(content, dict) else None
    return {named} if isinstance(named, str) else set(map(str, named.values())) if isinstance(named, dict) else set()


def count_weights(folder: Path) -> int:
    """The numbers in all files of weights of a folder, or more: those of a file whose header has no shapes have at least a byte each."""
    return sum(_count_in(path) for path in deciding_files(folder) if path.suffix in (".safetensors", ".bin"))


def _count_in(path: Path) -> int:
    if path.suffix == ".safetensors":
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
            declared: int = sum(math.prod(entry["shape"]) for name, entry in safetensors_header(path).items() if name != "__metadata__")
            return min(declared, 8 * path.stat().st_size)
    return path.stat().st_size


def safetensors_header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file. Raises OSError or ValueError if it cannot be read."""
    with check_file(path).open("rb") as file:
        begins = file.read(8)
        if len(begins) < 8:
            raise ValueError("no header")
        header = json.loads(file.read(min(struct.unpack("<Q", begins)[0], MAX_JSON_BYTES)))
    if not isinstance(header, dict):
        raise ValueError("no header")  # noqa: TRY004 - of a file
    return header
