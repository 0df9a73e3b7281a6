"""Operations of a training step as Zoology counts them (arXiv 2312.04927, tables 7, 9, 14 and 16), beside `LanguageModel.flops`.

A table gives the products of one forward pass, D channels, N tokens, V entries of the vocabulary, in which a multiplication and an
addition are one. The printed TFLOPs are six times that (two operations for each, and the backward pass is twice the forward one) for one
sequence of 2,048 tokens, with logarithms to base 2. An embedding counts V N D like the head, although it is a lookup.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from recallkit.models.presets import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable

    from recallkit.models.architecture import LayerConfig
    from recallkit.models.presets import Preset

PASSES = 6
FILTER_ORDER = 64


def paper_flops(preset: Preset, t: int = CONTEXT) -> int | None:
    """Operations of a training step on one sequence of t tokens by the paper's tables; None for architectures that they do not count."""
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


def _attention(d: int, n: int, _: LayerConfig) -> float:
    """Table 7, but 2 N^2 D for scores and weighted values, where it has N^2 D + H N^2 + H^2 D: its TFLOPs follow from the former alone."""
    return 4 * n * d * d + 2 * n * n * d


def _hyena(d: int, n: int, _: LayerConfig) -> float:
    """Table 9."""
    return 3 * n * d * d + 9 * n * d + _long(d, n) + 3 * n * d + FILTER_ORDER * d + n * d * d


def _h3(d: int, n: int, layer: LayerConfig) -> float:
    """Table 9 "adapted for H3", which the paper does not print: with four long convolutions all three sizes have the printed TFLOPs."""
    return _hyena(d, n, layer) + 3 * _long(d, n)


def _long_conv(d: int, n: int, _: LayerConfig) -> float:
    """Table 14."""
    return _long(d, n) + n * d * d


def _base_conv(d: int, n: int, layer: LayerConfig) -> float:
    """Table 16, whose halves are the layers with long filters and those with short ones."""
    return n * d * d + (n * d if layer.options["filter"] == "short" else _long(d, n) + FILTER_ORDER * d)


def _rwkv(d: int, n: int, _: LayerConfig) -> float:
    """The parameters of the linear layers, as in RWKV's appendix (C.2)."""
    return 4 * n * d * d


_PRODUCTS: dict[str, Callable[[int, int, LayerConfig], float]] = {
    "attention": _attention,
    "hyena": _hyena,
    "h3": _h3,
    "long_conv": _long_conv,
    "base_conv": _base_conv,
    "rwkv4": _rwkv,
}
"""Of one layer's mixer, for one sequence."""
