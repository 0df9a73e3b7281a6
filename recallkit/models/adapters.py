"""PEFT adapters (LoRA and others): the model that an adapter changes, and the adapter merged into
its weights."""

from __future__ import annotations

import contextlib
import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.errors import UserError
from recallkit.models.checkpoint_files import indexed_files
from recallkit.quiet_transformers import FAILURES_TO_READ, first_line
from recallkit.registry import may_be_hub_id
from recallkit.storage import artifacts, hashing
from recallkit.storage.given_files import check_files_in

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")

_NOT_MERGED = (
    "megatron_config",
    "alora_invocation_tokens",
    "arrow_config",
    "adapters",
    "shadow_model",
)
"""Entries of a configuration: code that is imported by its name, adapters that depend on the text,
and further models."""

_TOLERANCE = 1e-3
"""Relative to the largest logit: merging changes float32 logits by some 1e-6 of it."""


@dataclass(frozen=True)
class Adapter:
    """An adapter's folder, and its base."""

    folder: Path
    base: str
    """The directory or hub id of the model that it changes."""


def read_adapter(folder: Path) -> Adapter:
    """The adapter in a folder with an adapter_config.json.

    Raises UserError where its configuration names no base model, or one that is not here, or
    entries that are not merged, and where there are no weights.
    """
    where = folder / CONFIG
    check_files_in(folder)
    indexed_files(folder)
    config = artifacts.json_object(where)
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise UserError(
            "no base model is named",
            where=where,
            remedy="write its directory or hub id at base_model_name_or_path",
        )
    if used := [name for name in _NOT_MERGED if config.get(name)]:
        raise UserError(
            f"adapters with {used[0]} are not merged",
            where=where,
            remedy="give a merged model",
        )
    if not any((folder / name).is_file() for name in WEIGHTS):
        raise UserError(
            f"an adapter without weights: no {' or '.join(WEIGHTS)}",
            where=folder,
            remedy="check that the folder is complete",
        )
    place, revision = _place(base, folder), config.get("revision")
    return Adapter(
        folder,
        place if revision in (None, "main") or Path(place).exists() else f"{place}@{revision}",
    )


def _place(base: str, folder: Path) -> str:
    """The base model's directory or hub id. A relative directory is relative to the adapter's
    folder, or else to the present one."""
    if (folder / base).is_dir():
        return str(folder / base)
    if Path(base).exists():
        return base
    if not may_be_hub_id(base):
        raise UserError(
            f"its base model {base} is not here",
            where=folder / CONFIG,
            remedy="write its place at base_model_name_or_path",
        )
    return base


def identify(adapter: Adapter) -> str:
    """Digest of an adapter's configuration and weights, without its base's."""
    names = [CONFIG, next(name for name in WEIGHTS if (adapter.folder / name).is_file())]
    return hashing.digest_json(
        [[name, hashing.digest_weights(adapter.folder / name)] for name in names],
    )


def merge(adapter: Adapter, base: Any) -> Any:
    """The base model with the adapter merged into its weights, in the base's precision.

    Raises UserError where peft is missing, where weights of the adapter cannot be read, are missing
    or belong to no layer of the base, and where merging them changes outputs.
    """
    import pickle

    import torch
    from safetensors import SafetensorError

    try:
        # What peft prints and warns of is hidden: what matters is checked.
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
            torch.inference_mode(),
        ):
            warnings.simplefilter("ignore")
            adapted = _adapted(adapter, base)
            ids = torch.arange(16)[None] % base.get_input_embeddings().weight.shape[0]
            before = adapted(input_ids=ids).logits
            merged = adapted.merge_and_unload()
            after = merged(input_ids=ids).logits
    except UserError:
        raise
    except ModuleNotFoundError as error:
        if error.name != "peft":
            raise
        raise UserError(
            "an adapter, which needs peft",
            where=adapter.folder,
            remedy=f"install it: {config.installing('peft')}",
        ) from error
    except (*FAILURES_TO_READ, SafetensorError, pickle.UnpicklingError, AssertionError) as error:
        remedy = "check that the adapter is complete, and made for this base model"
        raise UserError(
            f"peft cannot apply it to {adapter.base} ({first_line(error)})",
            where=adapter.folder,
            remedy=remedy,
        ) from error
    apart = (after - before).abs().max()
    if base.dtype.itemsize >= 4 and apart > _TOLERANCE * before.abs().max():
        problem = f"merging it into {adapter.base} changes logits by {float(apart):.2g}"
        raise UserError(
            problem,
            where=adapter.folder,
            remedy="save a merged model whose outputs are right, and give that",
        )
    return merged


def _adapted(adapter: Adapter, base: Any) -> Any:
    """The base model with the adapter beside its weights."""
    import peft

    weights = peft.load_peft_weights(str(adapter.folder), device="cpu")
    _fit_vocabulary(adapter, base, weights)
    config = peft.PeftConfig.from_pretrained(str(adapter.folder))
    config.inference_mode = True
    adapted = peft.PeftModel(base, config)
    renamed = getattr(base, "_checkpoint_conversion_mapping", None)
    loaded = adapted.load_adapter(
        str(adapter.folder),
        "default",
        torch_device="cpu",
        key_mapping=renamed,
    )
    for word, keys in (
        ("missing", loaded.missing_keys),
        ("of no layer of the base model", loaded.unexpected_keys),
    ):
        if keys:
            example = f"{sorted(keys)[0]} among them"
            problem = f"{len(keys)} of the adapter's weights are {word}, {example}"
            raise UserError(
                problem,
                where=adapter.folder,
                remedy=f"check that it was made for {adapter.base}",
            )
    return adapted.eval()


def _fit_vocabulary(adapter: Adapter, base: Any, weights: dict[str, Tensor]) -> None:
    """Gives the base as many rows of embeddings as the adapter's, where it contains those of a
    larger vocabulary.

    Raises UserError where rows of the head or the embedding would remain without weights.
    """
    places = {module: name for name, module in base.named_modules()}
    layers = [base.get_input_embeddings(), base.get_output_embeddings()]
    saved = [weights.get(f"base_model.model.{places[layer]}.weight") for layer in layers]
    rows = {len(weight) for weight in saved if weight is not None} - {len(layers[0].weight)}
    if not rows:
        return
    is_tied = layers[0].weight is layers[1].weight
    if len(rows) > 1 or (not is_tied and any(weight is None for weight in saved)):
        raise UserError(
            "its embeddings have other vocabularies than the base model's",
            where=adapter.folder,
            remedy="give a merged model",
        )
    base.resize_token_embeddings(rows.pop(), mean_resizing=False)
