"""RWKV-7, "Goose": a state that is read with one key, corrected under another, and forgets by
channel, all of it by the token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.recurrences.api import rwkv7_attention
from recallkit.models.mixers.api import (
    State,
    applied,
    chunk_pairs,
    chunk_sizes,
    doublings,
    linear_flops,
    widened,
)
from recallkit.models.mixers.rwkv4 import depth_of, previous_inputs
from recallkit.models.mixers.rwkv5 import RWKVHeads

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.choice import Impl

STRONGEST = math.exp(-0.5)
"""Decays are at least exp(-exp(-0.5)), 0.545."""
MIX_POWERS = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)
"""Of r, w, k, v, a and g: how fast the initial share of the previous input falls with the
channel."""


class RWKV7(RWKVHeads):
    """The time mixing of Goose (arXiv 2503.14456), heads of n = `head_size` channels, * and sums
    channel by channel:

        s_i = u_i + m_s * (u_{i-1} - u_i)   for s = r, w, k, v, a, g
        r = receptance(r_i), k = key(k_i), v = value(v_i)
        d = exp(-exp(-1/2) sigmoid(W_2 tanh(W_1 w_i) + w_0))
        a = sigmoid(A_2 A_1 a_i + a_0),   g = G_2 sigmoid(G_1 g_i)
        e = k * key_scale, of length one in each head,   k' = k * (1 + (a - 1) * rate_scale)
        S_i = diag(d_i) S_{i-1} - (a_i * e_i)^T (e_i S_{i-1}) + k'_i^T v_i,   o_i = r_i S_i
        y = out_proj(g * (norm(o) + (r . (bonus * k')) v)), norm a LayerNorm of each head

    `eps` of the norm and the ranks, multiples of 32, are those of the authors' code (that of W and
    of A `rate_rank`, that of G `gate_rank`, about 2.5 and 5 times the root of d where None). Values
    are this layer's own: the authors mix those of later layers with the first layer's, which a
    mixer does not see. State: u_{i-1} and S.
    """

    chunk = 32

    def __init__(
        self,
        d_model: int,
        *,
        head_size: int = 64,
        rate_rank: int | None = None,
        gate_rank: int | None = None,
        layer: int = 0,
        num_layers: int = 1,
        eps: float = 64e-5,
    ) -> None:
        """`layer` of `num_layers` determines the initial decays of its channels and the initial
        weight of u_{i-1}."""
        super().__init__(d_model, head_size)
        rate_rank = _rank(2.5, d_model) if rate_rank is None else rate_rank
        gate_rank = _rank(5, d_model) if gate_rank is None else gate_rank
        if rate_rank < 1 or gate_rank < 1:
            raise ValueError(f"rate_rank {rate_rank} and gate_rank {gate_rank} must be positive")
        layers = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.receptance, self.key, self.value, self.out_proj = layers
        self.decay_in, self.rate_in = (nn.Linear(d_model, rate_rank, bias=False) for _ in range(2))
        self.decay_out, self.rate_out = (nn.Linear(rate_rank, d_model) for _ in range(2))
        self.gate_in = nn.Linear(d_model, gate_rank, bias=False)
        self.gate_out = nn.Linear(gate_rank, d_model, bias=False)
        self.norm = nn.GroupNorm(self.num_heads, d_model, eps=eps)
        self.time_mix = nn.Parameter(torch.empty(len(MIX_POWERS), d_model))
        vectors = (nn.Parameter(torch.empty(d_model)) for _ in range(3))
        self.key_scale, self.rate_scale, self.bonus = vectors
        self._initialise(layer, num_layers)

    @torch.no_grad()
    def _initialise(self, layer: int, num_layers: int) -> None:
        """As in the authors' training code."""
        depth = depth_of(layer, num_layers)
        d, n, places = self.d_model, self.key_dim, torch.arange(self.d_model)
        shares, zigzag = places / max(d - 1, 1), 2 * (places % n) / max(n - 1, 1) - 1
        zigzag = zigzag * zigzag.abs()
        for row, power in zip(self.time_mix, MIX_POWERS, strict=True):
            row.copy_(1 - (places / d) ** (power * (1 - layer / num_layers)))
        for linear in (self.decay_out, self.rate_out, self.gate_out):
            nn.init.orthogonal_(linear.weight, gain=0.1 * max(1, linear.in_features / d) ** 0.5)
        for linear in (self.decay_in, self.rate_in, self.gate_in, self.out_proj):
            nn.init.zeros_(linear.weight)
        for linear, factor in ((self.receptance, 0.5), (self.key, 0.05), (self.value, 0.5)):
            nn.init.uniform_(linear.weight, -factor * d**-0.5, factor * d**-0.5)
        self.decay_out.bias.copy_(-5.5 + 6 * shares ** (1 + depth**0.3) + 2.5 * zigzag)
        self.rate_out.bias.copy_(-0.19 + 0.3 * zigzag + 0.4 * (shares - 0.5))
        self.key_scale.copy_(0.71 - 0.1 * (shares - 0.5))
        self.rate_scale.fill_(1.02)
        self.bonus.fill_(-0.04)

    def mix(self, u: Tensor, state: State, impl: Impl = "auto") -> tuple[Tensor, State]:
        """See `Recurrence.mix`: all chunks at once except for the states between them."""
        before = previous_inputs(u, state.get("previous"), time=1)
        r, w, k, v, a, g = (torch.lerp(u, before, mix.to(u.dtype)) for mix in self.time_mix)
        decay = torch.sigmoid(widened(self.decay_out(torch.tanh(self.decay_in(w)))))
        a = torch.sigmoid(widened(self.rate_out(self.rate_in(a))))
        g = self.gate_out(torch.sigmoid(self.gate_in(g)))
        r, k, v = (widened(x) for x in (self.receptance(r), self.key(k), self.value(v)))
        erase = functional.normalize(self.by_head(k * self.key_scale), dim=-1)
        k = k * (1 + (a - 1) * self.rate_scale)
        r, k, v, a, log_decay = map(self.by_head, (r, k, v, a, -STRONGEST * decay))
        # Kernels need half precision where there is one; on CPU rounding gains nothing.
        inputs = [x.to(g.dtype) if u.is_cuda else x for x in (r, k, v)]
        o, kv = rwkv7_attention(
            *(inputs[0], inputs[1], inputs[2], erase, a * erase, log_decay, state.get("kv")),
            chunk=self.chunk,
            impl=impl,
        )
        bonus = (r * k * self.bonus.view(self.num_heads, 1, -1)).sum(dim=-1, keepdim=True) * v
        gated = self.normed(widened(o)) + bonus.transpose(1, 2).flatten(start_dim=2)
        y = applied(self.out_proj, (gated * g.to(gated.dtype)).to(g.dtype))
        return y, {"previous": widened(u[:, -1]), "kv": kv}

    def flops(self, t: int) -> int:
        """Counted: projections; shifts, gates, keys, bonus and norm; each chunk's pairs, its
        triangular system and products with S.

        A pair has four products of r or e with k or w, the values that it reads, those that it sees
        of two keys, and the system.
        """
        n, num_chunks = self.key_dim, len(chunk_sizes(t, self.chunk))
        mixing = t * (55 + 2 * doublings(t, self.chunk) + 8 * n)
        mixing += chunk_pairs(t, self.chunk) * (8 + 2 + 4 + 4) + num_chunks * n
        square = (self.receptance, self.key, self.value, self.out_proj)
        low_ranks = (self.decay_in, self.decay_out, self.rate_in, self.rate_out)
        low_rank = t * (5 * self.decay_in.out_features + 4 * self.gate_in.out_features)
        layers = (*square, *low_ranks, self.gate_in, self.gate_out)
        return linear_flops(t, *layers) + low_rank + self.d_model * mixing


def _rank(factor: float, d_model: int) -> int:
    return max(32, round(factor * math.sqrt(d_model) / 32) * 32)
