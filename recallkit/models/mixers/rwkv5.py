"""RWKV-5, "Eagle": linear attention whose key channels forget at their own rates, with a bonus for
the present token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.recurrences.api import rwkv5_attention
from recallkit.models.mixers.api import (
    HeadRecurrence,
    State,
    applied,
    chunk_pairs,
    chunk_sizes,
    doublings,
    linear_flops,
    widened,
)
from recallkit.models.mixers.rwkv4 import decay_rates, depth_of, initial_mix, previous_inputs

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.choice import Impl


class RWKVHeads(HeadRecurrence):
    """The time mixing of RWKV from version 5 on: heads of n = `head_size` channels, whose outputs
    have a LayerNorm each. State: the previous input and S."""

    norm: nn.GroupNorm

    def __init__(self, d_model: int, head_size: int) -> None:
        if head_size < 1 or d_model % head_size:
            raise ValueError(f"d_model {d_model} is not a multiple of head_size {head_size}")
        super().__init__(d_model, d_model // head_size, (d_model, d_model))

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: the previous input (b, d) and S (b, h, n, n)."""
        state = super().initial_state(batch)
        return {"previous": state["kv"].new_zeros(batch, self.d_model), **state}

    def state_size(self, t: int) -> int:
        """S of every head and the previous input, d (n + 1); for all t."""
        return super().state_size(t) + self.d_model

    def normed(self, o: Tensor) -> Tensor:
        """The heads' outputs (b, h, t, n), wide, each normalised -> (b, t, d)."""
        b, _, t, _ = o.shape
        flat = o.transpose(1, 2).reshape(b * t, -1)
        weight, bias = (x.to(o.dtype) for x in (self.norm.weight, self.norm.bias))
        normed = functional.group_norm(flat, self.num_heads, weight, bias, self.norm.eps)
        return normed.view(b, t, -1)


class RWKV5(RWKVHeads):
    """The time mixing of Eagle (arXiv 2404.05892), heads of n = `head_size` channels, * channel by
    channel:

        s_i = m_s * x_i + (1 - m_s) * x_{i-1}    for s = r, k, v, g
        r = receptance(r_i), k = key(k_i), v = value(v_i), g = gate(g_i)
        S_i = diag(w) S_{i-1} + k_i^T v_i, of n x n              w = exp(-exp(time_decay))
        o_i = r_i (S_{i-1} + diag(u) k_i^T v_i)                  u = time_first
        y = out_proj(silu(g) * norm(o)), norm a LayerNorm of each head

    `eps` of the norm is 64e-5 because o is not divided by 8 before the norm, unlike in the authors'
    code. State: x_{i-1} and S.
    """

    chunk = 64

    def __init__(
        self,
        d_model: int,
        *,
        head_size: int = 64,
        layer: int = 0,
        num_layers: int = 1,
        eps: float = 64e-5,
    ) -> None:
        """`layer` of `num_layers` determines the initial decays of its channels and the initial
        weight of x_{i-1}."""
        super().__init__(d_model, head_size)
        depth, mix = depth_of(layer, num_layers), initial_mix(d_model, layer, num_layers)
        places = torch.arange(d_model)
        shares, zigzag = places / max(d_model - 1, 1), (places + 1) % 3 - 1
        decay = -6 + 5 * shares ** (0.7 + 1.3 * depth)
        bonus = depth * (1 - shares) + 0.1 * zigzag
        self.time_decay = nn.Parameter(decay.view(-1, head_size))
        self.time_first = nn.Parameter(bonus.view(-1, head_size))
        self.time_mix_key = nn.Parameter(mix)
        self.time_mix_value = nn.Parameter(mix + 0.3 * depth)
        self.time_mix_receptance = nn.Parameter(mix.sqrt())
        self.time_mix_gate = nn.Parameter(mix.sqrt())
        layers = (nn.Linear(d_model, d_model, bias=False) for _ in range(5))
        self.receptance, self.key, self.value, self.gate, self.out_proj = layers
        self.norm = nn.GroupNorm(self.num_heads, d_model, eps=eps)
        gains = {self.receptance: 1.0, self.key: 0.1, self.value: 1.0, self.gate: 0.1}
        for linear, gain in gains.items():
            nn.init.orthogonal_(linear.weight, gain=gain)
        nn.init.zeros_(self.out_proj.weight)
        nn.init.constant_(self.norm.weight, ((1 + layer) / num_layers) ** 0.7)

    def mix(self, u: Tensor, state: State, impl: Impl = "auto") -> tuple[Tensor, State]:
        """See `Recurrence.mix`: all chunks at once except for the states between them."""
        before = previous_inputs(u, state.get("previous"), time=1)
        r, k, v, g = (
            project(torch.lerp(before, u, weight.to(u.dtype)))
            for project, weight in (
                (self.receptance, self.time_mix_receptance),
                (self.key, self.time_mix_key),
                (self.value, self.time_mix_value),
                (self.gate, self.time_mix_gate),
            )
        )
        r, k, v = map(self.by_head, (r, k, v))
        log_decay = -decay_rates(self.time_decay)
        o, kv = rwkv5_attention(
            *(r, k, v, log_decay, self.time_first, state.get("kv")),
            chunk=self.chunk,
            impl=impl,
        )
        gated = self.normed(widened(o))
        gated = gated * functional.silu(g.to(gated.dtype))
        y = applied(self.out_proj, gated.to(g.dtype))
        return y, {"previous": widened(u[:, -1]), "kv": kv}

    def flops(self, t: int) -> int:
        """Counted: projections, the pairs of each chunk, two products with S for each token;
        shifts, gate and norm.

        Each doubling of a block multiplies r or k of every token by a power of the decay, see
        `kernels.recurrences.chunks.weigh_pairs`.
        """
        n, num_chunks = self.key_dim, len(chunk_sizes(t, self.chunk))
        mixing = t * (29 + doublings(t, self.chunk) + 4 * n)
        mixing += chunk_pairs(t, self.chunk) * 4 + num_chunks * 2 * n
        layers = (self.receptance, self.key, self.value, self.gate, self.out_proj)
        return linear_flops(t, *layers) + self.d_model * mixing
