"""What mixers, zoo models and presets cost: parameters, state, operations; computed from the
modules themselves, without weights.

`paper_flops` counts the operations of a training step as Zoology does (arXiv 2312.04927, tables 7,
9, 14 and 16). A table gives the products of one forward pass, D channels, N tokens, V entries of
the vocabulary, in which a multiplication and an addition are one. The printed TFLOPs are six times
that (two operations for each, and the backward pass is twice the forward one) for one sequence of
2,048 tokens, with logarithms to base 2. An embedding counts V N D like the head, although it is a
lookup.
"""

from __future__ import annotations

import inspect
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import registry
from recallkit.display import cells, console
from recallkit.display.tables import Table
from recallkit.models import presets, zoo
from recallkit.models.checkpoint_files import TOKENIZER_FILES
from recallkit.models.devices import gigabytes
from recallkit.models.kinds import kind_of
from recallkit.models.loading import check_model, choose_prefix, usual_tokenizer
from recallkit.models.mixers import MIXERS, make_mixer
from recallkit.models.plan import ModelPlan
from recallkit.models.protocol import ModelFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from recallkit.models.architecture import LayerConfig
    from recallkit.models.presets import Preset
    from recallkit.models.spec import ModelSpec


def describe_mixers(d_model: int, length: int) -> list[dict[str, Any]]:
    """One row per mixer, with its default options: `mixer`, `description`, `parameters`,
    `state_elements`, `flops_per_token`.

    State: of one sequence after `length` tokens, as Zoology and Based (arXiv 2402.18668, appendix
    E.2) count it where they give it.
    Operations: of the forward pass on `length` tokens; a multiplication and an addition count as
    two. Raises ValueError where `d_model` does not fit a mixer's heads.
    """
    import torch

    rows = []
    for name in MIXERS:
        with torch.device("meta"):
            mixer = make_mixer(name, d_model, **_options(name, length))
        parameters = sum(parameter.numel() for parameter in mixer.parameters())
        rows.append(
            {
                "mixer": name,
                "description": _first_sentence(type(mixer)),
                "parameters": parameters,
                **_costs(mixer, length),
            },
        )
    return rows


def describe_zoo() -> list[dict[str, Any]]:
    """One row per zoo model: costs as in `describe_mixers` at its own context, `embeddings` apart,
    and `trained_tokens`."""
    import torch

    from recallkit.models.language_model import LanguageModel

    rows = []
    for name, described in zoo.ARCHITECTURES.items():
        with torch.device("meta"):
            model = LanguageModel(zoo.architecture(name))
        parameters = model.num_parameters(embeddings=False)
        rows.append(
            {
                "model": f"{zoo.PREFIX}{name}",
                "description": described.description,
                "parameters": parameters,
                "embeddings": model.num_parameters() - parameters,
                **_costs(model, zoo.CONTEXT),
                "trained_tokens": _trained_tokens(name),
            },
        )
    return rows


def describe_presets() -> list[dict[str, Any]]:
    """One row per preset: `preset`, `table`, `printed` and counted `parameters`, all with
    embeddings, `miss` between them, costs, `note`.

    `state_elements` and `flops_per_token` as in `describe_mixers` at CONTEXT tokens; `flops_paper`
    is a training step on one such sequence as Zoology counts it (see `paper_flops`), None where it
    does not.
    """
    import torch

    rows = []
    for name, entry in presets.PRESETS.items():
        with torch.device("meta"):
            model = presets.build(name)
        parameters = model.num_parameters()
        rows.append(
            {
                "preset": name,
                "table": entry.table,
                "printed": entry.printed,
                "parameters": parameters,
                "miss": parameters / entry.printed - 1,
                **_costs(model, presets.CONTEXT),
                "flops_paper": paper_flops(entry),
                "note": entry.note,
            },
        )
    return rows


def describe_inputs(models: Sequence[ModelSpec]) -> list[dict[str, Any]]:
    """One row per model, or tokenizer alone, of what it reads, known before its weights are.

    `model`, `kind`, `vocab_size`, `context` (ids of text, None without a limit), `dtype` of its
    files, `weights` (how many), `tokenizer`, `entries`; `prefix`, the token read before every text,
    and `prefix_reason`; `end_token`, which ends documents, and `end_reason`; `layers`, the numbers
    of those that a kernel or a mixer of ours computes, by its name. None for what is not known.

    Raises UserError for what is neither a model nor a tokenizer, and for a tokenizer that cannot be
    read.
    """
    return [_describe_input(spec) for spec in models]


