"""`lookup_attention` as the formula is written, query by query, in the precision of its inputs: the
oracle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def lookup_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, keys: Tensor
) -> Tensor:
    """Shapes as in `lookup_attention`."""
    batch, num_heads, t, width = q.shape
    out = torch.zeros_like(v)
    bounds = offsets.tolist()
    for row in range(batch):
        for i in range(t):
            listed = keys[bounds[row * t + i] : bounds[row * t + i + 1]]
            if len(listed):
                for head in range(num_heads):
                    scores = k[row, head, listed] @ q[row, head, i] / math.sqrt(width)
                    out[row, head, i] = torch.softmax(scores, dim=0) @ v[row, head, listed]
    return out
