"""Gated DeltaNet: the delta rule with a state that each head forgets at a rate that depends on the
token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from recallkit.models.mixers.api import linear_flops, widened
from recallkit.models.mixers.delta_net import DeltaNet
from recallkit.models.mixers.mamba import initial_dt_bias

if TYPE_CHECKING:
    from torch import Tensor

A_RANGE = (1e-3, 16.0)
"""The range of the initial rates -A of the heads, uniform: the authors draw from 0 to 16, whose
logarithm is not finite at 0."""


class GatedDelta(DeltaNet):
    """The gated delta rule (arXiv 2412.06464, equation 10): DeltaNet with a decay a of each head,
    and a gate.

        S_i = a_i S_i-1 + b_i k_i^T (v_i - k_i a_i S_i-1)
        a = exp(-exp(A_log) softplus(W_a u + dt_bias)),   y = (swish(W_g u) * norm(o)) W_o
    """

    def __init__(
        self,
        d_model: int,
        *,
        key_factor: float = 0.75,
        value_factor: float = 1.5,
        **options: Any,
    ) -> None:
        super().__init__(d_model, key_factor=key_factor, value_factor=value_factor, **options)

    def _make_gates(self) -> None:
        self.a_proj = nn.Linear(self.d_model, self.num_heads, bias=False)
        self.g_proj = nn.Linear(self.d_model, self.num_heads * self.value_dim, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.num_heads).uniform_(*A_RANGE).log())
        self.dt_bias = nn.Parameter(initial_dt_bias(self.num_heads))

    def _log_decay(self, u: Tensor) -> Tensor:
        # The bias is added in float32: in bfloat16, steps of 0.001 would be lost in rounding.
        dt = functional.softplus(widened(self.a_proj(u)) + self.dt_bias)
        return (-torch.exp(widened(self.A_log)) * dt).transpose(1, 2)

    def _gated(self, o: Tensor, u: Tensor) -> Tensor:
        gate = functional.silu(self.g_proj(u))
        return gate * o.to(gate.dtype)

    def flops(self, t: int) -> int:
        """See `DeltaNet.flops`; a bias, a softplus, a rate, a power and silu's gate."""
        gates = self.num_heads * t * (9 + 5 * self.value_dim)
        return super().flops(t) + linear_flops(t, self.a_proj, self.g_proj) + gates
