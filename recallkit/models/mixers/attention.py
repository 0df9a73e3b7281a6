"""Causal softmax attention with rotary positions, and the base of every attention over a subset of
the keys."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from recallkit.models.mixers.api import Mixer, State, applied, extended, linear_flops, rms_normed
from recallkit.models.mixers.rotary import rotary_width, rotate, rotate_reference
from recallkit.models.mixers.short_conv import (
    convolution_flops,
    initial_history,
    make_short_conv,
    read_convolved,
)

if TYPE_CHECKING:
    from torch import Tensor


class Attention(Mixer):
    """Multi-head causal softmax attention (Vaswani et al. 2017, section 3.2) with rotary positions
    (arXiv 2104.09864).

    q, k, v = split(Wqkv u) per head, q and k rotated by their positions
    y[i] = Wo concat over heads of  sum over j in S(i) of softmax_j(q[i] . k[j] / sqrt(k)) v[j],
        S(i) = {0, ..., i}

    The rows of `qkv.weight` are q, then k, then v, each head after head, as in FlashAttention's
    Wqkv. A subclass sees fewer keys, defined by `sees`; every query must see itself. The state is
    the rotated keys and the values (b, h, T, k), right-aligned, and how many tokens a row has read,
    `num_read` (b,).

    Off by default: `qk_norm`, a root-mean-square norm of each head's q and k before they are
    rotated (arXiv 2302.05442, section 2, there a layer norm), and `short_conv`, a causal
    convolution of that many taps on every channel of q, k and v, as Hyena, H3 and Mamba have it;
    the last inputs of the convolution, `recent`, are then part of the state.
    """

    window: int | None = None
    """How many of the latest keys later queries may see; None for all."""

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int = 4,
        rope_base: float = 10000.0,
        rope_fraction: float = 1.0,
        qk_norm: bool = False,
        short_conv: int = 0,
    ) -> None:
        super().__init__(d_model)
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(f"{num_heads} heads do not divide a width of {d_model}")
        self.num_heads = num_heads
        self.head_width = d_model // num_heads
        self.rope_base = rope_base
        self.rope_width = rotary_width(self.head_width, rope_fraction)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.short_conv = make_short_conv(3 * d_model, short_conv)
        self.q_norm = nn.RMSNorm(self.head_width, eps=1e-6) if qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_width, eps=1e-6) if qk_norm else None
        self.out_proj = nn.Linear(d_model, d_model, bias=False)

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Which keys a query sees, by their positions: (..., 1, t, 1) and (..., 1, 1, T) -> bool,
        whose third last axis is heads or 1."""
        return keys <= queries

    def num_pairs(self, t: int) -> int:
        """Number of pairs of a query and a key that it sees in t tokens, summed over the heads."""
        return self.num_heads * (t * (t + 1) // 2)

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        return self.merge(self.attend(*self.project(u, torch.arange(u.shape[1], device=u.device))))

    def project(self, u: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """u: (b, t, d), positions: (t,) or (b, t) -> q and k, rotated, and v: (b, h, t, k)."""
        return self.rotated(read_convolved(self.short_conv, self.qkv(u), {})[0], positions)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention of a whole sequence from its first token on, all (b, h, t, k)."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def merge(self, context: Tensor) -> Tensor:
        """context: (b, h, t, k) -> (b, t, d): the heads side by side, projected."""
        return applied(self.out_proj, context.transpose(1, 2).flatten(2))

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        z = self.qkv(u)
        parts = self.split_heads(z if self.short_conv is None else self.short_conv.reference(z))
        q, k = (self._rotated_reference(x) for x in parts[:2])
        context = torch.zeros_like(q)
        for row in range(u.shape[0]):
            chosen = self.chosen_reference(u[row], None if ids is None else ids[row].tolist())
            for head in range(self.num_heads):
                for i, keys in enumerate(chosen[head]):
                    if keys:
                        weights = self.weights_reference(
                            k[row, head, keys] @ q[row, head, i] / math.sqrt(self.head_width),
                        )
                        context[row, head, i] = weights @ parts[2][row, head, keys]
        return self.merge(context)

    def weights_reference(self, scores: Tensor) -> Tensor:
        """The scores of one query (n,) -> the weights of its keys (n,), for `reference`."""
        return torch.softmax(scores, dim=0)

    def chosen_reference(self, u: Tensor, ids: list[int] | None) -> list[list[list[int]]]:
        """u: (t, d) and the ids of one row -> the positions that each query sees in each head;
        where there are none it gets zero."""
        places = torch.arange(u.shape[0], device=u.device)
        mask = self.sees(places[:, None], places).expand(self.num_heads, -1, -1)
        return [_chosen(rows) for rows in mask]

    def initial_state(self, batch: int) -> State:
        weight = self.qkv.weight
        empty = weight.new_zeros(batch, self.num_heads, 0, self.head_width)
        state = {
            "keys": empty,
            "values": empty,
            "num_read": torch.zeros(batch, dtype=torch.int64, device=weight.device),
        }
        return state | initial_history(self.short_conv, batch)

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        q, state = self.extend(u, state)
        keys, values = state["keys"], state["values"]
        is_first = keys.shape[2] == u.shape[1]
        context = self.attend(q, keys, values) if is_first else self.attend_masked(q, state)
        return self.merge(context), self.trim(state)

    def extend(self, u: Tensor, state: State) -> tuple[Tensor, State]:
        """The queries of new tokens (b, h, t, k), and a state with their keys and values after the
        older ones."""
        first, (z, recent) = state["num_read"], read_convolved(self.short_conv, self.qkv(u), state)
        q, k, v = self.rotated(z, first[:, None] + torch.arange(u.shape[1], device=u.device))
        after = extended(state, {"keys": k, "values": v}, dim=2)
        after["num_read"] = first + u.shape[1]
        return q.to(after["keys"].dtype), after | recent

    def places(self, state: State, num_latest: int) -> Tensor:
        """The positions (b, num_latest) of a state's latest entries; negative where a row has
        none."""
        return state["num_read"][:, None] + torch.arange(
            -num_latest, 0, device=state["num_read"].device
        )

    def trim(self, state: State) -> State:
        """The state without the keys that no later query sees."""
        if self.window is None or state["keys"].shape[2] <= self.window:
            return state
        latest = slice(-self.window, None)
        names = ("keys", "values")
        return state | {name: state[name][:, :, latest].contiguous() for name in names}

    def state_size(self, t: int) -> int:
        """See `Mixer.state_size`: 2 d t, keys and values (Based, arXiv 2402.18668, appendix E.2),
        of the tokens that are kept."""
        return 2 * self.d_model * (t if self.window is None else min(t, self.window))

    def flops(self, t: int) -> int:
        """See `Mixer.flops`: the projections, and a score and a weighted value, 2 k each, for each
        pair that is seen."""
        convolution = convolution_flops(self.short_conv, t)
        pairs = 4 * self.head_width * self.num_pairs(t)
        return linear_flops(t, self.qkv, self.out_proj) + convolution + pairs

    def seen_in(self, state: State, num_queries: int) -> Tensor:
        """Which of a state's keys its latest queries see, (b, 1 or h, t, T)."""
        queries, keys = self.places(state, num_queries), self.places(state, state["keys"].shape[2])
        return self.mask(queries, keys)

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Which keys (b, T) queries (b, t) see, by their positions, (b, 1 or h, t, T); none before
        the first."""
        is_real = (keys >= 0)[:, None, None, :]
        return self.sees(queries[:, None, :, None], keys[:, None, None, :]) & is_real

    def attend_masked(self, q: Tensor, state: State) -> Tensor:
        """The attention of the latest tokens (b, h, t, k), whose keys are in the state already."""
        mask = self.seen_in(state, q.shape[2])
        return F.scaled_dot_product_attention(q, state["keys"], state["values"], attn_mask=mask)

    def rotated(self, z: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `split_heads`, q and k rotated; positions: (t,) or (b, t)."""
        q, k, v = self.split_heads(z)
        q, k = (rotate(x, positions, base=self.rope_base, width=self.rope_width) for x in (q, k))
        return q, k, v

    def split_heads(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z: (b, t, 3 d) -> q and k, normalised where they are, and v: (b, h, t, k)."""
        q, k, v = z.view(*z.shape[:2], 3, self.num_heads, self.head_width).permute(2, 0, 3, 1, 4)
        if self.q_norm is not None and self.k_norm is not None:
            q = rms_normed(q, self.q_norm).to(q.dtype)
            k = rms_normed(k, self.k_norm).to(k.dtype)
        return q, k, v

    def _rotated_reference(self, x: Tensor) -> Tensor:
        rotation: Any = {"base": self.rope_base, "width": self.rope_width}
        places = enumerate(x.unbind(2))
        return torch.stack([rotate_reference(part, i, **rotation) for i, part in places], dim=2)


def _chosen(rows: Tensor) -> list[list[int]]:
    """The positions at which each of the rows (t, T) is true."""
    return [row.nonzero().flatten().tolist() for row in rows]
