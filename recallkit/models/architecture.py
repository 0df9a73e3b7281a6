"""The architecture of a model on our own mixers, as config.json describes it: no weights, and
nothing heavy is imported."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recallkit import plugins
from recallkit.storage import hashing

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ELEMENTS = 1 << 36
"""Most weights that a config may ask for: a mistyped width is refused before memory is taken."""

MAX_LAYERS = 1000
"""The same for layers, each of which takes time to construct."""

MAX_MODULES = 1 << 14
"""The same for experts, heads and groups in configs that transformers reads, and for the lengths of
their lists."""

MAX_WIDTH = 1 << 24
"""The same for their widths and vocabularies."""

_FOREIGN = (
    (re.compile(r"(num|n)_.*(layers?|blocks?|stages?)|(n|num)_?layers?"), MAX_LAYERS),
    (re.compile(r"(num|n)_.*(experts?|heads?|groups?|head_kv)|the length of .*"), MAX_MODULES),
    (
        re.compile(r".*(vocab_size|hidden_size|intermediate_size|_dim|d_model|n_embd|n_inner)"),
        MAX_WIDTH,
    ),
    (re.compile(r".*(d_state|state_size|conv_kernel)"), MAX_WIDTH),
)
"""Entries of configs that transformers reads, and the most that one may be."""

_CHOICES = {
    "mlp": ("swiglu", "gelu", "rwkv", "none"),
    "norm": ("rms", "layer"),
    "embedding_norm": (True, False),
    "tied_head": (True, False),
    "positions": ("none", "learned"),
}


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """One block: its mixer by name (`recallkit.models.mixers.MIXERS`) and that mixer's options."""

    mixer: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError unless the mixer is a name and the options are a mapping."""
        if not isinstance(self.mixer, str) or not isinstance(self.options, dict):
            # The values come from a file, so a wrong type is a ValueError here.
            problem = f"not {self.mixer!r} and {self.options!r}"
            raise ValueError(f"a layer is a mixer's name and options, {problem}")  # noqa: TRY004


@dataclass(frozen=True, slots=True)
class ArchitectureConfig:
    """Everything that determines the shapes of the weights, as in config.json."""

    vocab_size: int
    d_model: int
    layers: tuple[LayerConfig, ...]
    mlp: Literal["swiglu", "gelu", "rwkv", "none"] = "swiglu"
    mlp_width: int = 0
    """Channels between the MLP's matrices; 0 gives 8/3 of `d_model`, rounded up to a multiple of
    32."""
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5
    embedding_norm: bool = False
    tied_head: bool = True
    max_length: int | None = None
    """The training context, where the model cannot read longer sequences."""
    positions: Literal["none", "learned"] = "none"
    """Whether an embedding of each of the `max_length` positions is added to that of the id, as in
    GPT-2 and Zoology's attention (E.2)."""

    def __post_init__(self) -> None:
        """Raises ValueError for implausible sizes."""
        for name, least in (("vocab_size", 1), ("d_model", 1), ("mlp_width", 0), ("max_length", 1)):
            value = getattr(self, name)
            is_unlimited = name == "max_length" and value is None
            if not is_unlimited and not (_is_whole(value) and value >= least):
                raise ValueError(f"{name} is {value!r}, not a whole number of at least {least}")
        if not isinstance(self.norm_eps, float) or not 0 <= self.norm_eps < 1:
            raise ValueError(f"norm_eps is {self.norm_eps!r}, not a small number")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}: choose {' or '.join(map(str, choices))}",
                )
        if self.positions == "learned" and self.max_length is None:
            raise ValueError("learned positions need a max_length")
        if not 0 < len(self.layers) <= MAX_LAYERS:
            raise ValueError(f"there are {len(self.layers):,} layers, not 1 to {MAX_LAYERS:,}")
        positions = self.max_length or 0 if self.positions == "learned" else 0
        width = max(self.width, 4 * self.d_model)
        largest = max(self.vocab_size, positions, len(self.layers) * width) * self.d_model
        if largest > MAX_ELEMENTS:
            layers = f"{len(self.layers)} layers of {self.d_model} channels"
            raise ValueError(f"{layers}, {self.vocab_size} entries: more than fits anywhere")

    @property
    def width(self) -> int:
        """Channels between the MLP's matrices."""
        return self.mlp_width or math.ceil(self.d_model * 8 / 3 / 32) * 32

    def to_json(self) -> dict[str, Any]:
        """The mapping for config.json."""
        return dataclasses.asdict(self)

    def identity(self) -> dict[str, Any]:
        """What a model with random weights computes: the mapping for config.json, and the code of
        mixers that are plug-ins."""
        return {**self.to_json(), "code": self.identify_plugins()}

    def identify_plugins(self) -> list[list[str]]:
        """Package, version and a digest of the module of each mixer that is a plug-in. Raises
        UserError where one is not to be found."""
        names = sorted({layer.mixer for layer in self.layers})
        mixers = [plugin for name in names if (plugin := plugins.find(name, "mixer")) is not None]
        return [[plugin.origin, hashing.digest_file(Path(plugin.file()))] for plugin in mixers]

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> ArchitectureConfig:
        """The config of such a mapping. Raises ValueError for anything else."""
        known = {entry.name for entry in dataclasses.fields(cls)}
        if unknown := sorted(set(saved) - known):
            raise ValueError(f"unknown entries {', '.join(unknown)}")
        try:
            return cls(
                **{**saved, "layers": tuple(LayerConfig(**layer) for layer in saved["layers"])},
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"entries are missing or of the wrong kind ({error})") from error


def check_foreign(config: Mapping[str, Any]) -> None:
    """Raises ValueError for a config of any other program that asks for more layers, heads or width
    than a model has.

    Each layer takes time and memory when a model is made, before a weight is read that could be
    missing. Nested configs are checked, too.
    """
    for name, value in config.items():
        if isinstance(value, dict):
            check_foreign(value)
        if isinstance(value, list):
            name, value = f"the length of {name}", len(value)
        most = next((most for kind, most in _FOREIGN if kind.fullmatch(str(name))), None)
        if most is not None and isinstance(value, int | float) and not value <= most:
            raise ValueError(f"{name} is {value:,}: more than the {most:,} of any model")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def one_line(*parts: str) -> str:
    """A sentence whose parts are on lines of their own in the code."""
    return " ".join(parts)
