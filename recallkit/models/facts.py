"""What can be known of a model before its weights are read, in moments: is it whole, its vocabulary, its context, its precision.

So that what is wrong with the last of several models is told before hours of work with the first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import registry
from recallkit.errors import UserError
from recallkit.models import published, rwkv_file, zoo
from recallkit.models.architecture import check_foreign
from recallkit.models.protocol import ModelFacts
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from recallkit.models.protocol import ModelRequest

_REMEDY = "check that the directory is whole"


def native_facts(request: ModelRequest) -> ModelFacts | None:
    """Of a checkpoint of ours, or an RWKV file: from its config or header. None for layouts whose shapes are in the weights."""
    folder = zoo.find_shipped(request.spec) if request.spec.startswith(zoo.PREFIX) else Path(request.spec)
    if folder.is_file():
        return ModelFacts(vocab_size=rwkv_file.read_vocab_size(folder))
    if not zoo.is_ours(folder):
        return None
    config = zoo.read_config(folder)
    return ModelFacts(config.vocab_size, config.max_length)


def control_facts(request: ModelRequest) -> None:
    """Nothing is known of a control model, but it is opened: that reads no count. Raises UserError for counts that do not fit."""
    from recallkit.models.control import load_control

    load_control(request)


def transformers_facts(request: ModelRequest) -> ModelFacts | None:
    """Of a directory or hub id that transformers loads: from its config and from the model made of it without weights.

    None for a GGUF file, whose header takes seconds, and where only loading can tell. Raises UserError for a config that is no JSON or
    asks for impossible sizes, and where shards of the weights are missing.
    """
    from recallkit.models.hub import hub_file_if_any

    path = Path(request.spec)
    if path.is_file():
        return None
    config = path / "config.json" if path.exists() else hub_file_if_any(request.spec, "config.json")
    if config is None or not config.is_file():  # an adapter, or nothing: which, its identity tells
        return None
    try:
        found = json.loads(config.read_bytes())
        check_foreign(found)
    except (ValueError, OSError, AttributeError, RecursionError) as error:
        raise UserError(f"its config cannot be read ({error})", where=config, remedy=_REMEDY) from error
    if path.exists():
        _check_shards(path)
    facts = None if published.is_published(config.parent) or request.trust_remote_code else _made_without_weights(request)
    return dataclasses.replace(facts or ModelFacts(), dtype=_configured_dtype(found) or _stored_dtype(config.parent))


def _check_shards(folder: Path) -> None:
    """Raises UserError where a shard that an index of weights names is not there."""
    for index in sorted(folder.glob("*.index.json")):
        named = artifacts.json_object(index).get("weight_map")
        for shard in sorted(set(map(str, named.values()))) if isinstance(named, dict) else ():
            if not (folder / shard).is_file():
                raise UserError(f"{shard} is missing, which {index.name} names", where=folder, remedy=_REMEDY)


def _made_without_weights(request: ModelRequest) -> ModelFacts | None:
    """Vocabulary and context, as the loaded model would tell them; None where transformers cannot make it, which loading explains."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from recallkit.models.transformers_model import context_length
    from recallkit.quiet_transformers import quiet_transformers

    source, revision = (request.spec, None) if Path(request.spec).exists() else registry.split_revision(request.spec)
    with contextlib.suppress(Exception), quiet_transformers():
        config = AutoConfig.from_pretrained(source, **({"revision": revision} if revision else {}))
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)
        return ModelFacts(
            int(model.get_output_embeddings().weight.shape[0]), context_length(model.config.get_text_config(), model.base_model)
        )
    return None


def _configured_dtype(config: dict[str, Any]) -> str | None:
    """The precision that a config names, also that of its text model."""
    nested = config.get("text_config")
    named = config.get("dtype") or config.get("torch_dtype") or (_configured_dtype(nested) if isinstance(nested, dict) else None)
    return named.removeprefix("torch.") if isinstance(named, str) else None


_SAFETENSORS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _stored_dtype(folder: Path) -> str | None:
    """The precision of most weights of a safetensors file, from its header; None where there is none."""
    for file in sorted(folder.glob("*.safetensors")):
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, struct.error), file.open("rb") as opened:
            header = json.loads(opened.read(min(struct.unpack("<Q", opened.read(8))[0], 1 << 26)))
            kinds = [entry.get("dtype") for name, entry in header.items() if name != "__metadata__"]
            return _SAFETENSORS.get(max(set(kinds), key=kinds.count))
    return None
