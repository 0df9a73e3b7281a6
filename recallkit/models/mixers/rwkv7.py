"""RWKV-7, "Goose": a state that is read with one key, corrected under another, and forgets by channel, all of it by the token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.recurrences.api import rwkv7_attention
from recallkit.models.mixers.api import Mixer, State, applied, chunk_sizes, doublings, linear_flops, widened
from recallkit.models.mixers.rwkv4 import depth_of, previous_inputs

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.choice import Impl

STRONGEST = math.exp(-0.5)
"""Decays are at least exp(-exp(-0.5)), 0.545."""
MIX_POWERS = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)
"""Of r, w, k, v, a and g: how fast the initial share of the previous input falls with the channel."""


class Tokens(NamedTuple):
    """What a text is turned into before the recurrence, wide except g: heads of n channels (b, h, t, n), g (b, t, d)."""

    r: Tensor
    k: Tensor
    v: Tensor
    erase: Tensor
    write: Tensor
    log_decay: Tensor
    g: Tensor


class RWKV7(Mixer):
    """The time mixing of Goose (arXiv 2503.14456), heads of n = `head_size` channels, * and sums channel by channel:

        s_i = u_i + m_s * (u_{i-1} - u_i)   for s = r, w, k, v, a, g;   r = receptance(r_i), k = key(k_i), v = value(v_i)
        d = exp(-exp(-1/2) sigmoid(W_2 tanh(W_1 w_i) + w_0)),   a = sigmoid(A_2 A_1 a_i + a_0),   g = G_2 sigmoid(G_1 g_i)
        e = k * key_scale, of length one in each head,   k' = k * (1 + (a - 1) * rate_scale)
        S_i = diag(d_i) S_{i-1} - (a_i * e_i)^T (e_i S_{i-1}) + k'_i^T v_i,   o_i = r_i S_i
        y = out_proj(g * (norm(o) + (r . (bonus * k')) v)), norm a LayerNorm of each head

    `eps` of the norm and the ranks, multiples of 32, are those of the authors' code (that of W and of A `rate_rank`, that of G
    `gate_rank`, about 2.5 and 5 times the root of d where None). Values are this layer's own: the authors mix those of later layers with
    the first layer's, which a mixer does not see. State: u_{i-1} and S.
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
        """`layer` of `num_layers` determines the initial decays of its channels and the initial weight of u_{i-1}."""
        super().__init__(d_model)
        if head_size < 1 or d_model % head_size:
            raise ValueError(f"d_model {d_model} is not a multiple of head_size {head_size}")
        if not 0 <= layer < num_layers:
            raise ValueError(f"layer is {layer}, not one of {num_layers} counted from 0")
        rate_rank = _rank(2.5, d_model) if rate_rank is None else rate_rank
        gate_rank = _rank(5, d_model) if gate_rank is None else gate_rank
        if rate_rank < 1 or gate_rank < 1:
            raise ValueError(f"rate_rank {rate_rank} and gate_rank {gate_rank} must be positive")
        self.num_heads, self.head_size = d_model // head_size, head_size
        self.receptance, self.key, self.value, self.out_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.decay_in, self.rate_in = (nn.Linear(d_model, rate_rank, bias=False) for _ in range(2))
        self.decay_out, self.rate_out = (nn.Linear(rate_rank, d_model) for _ in range(2))
        self.gate_in, self.gate_out = nn.Linear(d_model, gate_rank, bias=False), nn.Linear(gate_rank, d_model, bias=False)
        self.norm = nn.GroupNorm(self.num_heads, d_model, eps=eps)
        self.time_mix = nn.Parameter(torch.empty(len(MIX_POWERS), d_model))
        self.key_scale, self.rate_scale, self.bonus = (nn.Parameter(torch.empty(d_model)) for _ in range(3))
        self._initialise(layer, num_layers)

    @torch.no_grad()
    def _initialise(self, layer: int, num_layers: int) -> None:
        """As in the authors' training code."""
        d, n, places = self.d_model, self.head_size, torch.arange(self.d_model)
        shares, zigzag = places / max(d - 1, 1), 2 * (places % n) / max(n - 1, 1) - 1
        zigzag = zigzag * zigzag.abs()
        for row, power in zip(self.time_mix, MIX_POWERS, strict=True):
            row.copy_(1 - (places / d) ** (power * (1 - layer / num_layers)))
        for linear, gain in ((self.decay_out, 0.1), (self.rate_out, 0.1), (self.gate_out, 0.1)):
            nn.init.orthogonal_(linear.weight, gain=gain * max(1, linear.in_features / d) ** 0.5)
        for linear in (self.decay_in, self.rate_in, self.gate_in, self.out_proj):
            nn.init.zeros_(linear.weight)
        for linear, factor in ((self.receptance, 0.5), (self.key, 0.05), (self.value, 0.5)):
            nn.init.uniform_(linear.weight, -factor * d**-0.5, factor * d**-0.5)
        self.decay_out.bias.copy_(-5.5 + 6 * shares ** (1 + depth_of(layer, num_layers) ** 0.3) + 2.5 * zigzag)
        self.rate_out.bias.copy_(-0.19 + 0.3 * zigzag + 0.4 * (shares - 0.5))
        self.key_scale.copy_(0.71 - 0.1 * (shares - 0.5))
        self.rate_scale.fill_(1.02)
        self.bonus.fill_(-0.04)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: the recurrence, token by token."""
        return self._mix(u, torch.zeros_like(u[:, 0]), None, "reference")[0]

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: the previous input (b, d) and S (b, h, n, n)."""
        like = widened(self.bonus)
        kv = like.new_zeros(batch, self.num_heads, self.head_size, self.head_size)
        return {"previous": like.new_zeros(batch, self.d_model), "kv": kv}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`: all chunks at once except for the states between them."""
        y, kv = self._mix(u, state["previous"], state["kv"])
        return y, {"previous": widened(u[:, -1]), "kv": kv}

    def state_size(self, t: int) -> int:
        """S of every head and the previous input, d (n + 1); for all t."""
        return self.d_model * (self.head_size + 1)

    def flops(self, t: int) -> int:
        """Counted: projections; shifts, gates, keys, bonus and norm; each chunk's pairs, its triangular system and products with S.

        A pair has four products of r or e with k or w, the values that it reads, those that it sees of two keys, and the system.
        """
        n = self.head_size
        mixing = t * (50 + 5 + 2 * doublings(t, self.chunk) + 8 * n)
        for size in chunk_sizes(t, self.chunk):
            mixing += size * (size + 1) // 2 * (8 + 2 + 4 + 4) + n
        layers = (self.receptance, self.key, self.value, self.out_proj, self.decay_in, self.decay_out, self.rate_in, self.rate_out)
        low_rank = t * (5 * self.decay_in.out_features + 4 * self.gate_in.out_features)
        return linear_flops(t, *layers, self.gate_in, self.gate_out) + low_rank + self.d_model * mixing

    def _projected(self, u: Tensor, before: Tensor) -> Tokens:
        """From inputs and previous inputs (b, t, d)."""
        r, w, k, v, a, g = (torch.lerp(u, before, mix.to(u.dtype)) for mix in self.time_mix)
        decay = torch.sigmoid(widened(self.decay_out(torch.tanh(self.decay_in(w)))))
        a = torch.sigmoid(widened(self.rate_out(self.rate_in(a))))
        g = self.gate_out(torch.sigmoid(self.gate_in(g)))
        r, k, v = (widened(project(x)) for project, x in ((self.receptance, r), (self.key, k), (self.value, v)))
        erase = functional.normalize(self._heads(k * self.key_scale), dim=-1)
        r, k, v, a, log_decay = (self._heads(x) for x in (r, k * (1 + (a - 1) * self.rate_scale), v, a, -STRONGEST * decay))
        return Tokens(r, k, v, erase, a * erase, log_decay, g)

    def _mix(self, u: Tensor, previous: Tensor, start: Tensor | None, impl: Impl = "auto") -> tuple[Tensor, Tensor]:
        """The mixer's output (b, t, d) and S after the last token; `previous` and `start`: the input and S before the first."""
        given = self._projected(u, previous_inputs(u, previous, time=1))
        r, k, v, erase, write, log_decay, g = given
        if u.is_cuda:
            # Kernels need half precision where there is one; on CPU rounding gains nothing.
            r, k, v = (x.to(g.dtype) for x in (r, k, v))
        o, kv = rwkv7_attention(r, k, v, erase, write, log_decay, start, chunk=self.chunk, impl=impl)
        return self._merge(widened(o), given), kv

    def _merge(self, o: Tensor, given: Tokens) -> Tensor:
        """The heads' outputs (b, h, t, n), normalised, with the bonus of the present token, gated and projected."""
        b, _, t, _ = o.shape
        weight, bias = (x.to(o.dtype) for x in (self.norm.weight, self.norm.bias))
        normed = functional.group_norm(o.transpose(1, 2).reshape(b * t, -1), self.num_heads, weight, bias, self.norm.eps).view(b, t, -1)
        bonus = (given.r * given.k * self.bonus.view(self.num_heads, 1, -1)).sum(dim=-1, keepdim=True) * given.v
        gated = (normed + bonus.transpose(1, 2).flatten(start_dim=2)) * given.g.to(o.dtype)
        return applied(self.out_proj, gated.to(given.g.dtype))

    def _heads(self, x: Tensor) -> Tensor:
        """(b, t, d) -> (b, h, t, n)."""
        return torch.unflatten(x, -1, (self.num_heads, self.head_size)).transpose(1, 2)


def _rank(factor: float, d_model: int) -> int:
    return max(32, round(factor * math.sqrt(d_model) / 32) * 32)