def _describe_input(spec: ModelSpec) -> dict[str, Any]:
    from recallkit.text.tokenizers import load_tokenizer

    location, is_alone = spec.location, _is_tokenizer(Path(spec.location))
    plan = ModelPlan(spec)
    name = location if is_alone else usual_tokenizer(location, spec.tokenizer)
    row: dict[str, Any] = {
        "model": spec.shown,
        "kind": "tokenizer" if is_alone else kind_of(location).name,
    }
    if name is not None:
        tokenizer = load_tokenizer(name)
        prefix = choose_prefix(plan, tokenizer)
        plan = replace(plan, prefix=prefix)
        row |= {"tokenizer": tokenizer.name, "entries": tokenizer.vocab_size}
        row |= {"prefix": prefix.token or None, "prefix_reason": prefix.reason or None}
        row |= {"end_token": tokenizer.end_token, "end_reason": tokenizer.end_reason}
    facts = ModelFacts() if is_alone else check_model(plan)
    row |= {"vocab_size": facts.vocab_size, "context": facts.max_length, "dtype": facts.dtype}
    row |= {"weights": facts.num_weights, "layers": dict(facts.layers)}
    return {name: row.get(name) for name in _INPUTS}


_INPUTS = (
    *("model", "kind", "vocab_size", "context", "dtype", "weights", "tokenizer", "entries"),
    *("prefix", "prefix_reason", "end_token", "end_reason", "layers"),
)


def _is_tokenizer(path: Path) -> bool:
    """Whether a path is a tokenizer without a model."""
    if path.is_file():
        return path.suffix == ".json"
    has_files = any((path / name).is_file() for name in TOKENIZER_FILES)
    return has_files and not (path / "config.json").exists()


def _costs(costly: Any, length: int) -> dict[str, Any]:
    """Of a mixer or a model."""
    return {
        "state_elements": costly.state_size(length),
        "flops_per_token": costly.flops(length) / length,
    }


def _options(name: str, length: int) -> dict[str, Any]:
    """`max_length`, where the mixer has filters as long as the sequence."""
    parameters = inspect.signature(registry.resolve(MIXERS, name, "mixer")).parameters
    default = parameters["max_length"].default if "max_length" in parameters else None
    return {} if default is None else {"max_length": length}


def _first_sentence(mixer: type) -> str:
    """Of the documentation of a mixer's module, whose lines are wrapped."""
    paragraph = (inspect.getdoc(inspect.getmodule(mixer)) or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).rstrip(".")


def _trained_tokens(name: str) -> int | None:
    """Training tokens according to the model card; None for a model that is not shipped."""
    folder = zoo.shipped().get(name)
    return None if folder is None else int(json.loads((folder / zoo.CARD).read_bytes())["tokens"])


# ---------------------------------------------------------------------------------- what is printed

_COSTS = "parameters state_elements flops_per_token"
_PRESETS = """
    preset table
    printed         | printed | amount
    parameters      | counted
    miss
    state_elements
    flops_per_token | FLOP
    flops_paper     | TFLOP
"""


def print_costs(
    mixers: Sequence[Mapping[str, Any]],
    zoo_models: Sequence[Mapping[str, Any]],
    width: int,
    length: int,
    *,
    full: bool,
) -> None:
    """What mixers of this width and the zoo's models cost."""
    counted = "a multiplication and an addition count as two"
    embeddings = cells.abbreviate(zoo_models[0]["embeddings"])
    of_mixers = Table.from_rows(
        f"Mixers of width {width:,}, sequences of {length:,} tokens",
        f"mixer {_COSTS}",
        mixers,
        f"State: elements kept per sequence. FLOP: of the forward pass; {counted}.",
    )
    of_models = Table.from_rows(
        f"Models of the zoo, sequences of {zoo.CONTEXT} tokens",
        f"model {_COSTS} trained_tokens",
        zoo_models,
        f"Parameters without the embedding, which has {embeddings}.",
    )
    least, most = (pick(mixers, key=lambda row: row["state_elements"]) for pick in (min, max))
    sizes = [cells.abbreviate(row["state_elements"]) for row in (least, most)]
    states = f"{sizes[0]} elements ({least['mixer']}) to {sizes[1]} elements ({most['mixer']})"
    console.print_answer(
        f"After {length:,} tokens the {len(mixers)} mixers keep a state of {states}.",
        [of_mixers, of_models],
        full=full,
    )


def print_inputs(rows: Sequence[Mapping[str, Any]]) -> None:
    """What models read, before their weights are."""
    columns = """
        model
        entries   | entries | amount
        context   | context | amount
        prefix    | first token
        end_token | end token
    """
    with_prefix = sum(row["prefix"] is not None for row in rows)
    answer = f"{with_prefix} of {len(rows)} read a token before every text."
    notes = [_reasons(row) for row in rows if row["end_token"]]
    notes += [_size(row) for row in rows if row["weights"]]
    ours = [row for row in rows if row["layers"]]
    notes += [f"{row['model']}: our {written_layers(row['layers'])}" for row in ours]
    table = Table.from_rows(
        "What each model reads",
        columns,
        rows,
        "Context: ids of text after the first token; –: unlimited, or unknown.",
    )
    console.print_answer(answer, [table], notes, full=True)


def _size(row: Mapping[str, Any]) -> str:
    """What its weights need in each precision."""
    sizes = (gigabytes(row["weights"] * width) for width in (4, 2))
    return "{}: {} weights, {} in float32, {} in bfloat16".format(
        row["model"],
        cells.abbreviate(row["weights"]),
        *sizes,
    )


