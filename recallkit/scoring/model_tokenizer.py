"""The tokenizer that comes with a model: which one it is, told apart from others without being read"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recallkit import registry
from recallkit.storage import artifacts

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")

GPT2 = "openai-community/gpt2"
"""The tokenizer of the checkpoints that Based's authors released without one."""


def own_tokenizer(spec: str) -> str | None:
    """The tokenizer that comes with a model; None where none does."""
    from recallkit.models.loading import is_control, is_user_model
    from recallkit.models.native import is_native, is_published_on_hub

    if is_control(spec):
        return None
    if is_user_model(spec):
        from recallkit.models.user import user_tokenizer

        return user_tokenizer(spec)
    path = Path(spec)
    if is_native(spec) and not path.is_dir():
        return GPT2 if is_published_on_hub(spec) else None
    if path.exists():
        return spec if path.is_file() or any((path / name).is_file() for name in _TOKENIZER_FILES) else None
    return spec if registry.may_be_hub_id(spec) else None


def identify_tokenizer(spec: str, given: str | None) -> dict[str, Any] | None:
    """What tells one tokenizer from another without reading it; None for one that the model's own digest covers."""
    name = given or own_tokenizer(spec)
    path = Path(name or "")
    deciding = [path / file for file in (*_TOKENIZER_FILES, "tokenizer_config.json")] if path.is_dir() else [path]
    found = [file for file in deciding if file.is_file() and (given or file.suffix != ".gguf")]
    digest = artifacts.digest_json([[file.name, artifacts.digest_weights(file)] for file in found]) if name and found else None
    where = str(Path(given).resolve()) if given and Path(given).exists() else given
    return {"given": where, "digest": digest} if given or digest else None
