"""Sliding-window attention: every query sees the latest keys alone, in time linear in the length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812

from recallkit.models.mixers.attention import Attention

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from recallkit.models.mixers.api import State


class SlidingWindow(Attention):
    """Attention over the latest keys: S(i) = {i - window + 1, ..., i} (Longformer, arXiv 2004.05150, section 3.1, made causal).

    `window` is the number of keys seen, the query's own among them. Others count otherwise: the released Based checkpoints
    (arXiv 2402.18668) of window size w see [i - w//2, i], which is `window=w // 2 + 1`, and Zoology's SlidingAttn of block
    size w sees [i - w, i], which is `window=w + 1`. Other options are those of `Attention`.
    """

    def __init__(self, d_model: int, *, window: int = 64, **options: Any) -> None:
        super().__init__(d_model, **options)
        if window < 1:
            raise ValueError(f"a window of {window} keys sees nothing")
        self.window = window

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor:
        """See `Attention.sees`."""
        return (keys <= queries) & (keys > queries - self.window)

    def keys_of(self, query: int, head: int) -> list[int]:
        """See `Attention.keys_of`."""
        return list(range(max(0, query - self.window + 1), query + 1))

    def num_kept(self) -> int:
        """See `Attention.num_kept`."""
        return self.window

    def num_pairs(self, t: int) -> int:
        """See `Attention.num_pairs`."""
        full = min(t, self.window)
        return self.num_heads * (full * (full + 1) // 2 + (t - full) * self.window)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attention.attend`."""
        t = q.shape[2]
        if t <= self.window:
            return super().attend(q, k, v)
        return self.attend_where_seen(q, k, v) if t <= 2 * self.window else attend_in_blocks(q, k, v, self.window, self.sees)

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`."""
        return read_in_pieces(super().read, u, state, ids, self.window)


def attend_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, width: int, sees: Callable[[Tensor, Tensor], Tensor], *, previous: bool = True
) -> Tensor:
    """Attention where a query sees nothing before its block of `width` tokens, or before the previous one; all (b, h, t, k).

    Costs 2 t width pairs in place of t^2.
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


def read_in_pieces(
    read: Callable[[Tensor, State, Tensor | None], tuple[Tensor, State]], u: Tensor, state: State, ids: Tensor | None, size: int
) -> tuple[Tensor, State]:
    """A long text read after another in pieces of `size`, which keeps the masks small; a first text is read at once."""
    t = u.shape[1]
    if t <= size or state["keys"].shape[2] == 0:
        return read(u, state, ids)
    outputs = []
    for start in range(0, t, size):
        y, state = read(u[:, start : start + size], state, None if ids is None else ids[:, start : start + size])
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


def _in_blocks(x: Tensor, num: int, width: int) -> Tensor:
    """(b, h, t, k) -> (num, b h, width, k), zeros after the end; blocks first, so that a mask of each serves all rows and heads."""
    padded = F.pad(x, (0, 0, 0, num * width - x.shape[2]))
    return padded.reshape(-1, num, width, x.shape[3]).transpose(0, 1)
