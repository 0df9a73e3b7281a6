"""The tokenizer that comes with a model, or is given for it: named, and identified without being read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recallkit import config
from recallkit.errors import UserError
from recallkit.models.kinds import kind_of
from recallkit.storage import artifacts


def own_tokenizer(spec: str) -> str | None:
    """The tokenizer that comes with a model; None if there is none."""
    return kind_of(spec).own_tokenizer(spec)


def tokenizer_name(given: Any) -> str | None:
    """A tokenizer as `load_tokenizer` takes it; an object of tokenizers or transformers is written to the cache folder.

    Raises UserError for an object that has no fast tokenizer in it.
    """
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Path):
        return str(given)
    backend = next((each for name in ("backend_tokenizer", "backend") if (each := getattr(given, name, None)) is not None), given)
    if not hasattr(backend, "to_str"):
        problem = f"an object of {type(given).__name__} is no tokenizer that can be read"
        raise UserError(problem, where="tokenizer", remedy="give a path, a tokenizers.Tokenizer or a fast tokenizer of transformers")
    written: str = backend.to_str()
    path = config.home() / "tokenizers" / artifacts.digest_bytes(written.encode()) / "tokenizer.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with artifacts.replacing(path) as temporary:
            temporary.write_text(written, encoding="utf-8")
    return str(path)


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
