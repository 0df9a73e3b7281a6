"""The architectures that the papers trained on text, by name: Zoology's tables 6 to 15 and hybrids
of 2 and 4, Based's 6 to 13.

Zoology is arXiv 2312.04927, Based arXiv 2402.18668. What a table prints is taken as it is. What it
leaves open is the same for all: GPT-2's vocabulary of 50,257 (both name its tokenizer), Llama's
norms in Based and GPT-2's in Zoology, no biases in MLPs with a gate, and tied heads except in GLA
and RWKV. An MLP of width 4 with a gate has 8/3 of the channels, rounded up to a multiple of 256:
Llama's rule, which gives the printed 73M, 360M and 1.33B of attention, where 8/3 alone gives 71M
and 1.30B. One of width 2 has twice the channels: in Based with a gate, in Zoology without (its
table 9 counts 4 D^2). Where a preset differs from its table or misses its printed size, its `note`
says so.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from recallkit import registry
from recallkit.models.architecture import ArchitectureConfig, LayerConfig, one_line

if TYPE_CHECKING:
    from recallkit.models.language_model import LanguageModel

CONTEXT = 2048
"""Tokens of a training sequence (the caption of Zoology's table 1)."""
VOCAB_SIZE = 50_257
LOOKUPS = 256
"""Positions of a sequence that Zoology's learned selection chooses (section 5)."""


@dataclass(frozen=True, slots=True)
class Preset:
    """An architecture of a paper."""

    table: str
    """Paper and table, "zoology:6"."""
    printed: int
    """Parameters, as printed: in the head of the table, or for Based in its table 1 where that has
    the model."""
    config: ArchitectureConfig
    ffn: float | None = None
    """The MLP's matrices in the paper's count of operations, in units of d^2; None where the paper
    does not count them."""
    note: str = ""
    """How the preset differs from its table, or misses `printed`."""


def preset(name: str, context: int = CONTEXT) -> ArchitectureConfig:
    """The config of a preset for sequences of at most `context` ids where it has long filters.
    Raises UserError for an unknown name."""
    config = find_preset(name).config
    layers = tuple(_with_context(layer, context) for layer in config.layers)
    return dataclasses.replace(config, layers=layers)


def build(name: str) -> LanguageModel:
    """A preset's model, its weights as initialised for training. Raises UserError for an unknown
    name."""
    from recallkit.models.language_model import LanguageModel

    return LanguageModel(preset(name))


def find_preset(name: str) -> Preset:
    """A preset by its name. Raises UserError for an unknown one."""
    return registry.look_up(PRESETS, name, "preset")


def _with_context(layer: LayerConfig, context: int) -> LayerConfig:
    return LayerConfig(
        layer.mixer,
        {name: context if name == "max_length" else value for name, value in layer.options.items()},
    )


_FILTER = {"max_length": CONTEXT, "frequency": 14.0, "fast_decay": 0.3, "slow_decay": 1.2}
"""Of Zoology's tables 8 and 15 and Based's table 10. The filters' order is 64 and their inner MLP
2, which are our defaults."""
_LONG_FILTER = LayerConfig("base_conv", {**_FILTER, "filter": "implicit"})
_SHORT_FILTER = LayerConfig("base_conv", {"filter": "short", "kernel": 3})


def _gated_width(d_model: int) -> int:
    """Channels of a gated MLP of width 4: 8/3 of d_model, rounded up to a multiple of 256."""
    return math.ceil(d_model * 8 / 3 / 256) * 256


def _config(
    d_model: int,
    layers: tuple[LayerConfig, ...],
    mlp: Literal["swiglu", "gelu", "rwkv", "none"],
    width: int,
    **others: Any,
) -> ArchitectureConfig:
    return ArchitectureConfig(VOCAB_SIZE, d_model, layers, mlp=mlp, mlp_width=width, **others)


def _rwkv_layers(mixer: str, num_layers: int) -> tuple[LayerConfig, ...]:
    options = [{"layer": i, "num_layers": num_layers} for i in range(num_layers)]
    return tuple(LayerConfig(mixer, option) for option in options)


# Zoology: one function per architecture, one line per size.

_UNMODULATED = "without the table's exponential modulation of the filters and their dropout"


def _zoology_attention(
    printed: int,
    num_layers: int,
    d_model: int,
    num_heads: int,
    note: str = "",
) -> Preset:
    layers = (LayerConfig("attention", {"num_heads": num_heads}),) * num_layers
    config = _config(d_model, layers, "swiglu", _gated_width(d_model), norm="layer")
    return Preset("zoology:6", printed, config, 8, note)


def _zoology_hyena(printed: int, num_layers: int, d_model: int, note: str = "") -> Preset:
    config = _config(
        d_model,
        (LayerConfig("hyena", {**_FILTER, "short_kernel": 3}),) * num_layers,
        "gelu",
        2 * d_model,
        norm="layer",
    )
    return Preset("zoology:8", printed, config, 4, note)


def _zoology_h3(printed: int, num_layers: int, d_model: int, note: str) -> Preset:
    config = _config(
        d_model,
        (LayerConfig("h3", {"state": 64}),) * num_layers,
        "gelu",
        2 * d_model,
        norm="layer",
    )
    return Preset("zoology:10", printed, config, 4, note)


def _zoology_rwkv(printed: int, num_layers: int, d_model: int, note: str = "") -> Preset:
    options: dict[str, Any] = {"norm": "layer", "embedding_norm": True, "tied_head": False}
    config = _config(d_model, _rwkv_layers("rwkv4", num_layers), "rwkv", 4 * d_model, **options)
    return Preset("zoology:11", printed, config, 9, note)


def _zoology_long_conv(
    printed: int,
    num_layers: int,
    d_model: int,
    note: str = _UNMODULATED,
) -> Preset:
    options = {"max_length": CONTEXT, "squash": 0.001}
    config = _config(
        d_model,
        (LayerConfig("long_conv", options),) * num_layers,
        "swiglu",
        _gated_width(d_model),
        norm="layer",
    )
    return Preset("zoology:13", printed, config, 8, note)


def _zoology_base_conv(printed: int, num_layers: int, d_model: int, note: str) -> Preset:
    """Long and short filters in turn (appendix B), as table 16 counts half of each."""
    config = _config(
        d_model,
        (_LONG_FILTER, _SHORT_FILTER) * (num_layers // 2),
        "gelu",
        2 * d_model,
        norm="layer",
    )
    return Preset("zoology:15", printed, config, 4, note)


def _hybrid(table: str, printed: int, base: Preset, layer: LayerConfig, note: str) -> Preset:
    """The architecture with three layers, evenly spread, replaced by another (section 5, appendix
    C.2): of 30 those at 5, 15 and 25."""
    layers, third = list(base.config.layers), len(base.config.layers) // 3
    layers[third // 2 :: third] = [layer] * 3
    return Preset(
        table,
        printed,
        dataclasses.replace(base.config, layers=tuple(layers)),
        base.ffn,
        f"{note}; {base.note}",
    )


_SELECTIONS: dict[str, dict[str, Any]] = {
    "random": {"share": LOOKUPS / CONTEXT},
    "programmatic": {"share": LOOKUPS / CONTEXT},
    "learned": {"k": LOOKUPS},
    "full": {},
}
"""Of Zoology's table 2. Equation 3 selects repeated tokens; appendix C.2 says repeated bigrams."""


def _base_conv_with(selection: str, printed: int, base: Preset, heads: int) -> Preset:
    """Heads as in table 6 where the width can have them; of an odd number of entries one is not
    rotated."""
    even = base.config.d_model // heads // 2 * 2
    options = {
        "num_heads": heads,
        "rope_fraction": even * heads / base.config.d_model,
        **_SELECTIONS[selection],
    }
    layer = LayerConfig("selective_attention", {"selection": selection, **options})
    said = f"{heads} heads: the paper prints none for hybrids" + (
        "" if selection == "full" else f", and {LOOKUPS} positions only where learned"
    )
    return _hybrid("zoology:2", printed, base, layer, said)


def _hyena_with(window: int) -> Preset:
    layer = LayerConfig("sliding_window", {"num_heads": 12, "window": window})
    said = one_line(
        "three layers of 12 heads: the paper prints neither; it prints fewer operations",
        "than without windows, which no number gives",
    )
    return _hybrid("zoology:4", 159_000_000, _HYENA_158M, layer, said)


_RETNET = Preset(
    "zoology:12",
    152_000_000,
    _config(
        768,
        (LayerConfig("retnet", {"value_factor": 1280 / 768}),) * 12,
        "swiglu",
        3 * 768,
        norm="layer",
    ),
    note=one_line(
        "the table prints no MLP: 3 times the width, with a gate, gives the printed",
        "size; its window of 128 is not built, nor its initialisation",
    ),
)

_UNEXPLAINED = one_line(
    "the table's entries give fewer parameters than printed; appendix C does not",
    "say what else there is",
)

_HYENA_158M = _zoology_hyena(158_000_000, 18, 864, f"{_UNEXPLAINED}; table 4 says 160M")
_BASE_CONV_168M = _zoology_base_conv(
    168_000_000,
    30,
    852,
    f"{_UNEXPLAINED}; a width of 864 would give the printed operations, not the size",
)
_BASE_CONV_354M = _zoology_base_conv(354_000_000, 48, 1080, _UNEXPLAINED)

# Based: the same.


def _linear(**options: Any) -> LayerConfig:
    return LayerConfig(
        "linear_attention",
        {"num_heads": 16, "feature_dim": 16, "feature_map": "taylor", **options},
    )


def _window(window: int) -> LayerConfig:
    return LayerConfig("sliding_window", {"num_heads": 16, "window": window})


def _based_layers(
    num_layers: int,
    num_each: int,
    window: int,
    **linear: Any,
) -> tuple[LayerConfig, ...]:
    """Every fifth layer from the second on is linear attention, the one after it a window (none if
    0), the others convolutions.

    The order is that of the released checkpoints; the paper prints the numbers of each kind.
    """
    layers = [LayerConfig("gated_short_conv", {"kernel": 3, "expand": 2})] * num_layers
    layers[1 : 5 * num_each : 5] = [_linear(**linear)] * num_each
    if window:
        layers[2 : 5 * num_each : 5] = [_window(window)] * num_each
    return tuple(layers)


def _based(
    printed: int,
    d_model: int,
    layers: tuple[LayerConfig, ...],
    table: str = "based:7",
    note: str = "",
) -> Preset:
    """`decay="input"` in the linear attentions where a model was trained on 10B tokens; those of
    30B and 50B have none (appendix D.4)."""
    return Preset(table, printed, _config(d_model, layers, "swiglu", 2 * d_model), note=note)


def _ablated(layers: tuple[LayerConfig, ...], note: str = "") -> Preset:
    """A row of Based's table 6; `based-360m` is the one without decay."""
    return _based(362_000_000, 1024, layers, "based:6", note)


_COSFORMER = {"feature_map": "cosformer", "max_length": CONTEXT}


def _based_attention(
    printed: int,
    num_layers: int,
    d_model: int,
    num_heads: int,
    fraction: float,
    note: str = "",
) -> Preset:
    layer = LayerConfig("attention", {"num_heads": num_heads, "rope_fraction": fraction})
    layers = (layer,) * num_layers
    return Preset(
        "based:8",
        printed,
        _config(d_model, layers, "swiglu", _gated_width(d_model)),
        note=note,
    )


def _based_mamba(printed: int, d_model: int) -> Preset:
    layers = (LayerConfig("mamba", {"state": 16, "expand": 2, "conv_kernel": 4}),) * 46
    return Preset("based:9", printed, _config(d_model, layers, "none", 0))


_BASED_HYENA = Preset(
    "based:10",
    355_000_000,
    _config(1024, (LayerConfig("hyena", {**_FILTER, "short_kernel": 3}),) * 29, "swiglu", 2 * 1024),
)
_BASED_H3 = Preset(
    "based:11",
    362_000_000,
    _config(
        1024,
        (LayerConfig("h3", {"state": 64, "head_dim": 1024 // 16}),) * 24,
        "swiglu",
        _gated_width(1024),
    ),
    note="the table's caption says Hyena; its place, heads and appendix E.1 say H3",
)
_BASED_RWKV = Preset(
    "based:12",
    362_000_000,
    _config(
        1024,
        _rwkv_layers("rwkv5", 19),
        "rwkv",
        7 * 1024 // 2,
        norm="layer",
        embedding_norm=True,
        tied_head=False,
    ),
    note="the table's caption says Hyena; its place, its MLP and appendix E.1 say RWKV-5",
)
_BASED_GLA = Preset(
    "based:13",
    362_000_000,
    _config(
        1024,
        (LayerConfig("gla", {"num_heads": 4}),) * 24,
        "swiglu",
        2 * 1024,
        tied_head=False,
    ),
    note=one_line(
        "355M, as in the table's head, with a separate head, which the table does not",
        "print; table 1 says 362M",
    ),
)

PRESETS: dict[str, Preset] = {
    "attention-73m": _zoology_attention(73_000_000, 6, 704, 8),
    "attention-125m": _zoology_attention(
        125_000_000,
        12,
        768,
        12,
        one_line(
            "123.6M by the table's entries; learned positions, as in GPT-2, would add 1.6M,",
            "but it prints rotary ones",
        ),
    ),
    "attention-360m": _zoology_attention(360_000_000, 24, 1024, 16),
    "hyena-72m": _zoology_hyena(
        72_000_000,
        8,
        768,
        "a width of 736 would give the printed size and operations; the table prints 768",
    ),
    "hyena-158m": _HYENA_158M,
    "hyena-358m": _zoology_hyena(
        358_000_000,
        36,
        1024,
        "36 layers: the table prints 24, which misses the printed size and operations that 36 give",
    ),
    "h3-72m": _zoology_h3(72_000_000, 8, 720, _UNEXPLAINED),
    "h3-168m": _zoology_h3(168_000_000, 19, 864, _UNEXPLAINED),
    "h3-357m": _zoology_h3(357_000_000, 33, 1024, _UNEXPLAINED),
    "rwkv-72m": _zoology_rwkv(
        72_000_000,
        6,
        624,
        "93M by the table's entries; a width of 512 would give the printed size",
    ),
    "rwkv-169m": _zoology_rwkv(169_000_000, 12, 768),
    "rwkv-351m": _zoology_rwkv(351_000_000, 20, 984),
    "retnet-152m": _RETNET,
    "long-conv-76m": _zoology_long_conv(76_000_000, 6, 704),
    "long-conv-128m": _zoology_long_conv(
        128_000_000,
        12,
        768,
        one_line(
            "768 wide: the table prints 864, which misses the printed size and operations",
            f"that 768 gives; {_UNMODULATED}",
        ),
    ),
    "long-conv-360m": _zoology_long_conv(360_000_000, 24, 1024),
    "base-conv-168m": _BASE_CONV_168M,
    "base-conv-354m": _BASE_CONV_354M,
    "base-conv-random-162m": _base_conv_with("random", 162_000_000, _BASE_CONV_168M, 12),
    "base-conv-programmatic-162m": _base_conv_with(
        "programmatic",
        162_000_000,
        _BASE_CONV_168M,
        12,
    ),
    "base-conv-learned-166m": _base_conv_with("learned", 166_000_000, _BASE_CONV_168M, 12),
    "base-conv-full-166m": _base_conv_with("full", 166_000_000, _BASE_CONV_168M, 12),
    "base-conv-random-365m": _base_conv_with("random", 365_000_000, _BASE_CONV_354M, 15),
    "base-conv-programmatic-365m": _base_conv_with(
        "programmatic",
        365_000_000,
        _BASE_CONV_354M,
        15,
    ),
    "base-conv-learned-351m": _base_conv_with("learned", 351_000_000, _BASE_CONV_354M, 15),
    "base-conv-full-351m": _base_conv_with("full", 351_000_000, _BASE_CONV_354M, 15),
    "hyena-window-64-159m": _hyena_with(64),
    "hyena-window-256-159m": _hyena_with(256),
    "based-360m": _based(363_000_000, 1024, _based_layers(27, 5, 64)),
    "based-1.3b": _based(1_350_000_000, 1792, _based_layers(36, 7, 16)),
    "based-1.3b-decay": _based(1_350_000_000, 1792, _based_layers(36, 7, 16, decay="input")),
    "based-decay": _ablated(_based_layers(27, 5, 64, decay="input")),
    "based-performer-16": _ablated(
        _based_layers(27, 5, 64, decay="input", feature_map="performer", num_features=16),
    ),
    "based-cosformer-16": _ablated(_based_layers(27, 5, 64, decay="input", **_COSFORMER)),
    "based-cosformer-64": _ablated(
        _based_layers(27, 5, 64, decay="input", **_COSFORMER, feature_dim=64),
        one_line(
            "keys and queries of 64 entries take more parameters, as appendix D.4 states;",
            "the caption gives 362M for all rows",
        ),
    ),
    "based-taylor-8": _ablated(_based_layers(27, 5, 64, decay="input", feature_dim=8)),
    "based-taylor-24": _ablated(_based_layers(27, 5, 64, decay="input", feature_dim=24)),
    "based-taylor-32": _ablated(_based_layers(27, 5, 64, decay="input", feature_dim=32)),
    "based-window-128": _ablated(_based_layers(27, 5, 128, decay="input")),
    "based-no-window": _ablated(
        _based_layers(26, 5, 0, decay="input"),
        one_line(
            "what replaces the windows is not printed: 21 convolutions and 5 linear",
            "attentions give the printed size",
        ),
    ),
    "based-no-convolution": _ablated(
        (_linear(decay="input"), _window(64)) * 16,
        one_line(
            "what replaces the convolutions is not printed: 16 linear attentions and 16",
            "windows in turn give the printed size",
        ),
    ),
    "based-linear": _ablated(
        (_linear(decay="input", feature_dim=24),) * 34,
        "the number of layers is not printed: 34 linear attentions give the printed size",
    ),
    "transformer++-360m": _based_attention(360_000_000, 24, 1024, 16, 0.5),
    "transformer++-1.3b": _based_attention(
        1_330_000_000,
        36,
        1680,
        24,
        36 / 70,
        "36 of a head's 70 entries are rotated: half of them, 35, could not be paired",
    ),
    "mamba-360m": _based_mamba(358_000_000, 1024),
    "mamba-1.3b": _based_mamba(1_320_000_000, 2048),
    "hyena-360m": _BASED_HYENA,
    "h3-360m": _BASED_H3,
    "rwkv5-360m": _BASED_RWKV,
    "gla-360m": _BASED_GLA,
}
"""By architecture and printed size: Zoology's in the order of its tables, then Based's."""
