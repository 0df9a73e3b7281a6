"""`decayed_attention` token by token, as the recurrence is written: the oracle, in float64 for float64 inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.linear_recurrence import first_state, precision

if TYPE_CHECKING:
    from torch import Tensor


def decayed_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Shapes as in `decayed_attention`."""
    b, h, t, _ = v.shape
    s, o = first_state(state, q, v, precision(q, k, v, state)), torch.zeros_like(v)
    q, k = (x.repeat_interleave(h // x.shape[1], dim=1).to(s.dtype) for x in (q, k))
    decay = (log_decay if log_decay.ndim == 3 else log_decay[:, None].expand(b, h, t)).to(s.dtype).exp()
    for i in range(t):
        s = decay[:, :, i, None, None] * s + k[:, :, i, :, None] * v[:, :, i, None, :]
        o[:, :, i] = scale * (q[:, :, i, :, None] * s).sum(-2)
    return o, s
