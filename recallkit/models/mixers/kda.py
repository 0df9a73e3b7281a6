"""Kimi delta attention: the delta rule with a state whose key channels forget at rates of their own
that depend on the token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from recallkit.models.mixers.api import doublings, linear_flops, widened
from recallkit.models.mixers.delta_net import DeltaNet
from recallkit.models.mixers.mamba import initial_dt_bias

if TYPE_CHECKING:
    from torch import Tensor

A_RANGE = (1.0, 16.0)
"""The range of the initial rates -A of the heads, uniform (the authors' code)."""


class KDA(DeltaNet):
    """Kimi delta attention (arXiv 2510.26692): DeltaNet with a decay of each key channel, and a
    gate.

        S_i = (I - b_i k_i^T k_i) diag(a_i) S_i-1 + b_i k_i^T v_i
        a = exp(-exp(A_log) softplus(W_2 W_1 u + dt_bias)),  A_log of a head
        y = (sigmoid(W_4 W_3 u) * norm(o)) W_o

    W_1 and W_3 project to as many numbers as a head has values, as in the authors' code; with
    `gate_bias` W_4 has a bias, as in fla's.
    """

    chunk = 32

    def __init__(self, d_model: int, *, gate_bias: bool = False, **options: Any) -> None:
        self._gate_bias = gate_bias
        super().__init__(d_model, **options)

    def _make_gates(self) -> None:
        keys, values = self.num_heads * self.key_dim, self.num_heads * self.value_dim
        self.decay_in = nn.Linear(self.d_model, self.value_dim, bias=False)
        self.decay_out = nn.Linear(self.value_dim, keys, bias=False)
        self.gate_in = nn.Linear(self.d_model, self.value_dim, bias=False)
        self.gate_out = nn.Linear(self.value_dim, values, bias=self._gate_bias)
        self.A_log = nn.Parameter(torch.empty(self.num_heads).uniform_(*A_RANGE).log())
        self.dt_bias = nn.Parameter(initial_dt_bias(keys))

    def _log_decay(self, u: Tensor) -> Tensor:
        # The bias is added in float32: in bfloat16, steps of 0.001 would be lost in rounding.
        dt = functional.softplus(widened(self.decay_out(self.decay_in(u))) + self.dt_bias)
        return -torch.exp(widened(self.A_log))[:, None, None] * torch.unflatten(
            dt,
            -1,
            (self.num_heads, -1),
        ).transpose(1, 2)

    def _gated(self, o: Tensor, u: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate_out(self.gate_in(u)))
        return gate * o.to(gate.dtype)

    def flops(self, t: int) -> int:
        """See `DeltaNet.flops`; a bias, a softplus and a rate for each key channel, sigmoid's
        gate."""
        layers = (self.decay_in, self.decay_out, self.gate_in, self.gate_out)
        gates = self.num_heads * t * 5 * (self.key_dim + self.value_dim)
        return super().flops(t) + linear_flops(t, *layers) + gates

    def _decay_flops(self, t: int) -> int:
        """See `DeltaNet._decay_flops`: a power, k by it and the strength, q; each doubling of a
        block multiplies k, or q and e."""
        return t * self.key_dim * 7 + 3 * t * doublings(t, self.chunk) * self.key_dim // 2
