"""Sequence mixers of the papers, one file each, by the names that checkpoints and `recallkit models` use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit import registry

if TYPE_CHECKING:
    from recallkit.models.mixers.api import Mixer

MIXERS: dict[str, str] = {
    "attention": "recallkit.models.mixers.attention:Attention",
    "sliding_window": "recallkit.models.mixers.sliding_window:SlidingWindow",
    "blocked_window": "recallkit.models.mixers.blocked_window:BlockedWindow",
    "sparse_attention": "recallkit.models.mixers.sparse_attention:SparseAttention",
    "selective_attention": "recallkit.models.mixers.selective_attention:SelectiveAttention",
    "long_conv": "recallkit.models.mixers.long_conv:LongConv",
    "base_conv": "recallkit.models.mixers.base_conv:BaseConv",
    "gated_short_conv": "recallkit.models.mixers.base_conv:GatedShortConv",
    "hyena": "recallkit.models.mixers.hyena:Hyena",
    "programmatic_conv": "recallkit.models.mixers.dynamic_conv:ProgrammaticConv",
    "autocorrelation_conv": "recallkit.models.mixers.dynamic_conv:AutocorrelationConv",
    "linear_attention": "recallkit.models.mixers.linear_attention:LinearAttention",
    "retnet": "recallkit.models.mixers.retnet:RetNet",
    "gla": "recallkit.models.mixers.gla:GLA",
    "rwkv4": "recallkit.models.mixers.rwkv4:RWKV4",
    "rwkv5": "recallkit.models.mixers.rwkv5:RWKV5",
    "mamba": "recallkit.models.mixers.mamba:Mamba",
    "mamba2": "recallkit.models.mixers.mamba2:Mamba2",
    "h3": "recallkit.models.mixers.h3:H3",
    "s4d": "recallkit.models.mixers.s4d:S4D",
    "gss": "recallkit.models.mixers.gss:GSS",
}
"""Name -> class. A mixer is a file, a line here and a test."""


def make_mixer(kind: str, d_model: int, **options: Any) -> Mixer:
    """The mixer of this name with its options. Raises UserError for an unknown name, ValueError or TypeError for wrong options."""
    mixer: Mixer = registry.resolve(MIXERS, kind, "mixer")(d_model, **options)
    return mixer
