"""Sequence mixers of the papers, one file each, by the names that checkpoints and `recallkit
models` use."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from recallkit import registry

if TYPE_CHECKING:
    from recallkit.models.mixers.api import Mixer

MIXERS: dict[str, str] = {
    "attention": "recallkit.models.mixers.attention:Attention",
    "sliding_window": "recallkit.models.mixers.sliding_window:SlidingWindow",
    "blocked_window": "recallkit.models.mixers.blocked_window:BlockedWindow",
    "sparse_attention": "recallkit.models.mixers.sparse_attention:SparseAttention",
    "entmax_attention": "recallkit.models.mixers.entmax_attention:EntmaxAttention",
    "selective_attention": "recallkit.models.mixers.selective_attention:SelectiveAttention",
    "gau": "recallkit.models.mixers.gau:GAU",
    "long_conv": "recallkit.models.mixers.long_conv:LongConv",
    "base_conv": "recallkit.models.mixers.base_conv:BaseConv",
    "gated_short_conv": "recallkit.models.mixers.base_conv:GatedShortConv",
    "hyena": "recallkit.models.mixers.hyena:Hyena",
    "programmatic_conv": "recallkit.models.mixers.dynamic_conv:ProgrammaticConv",
    "autocorrelation_conv": "recallkit.models.mixers.dynamic_conv:AutocorrelationConv",
    "linear_attention": "recallkit.models.mixers.linear_attention:LinearAttention",
    "prefix_linear_attention": "recallkit.models.mixers.prefix_linear_attention:PrefixLinearAttention",
    "retnet": "recallkit.models.mixers.retnet:RetNet",
    "gla": "recallkit.models.mixers.gla:GLA",
    "hgrn": "recallkit.models.mixers.hgrn:HGRN",
    "hgrn2": "recallkit.models.mixers.hgrn:HGRN2",
    "delta_net": "recallkit.models.mixers.delta_net:DeltaNet",
    "gated_delta": "recallkit.models.mixers.gated_delta:GatedDelta",
    "kda": "recallkit.models.mixers.kda:KDA",
    "rwkv4": "recallkit.models.mixers.rwkv4:RWKV4",
    "rwkv5": "recallkit.models.mixers.rwkv5:RWKV5",
    "rwkv7": "recallkit.models.mixers.rwkv7:RWKV7",
    "mamba": "recallkit.models.mixers.mamba:Mamba",
    "mamba2": "recallkit.models.mixers.mamba2:Mamba2",
    "mamba3": "recallkit.models.mixers.mamba3:Mamba3",
    "h3": "recallkit.models.mixers.h3:H3",
    "s4": "recallkit.models.mixers.s4:S4",
    "s4d": "recallkit.models.mixers.s4d:S4D",
    "gss": "recallkit.models.mixers.gss:GSS",
}
"""Name -> class. A mixer is a file, a line here and a test."""


MOST = 1 << 20
"""The largest allowed value of an option."""


def make_mixer(kind: str, d_model: int, **options: Any) -> Mixer:
    """The mixer of this name with its options. Raises UserError for an unknown name, ValueError or
    TypeError for wrong options."""
    make = registry.resolve(MIXERS, kind, "mixer")
    known = options_of(make)
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"{kind} has no option {name}: it has {', '.join(known)}")
        if not _fits(value, known[name]):
            raise ValueError(f"{name} of {kind} is {value!r}, not {known[name]}")
    mixer: Mixer = make(d_model, **options)
    return mixer


def options_of(make: type) -> dict[str, str]:
    """The keyword options of a mixer's class, including those that it passes on to its base, and
    their annotations."""
    found: dict[str, str] = {}
    for base in make.__mro__:
        parameters = inspect.signature(base).parameters.values() if "__init__" in vars(base) else []
        found = {p.name: str(p.annotation) for p in parameters if p.kind is p.KEYWORD_ONLY} | found
        if parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def _fits(value: Any, wanted: str) -> bool:
    """Whether a value is of an annotated type (`int | None` ...), and of a plausible size."""
    types = wanted.split(" | ")
    if value is None or isinstance(value, bool | str):
        return {type(None): "None", bool: "bool", str: "str"}[type(value)] in types
    if isinstance(value, int) and "int" in types:
        return 0 <= value <= MOST
    return isinstance(value, int | float) and "float" in types and 0 <= value <= MOST
