"""`rwkv7_attention` in chunks: for CPU, and for gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.delta_recurrence import delta_recurrence
from recallkit.kernels.linear_recurrence import first_state, precision

if TYPE_CHECKING:
    from torch import Tensor


def rwkv7_attention_torch(
    r: Tensor, k: Tensor, v: Tensor, erase: Tensor, write: Tensor, log_decay: Tensor, state: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor]:
    """Shapes as in `rwkv7_attention`."""
    narrow, wide = v.dtype, precision(r, k, v, state)
    with torch.autocast(r.device.type, enabled=False):
        r, k, v, erase, write, log_decay = (x.to(wide) for x in (r, k, v, erase, write, log_decay))
        s = None if state is None else state.to(wide)
        if v.shape[2] == 0:
            return v.to(narrow), first_state(s, r, v, wide)
        o, s = delta_recurrence(r, (k, write), v, erase, log_decay, s, chunk)
    return o.to(narrow), s
