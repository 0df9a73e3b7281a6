"""Sweeps of the papers' figures, and a small one, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

AS_WIDE = "width"
"""In place of a number: the model's width."""


class Line(NamedTuple):
    """Models of one line of a figure: every combination of widths and of the mixers' options."""

    mixers: str
    """Several joined by + take turns, layer by layer."""
    options: Mapping[str, tuple[Any, ...]] = {}
    widths: tuple[int, ...] = ()
    """Empty: those of the preset."""


Shape = tuple[int, tuple[int, ...]]
"""Ids of a sequence, and numbers of pairs."""


@dataclass(frozen=True)
class Preset:
    """A sweep. `tasks` are pairs of what is trained on and what is tested on, each a length and
    numbers of pairs."""

    tasks: tuple[tuple[Shape, Shape], ...]
    lines: Mapping[str, Line]
    widths: tuple[int, ...]
    learning_rates: tuple[float, ...]
    examples: int = 100_000
    """Training sequences an epoch, of all numbers of pairs together."""
    test_examples: int = 3_000
    """Test sequences, likewise."""
    vocab: int = 8192
    epochs: int = 64
    steps: int | None = None
    """Instead of epochs."""
    batch: int | None = None
    """None: 8, 16 or 64 by length and width, as in Zoology's E.2."""
    layers: int = 2
    mlp: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the task."""
    taps: int = 3
    """Of the short convolution that mixers with the option `short_conv` have, unless a BaseConv is
    beside them."""
    positions: str = "rotary"
    """Of attention before which there is no short convolution: `rotary` or `learned`; with one it
    has none."""


def _alone(*shapes: tuple[int, int]) -> tuple[tuple[Shape, Shape], ...]:
    """Tasks that are tested on what they train."""
    return tuple(((length, (pairs,)), (length, (pairs,))) for length, pairs in shapes)


ZOOLOGY_RATES = (1e-4, 4.641589e-4, 2.154435e-3, 1e-2)
"""logspace(-4, -2, 4): Zoology, E.2."""
BASED_RATES = (1e-3, 3.162278e-3, 1e-2, 3.162278e-2)
"""logspace(-3, -1.5, 4): the code published with Based; the paper gives none."""
RANDOM = {"filler": "random"}
"""Ids between pairs and questions: of the authors' code since October 2023, and of Based's Figures
2 and 3."""
MIXED: tuple[Shape, Shape] = ((256, (4, 8, 16, 32, 64)), (1024, (4, 8, 16, 32, 64, 128, 256)))
"""Based, 3.1: trained on 256 ids with 4 to 64 pairs, tested on 1,024 with 4 to 256."""

_LONG = {"attention": Line("attention"), "hyena": Line("hyena")}
_WIDE_MAPS = ("elu", "identity", "relu", "square", "cosformer", "performer")
_MAPS: dict[str, tuple[str, int | str]] = {"taylor 16": ("taylor", 16), "taylor 24": ("taylor", 24)}
_MAPS |= {name: (name, AS_WIDE) for name in _WIDE_MAPS}

PRESETS: Mapping[str, Preset] = {
    "cpu": Preset(
        # about 20 minutes of one core: trained on 64 ids with 4 to 16 pairs, tested on 256 with 4
        # to 64
        (((64, (4, 8, 16)), (256, (4, 8, 16, 32, 64))),),
        {
            "attention": Line("attention", widths=(16, 32)),
            "sliding_window": Line("sliding_window", {"window": (8, 32, 128)}),
            "linear_attention": Line("linear_attention", {"feature_dim": (4, 8, 16)}),
            "linear_attention alone": Line(
                "linear_attention",
                {"feature_dim": (4, 8, 16), "short_conv": (0,)},
            ),
            "window alone": Line("sliding_window", {"window": (16,), "short_conv": (0,)}),
            "linear_attention + window": Line(
                "linear_attention+sliding_window",
                {"feature_dim": (4, 8, 16), "window": (16,), "short_conv": (0,)},
            ),
            "delta_net": Line("delta_net", widths=(16, 32)),
            "mamba": Line("mamba", {"state": (4, 16)}),
        },
        widths=(32,),
        learning_rates=BASED_RATES,
        examples=30_000,
        test_examples=500,
        vocab=256,
        steps=600,
        batch=32,
    ),
    "zoology:2": Preset(
        # Zoology, Figure 2: accuracy by width, at four lengths
        _alone((64, 4), (128, 8), (256, 16), (512, 64)),
        {
            **_LONG,
            "base_conv": Line("base_conv"),
            "rwkv4": Line("rwkv4"),
            "h3": Line("h3"),
            "programmatic_conv": Line("programmatic_conv"),
            "autocorrelation_conv": Line("autocorrelation_conv"),
            "base_conv + attention": Line("base_conv+attention"),
        },
        widths=(64, 128, 256, 512),
        learning_rates=ZOOLOGY_RATES,
        taps=0,
        positions="learned",
    ),
    "zoology:6": Preset(
        # Zoology, Figure 6: accuracy by width, for four numbers of pairs in 256 ids
        _alone((256, 8), (256, 16), (256, 32), (256, 64)),
        {
            **_LONG,
            "retnet": Line("retnet"),
            "sliding_window 8": Line("sliding_window", {"window": (8,)}),
            "sliding_window 32": Line("sliding_window", {"window": (32,)}),
            "blocked_window 8": Line("blocked_window", {"window": (8,)}),
            "blocked_window 32": Line("blocked_window", {"window": (32,)}),
        },
        widths=(64, 128, 256),
        learning_rates=ZOOLOGY_RATES,
        taps=0,
        positions="learned",
    ),
    "based:2": Preset(
        # Based, Figure 2: accuracy by bytes of state
        (MIXED,),
        {
            "attention": Line("base_conv+attention", widths=(64, 128)),
            "sliding_window": Line(
                "base_conv+sliding_window",
                {"window": (8, 16, 32, 64, 128, 256, 512, 1024)},
                widths=(128,),
            ),
            "mamba": Line("mamba", {"state": (8, 16, 24)}),
            "h3": Line("h3"),
            "hyena": Line("hyena"),
            "based": Line(
                "base_conv+linear_attention",
                {"feature_dim": (8, 16, 24)},
                widths=(48, 64, 128),
            ),
        },
        widths=(64, 128, 256),
        learning_rates=BASED_RATES,
        test_examples=7_000,
        epochs=32,
        batch=256,
        mlp=False,
        options=RANDOM,
    ),
    "based:3": Preset(
        # Based, Figure 3: feature maps of linear attention, at 256 pairs
        ((MIXED[0], (1024, (256,))),),
        {
            name: Line(
                "base_conv+linear_attention",
                {"feature_map": (how,), "feature_dim": (size,)},
            )
            for name, (how, size) in _MAPS.items()
        },
        widths=(64, 128, 192, 256, 320, 384, 448, 512),
        learning_rates=BASED_RATES,
        test_examples=1_000,
        epochs=32,
        batch=256,
        mlp=False,
        options=RANDOM,
    ),
}
"""The sweeps of figures, by paper and number, and a small one."""
