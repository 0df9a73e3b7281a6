"""`masked_attention` under a dense mask: for CPU, and for gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.masked_attention.reference import Sees


def masked_attention_torch(q: Tensor, k: Tensor, v: Tensor, sees: Sees, by_head: bool) -> Tensor:
    """Shapes as in `masked_attention`. The mask is (1, 1, t, t), or (1, h, t, t) where heads
    differ."""
    positions = torch.arange(q.shape[2], device=q.device)
    heads = [torch.arange(q.shape[1], device=q.device)[None, :, None, None]] if by_head else []
    mask = sees(positions[None, None, :, None], positions[None, None, None, :], *heads)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
