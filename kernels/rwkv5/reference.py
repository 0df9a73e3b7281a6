"""`rwkv5_attention` token by token, as the recurrence is written: the oracle, in float64 for float64 inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.linear_recurrence import first_state, precision

if TYPE_CHECKING:
    from torch import Tensor


def rwkv5_attention_reference(
    r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, bonus: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Shapes as in `rwkv5_attention`."""
    s, o = first_state(state, r, v, precision(r, k, v, state)), torch.zeros_like(v)
    r, k, decay, bonus = r.to(s.dtype), k.to(s.dtype), log_decay.to(s.dtype).exp()[..., None], bonus.to(s.dtype)[..., None]
    for i in range(r.shape[2]):
        new = k[:, :, i, :, None] * v[:, :, i, None, :]
        o[:, :, i] = (r[:, :, i, :, None] * (s + bonus * new)).sum(-2)
        s = decay * s + new
    return o, s
