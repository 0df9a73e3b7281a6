"""What can be known of a model before its weights are read, in moments: is it whole, its vocabulary, its context, its precision.

So that what is wrong with the last of several models is told before hours of work with the first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import registry
from recallkit.errors import UserError
from recallkit.models import published, rwkv_file, weight_files, zoo
from recallkit.models.architecture import check_foreign
from recallkit.models.protocol import ModelFacts
from recallkit.models.refusals import quantisation
from recallkit.storage.given_files import read_file

if TYPE_CHECKING:
    from recallkit.models.protocol import ModelRequest

_REMEDY = "check that the directory is whole"

_MOST_UNSAVED = 1.25
"""Most weights that a config asks for, by those in the files: some models compute a few, such as positions, instead of saving them."""

_FEW = 1 << 24
"""Weights that take little memory, of which loading tells the names if they are missing."""

_MOST_PACKED = 32
"""Most weights in one number of a quantised checkpoint: a bit each."""


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
        found = json.loads(read_file(config))
        check_foreign(found)
    except (ValueError, OSError, AttributeError, RecursionError) as error:
        raise UserError(f"its config cannot be read ({error})", where=config, remedy=_REMEDY) from error
    if path.exists():
        weight_files.check_folder(path)
    facts = None if published.is_published(config.parent) or request.trust_remote_code else made_without_weights(request, found)
    return dataclasses.replace(facts or ModelFacts(), dtype=_configured_dtype(found) or _stored_dtype(config.parent))


def made_without_weights(request: ModelRequest, found: dict[str, Any]) -> ModelFacts | None:
    """Vocabulary and context, as the loaded model would tell them; None where transformers cannot make it, which loading explains.

    Raises UserError where a config of a directory asks for more weights than its files have: they would be made before they are missed.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from recallkit.models.transformers_model import context_length
    from recallkit.quiet_transformers import quiet_transformers

    source, revision = (request.spec, None) if Path(request.spec).exists() else registry.split_revision(request.spec)
    facts, wanted = None, 0
    with contextlib.suppress(Exception), quiet_transformers():
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, **({"revision": revision} if revision else {}))
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        facts = ModelFacts(
            int(model.get_output_embeddings().weight.shape[0]), context_length(model.config.get_text_config(), model.base_model)
        )
        model.tie_weights()
        wanted = sum(weight.numel() for weight in model.parameters())
    if facts is not None and revision is None and Path(request.spec).is_dir():
        packed = 1 if quantisation(found) is None else _MOST_PACKED
        check_number(wanted, weight_files.count_weights(Path(request.spec)) * packed, request.spec)
    return facts


def check_number(wanted: int, there: int, where: object) -> None:
    """Raises UserError where a config asks for so many more weights than there are that making them would exhaust the memory."""
    if wanted > there * _MOST_UNSAVED + _FEW:
        problem = f"its config asks for {wanted:,} weights, and its files have {there:,}"
        raise UserError(problem, where=where, remedy="check that config and weights belong together")


def _configured_dtype(config: dict[str, Any]) -> str | None:
    """The precision that a config names, also that of its text model."""
    nested = config.get("text_config")
    named = config.get("dtype") or config.get("torch_dtype") or (_configured_dtype(nested) if isinstance(nested, dict) else None)
    return named.removeprefix("torch.") if isinstance(named, str) else None


_SAFETENSORS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _stored_dtype(folder: Path) -> str | None:
    """The precision of most weights of a safetensors file, from its header; None where there is none."""
    for file in sorted(folder.glob("*.safetensors")):
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            kinds = [entry.get("dtype") for name, entry in weight_files.safetensors_header(file).items() if name != "__metadata__"]
            return _SAFETENSORS.get(max(set(kinds), key=kinds.count))
    return None
