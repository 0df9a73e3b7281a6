"""RWKV-4's time mixing: a sum of values weighted by exp(key) and by age, each channel forgetting at its own rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from recallkit.kernels.rwkv4.api import rwkv4_attention
from recallkit.kernels.rwkv4.reference import Rwkv4State, empty_state
from recallkit.models.mixers.api import Mixer, State, applied, linear_flops, widened

if TYPE_CHECKING:
    from torch import Tensor

FASTEST = 40.0
"""Upper bound on `time_decay`: exp(-exp(40)) is zero already, while exp(89) overflows in float32, and infinity times 0 is NaN."""


class RWKV4(Mixer):
    """The attention-free mixing of RWKV-4 (arXiv 2305.13048, time mixing), * and / channel by channel:

        s_i = m_s * x_i + (1 - m_s) * x_{i-1}    for s = r, k, v: r = receptance(r_i), k = key(k_i), v = value(v_i)

                sum_{j < i} exp(-(i - 1 - j) w + k_j) v_j + exp(u + k_i) v_i
        wkv_i = ------------------------------------------------------------      y = out_proj(sigmoid(r) * wkv)
                sum_{j < i} exp(-(i - 1 - j) w + k_j)     + exp(u + k_i)

    with w = exp(time_decay), u = time_first. State: x_{i-1} and both sums a and b over exp(p), p the largest exponent in them.
    """

    def __init__(self, d_model: int, *, layer: int = 0, num_layers: int = 1) -> None:
        """`layer` of `num_layers` determines the initial decays of its channels and the initial weight of x_{i-1}."""
        super().__init__(d_model)
        if not 0 <= layer < num_layers:
            raise ValueError(f"layer is {layer}, not one of {num_layers} counted from 0")
        self.time_decay = nn.Parameter(initial_decay(d_model, layer, num_layers))
        zigzag = (torch.arange(d_model) + 1) % 3 - 1
        self.time_first = nn.Parameter(math.log(0.3) + 0.5 * zigzag)
        depth, mix = depth_of(layer, num_layers), initial_mix(d_model, layer, num_layers)
        self.time_mix_key = nn.Parameter(mix)
        self.time_mix_value = nn.Parameter(mix + 0.3 * depth)
        self.time_mix_receptance = nn.Parameter(mix.sqrt())
        self.key, self.value, self.receptance, self.out_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        nn.init.orthogonal_(self.value.weight)
        for layer_at_zero in (self.key, self.receptance, self.out_proj):
            nn.init.zeros_(layer_at_zero.weight)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        before = torch.cat([torch.zeros_like(u[:, :1]), u[:, :-1]], dim=1)
        k, v, r = self._projected(u, before)
        outputs = []
        for i in range(u.shape[1]):
            ages = torch.arange(i - 1, -1, -1, dtype=u.dtype, device=u.device)[:, None]
            exponents = torch.cat([k[:, :i] - ages * torch.exp(self.time_decay), (self.time_first + k[:, i])[:, None]], dim=1)
            outputs.append((torch.softmax(exponents, dim=1) * v[:, : i + 1]).sum(1))
        return applied(self.out_proj, torch.sigmoid(r) * torch.stack(outputs, dim=1))

    def initial_state(self, batch: int) -> State:
        like = widened(self.time_decay)
        sums = empty_state(batch, self.d_model, dtype=like.dtype, device=like.device)
        return {"previous": like.new_zeros(batch, self.d_model), **sums._asdict()}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        u = u.transpose(0, 1)
        k, v, r = self._projected(u, previous_inputs(u, state["previous"]))
        sums = Rwkv4State(*(state[name] for name in Rwkv4State._fields))
        y, sums = rwkv4_attention(k, v, decay_rates(self.time_decay), widened(self.time_first), sums, gate=r)
        return self.out_proj(y).transpose(0, 1), {"previous": widened(u[-1]), **sums._asdict()}

    def state_size(self, t: int) -> int:
        """4 d: the previous input, two sums and their exponent (arXiv 2305.13048, time mixing as an RNN cell)."""
        return 4 * self.d_model

    def flops(self, t: int) -> int:
        """Counted: projections, and for each channel 9 operations of the shifts, 23 of the sums and 5 of the gate."""
        return linear_flops(t, self.key, self.value, self.receptance, self.out_proj) + 37 * t * self.d_model

    def _projected(self, u: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """k, v and r from inputs and previous inputs of the same shape (..., d)."""
        k = self.key(torch.lerp(before, u, self.time_mix_key.to(u.dtype)))
        v = self.value(torch.lerp(before, u, self.time_mix_value.to(u.dtype)))
        r = self.receptance(torch.lerp(before, u, self.time_mix_receptance.to(u.dtype)))
        return k, v, r


def decay_rates(time_decay: Tensor) -> Tensor:
    """exp(time_decay) of decays exp(-exp(time_decay)), finite, in float32 at least."""
    return torch.exp(widened(time_decay).clamp(max=FASTEST))


def previous_inputs(u: Tensor, before: Tensor, time: int = 0) -> Tensor:
    """u: (t, b, d), or with the time at axis 1, before: (b, d), the input before the first -> as u: at i the input i - 1."""
    return torch.cat([before.to(u.dtype).unsqueeze(time), u.narrow(time, 0, u.shape[time] - 1)], dim=time)


def depth_of(layer: int, num_layers: int) -> float:
    """0 for the first layer to 1 for the last."""
    return layer / max(num_layers - 1, 1)


def initial_decay(d_model: int, layer: int, num_layers: int) -> Tensor:
    """log w from -5 to 3 over the channels, with more slow ones in deeper layers (arXiv 2305.13048, on initialisation)."""
    places = torch.arange(d_model) / max(d_model - 1, 1)
    return -5 + 8 * places ** (0.7 + 1.3 * depth_of(layer, num_layers))


def initial_mix(d_model: int, layer: int, num_layers: int) -> Tensor:
    """The weight of the present input, rising with the channel and with depth (the same paper)."""
    return (torch.arange(d_model) / d_model) ** (1 - layer / num_layers)
