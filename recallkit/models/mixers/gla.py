"""Gated linear attention: every channel of the keys forgets at a rate that depends on the token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from recallkit.kernels.recurrences.api import gated_linear_attention
from recallkit.models.mixers.api import Mixer, State, applied, chunk_sizes, doublings, head_widths, linear_flops, widened

if TYPE_CHECKING:
    from torch import Tensor


class GLA(Mixer):
    """Gated linear attention (arXiv 2312.06635, section 4.4), heads h, q and k of k = `key_factor` d/h entries, v of `value_factor` d/h.

        S_i = diag(a_i) S_i-1 + k_i^T v_i,  o_i = q_i S_i / sqrt(k),  a_i = sigmoid(W_2 W_1 u_i + b)^(1/temperature)
        y = (swish(W_g u) * norm(o)) W_o,  W_1: d -> gate_rank

    As in the authors' code (flash-linear-attention) the norm of each head is a root mean square with weights (LayerNorm in
    the paper), and the output gate has no bias.
    """

    chunk = 16

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int = 4,
        key_factor: float = 0.5,
        value_factor: float = 1.0,
        gate_rank: int = 16,
        temperature: float = 16.0,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(d_model)
        key_width, value_width = head_widths(d_model, num_heads, key_factor, value_factor)
        if gate_rank < 1 or temperature <= 0:
            raise ValueError(f"gate_rank {gate_rank} and temperature {temperature} must be positive")
        self.num_heads, self.key_dim, self.value_dim = num_heads, key_width // num_heads, value_width // num_heads
        self.temperature = temperature
        self.q_proj = nn.Linear(d_model, key_width, bias=False)
        self.k_proj = nn.Linear(d_model, key_width, bias=False)
        self.v_proj = nn.Linear(d_model, value_width, bias=False)
        self.g_proj = nn.Linear(d_model, value_width, bias=False)
        self.decay_in = nn.Linear(d_model, gate_rank, bias=False)
        self.decay_out = nn.Linear(gate_rank, key_width)
        self.norm = nn.RMSNorm(self.value_dim, eps=eps)
        self.out_proj = nn.Linear(value_width, d_model, bias=False)

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        return self.read(u, {})[0]

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: the recurrence, token by token."""
        q, k, v, decay = (self._heads(x) for x in self._projected(u))
        gates = torch.sigmoid(decay) ** (1 / self.temperature)
        state, outputs = q.new_zeros(u.shape[0], self.num_heads, self.key_dim, self.value_dim), []
        for i in range(u.shape[1]):
            state = gates[:, :, i, :, None] * state + k[:, :, i, :, None] * v[:, :, i, None, :]
            outputs.append((q[:, :, i, :, None] * state).sum(dim=-2) / math.sqrt(self.key_dim))
        return self._merge(torch.stack(outputs, dim=2), u)

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: S (b, h, k, v) as `kv`."""
        return {"kv": widened(self.out_proj.weight).new_zeros(batch, self.num_heads, self.key_dim, self.value_dim)}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`: all chunks at once except for the states between them. An empty state is the initial one."""
        q, k, v, decay = (self._heads(x) for x in self._projected(u))
        log_decay, scale = nn.functional.logsigmoid(widened(decay)) / self.temperature, 1 / math.sqrt(self.key_dim)
        o, kv = gated_linear_attention(q, k, v, log_decay, state.get("kv"), scale=scale, chunk=self.chunk)
        return self._merge(o, u), {"kv": kv}

    def state_size(self, t: int) -> int:
        """S of every head, as Zoology's code counts it; for all t."""
        return self.num_heads * self.key_dim * self.value_dim

    def flops(self, t: int) -> int:
        """Of `forward`: gates, each chunk's pairs, two products with S and its decay; norm and gate.

        Each doubling of a block multiplies q or k of every token by decays, see `kernels.recurrences.chunks.weigh_pairs`.
        """
        mixing = t * ((11 + doublings(t, self.chunk)) * self.key_dim + 10 * self.value_dim + 4 * self.key_dim * self.value_dim)
        for size in chunk_sizes(t, self.chunk):
            mixing += size * (size + 1) // 2 * (2 * self.key_dim + 2 * self.value_dim)
            mixing += self.key_dim * (2 * self.value_dim + 1)
        layers = (self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.decay_in, self.decay_out, self.out_proj)
        return linear_flops(t, *layers) + self.num_heads * mixing

    def _projected(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v and the argument of the gates' sigmoid, heads side by side."""
        return self.q_proj(u), self.k_proj(u), self.v_proj(u), self.decay_out(self.decay_in(u))

    def _heads(self, x: Tensor) -> Tensor:
        """(b, t, h width) -> (b, h, t, width)"""
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def _merge(self, o: Tensor, u: Tensor) -> Tensor:
        """The heads' outputs (b, h, t, v), each normalised, gated by u and projected."""
        o = widened(o)
        normed = nn.functional.rms_norm(o, (self.value_dim,), self.norm.weight.to(o.dtype), self.norm.eps)
        gate = nn.functional.silu(self.g_proj(u))
        return applied(self.out_proj, gate * normed.transpose(1, 2).flatten(start_dim=2).to(gate.dtype))
