"""Gated linear attention: every channel of the keys forgets at a rate that depends on the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional

from recallkit.kernels.recurrences.api import gated_linear_attention
from recallkit.models.mixers.api import (
    HeadRecurrence,
    State,
    applied,
    gated_flops,
    head_widths,
    linear_flops,
    rms_normed,
    widened,
)

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.choice import Impl


class GLA(HeadRecurrence):
    """Gated linear attention (arXiv 2312.06635, section 4.4), heads h, q and k of k = `key_factor`
    d/h entries, v of `value_factor` d/h.

        S_i = diag(a_i) S_i-1 + k_i^T v_i,  o_i = q_i S_i / sqrt(k)
        a_i = sigmoid(W_2 W_1 u_i + b)^(1/temperature),  W_1: d -> gate_rank
        y = (swish(W_g u) * norm(o)) W_o

    As in the authors' code (flash-linear-attention) the norm of each head is a root mean square
    with weights (LayerNorm in the paper), and the output gate has no bias.
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
        widths = key_width, value_width = head_widths(d_model, num_heads, key_factor, value_factor)
        super().__init__(d_model, num_heads, widths)
        if gate_rank < 1 or temperature <= 0:
            raise ValueError(
                f"gate_rank {gate_rank} and temperature {temperature} must be positive",
            )
        self.temperature = temperature
        self.q_proj = nn.Linear(d_model, key_width, bias=False)
        self.k_proj = nn.Linear(d_model, key_width, bias=False)
        self.v_proj = nn.Linear(d_model, value_width, bias=False)
        self.g_proj = nn.Linear(d_model, value_width, bias=False)
        self.decay_in = nn.Linear(d_model, gate_rank, bias=False)
        self.decay_out = nn.Linear(gate_rank, key_width)
        self.norm = nn.RMSNorm(self.value_dim, eps=eps)
        self.out_proj = nn.Linear(value_width, d_model, bias=False)

    def mix(self, u: Tensor, state: State, impl: Impl = "auto") -> tuple[Tensor, State]:
        """See `Recurrence.mix`: all chunks at once except for the states between them."""
        q, k, v = (self.by_head(project(u)) for project in (self.q_proj, self.k_proj, self.v_proj))
        gates = widened(self.by_head(self.decay_out(self.decay_in(u))))
        log_decay, scale = functional.logsigmoid(gates) / self.temperature, self.key_dim**-0.5
        o, kv = gated_linear_attention(
            *(q, k, v, log_decay, state.get("kv")),
            scale=scale,
            chunk=self.chunk,
            impl=impl,
        )
        gate = functional.silu(self.g_proj(u))
        normed = rms_normed(o, self.norm).transpose(1, 2).flatten(start_dim=2)
        return applied(self.out_proj, gate * normed.to(gate.dtype)), {"kv": kv}

    def flops(self, t: int) -> int:
        """Of `forward`: gates, norm and output gate beside what `gated_flops` counts."""
        mixing = t * (11 * self.key_dim + 10 * self.value_dim) + gated_flops(self, t)
        keys = (self.q_proj, self.k_proj, self.decay_in, self.decay_out)
        values = (self.v_proj, self.g_proj, self.out_proj)
        return linear_flops(t, *keys, *values) + self.num_heads * mixing
