"""`gated_linear_attention` token by token, as the recurrence is written: the oracle, in float64 for float64 inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.linear_recurrence import first_state, precision

if TYPE_CHECKING:
    from torch import Tensor


def gated_linear_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Shapes as in `gated_linear_attention`."""
    s, o = first_state(state, q, v, precision(q, k, v, state)), torch.zeros_like(v)
    q, k, decay = q.to(s.dtype), k.to(s.dtype), log_decay.to(s.dtype).exp()
    for i in range(q.shape[2]):
        s = decay[:, :, i, :, None] * s + k[:, :, i, :, None] * v[:, :, i, None, :]
        o[:, :, i] = scale * (q[:, :, i, :, None] * s).sum(-2)
    return o, s
