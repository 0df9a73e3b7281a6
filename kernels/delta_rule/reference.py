"""`delta_rule` token by token, as the recurrence is written: the oracle, in float64 for float64 inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.linear_recurrence import first_state, precision

if TYPE_CHECKING:
    from torch import Tensor


def delta_rule_reference(
    q: Tensor, k: Tensor, v: Tensor, strength: Tensor, log_decay: Tensor | None, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Shapes as in `delta_rule`."""
    s, o = first_state(state, q, v, precision(q, k, v, state)), torch.zeros_like(v)
    q, k, strength = (x.to(s.dtype) for x in (q, k, strength))
    decay = torch.ones_like(strength) if log_decay is None else log_decay.to(s.dtype).exp()
    decay = decay.unsqueeze(-1) if decay.ndim == 3 else decay
    for i in range(q.shape[2]):
        s = decay[:, :, i, :, None] * s
        found = (k[:, :, i, :, None] * s).sum(-2)
        new = strength[:, :, i, None] * (v[:, :, i] - found)
        s = s + k[:, :, i, :, None] * new[:, :, None, :]
        o[:, :, i] = scale * (q[:, :, i, :, None] * s).sum(-2)
    return o, s
