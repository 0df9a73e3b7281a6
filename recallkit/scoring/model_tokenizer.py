"""The tokenizer that comes with a model, identified without being read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recallkit.models.kinds import kind_of
from recallkit.storage import artifacts


def own_tokenizer(spec: str) -> str | None:
    """The tokenizer that comes with a model; None if there is none."""
    return kind_of(spec).own_tokenizer(spec)


def identify_tokenizer(spec: str, given: str | None) -> dict[str, Any] | None:
    """What distinguishes one tokenizer from another, without reading it; None for one that the model's own digest covers."""
    from recallkit.models.refusals import TOKENIZER_FILES

    name = given or own_tokenizer(spec)
    path = Path(name or "")
    deciding = [path / file for file in (*TOKENIZER_FILES, "tokenizer_config.json")] if path.is_dir() else [path]
    found = [file for file in deciding if file.is_file() and (given or file.suffix != ".gguf")]
    digest = artifacts.digest_json([[file.name, artifacts.digest_weights(file)] for file in found]) if name and found else None
    where = str(Path(given).resolve()) if given and Path(given).exists() else given
    return {"given": where, "digest": digest} if given or digest else None
