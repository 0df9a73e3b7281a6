"""The state of Taylor attention, and the features of the second-order Taylor expansion of exp(s), s
= q.k/sqrt(f).

    phi(q).phi(k) = 1 + s + s^2/2      phi(x) = [1, x/f^(1/4), x_i x_i/sqrt(2 f), x_i x_j/sqrt(f)]
    (arXiv 2402.18668, section 4.1)

x_i x_j is kept once for i != j, times sqrt(2): 1 + f + f(f+1)/2 features instead of 1 + f + f^2;
153 instead of 273 for f = 16. Pairs are cyclic: first all (i, i), then for r = 1, 2, ... all (i, (i
+ r) mod f), so that features r f .. r f + f - 1 of them are the vector times itself rotated by r.
For even f the last rotation, r = f/2, has every pair twice, and its first half is kept. For f = 4:
00 11 22 33, 01 12 23 30, 02 13. States, and so all implementations, have their features in this
order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor


def num_taylor_features(feature_dim: int) -> int:
    """Features of a vector of `feature_dim` entries."""
    return 1 + feature_dim + feature_dim * (feature_dim + 1) // 2


def taylor_features(x: Tensor) -> Tensor:
    """x: (..., f) -> (..., features), in its precision."""
    f = x.shape[-1]
    scaled = x / math.sqrt(f)
    # A vector rotated by r is a slice of the vector repeated twice.
    turned = torch.cat([scaled, scaled[..., :-1]], dim=-1)
    parts = [torch.ones_like(x[..., :1]), x / math.sqrt(math.sqrt(f)), x * scaled / math.sqrt(2)]
    parts += [x * turned[..., r : r + f] for r in range(1, (f + 1) // 2)]
    if f % 2 == 0:
        parts.append(x[..., : f // 2] * scaled[..., f // 2 :])
    return torch.cat(parts, dim=-1)


def taylor_scores(q: Tensor, k: Tensor) -> Tensor:
    """q: (..., n, f), k: (..., m, f) -> phi(q_i).phi(k_j) of all pairs, (..., n, m), from s itself:
    f products instead of the features."""
    s = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
    return torch.addcmul(1 + s, s, s, value=0.5)


class TaylorState(NamedTuple):
    """Sums over the tokens so far, float32 (float64 of float64 inputs): in bfloat16 the count of
    tokens would stop at 256."""

    kv: Tensor  # (b, h, features, v)
    k: Tensor  # (b, h, features)


def zero_state(q: Tensor, v: Tensor) -> TaylorState:
    """The state before the first token, of q (b, h, ..., f) and v (b, h, ..., v)."""
    shape = (*v.shape[:2], num_taylor_features(q.shape[-1]))
    dtype = torch.promote_types(v.dtype, torch.float32)
    return TaylorState(
        v.new_zeros(*shape, v.shape[-1], dtype=dtype), v.new_zeros(shape, dtype=dtype)
    )
