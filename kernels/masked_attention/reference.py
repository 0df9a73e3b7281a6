"""`masked_attention` as the formula is written, query by query, in the precision of its inputs: the
oracle."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Sees = Callable[..., Tensor]
"""A rule: positions of queries and keys (and heads, with `by_head`), int64 tensors that broadcast
-> bool, on their device."""


def masked_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, sees: Sees, by_head: bool
) -> Tensor:
    """Shapes as in `masked_attention`."""
    _, num_heads, t, width = q.shape
    out = torch.zeros_like(v)
    positions = torch.arange(t, device=q.device)
    heads = [torch.arange(num_heads, device=q.device).view(-1, 1, 1)] if by_head else []
    for i in range(t):
        # One query's keys, for each head: (h, t).
        visible = sees(positions[i].view(1, 1), positions.view(1, t), *heads).expand(
            num_heads, 1, t
        )[:, 0]
        for head in range(num_heads):
            keys = positions[visible[head]]
            scores = (k[:, head, keys] * q[:, head, i, None]).sum(-1) / math.sqrt(width)
            weights = torch.softmax(scores, dim=-1)
            out[:, head, i] = (weights[..., None] * v[:, head, keys]).sum(1)
    return out
