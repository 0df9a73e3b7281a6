"""`long_conv` as the sum is written, in the precision of its inputs: the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def long_conv_reference(
    u: Tensor,
    filters: Tensor,
    skip: Tensor | None,
    bias: Tensor | None,
    in_gate: Tensor | None,
    out_gate: Tensor | None,
    last: int,
) -> Tensor:
    """Shapes as in `long_conv`."""
    t = u.shape[1]
    z = u if in_gate is None else in_gate * u
    y = torch.zeros_like(z, dtype=torch.promote_types(z.dtype, filters.dtype))
    for s in range(min(filters.shape[1], t)):
        y[:, s:] += filters[:, s] * z[:, : t - s]
    if skip is not None:
        y = y + skip * z
    y = y[:, t - last :]
    if out_gate is not None:
        y = out_gate * y
    return y if bias is None else y + bias
