"""RWKV's channel mixing: the MLP of its blocks, which also sees the previous token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from recallkit.models.mixers.api import State, linear_flops, widened
from recallkit.models.mixers.rwkv4 import initial_mix, previous_inputs

if TYPE_CHECKING:
    from torch import Tensor


class RWKVChannelMix(nn.Module):
    """Channel mixing of RWKV-4 and RWKV-5 (channel mixing of arXiv 2305.13048 and of 2404.05892), *
    channel by channel:

        k_i = key(m_k * x_i + (1 - m_k) * x_{i-1})
        r_i = receptance(m_r * x_i + (1 - m_r) * x_{i-1})
        y_i = sigmoid(r_i) * value(max(k_i, 0)^2)

    Part of a language model, not a sequence mixer by itself. State: the previous input.
    """

    def __init__(self, d_model: int, width: int, *, layer: int = 0, num_layers: int = 1) -> None:
        """`width`: channels of k; `layer` of `num_layers` determines the initial weight of
        x_{i-1}."""
        super().__init__()
        self.d_model = d_model
        self.time_mix_key = nn.Parameter(initial_mix(d_model, layer, num_layers))
        self.time_mix_receptance = nn.Parameter(initial_mix(d_model, layer, num_layers))
        self.key = nn.Linear(d_model, width, bias=False)
        self.receptance = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(width, d_model, bias=False)
        nn.init.orthogonal_(self.key.weight, gain=max(1.0, width / d_model) ** 0.5)
        nn.init.zeros_(self.receptance.weight)
        nn.init.zeros_(self.value.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, d) -> (b, t, d)."""
        return self.read(x, self.initial_state(len(x)))[0]

    def initial_state(self, batch: int) -> State:
        """The state before the first token: an input of zeros."""
        return {"previous": widened(self.time_mix_key).new_zeros(batch, self.d_model)}

    def read(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The next t tokens (b, t, d) -> their outputs and a new state; `state` is unchanged."""
        before = previous_inputs(x, state["previous"], time=1)
        k = torch.relu(self.key(torch.lerp(before, x, self.time_mix_key.to(x.dtype)))).square()
        r = self.receptance(torch.lerp(before, x, self.time_mix_receptance.to(x.dtype)))
        return torch.sigmoid(r) * self.value(k), {"previous": widened(x[:, -1])}

    def flops(self, t: int) -> int:
        """Operations on t tokens: matrices, and 6 of each channel's shifts, 5 of its gate, 2 of
        each k."""
        pointwise = t * (11 * self.d_model + 2 * self.key.out_features)
        return linear_flops(t, self.key, self.receptance, self.value) + pointwise
