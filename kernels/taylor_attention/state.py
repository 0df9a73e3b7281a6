"""The state of Taylor attention: sums over the tokens so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from recallkit.kernels.taylor_attention.features import num_taylor_features

if TYPE_CHECKING:
    from torch import Tensor


class TaylorState(NamedTuple):
    """Sums over the tokens so far, float32 (float64 of float64 inputs): in bfloat16 the count of tokens would stop at 256."""

    kv: Tensor  # (b, h, features, v)
    k: Tensor  # (b, h, features)


def zero_state(q: Tensor, v: Tensor) -> TaylorState:
    """The state before the first token, of q (b, h, ..., f) and v (b, h, ..., v)."""
    shape = (*v.shape[:2], num_taylor_features(q.shape[-1]))
    dtype = torch.promote_types(v.dtype, torch.float32)
    return TaylorState(v.new_zeros(*shape, v.shape[-1], dtype=dtype), v.new_zeros(shape, dtype=dtype))
