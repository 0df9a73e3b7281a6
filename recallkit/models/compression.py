"""What is done to a model's state between chunks, whatever the model: `TorchModel.compress` finds
the caches and states for it.

Caches are compressed by a policy (`cache_policies`), recurrent states rounded as they would be
stored in lower precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

STATES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
"""What a state can be rounded to."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """What later chunks see of a layer's past, b rows of h heads with K entries each, and what it
    occupies."""

    keys: Tensor
    """(b, h, K, d)"""
    values: Tensor
    """(b, h, K, v)"""
    num_bytes: int
    """Bytes of the stored form, of one row: packed codes, scales, zero points and exact entries."""


CachePolicy: TypeAlias = "Callable[[Tensor, Tensor, int], Compressed]"
"""What is kept of keys (b, h, K, d) and values (b, h, K, v) after so many ids have been read,
evicted ones included.

Keys are as later queries see them, after any rotation by position. No row of a batch influences
another. Raises UserError where the widths of the heads do not fit.
"""


def keep_all(keys: Tensor, values: Tensor, num_read: int) -> Compressed:
    """The policy that keeps everything, unchanged."""
    return Compressed(keys, values, row_bytes(keys, values))


@dataclass
class Compression:
    """What becomes of caches (`policy`; or `make_cache`, a user's own cache or context) and of
    recurrent states (`rounding`).

    Every `chunk` ids, or with `once` after the first so many alone. `shown`: what messages call it.
    `saved`: bytes of one row by which what is stored is smaller than the state's tensors;
    `changed`: which of "cache" and "state" were compressed, both since `begin`.
    `has_effect`: whether anything ever was. `exact`: nothing is, but text is read in the same
    chunks.
    """

    policy: CachePolicy | None
    rounding: str | None
    chunk: int
    once: int | None
    shown: str
    make_cache: Callable[[], Any] | None = None
    exact: bool = False
    has_effect: bool = False
    saved: int = 0
    changed: set[str] = field(default_factory=set)

    def begin(self) -> None:
        """Counts from here."""
        self.saved, self.changed = 0, set()

    def without_effect(self) -> Compression:
        """The same chunks with nothing compressed."""
        return replace(self, exact=True)

    @property
    def should_change(self) -> bool:
        """Whether it is known to change long texts: everything but `full`, and but what a user's
        own code does."""
        return self.rounding is not None or self.policy not in (None, keep_all)

    def is_due(self, since: int, num_read: int) -> bool:
        """Whether the state is compressed after `num_read` ids, `since` of which are exact."""
        return num_read == self.once if self.once else since >= self.chunk

    def keep(self, keys: Tensor, values: Tensor, num_read: int) -> tuple[Tensor, Tensor]:
        """What later queries see of keys and values (b, h, t, d) after `num_read` ids; all where no
        cache is compressed."""
        if self.policy is None or self.exact:
            return keys, values
        stored = self.policy(keys, values, num_read)
        self.has_effect |= stored.num_bytes < row_bytes(keys, values)
        self.saved += row_bytes(stored.keys, stored.values) - stored.num_bytes
        self.changed.add("cache")
        return stored.keys, stored.values

    def round(self, state: Tensor) -> Tensor:
        """A recurrent state (b, ...) as it would be stored; the same where no state is rounded."""
        if self.rounding is None or self.exact:
            return state
        rounded, num_bytes = round_state(state, self.rounding)
        if self.once is None:  # else what follows writes an exact state
            self.saved += row_bytes(rounded) - num_bytes
        self.has_effect = True
        self.changed.add("state")
        return rounded


def round_state(tensor: Tensor, kind: str) -> tuple[Tensor, int]:
    """A state (b, ..., m, n) as it is after having been stored as a `kind` of `STATES`, in its own
    precision, and bytes of one row.

    fp8 (e4m3) and int8 are symmetric, with one float32 scale per row and head, that is for the last
    two axes together (for all but the first of a tensor with less than three), at which the largest
    magnitude is the largest code. Scales count as bytes. Raises UserError where magnitudes are
    beyond fp16.
    """
    dtype = STATES[kind]
    if kind in ("fp8", "int8"):
        codes, scale = scaled(tensor, range(max(1, tensor.ndim - 2), tensor.ndim), dtype)
        return unscaled(codes, scale, tensor.dtype), row_bytes(codes, scale)
    stored = tensor.to(dtype)
    if kind == "fp16" and (stored.isinf() & tensor.isfinite()).any():
        largest = tensor.abs().max().item()
        problem = f"a state has a magnitude of {largest:.3g}, beyond the 65,504 of fp16"
        raise UserError(problem, remedy="round it to bf16")
    return stored.to(tensor.dtype), row_bytes(stored)


def scaled(tensor: Tensor, axes: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Symmetric codes of a tensor in int8 or a float8, and the float32 scale that all entries along
    `axes` share."""
    largest = (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max
    values = tensor.float()
    scale = (values.abs().amax(tuple(axes), keepdim=True) / largest).clamp(
        min=torch.finfo(torch.float32).tiny,
    )
    values = values / scale
    return (values if dtype.is_floating_point else values.round()).clamp(-largest, largest).to(
        dtype,
    ), scale


def unscaled(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """What codes and their scale stand for."""
    return (codes.float() * scale).to(dtype)


def row_bytes(*tensors: Tensor) -> int:
    """Bytes of one row of tensors (b, ...)."""
    return sum(stored_bytes(tensor) // max(1, len(tensor)) for tensor in tensors)


def stored_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's entries; of a quantised one those of the tensors that it consists of."""
    if hasattr(tensor, "__tensor_flatten__"):
        return sum(stored_bytes(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    return tensor.numel() * tensor.element_size()
