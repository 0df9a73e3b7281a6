"""Sequence mixers of the papers, one file each, by the names that checkpoints and `recallkit
models` use."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from recallkit import registry

if TYPE_CHECKING:
    from recallkit.models.mixers.api import Mixer

_PLACES = {
    "attention": "attention:Attention",
    "sliding_window": "sliding_window:SlidingWindow",
    "blocked_window": "blocked_window:BlockedWindow",
    "sparse_attention": "sparse_attention:SparseAttention",
    "entmax_attention": "entmax_attention:EntmaxAttention",
    "selective_attention": "selective_attention:SelectiveAttention",
    "gau": "gau:GAU",
    "long_conv": "long_conv:LongConv",
    "base_conv": "base_conv:BaseConv",
    "gated_short_conv": "base_conv:GatedShortConv",
    "hyena": "hyena:Hyena",
    "programmatic_conv": "dynamic_conv:ProgrammaticConv",
    "autocorrelation_conv": "dynamic_conv:AutocorrelationConv",
    "linear_attention": "linear_attention:LinearAttention",
    "prefix_linear_attention": "prefix_linear_attention:PrefixLinearAttention",
    "retnet": "retnet:RetNet",
    "gla": "gla:GLA",
    "hgrn": "hgrn:HGRN",
    "hgrn2": "hgrn:HGRN2",
    "delta_net": "delta_net:DeltaNet",
    "gated_delta": "gated_delta:GatedDelta",
    "kda": "kda:KDA",
    "rwkv4": "rwkv4:RWKV4",
    "rwkv5": "rwkv5:RWKV5",
    "rwkv7": "rwkv7:RWKV7",
    "mamba": "mamba:Mamba",
    "mamba2": "mamba2:Mamba2",
    "mamba3": "mamba3:Mamba3",
    "h3": "h3:H3",
    "s4": "s4:S4",
    "s4d": "s4d:S4D",
    "gss": "gss:GSS",
}
MIXERS = {name: f"{__name__}.{place}" for name, place in _PLACES.items()}
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
    options: dict[str, str] = {}
    for base in make.__mro__:
        parameters = inspect.signature(base).parameters.values() if "__init__" in vars(base) else []
        own = {p.name: str(p.annotation) for p in parameters if p.kind is p.KEYWORD_ONLY}
        options = own | options
        if parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return options


def _fits(value: Any, wanted: str) -> bool:
    """Whether a value is of an annotated type (`int | None` ...), and of a plausible size."""
    types = wanted.split(" | ")
    if value is None or isinstance(value, bool | str):
        return {type(None): "None", bool: "bool", str: "str"}[type(value)] in types
    if isinstance(value, int) and "int" in types:
        return 0 <= value <= MOST
    return isinstance(value, int | float) and "float" in types and 0 <= value <= MOST
