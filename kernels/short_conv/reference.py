"""`short_conv` as the sum is written, in the precision of its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


def short_conv_reference(
    u: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    history: Tensor | None,
    activation: str | None,
    gate: Tensor | None,
) -> Tensor:
    """Shapes as in `short_conv` -> y alone."""
    (b, t, c), k = u.shape, taps.shape[1]
    before = u.new_zeros(b, k - 1, c) if history is None else history
    inputs = torch.cat([before, u], dim=1)
    y = (
        torch.zeros_like(u, memory_format=torch.contiguous_format)
        if bias is None
        else bias.expand(b, t, c)
    )
    for place in range(k):
        y = y + taps[:, place] * inputs[:, place : place + t]
    if activation == "silu":
        y = functional.silu(y)
    return (y if gate is None else y * gate).to(u.dtype)
