"""RWKV-5, "Eagle": linear attention whose key channels forget at their own rates, with a bonus for the present token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.recurrences.api import rwkv5_attention
from recallkit.models.mixers.api import Mixer, State, applied, chunk_sizes, doublings, linear_flops, widened
from recallkit.models.mixers.rwkv4 import decay_rates, depth_of, initial_mix, previous_inputs

if TYPE_CHECKING:
    from torch import Tensor


class RWKV5(Mixer):
    """The time mixing of Eagle (arXiv 2404.05892), heads of n = `head_size` channels, * channel by channel:

        s_i = m_s * x_i + (1 - m_s) * x_{i-1}    for s = r, k, v, g: r = receptance(r_i), k = key(k_i), v = ..., g = gate(g_i)
        S_i = diag(w) S_{i-1} + k_i^T v_i, of n x n                      w = exp(-exp(time_decay))
        o_i = r_i (S_{i-1} + diag(u) k_i^T v_i)                          u = time_first
        y = out_proj(silu(g) * norm(o)), norm a LayerNorm of each head

    `eps` of the norm is 64e-5 because o is not divided by 8 before the norm, unlike in the authors' code. State: x_{i-1} and S.
    """

    chunk = 64

    def __init__(self, d_model: int, *, head_size: int = 64, layer: int = 0, num_layers: int = 1, eps: float = 64e-5) -> None:
        """`layer` of `num_layers` determines the initial decays of its channels and the initial weight of x_{i-1}."""
        super().__init__(d_model)
        if head_size < 1 or d_model % head_size:
            raise ValueError(f"d_model {d_model} is not a multiple of head_size {head_size}")
        if not 0 <= layer < num_layers:
            raise ValueError(f"layer is {layer}, not one of {num_layers} counted from 0")
        self.num_heads, self.head_size = d_model // head_size, head_size
        depth, mix, places = depth_of(layer, num_layers), initial_mix(d_model, layer, num_layers), torch.arange(d_model)
        shares = places / max(d_model - 1, 1)
        self.time_decay = nn.Parameter((-6 + 5 * shares ** (0.7 + 1.3 * depth)).view(-1, head_size))
        self.time_first = nn.Parameter((depth * (1 - shares) + 0.1 * ((places + 1) % 3 - 1)).view(-1, head_size))
        self.time_mix_key, self.time_mix_value = nn.Parameter(mix), nn.Parameter(mix + 0.3 * depth)
        self.time_mix_receptance, self.time_mix_gate = nn.Parameter(mix.sqrt()), nn.Parameter(mix.sqrt())
        self.receptance, self.key, self.value, self.gate, self.out_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(5))
        self.norm = nn.GroupNorm(self.num_heads, d_model, eps=eps)
        for linear, gain in ((self.receptance, 1.0), (self.key, 0.1), (self.value, 1.0), (self.gate, 0.1)):
            nn.init.orthogonal_(linear.weight, gain=gain)
        nn.init.zeros_(self.out_proj.weight)
        nn.init.constant_(self.norm.weight, ((1 + layer) / num_layers) ** 0.7)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: the recurrence, token by token."""
        before = torch.cat([torch.zeros_like(u[:, :1]), u[:, :-1]], dim=1)
        r, k, v, g = self._projected(u, before)
        r, k, v = (self._heads(part) for part in (r, k, v))
        decay, bonus = torch.exp(-torch.exp(self.time_decay))[:, :, None], self.time_first[:, :, None]
        state, outputs = u.new_zeros(len(u), self.num_heads, self.head_size, self.head_size), []
        for i in range(u.shape[1]):
            new = k[:, :, i, :, None] * v[:, :, i, None, :]
            outputs.append((r[:, :, i, :, None] * (state + bonus * new)).sum(-2))
            state = decay * state + new
        return self._merge(torch.stack(outputs, dim=2), g)

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: the previous input (b, d) and S (b, h, n, n)."""
        like = widened(self.time_decay)
        kv = like.new_zeros(batch, self.num_heads, self.head_size, self.head_size)
        return {"previous": like.new_zeros(batch, self.d_model), "kv": kv}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`: all chunks at once except for the states between them."""
        before = previous_inputs(u, state["previous"], time=1)
        r, k, v, g = self._projected(u, before)
        r, k, v = (self._heads(part) for part in (r, k, v))
        o, kv = rwkv5_attention(r, k, v, -decay_rates(self.time_decay), self.time_first, state["kv"], chunk=self.chunk)
        return self._merge(widened(o), g), {"previous": widened(u[:, -1]), "kv": kv}

    def state_size(self, t: int) -> int:
        """S of every head and the previous input, d (n + 1); for all t."""
        return self.d_model * (self.head_size + 1)

    def flops(self, t: int) -> int:
        """Counted: projections, the pairs of each chunk, two products with S for each token; shifts, gate and norm.

        Each doubling of a block multiplies r or k of every token by a power of the decay, see `kernels.recurrences.chunks.weigh_pairs`.
        """
        mixing = t * (25 + doublings(t, self.chunk) + 4 * self.head_size + 4)
        for size in chunk_sizes(t, self.chunk):
            mixing += size * (size + 1) // 2 * 4 + 2 * self.head_size
        return linear_flops(t, self.receptance, self.key, self.value, self.gate, self.out_proj) + self.d_model * mixing

    def _projected(self, u: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        """r, k, v and g from inputs and previous inputs (b, t, d)."""
        pairs = (
            (self.receptance, self.time_mix_receptance),
            (self.key, self.time_mix_key),
            (self.value, self.time_mix_value),
            (self.gate, self.time_mix_gate),
        )
        return tuple(project(torch.lerp(before, u, mix.to(u.dtype))) for project, mix in pairs)

    def _heads(self, x: Tensor) -> Tensor:
        """(b, t, d) -> (b, h, t, n)."""
        return torch.unflatten(x, -1, (self.num_heads, self.head_size)).transpose(1, 2)

    def _merge(self, o: Tensor, g: Tensor) -> Tensor:
        """The heads' outputs (b, h, t, n), each normalised, gated by g (b, t, d) and projected."""
        flat = o.transpose(1, 2).flatten(0, 1).flatten(1)
        normed = functional.group_norm(flat, self.num_heads, self.norm.weight.to(o.dtype), self.norm.bias.to(o.dtype), self.norm.eps)
        return applied(self.out_proj, (normed.view(g.shape) * functional.silu(g.to(o.dtype))).to(g.dtype))
