"""Variants of a model: the same weights with a compressed cache, a rounded state or fewer bits, read in chunks.

Each chunk of ids sees the compressed past and itself exactly, then the past is compressed again, as a server compresses what it keeps.
What is kept of a layer's keys and values: `cache_policies`; how a state and weights are rounded: `rounding`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.config import LONGEST
from recallkit.errors import UsageError, UserError
from recallkit.models.user import is_user_function, open_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from recallkit.models.cache_policies import CachePolicy
    from recallkit.models.protocol import ScoringModel
    from recallkit.models.torch_model import TorchModel

CHUNK = 64
"""Ids that are read between two compressions where a variant does not say."""

STATES, WEIGHTS = ("bf16", "fp16", "fp8", "int8"), ("int8", "int4")

MOST_READING = 1e-4
"""Nats by which the NLL of any token may differ where text is read in chunks with nothing compressed, in float32 or wider."""

_PROBED_IDS, _PROBED_CHUNKS = 512, 3


@dataclass(frozen=True, slots=True)
class Variant:
    """What differs from a model as its files are, as its options say it; all None: nothing.

    `cache`: as `cache_policies.parse_cache` reads it, or FILE.py:FUNCTION, a function of the transformers model that returns a Cache of
    transformers or a context manager in which text is read. `state`: one of STATES, how recurrent states are rounded. `weights`: one of
    WEIGHTS. `chunk`: ids between two compressions. `once`: the first ids of a sequence, which are compressed once; what follows stays
    exact. Raises UsageError for anything else.
    """

    cache: str | None = None
    state: str | None = None
    weights: str | None = None
    chunk: int | None = None
    once: int | None = None

    def __post_init__(self) -> None:
        """Checks what is given."""
        if self.cache is not None and not is_user_function(self.cache):
            from recallkit.models.cache_policies import parse_cache

            parse_cache(self.cache)
        for name, known in (("state", STATES), ("weights", WEIGHTS)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise UsageError(f"{name}={value} is not one of {', '.join(known)}", remedy="choose one")
        for name in ("chunk", "once"):
            value = getattr(self, name)
            if value is not None and not (type(value) is int and 1 <= value <= LONGEST):
                raise UsageError(f"{name} is {value}, not a number of ids", remedy="give one such as 64")
        if self.chunk is not None and self.once is not None:
            raise UsageError("chunk and protocol=once", remedy="give one: what follows the first ids is read at once")
        if (self.chunk or self.once) and not self.reads_in_chunks:
            raise UsageError("nothing to compress between chunks", remedy="give cache= or state= as well; cache=full compresses nothing")

    @property
    def reads_in_chunks(self) -> bool:
        """Whether text is read in chunks, with the state compressed between them."""
        return self.cache is not None or self.state is not None

    def identify(self) -> list[Any]:
        """What decides what it does, its file's code included. Raises UserError as `user.identify` does."""
        code = [] if self.cache is None or not is_user_function(self.cache) else [open_function(self.cache)[0].digest]
        return [self.typed(), *code]

    def __str__(self) -> str:
        """What names in results end in: `cache int4, chunk 16`."""
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ", ".join(f"{name} {value}" for name, value in given if value is not None)

    def typed(self) -> str:
        """As it is typed after a model: `,cache=int4,chunk=16`."""
        given = {"cache": self.cache, "state": self.state, "weights": self.weights, "chunk": self.chunk}
        given["protocol"] = None if self.once is None else f"once:{self.once}"
        return "".join(f",{name}={value}" for name, value in given.items() if value is not None)


def parse_protocol(text: str) -> int:
    """The ids of `once:K`. Raises UsageError for anything else."""
    kind, _, number = text.partition(":")
    if kind != "once" or not number.isdecimal():
        raise UsageError(f"protocol={text} is not one", remedy="give once:K, the ids that are compressed once, such as once:1024")
    return int(number)