def _reasons(row: Mapping[str, Any]) -> str:
    """Why a model's first token and its end token are these."""
    first = f"{row['prefix']} ({row['prefix_reason']}), " if row["prefix"] else ""
    return f"{row['model']}: {first}{row['end_token']} ({row['end_reason']})"


def written_layers(layers: Mapping[str, Sequence[int]]) -> str:
    """Which layers run on which kernels or mixers of ours: `short_conv, delta_rule in layers 0 to
    2, 4`."""
    kernels: dict[tuple[int, ...], list[str]] = {}
    for kernel, numbers in layers.items():
        kernels.setdefault(tuple(numbers), []).append(kernel)
    parts = []
    for numbers, names in kernels.items():
        where = f"layer{'s' * (len(numbers) > 1)} {_ranges(numbers)}"
        parts.append(f"{', '.join(names)} in {where}")
    return "; ".join(parts) or "none"


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in rising order, neighbours as a range: 0, 1, 2, 4 are `0 to 2, 4`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ", ".join(" to ".join(map(str, ends)) for ends in ranges)


def print_presets(rows: Sequence[Mapping[str, Any]], *, full: bool) -> None:
    """The architectures of the papers, printed and counted parameters beside, and their costs."""
    title = f"Architectures of Zoology and Based, sequences of {presets.CONTEXT:,} tokens"
    caption = " ".join(
        [
            "Parameters with embeddings. FLOP: of the forward pass, per token.",
            "TFLOP: of a training step on one sequence, as Zoology counts.",
        ],
    )
    near = sum(abs(row["miss"]) <= _NEAR for row in rows)
    worst = max(rows, key=lambda row: abs(row["miss"]))
    within = f"the printed number of parameters within {100 * _NEAR:.0f} %"
    farthest = f"{worst['preset']} misses it by most, {100 * worst['miss']:+z.1f} %"
    said = f"{near} of {len(rows)} architectures have {within}; {farthest}."
    notes = [f"{row['preset']}: {row['note']}" for row in rows if row["note"]]
    console.print_answer(said, [Table.from_rows(title, _PRESETS, rows, caption)], notes, full=full)


_NEAR = 0.02
"""The papers print parameters in two or three digits."""


# -------------------------------------------------------------- operations as the paper counts them

PASSES = 6
FILTER_ORDER = 64


def paper_flops(preset: Preset, t: int = presets.CONTEXT) -> int | None:
    """Operations of a training step on one sequence of t tokens by the paper's tables; None for
    architectures that they do not count."""
    config = preset.config
    if preset.ffn is None or any(layer.mixer not in _PRODUCTS for layer in config.layers):
        return None
    d = config.d_model
    mixers = sum(_PRODUCTS[layer.mixer](d, t, layer) for layer in config.layers)
    mlps = len(config.layers) * preset.ffn * t * d * d
    return round(PASSES * (2 * config.vocab_size * t * d + mixers + mlps))


def _long(d: int, n: int) -> float:
    """A long convolution."""
    return 10 * n * math.log2(n) * d


def _lookups(n: int, layer: LayerConfig) -> float:
    """Positions of n that a selection chooses."""
    chosen: float = layer.options.get("k") or n * layer.options.get("share", 1)
    return chosen


def _convolution(d: int, n: int, layer: LayerConfig) -> float:
    """That of a BaseConv."""
    return n * d if layer.options["filter"] == "short" else _long(d, n) + FILTER_ORDER * d


def _hyena(d: int, n: int) -> float:
    """Table 9."""
    return 3 * n * d * d + 9 * n * d + _long(d, n) + 3 * n * d + FILTER_ORDER * d + n * d * d


_PRODUCTS: dict[str, Callable[[int, int, LayerConfig], float]] = {
    # Table 7, but 2 N^2 D for scores and weighted values, where it has N^2 D + H N^2 + H^2 D: its
    # TFLOPs follow from the former alone.
    "attention": lambda d, n, _: 4 * n * d * d + 2 * n * n * d,
    "sliding_window": lambda d, n, layer: 4 * n * d * d + 2 * n * layer.options["window"] * d,
    # Of each layer's positions, those that look up.
    "selective_attention": lambda d, n, layer: 4 * n * d * d + 2 * n * _lookups(n, layer) * d,
    "hyena": lambda d, n, _: _hyena(d, n),
    # Table 9 "adapted for H3", which the paper does not print: with four long convolutions all
    # three sizes have the printed TFLOPs.
    "h3": lambda d, n, _: _hyena(d, n) + 3 * _long(d, n),
    # Table 14.
    "long_conv": lambda d, n, _: _long(d, n) + n * d * d,
    # Table 16, whose halves are the layers with long filters and those with short ones.
    "base_conv": lambda d, n, layer: n * d * d + _convolution(d, n, layer),
    # The parameters of the linear layers, as in RWKV's appendix (C.2).
    "rwkv4": lambda d, n, _: 4 * n * d * d,
}
"""Of one layer's mixer of width d, for one sequence of n tokens."""
