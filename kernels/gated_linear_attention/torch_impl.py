"""`gated_linear_attention` in chunks: for CPU, and for gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.linear_recurrence import by_chunks, first_state, precision, states_between, weigh_pairs

if TYPE_CHECKING:
    from torch import Tensor


def gated_linear_attention_torch(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, scale: float, chunk: int
) -> tuple[Tensor, Tensor]:
    """Shapes as in `gated_linear_attention`."""
    narrow, wide, t = v.dtype, precision(q, k, v, state), v.shape[2]
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, log_decay = (x.to(wide) for x in (q, k, v, log_decay))
        s = None if state is None else state.to(wide)
        q = q if scale == 1 else q * scale
        if t == 0:
            o, s = v, first_state(s, q, v, wide)
        elif t == 1:
            new = k.transpose(-1, -2) * v
            s = new if s is None else torch.addcmul(new, log_decay.transpose(-1, -2).exp(), s)
            o = q @ s
        else:
            o, s = by_chunks(_attend, chunk, s, v, q, k, log_decay)
    return o.to(narrow), s


def _attend(v: Tensor, q: Tensor, k: Tensor, log_decay: Tensor, s: Tensor | None) -> tuple[Tensor, Tensor]:
    """n chunks: v (b, h, n, c, v), q, k, log_decay (b, h, n, c, k), s (b, h, k, v)."""
    weights, q, k, whole = weigh_pairs(q * log_decay.exp(), k, log_decay, (q * k).sum(-1))
    states, last = states_between(k.transpose(-1, -2) @ v, whole.transpose(-1, -2), s)
    return weights @ v if states is None else weights @ v + q @ states, last
