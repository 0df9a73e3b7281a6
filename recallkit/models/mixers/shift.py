"""Token shift: the previous input of every channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def previous_inputs(u: Tensor, before: Tensor, time: int = 0) -> Tensor:
    """u: (t, b, d), or with the time at axis 1, before: (b, d), the input before the first -> as u: at i the input i - 1."""
    return torch.cat([before.to(u.dtype).unsqueeze(time), u.narrow(time, 0, u.shape[time] - 1)], dim=time)
