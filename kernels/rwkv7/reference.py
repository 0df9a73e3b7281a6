"""`rwkv7_attention` token by token, as the recurrence is written: the oracle, in float64 for float64 inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.linear_recurrence import first_state, precision

if TYPE_CHECKING:
    from torch import Tensor


def rwkv7_attention_reference(
    r: Tensor, k: Tensor, v: Tensor, erase: Tensor, write: Tensor, log_decay: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Shapes as in `rwkv7_attention`."""
    s, o = first_state(state, r, v, precision(r, k, v, state)), torch.zeros_like(v)
    r, k, erase, write, decay = (x.to(s.dtype).unsqueeze(-1) for x in (r, k, erase, write, log_decay.to(s.dtype).exp()))
    for i in range(r.shape[2]):
        found = (erase[:, :, i] * s).sum(-2)
        s = decay[:, :, i] * s - write[:, :, i] * found[:, :, None, :] + k[:, :, i] * v[:, :, i, None, :]
        o[:, :, i] = (r[:, :, i] * s).sum(-2)
    return o, s
