"""Sliding-window attention: every query sees only the latest keys, in time linear in the length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812

from recallkit.kernels.window_attention.api import window_attention, window_attention_step
from recallkit.kernels.window_attention.state import (
    WindowState,
    empty_window,
    positions_in_ring,
    written_ring,
)
from recallkit.models.mixers.attention import Attention
from recallkit.models.mixers.short_conv import initial_history, read_convolved

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.models.mixers.api import State


class SlidingWindow(Attention):
    """Attention over the latest keys: S(i) = {i - window + 1, ..., i} (Longformer, arXiv
    2004.05150, section 3.1, made causal).

    `window` is the number of keys seen, the query's own among them. Others count differently: the
    released Based checkpoints (arXiv 2402.18668) of window size w see [i - w//2, i], which is
    `window=w // 2 + 1`, and Zoology's SlidingAttn of block size w sees [i - w, i], which is
    `window=w + 1`. Other options are those of `Attention`.

    The state has a fixed size: the latest rotated keys and values in rings (b, h, window, k), the
    token at position p in slot p % window, and `num_read` (b,).
    """

    window: int

    def __init__(self, d_model: int, *, window: int = 64, **options: Any) -> None:
        super().__init__(d_model, **options)
        if window < 1:
            raise ValueError(f"a window of {window} keys sees nothing")
        self.window = window

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (keys <= queries) & (keys > queries - self.window)

    def num_pairs(self, t: int) -> int:
        full = min(t, self.window)
        return self.num_heads * (full * (full + 1) // 2 + (t - full) * self.window)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return window_attention(q, k, v, self.window)

    def initial_state(self, batch: int) -> State:
        state: State = empty_window(
            batch,
            self.num_heads,
            self.window,
            self.head_width,
            like=self.qkv.weight,
        )._asdict()
        return state | initial_history(self.short_conv, batch)

    def step(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        z, recent = read_convolved(self.short_conv, self.qkv(u.unsqueeze(1)), state)
        rings = _rings(state)
        q, k, v = (x.squeeze(2).to(rings.keys.dtype) for x in self.split_heads(z))
        context, rings = window_attention_step(
            q,
            k,
            v,
            rings,
            rope_base=self.rope_base,
            rope_width=self.rope_width,
        )
        return self.out_proj(context.flatten(1)), rings._asdict() | recent

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        t = u.shape[1]
        if t == 1:
            y, state = self.step(u[:, 0], state)
            return y.unsqueeze(1), state
        fresh = _is_fresh(state["num_read"])
        z, recent = read_convolved(self.short_conv, self.qkv(u), state)
        rings, num_read = _rings(state), state["num_read"]
        positions = num_read[:, None] + torch.arange(t, device=u.device)
        q, k, v = (x.to(rings.keys.dtype) for x in self.rotated(z, positions))
        context = self.attend(q, k, v) if fresh else self._attend_after(q, k, v, rings)
        after = {
            "keys": written_ring(rings.keys, k, num_read),
            "values": written_ring(rings.values, v, num_read),
            "num_read": num_read + t,
        }
        return self.merge(context), after | recent

    def _attend_after(self, q: Tensor, k: Tensor, v: Tensor, rings: WindowState) -> Tensor:
        """The attention of t new tokens, all (b, h, t, k), after those in the rings, which only the
        first queries see."""
        first = q.shape[2] if q.shape[2] <= self.window else self.window - 1
        context = self._attend_rings(q[:, :, :first], k[:, :, :first], v[:, :, :first], rings)
        if first == q.shape[2]:
            return context
        return torch.cat([context, self.attend(q, k, v)[:, :, first:]], dim=2)

    def _attend_rings(self, q: Tensor, k: Tensor, v: Tensor, rings: WindowState) -> Tensor:
        """As `_attend_after`, with a mask of all pairs, for at most as many tokens as the
        window."""
        queries = rings.num_read[:, None] + torch.arange(q.shape[2], device=q.device)
        keys = torch.cat([positions_in_ring(rings.num_read, self.window), queries], dim=1)
        mask = self.mask(queries, keys)
        return F.scaled_dot_product_attention(
            q,
            torch.cat([rings.keys, k], dim=2),
            torch.cat([rings.values, v], dim=2),
            attn_mask=mask,
        )


def _rings(state: State) -> WindowState:
    return WindowState(state["keys"], state["values"], state["num_read"])


def _is_fresh(num_read: Tensor) -> bool:
    """Whether every row is known to be empty; on a GPU checking would synchronise with it."""
    if num_read.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return not bool(num_read.any())
