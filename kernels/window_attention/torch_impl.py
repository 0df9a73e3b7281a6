"""Window attention in PyTorch: blocks of tokens for a whole text, a masked ring for a step. For
CPU, and for gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812

from recallkit.kernels.window_attention.state import WindowState, rotate, written_ring

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def window_attention_torch(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Shapes as in `window_attention`."""

    def sees(queries: Tensor, keys: Tensor) -> Tensor:
        return (keys <= queries) & (keys > queries - window)

    t = q.shape[2]
    if t <= window:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if t <= 2 * window:
        places = torch.arange(t, device=q.device)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=sees(places[:, None], places[None, :])
        )
    return attend_in_blocks(q, k, v, window, sees)


def attend_in_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    width: int,
    sees: Callable[[Tensor, Tensor], Tensor],
    *,
    previous: bool = True,
) -> Tensor:
    """Attention where a query sees no key before its block of `width` tokens, or before the
    previous one; all (b, h, t, k).

    `sees`: which keys a query sees, by int64 positions that broadcast -> bool. Costs 2 t width
    pairs instead of t^2.
    """
    batch, heads, t, _ = q.shape
    num = -(-t // width)
    q, k, v = (_in_blocks(x, num, width) for x in (q, k, v))
    if previous:
        k, v = (torch.cat([F.pad(x, (0, 0, 0, 0, 0, 0, 1, 0))[:-1], x], dim=2) for x in (k, v))
    queries = torch.arange(num * width, device=q.device).view(num, 1, width, 1)
    keys = queries.transpose(2, 3)
    if previous:
        keys = torch.cat([keys - width, keys], dim=3)
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=sees(queries, keys) & (keys >= 0))
    return context.transpose(0, 1).reshape(batch, heads, num * width, -1)[:, :, :t]


def step_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: WindowState,
    rope_base: float,
    rope_width: int,
    inplace: bool,
) -> tuple[Tensor, WindowState]:
    """Shapes as in `window_attention_step`."""
    num_read = state.num_read
    turned = rotate(torch.stack([q, k], dim=2), num_read[:, None], base=rope_base, width=rope_width)
    query, key = turned[:, :, :1], turned[:, :, 1:]
    keys = written_ring(state.keys, key, num_read, inplace=inplace)
    values = written_ring(state.values, v.unsqueeze(2), num_read, inplace=inplace)
    written = torch.arange(keys.shape[2], device=num_read.device) <= num_read[:, None]
    y = F.scaled_dot_product_attention(query, keys, values, attn_mask=written[:, None, None, :])
    return y.squeeze(2), WindowState(keys, values, num_read + 1)


def _in_blocks(x: Tensor, num: int, width: int) -> Tensor:
    """(b, h, t, k) -> (num, b h, width, k), zeros after the end; blocks first, so that rows and
    heads share each block's mask."""
    padded = F.pad(x, (0, 0, 0, num * width - x.shape[2]))
    return padded.reshape(-1, num, width, x.shape[3]).transpose(0, 1)
