"""`linear_scan` as the recurrence is written, token by token."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_scan_reference(decay: Tensor, u: Tensor, start: Tensor) -> Tensor:
    """Shapes as in `linear_scan`, all of one type, t > 0."""
    h, states = start, []
    for a, arriving in zip(decay, u, strict=True):
        h = a * h + arriving
        states.append(h)
    return torch.stack(states)
