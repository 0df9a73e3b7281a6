"""`selective_scan` as the recurrence is written, step by step, in the precision of its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


def selective_scan_reference(
    x: Tensor,
    dt: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    start: Tensor | None,
    skip: Tensor | None,
    gate: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
) -> tuple[Tensor, Tensor]:
    """Shapes as in `selective_scan`."""
    t, b, d = x.shape
    dt = step_sizes(dt.to(torch.promote_types(dt.dtype, torch.float32)), dt_bias, dt_softplus)
    h = dt.new_zeros(b, d, rates.shape[1]) if start is None else start.transpose(1, 2)
    outputs = []
    for i in range(t):
        h = (
            torch.exp(dt[i, :, :, None] * rates) * h
            + (dt[i] * x[i])[:, :, None] * write[i, :, None, :]
        )
        y = (h * read[i, :, None, :]).sum(-1)
        if skip is not None:
            y = y + skip * x[i]
        if gate is not None:
            y = y * functional.silu(gate[i])
        outputs.append(y.to(x.dtype))
    return torch.stack(outputs) if outputs else torch.zeros_like(x), h.transpose(1, 2)


def step_sizes(dt: Tensor, bias: Tensor | None, softplus: bool) -> Tensor:
    """softplus(dt + bias), or as much of it as is asked for: (..., d) -> (..., d)."""
    dt = dt if bias is None else dt + bias
    return functional.softplus(dt) if softplus else dt