class Compression:
    """What is done to a model's state between chunks.

    `saved`: bytes of one row by which what is stored is smaller than the state's tensors; `num_changed`: caches and states that were
    compressed, both since `begin`. `has_effect`: whether anything ever was. `exact`: nothing is, but text is read in the same chunks.
    """

    exact = False
    has_effect = False

    def __init__(self, variant: Variant, made: Callable[[], Any] | None = None) -> None:
        self.variant, self.made = variant, made
        self.policy: CachePolicy | None = None
        if variant.cache is not None and made is None:
            from recallkit.models.cache_policies import parse_cache

            self.policy = parse_cache(variant.cache)
        self.begin()

    def begin(self) -> None:
        """Counts from here."""
        self.saved = self.num_changed = 0

    def without_effect(self) -> Compression:
        """The same chunks with nothing compressed."""
        other = copy.copy(self)
        other.exact = True
        return other

    @property
    def chunk(self) -> int:
        """Ids between two compressions."""
        return self.variant.once or self.variant.chunk or CHUNK

    @property
    def row_wise(self) -> bool:
        """Whether no row of a batch influences another."""
        return self.made is None and (self.policy is None or self.policy.row_wise)

    def is_due(self, since: int, seen: int) -> bool:
        """Whether the state is compressed after `seen` ids, `since` of which are exact."""
        return seen == self.variant.once if self.variant.once else since >= self.chunk

    def keep(self, keys: Tensor, values: Tensor, seen: int) -> tuple[Tensor, Tensor]:
        """What later queries see of keys and values (b, h, t, d) after `seen` ids; all where no cache is compressed."""
        if self.policy is None or self.exact:
            return keys, values
        kept = self.policy.keep(keys, values, seen)
        self.has_effect |= kept.num_bytes < _row_bytes(keys) + _row_bytes(values)
        self.saved += _row_bytes(kept.keys) + _row_bytes(kept.values) - kept.num_bytes
        self.num_changed += 1
        return kept.keys, kept.values

    def round(self, state: Tensor) -> Tensor:
        """A recurrent state (b, ...) as it would be stored; the same where no state is rounded."""
        if self.variant.state is None or self.exact:
            return state
        from recallkit.models.rounding import round_state

        rounded, num_bytes = round_state(state, self.variant.state)
        self.saved += _row_bytes(rounded) - num_bytes
        self.has_effect = True
        self.num_changed += 1
        return rounded


def _row_bytes(tensor: Tensor) -> int:
    return tensor.numel() // max(1, len(tensor)) * tensor.element_size()


def apply_variant(model: ScoringModel, variant: Variant) -> None:
    """Makes a loaded model read as a variant of itself, for good.

    Raises UserError for a model without such a cache or state, for one whose state cannot be carried, and where reading in chunks
    alone, with nothing compressed, changes its scores.
    """
    from torch import nn

    from recallkit.models.torch_model import TorchModel

    module = getattr(model, "model", None)
    if not isinstance(model, TorchModel) or not isinstance(module, nn.Module):
        remedy = "models of transformers and those on our own mixers have variants"
        raise UserError(f"it has no cache, state or weights that can be changed here ({variant})", where=model.name, remedy=remedy)
    if variant.weights is not None:
        from recallkit.models.rounding import quantise_weights

        quantise_weights(module, variant.weights)
    if variant.reads_in_chunks:
        if not model.can_carry:
            raise UserError("its state cannot be carried from one chunk to the next", where=model.name, remedy=f"leave out {variant}")
        made = _made_by_user(variant.cache, module) if variant.cache is not None and is_user_function(variant.cache) else None
        model.compress_with(Compression(variant, made))
        length = min(_PROBED_CHUNKS * model.chunk + 2, _PROBED_IDS, model.max_length or _PROBED_IDS)
        check_reading(model, np.random.default_rng(0).integers(model.vocab_size, size=length).astype(np.uint32))


def check_reading(model: TorchModel, ids: np.ndarray) -> tuple[float, float]:
    """The largest and the mean difference in nats of a variant's NLLs of `ids` (t,) from reading in chunks alone, nothing compressed.

    In half precision both ways round differently, which is the noise of every comparison. Raises UserError where a wider model differs by
    more than MOST_READING: what a variant changes would not be compression alone.
    """
    plain, exact = model.read_both_ways(ids)
    largest, mean = float(np.abs(exact - plain).max(initial=0)), float(np.abs(exact - plain).mean())
    if largest > MOST_READING and not model.is_half:
        problem = f"read in chunks of {model.chunk} ids, its NLLs differ by up to {largest:.1e} nats with nothing compressed"
        raise UserError(problem, where=model.name, remedy=f"its variants would not show compression alone; at most {MOST_READING:g} is")
    return largest, mean


def _made_by_user(spec: str, module: Any) -> Callable[[], Any]:
    """Calls the function of FILE.py:FUNCTION with the transformers model. Raises UserError as `user.open_function` does."""
    code, function = open_function(spec)

    def made() -> Any:
        with code.running(spec):
            return function(module)

    return made
