"""What is given as a model and is none: what it is, and what to give instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.models.weight_files import indexed_files
from recallkit.storage.given_files import check_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_CONFIGS = ("config.json", "adapter_config.json")

OLD_NAMES = dict.fromkeys(("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"), "openai-community") | {"distilgpt2": "distilbert"}
"""The hub's old names of one word, which adapters and articles still use, and who owns them now."""


def check_is_model(path: Path) -> None:
    """Raises UserError, with what to give instead, for a file or directory that transformers cannot load as a model."""
    if path.is_dir():
        _check_folder(path)
    elif path.suffix.lower() in _WEIGHTS:
        beside = (path.parent / "config.json").is_file()
        remedy = (
            f"give its folder {path.parent}"
            if beside
            else "give a folder that also has its config.json, or FILE.py:FUNCTION that builds it"
        )
        raise UserError("weights alone do not say which model they belong to", where=path, remedy=remedy)
    elif path.suffix.lower() != ".gguf":
        raise UserError("not a model: a directory, a .gguf file or a hub id is wanted", where=path)
    else:
        check_file(path)


def _check_folder(folder: Path) -> None:
    weights = [file for file in _files(folder) if file.suffix in _WEIGHTS and file.name != "training_args.bin"]
    if (folder / "config.json").is_file():
        if not weights and not indexed_files(folder):
            raise UserError("a config.json without weights", where=folder, remedy="complete the folder: model.safetensors is missing")
        return
    inner = sorted(child for child in _children(folder) if any((child / name).is_file() for name in _CONFIGS))
    if inner:
        more = f" or one of {len(inner) - 1} others" if len(inner) > 1 else ""
        raise UserError("no config.json here, but in folders inside", where=folder, remedy=f"give {inner[-1]}{more}")
    if weights:
        problem = f"weights ({weights[0].name}) without a config.json"
        raise UserError(problem, where=folder, remedy="add the config.json of the model, or give FILE.py:FUNCTION that builds it")
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise UserError("a tokenizer without a model", where=folder, remedy="give the model's folder, and this one with --model-tokenizer")
    raise UserError(
        "a directory without a model: there is no config.json", where=folder, remedy="give the folder that contains config.json"
    )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _children(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()]


def quantisation(config: Mapping[str, Any]) -> str | None:
    """The method by which a checkpoint is quantised, according to its config.json; None where it is not."""
    entry = config.get("quantization_config")
    return str(entry.get("quant_method")) if isinstance(entry, dict) else None


def check_quantisation(config: Mapping[str, Any], spec: str) -> None:
    """Raises UserError for a method that transformers does not know: it would take the numbers in the files for weights."""
    if method := quantisation(config):
        from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

        if not any(known.startswith(method) for known in AUTO_QUANTIZATION_CONFIG_MAPPING):  # bitsandbytes_4bit
            problem = f"quantised by {method}, which the installed transformers does not know"
            raise UserError(problem, where=spec, remedy="give the model before it was quantised, or a .gguf file")
