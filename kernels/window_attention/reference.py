"""Window attention as the formula is written, query by query, in the precision of its inputs: the
oracle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from recallkit.kernels.window_attention.state import WindowState

if TYPE_CHECKING:
    from torch import Tensor


def window_attention_reference(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Shapes as in `window_attention`."""
    y = torch.empty_like(v)
    for i in range(q.shape[2]):
        visible = slice(max(0, i - window + 1), i + 1)
        y[:, :, i] = _attend(q[:, :, i], k[:, :, visible], v[:, :, visible])
    return y


def step_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: WindowState,
    rope_base: float,
    rope_width: int,
    inplace: bool,
) -> tuple[Tensor, WindowState]:
    """Shapes as in `window_attention_step`."""
    keys, values = (ring if inplace else ring.clone() for ring in state[:2])
    window, y = keys.shape[2], torch.empty_like(q)
    for row, position in enumerate(state.num_read.tolist()):
        keys[row, :, position % window] = _rotated(k[row], position, rope_base, rope_width)
        values[row, :, position % window] = v[row]
        slots = [p % window for p in range(max(0, position - window + 1), position + 1)]
        query = _rotated(q[row], position, rope_base, rope_width)
        y[row] = _attend(query, keys[row, :, slots], values[row, :, slots])
    return y, WindowState(keys, values, state.num_read + 1)


def _attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """query (..., k), keys and values (..., n, k) -> (..., k)."""
    weights = torch.softmax(
        (keys * query.unsqueeze(-2)).sum(-1) / math.sqrt(query.shape[-1]), dim=-1
    )
    return (weights.unsqueeze(-1) * values).sum(-2)


def _rotated(x: Tensor, position: int, base: float, width: int) -> Tensor:
    """x (h, k): each pair is a complex number, multiplied by e^(i angle)."""
    turned, half = x.clone(), width // 2
    for i in range(half):
        angle = position * base ** (-2 * i / width)
        turned[:, i] = x[:, i] * math.cos(angle) - x[:, i + half] * math.sin(angle)
        turned[:, i + half] = x[:, i] * math.sin(angle) + x[:, i + half] * math.cos(angle)
    return turned
