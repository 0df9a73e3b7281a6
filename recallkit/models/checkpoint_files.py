"""The files of a checkpoint in a folder: those that decide its scores, how many weights they have,
and what is not a model."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.quiet_transformers import FAILURES_TO_READ, first_line
from recallkit.storage.given_files import MAX_JSON_BYTES, check_file, check_files_in, read_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_DECIDING_FILES = ("config.json", "*.index.json", "*.safetensors", "*.bin")
_TRAINING_FILES = frozenset({"training_args.bin", "optimizer.bin", "scheduler.bin", "scaler.bin"})
"""Files that trainers leave next to the weights. They do not affect scores; neither does a
tokenizer or a README."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")

_REMEDY = "check that the directory is complete"


def check_is_model(path: Path) -> None:
    """Raises UserError, with what to give instead, for a file or directory that transformers cannot
    load as a model.

    Also for a directory in which a library would meet a pipe or a device, and for an index of
    weights as `indexed_files` does.
    """
    if path.is_dir():
        check_files_in(path)
        _check_has_model(path, indexed_files(path))
    elif path.suffix.lower() in _WEIGHTS:
        beside = (path.parent / "config.json").is_file()
        remedy = (
            f"give its folder {path.parent}"
            if beside
            else "give a folder that also has its config.json, or FILE.py:FUNCTION that builds it"
        )
        raise UserError(
            "weights alone do not say which model they belong to",
            where=path,
            remedy=remedy,
        )
    elif path.suffix.lower() != ".gguf":
        raise UserError("not a model: a directory, a .gguf file or a hub id is wanted", where=path)
    else:
        check_file(path)


def _has_config(folder: Path) -> bool:
    """Whether a folder has the config of a model or of an adapter."""
    return any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))


def _check_has_model(folder: Path, indexed: list[Path]) -> None:
    children = sorted(folder.iterdir())
    files = [path for path in children if path.is_file() and path.name not in _TRAINING_FILES]
    weights = [path for path in files if path.suffix in _WEIGHTS]
    inner = [path for path in children if _has_config(path)]
    if (folder / "config.json").is_file():
        if not weights and not indexed:
            raise UserError(
                "a config.json without weights",
                where=folder,
                remedy="complete the folder: model.safetensors is missing",
            )
    elif inner:
        more = f" or one of {len(inner) - 1} others" if len(inner) > 1 else ""
        raise UserError(
            "no config.json here, but in folders inside",
            where=folder,
            remedy=f"give {inner[-1]}{more}",
        )
    elif weights:
        problem = f"weights ({weights[0].name}) without a config.json"
        raise UserError(
            problem,
            where=folder,
            remedy="add the config.json of the model, or give FILE.py:FUNCTION that builds it",
        )
    elif any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise UserError(
            "a tokenizer without a model",
            where=folder,
            remedy="give the model's folder, and this one with --model-tokenizer",
        )
    else:
        problem = "a directory without a model: there is no config.json"
        raise UserError(problem, where=folder, remedy="give the folder that contains config.json")


def quantisation(config: Mapping[str, Any]) -> str | None:
    """The method by which a checkpoint is quantised, according to its config.json; None where it is
    not."""
    entry = config.get("quantization_config")
    return str(entry.get("quant_method")) if isinstance(entry, dict) else None


def deciding_files(folder: Path, *, with_code: bool = False) -> list[Path]:
    """The files that decide scores, by name: config, weights, also those in folders inside that an
    index names, `with_code` Python files.

    Raises UserError as `indexed_files` does.
    """
    patterns = (*_DECIDING_FILES, *(("*.py",) if with_code else ()))
    files = {file for pattern in patterns for file in folder.glob(pattern)}
    deciding = {file for file in files if file.name not in _TRAINING_FILES}
    return sorted(deciding | set(indexed_files(folder)))


def indexed_files(folder: Path) -> list[Path]:
    """The files that indexes of weights in a folder name, or its config.json at
    `transformers_weights`, and that are there.

    Raises UserError for an index that cannot be read, or names a file outside the folder, or one
    that is to be read and is missing.
    """
    files = set()
    for index in [*folder.glob("*.index.json"), *folder.glob("config.json")]:
        for name in names_in_index(index):
            if check_file(folder / name).is_file():
                files.add(folder / name)
            elif _is_read(index, folder):
                raise UserError(
                    f"{name} is missing, which {index.name} names",
                    where=folder,
                    remedy=_REMEDY,
                )
    return sorted(files)


