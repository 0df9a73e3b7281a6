"""`taylor_attention` as the formula is written, token by token, in the precision of its inputs: the
oracle, in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from recallkit.kernels.taylor_attention.state import TaylorState, taylor_features

if TYPE_CHECKING:
    from torch import Tensor


def taylor_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, state: TaylorState, eps: float
) -> tuple[Tensor, TaylorState]:
    """Shapes as in `taylor_attention`: weights of the tokens from their scores, those of the state
    from features."""
    outputs = []
    for i in range(q.shape[2]):
        s = (q[:, :, i, None] * k[:, :, : i + 1]).sum(dim=-1) / math.sqrt(q.shape[-1])
        weights = 1 + s + s**2 / 2
        features = taylor_features(q[:, :, i])
        numerator = (weights[..., None] * v[:, :, : i + 1]).sum(dim=2) + (
            features[..., None] * state.kv
        ).sum(dim=2)
        total = weights.sum(dim=-1) + (features * state.k).sum(dim=-1)
        outputs.append(numerator / (total[..., None] + eps))
    features = taylor_features(k).to(state.k.dtype)
    kv = state.kv + (features[..., None] * v[..., None, :]).sum(dim=2)
    y = torch.stack(outputs, dim=2) if outputs else v.clone()
    return y.to(v.dtype), TaylorState(kv, state.k + features.sum(dim=2))


def taylor_attention_step_reference(
    q: Tensor, k: Tensor, v: Tensor, state: TaylorState, eps: float
) -> tuple[Tensor, TaylorState]:
    """Shapes as in `taylor_attention_step`: a text of one token."""
    y, state = taylor_attention_reference(q[:, :, None], k[:, :, None], v[:, :, None], state, eps)
    return y[:, :, 0], state
