"""`delta_rule` in chunks: for CPU, and for gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.delta_recurrence import delta_recurrence
from recallkit.kernels.linear_recurrence import first_state, precision

if TYPE_CHECKING:
    from torch import Tensor


def delta_rule_torch(
    q: Tensor, k: Tensor, v: Tensor, strength: Tensor, log_decay: Tensor | None, state: Tensor | None, scale: float, chunk: int
) -> tuple[Tensor, Tensor]:
    """Shapes as in `delta_rule`."""
    narrow, wide = v.dtype, precision(q, k, v, state)
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, strength = (x.to(wide) for x in (q, k, v, strength.unsqueeze(-1)))
        s = None if state is None else state.to(wide)
        if v.shape[2] == 0:
            return v.to(narrow), first_state(s, q, v, wide)
        log_decay = torch.zeros_like(strength) if log_decay is None else log_decay.to(wide)
        log_decay = log_decay.unsqueeze(-1) if log_decay.ndim == 3 else log_decay
        q = q if scale == 1 else q * scale
        o, s = delta_recurrence(q, (k,), strength * v, strength * log_decay.exp() * k, log_decay, s, chunk)
    return o.to(narrow), s