def _is_read(index: Path, folder: Path) -> bool:
    """Whether what an index names is read: of a model in several formats, often only one is
    downloaded, and safetensors comes first."""
    if index.name.endswith((".h5.index.json", ".msgpack.index.json")):
        return False
    return not index.name.endswith(".bin.index.json") or not any(folder.glob("*.safetensors*"))


def names_in_index(index: Path) -> list[str]:
    """The files that an index of weights, or config.json, names, relative to its folder. Raises
    UserError for one outside."""
    try:
        content = json.loads(read_file(index))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{index.name} cannot be read ({error})",
            where=index.parent,
            remedy=_REMEDY,
        ) from error
    entries = content if isinstance(content, dict) else {}
    key = "transformers_weights" if index.name == "config.json" else "weight_map"
    entry = entries.get(key)
    names = [entry] if isinstance(entry, str) else []
    if isinstance(entry, dict):
        names = sorted(set(map(str, entry.values())))
    for name in names:
        within = PurePosixPath(name)
        if within.is_absolute() or ".." in within.parts or not name.isprintable():
            raise UserError(
                f"{index.name} names {name}, which is outside",
                where=index.parent,
                remedy="put all weights into the folder",
            )
    return names


def count_weights(folder: Path) -> int:
    """The numbers in all files of weights of a folder, or more: those of a file whose header has no
    shapes have at least a byte each."""
    suffixes = (".safetensors", ".bin")
    return sum(_count_in(path) for path in deciding_files(folder) if path.suffix in suffixes)


def _count_in(path: Path) -> int:
    size = path.stat().st_size
    if path.suffix == ".safetensors":
        with contextlib.suppress(
            OSError,
            ValueError,
            TypeError,
            AttributeError,
            KeyError,
            RecursionError,
        ):
            return min(
                sum(int(math.prod(entry["shape"])) for entry in safetensors_header(path).values()),
                8 * size,
            )
    return size


def load_weights(path: Path) -> dict[str, Tensor]:
    """The weights in a .safetensors file or in a pickled mapping, on the CPU. Raises UserError
    where they cannot be read."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            "it contains more than weights, and could run code",
            where=path,
            remedy="get the released file",
        ) from error
    except (*FAILURES_TO_READ, SafetensorError) as error:
        raise UserError(
            f"it cannot be read ({first_line(error)})",
            where=path,
            remedy="check that the file is complete",
        ) from error
    problem = UserError("it is not a mapping of names to weights", where=path)
    if not isinstance(loaded, dict):
        raise problem
    for name, value in loaded.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise problem
    return loaded


def safetensors_header(path: Path) -> dict[str, Any]:
    """The entry of each tensor in the header of a safetensors file. Raises OSError, ValueError or
    AttributeError if it cannot be read."""
    with check_file(path).open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(length, MAX_JSON_BYTES)))
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def gguf_sizes(path: Path) -> dict[str, int]:
    """The numbers in each tensor of a GGUF file, checked as ggml does: transformers would read them
    from wherever offsets lead.

    Raises ValueError, LookupError or ImportError if the header cannot be read, and ValueError
    unless the tensors are one behind the other within the file, each at a multiple of the
    alignment: of 10 and 20 bytes, aligned to 32, the second is at byte 32 of the weights.
    """
    from gguf import GGUFReader

    reader = GGUFReader(path)
    room, place = path.stat().st_size - reader.data_offset, 0
    for tensor in reader.tensors:
        # `tensor.data_offset` is a sum of 64 bits, which may have overflowed.
        offset = int(tensor.field.parts[-1][0])
        if offset != place or place + tensor.n_bytes > room:
            place_of = f"tensor {tensor.name} is at byte {offset:,} of the weights"
            raise ValueError(f"the file is damaged, or ends too early: {place_of}")
        place = math.ceil((place + int(tensor.n_bytes)) / reader.alignment) * int(reader.alignment)
    return {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}
