"""What mixers and zoo models cost: parameters, state, operations; computed from the modules themselves, without weights."""

from __future__ import annotations

import inspect
import json
from typing import Any

from recallkit import registry
from recallkit.models import presets, zoo
from recallkit.models.mixers import MIXERS, make_mixer
from recallkit.models.paper_flops import paper_flops


def describe_mixers(d_model: int, length: int) -> list[dict[str, Any]]:
    """One row per mixer, with its default options: `mixer`, `description`, `parameters`, `state_elements`, `flops_per_token`.

    State: of one sequence after `length` tokens, as Zoology and Based (arXiv 2402.18668, appendix E.2) count it where they give it.
    Operations: of the forward pass on `length` tokens; a multiplication and an addition count as two.
    Raises ValueError where `d_model` does not fit a mixer's heads.
    """
    import torch

    rows = []
    for name in MIXERS:
        with torch.device("meta"):
            mixer = make_mixer(name, d_model, **_options(name, length))
        rows.append(
            {
                "mixer": name,
                "description": _first_sentence(type(mixer)),
                "parameters": sum(parameter.numel() for parameter in mixer.parameters()),
                "state_elements": mixer.state_size(length),
                "flops_per_token": mixer.flops(length) / length,
            }
        )
    return rows


def describe_zoo() -> list[dict[str, Any]]:
    """One row per zoo model: costs as in `describe_mixers` at its own context, `embeddings` apart, and `trained_tokens`."""
    import torch

    from recallkit.models.language_model import LanguageModel

    rows = []
    for name, described in zoo.ARCHITECTURES.items():
        with torch.device("meta"):
            model = LanguageModel(zoo.architecture(name))
        rows.append(
            {
                "model": f"{zoo.PREFIX}{name}",
                "description": described.description,
                "parameters": model.num_parameters(embeddings=False),
                "embeddings": model.num_parameters() - model.num_parameters(embeddings=False),
                "state_elements": model.state_size(zoo.CONTEXT),
                "flops_per_token": model.flops(zoo.CONTEXT) / zoo.CONTEXT,
                "trained_tokens": _trained_tokens(name),
            }
        )
    return rows


def describe_presets(context: int = presets.CONTEXT) -> list[dict[str, Any]]:
    """One row per preset: `preset`, `table`, `printed` and counted `parameters`, all with embeddings, `miss` between them, costs, `note`.

    `state_elements` and `flops_per_token` as in `describe_mixers` at `context` tokens; `flops_paper` is a training step on one such
    sequence as Zoology counts it (see `paper_flops`), None where it does not.
    """
    import torch

    rows = []
    for name, entry in presets.PRESETS.items():
        with torch.device("meta"):
            model = presets.build(name, context)
        parameters = model.num_parameters()
        rows.append(
            {
                "preset": name,
                "table": entry.table,
                "printed": entry.printed,
                "parameters": parameters,
                "miss": parameters / entry.printed - 1,
                "state_elements": model.state_size(context),
                "flops_per_token": model.flops(context) / context,
                "flops_paper": paper_flops(entry, context),
                "note": entry.note,
            }
        )
    return rows


def _options(name: str, length: int) -> dict[str, Any]:
    """`max_length`, where the mixer has filters as long as the sequence."""
    parameters = inspect.signature(registry.resolve(MIXERS, name, "mixer")).parameters
    default = parameters["max_length"].default if "max_length" in parameters else None
    return {} if default is None else {"max_length": length}


def _first_sentence(mixer: type) -> str:
    return (inspect.getdoc(inspect.getmodule(mixer)) or "").splitlines()[0].rstrip(".")


def _trained_tokens(name: str) -> int | None:
    """Training tokens according to the model card; None for a model that is not shipped."""
    folder = zoo.shipped().get(name)
    return None if folder is None else int(json.loads((folder / zoo.CARD).read_bytes())["tokens"])
