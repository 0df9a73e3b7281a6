"""RWKV-4's time mixing: a sum of values weighted by exp(key) and by age, each channel forgetting at
its own rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from recallkit.kernels.rwkv4.api import rwkv4_attention
from recallkit.kernels.rwkv4.reference import Rwkv4State, empty_state
from recallkit.models.mixers.api import Recurrence, State, applied, linear_flops, widened

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.choice import Impl

FASTEST = 40.0
"""Upper bound on `time_decay`: exp(-exp(40)) is zero already, while exp(89) overflows in float32,
and infinity times 0 is NaN."""


class RWKV4(Recurrence):
    """The attention-free mixing of RWKV-4 (arXiv 2305.13048, time mixing), * and / channel by
    channel:

        s_i = m_s * x_i + (1 - m_s) * x_{i-1}    for s = r, k, v: r = receptance(r_i), k = key(k_i),
            v = value(v_i)

                sum_{j < i} exp(-(i - 1 - j) w + k_j) v_j + exp(u + k_i) v_i
        wkv_i = ------------------------------------------------------------      y =
            out_proj(sigmoid(r) * wkv)
                sum_{j < i} exp(-(i - 1 - j) w + k_j)     + exp(u + k_i)

    with w = exp(time_decay), u = time_first. State: x_{i-1} and both sums a and b over exp(p), p
    the largest exponent in them.
    """

    def __init__(self, d_model: int, *, layer: int = 0, num_layers: int = 1) -> None:
        """`layer` of `num_layers` determines the initial decays of its channels and the initial
        weight of x_{i-1}."""
        super().__init__(d_model)
        depth = depth_of(layer, num_layers)
        mix = initial_mix(d_model, layer, num_layers)
        self.time_decay = nn.Parameter(initial_decay(d_model, layer, num_layers))
        zigzag = (torch.arange(d_model) + 1) % 3 - 1
        self.time_first = nn.Parameter(math.log(0.3) + 0.5 * zigzag)
        self.time_mix_key = nn.Parameter(mix)
        self.time_mix_value = nn.Parameter(mix + 0.3 * depth)
        self.time_mix_receptance = nn.Parameter(mix.sqrt())
        layers = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.key, self.value, self.receptance, self.out_proj = layers
        nn.init.orthogonal_(self.value.weight)
        for layer_at_zero in (self.key, self.receptance, self.out_proj):
            nn.init.zeros_(layer_at_zero.weight)

    def initial_state(self, batch: int) -> State:
        like = widened(self.time_decay)
        sums = empty_state(batch, self.d_model, dtype=like.dtype, device=like.device)
        return {"previous": like.new_zeros(batch, self.d_model), **sums._asdict()}

    def mix(self, u: Tensor, state: State, impl: Impl = "auto") -> tuple[Tensor, State]:
        u = u.transpose(0, 1)
        before = previous_inputs(u, state.get("previous"))
        k, v, r = (
            project(torch.lerp(before, u, weight.to(u.dtype)))
            for project, weight in (
                (self.key, self.time_mix_key),
                (self.value, self.time_mix_value),
                (self.receptance, self.time_mix_receptance),
            )
        )
        start = Rwkv4State(*(state[name] for name in Rwkv4State._fields)) if state else None
        y, sums = rwkv4_attention(
            *(k, v, decay_rates(self.time_decay), widened(self.time_first), start),
            gate=r,
            impl=impl,
        )
        after = {"previous": widened(u[-1]), **sums._asdict()}
        return applied(self.out_proj, y).transpose(0, 1), after

    def state_size(self, t: int) -> int:
        """4 d: the previous input, two sums and their exponent (arXiv 2305.13048, time mixing as an
        RNN cell)."""
        return 4 * self.d_model

    def flops(self, t: int) -> int:
        """Counted: projections, and for each channel 9 operations of the shifts, 23 of the sums and
        5 of the gate."""
        layers = (self.key, self.value, self.receptance, self.out_proj)
        return linear_flops(t, *layers) + 37 * t * self.d_model


def decay_rates(time_decay: Tensor) -> Tensor:
    """exp(time_decay) of decays exp(-exp(time_decay)), finite, in float32 at least."""
    return torch.exp(widened(time_decay).clamp(max=FASTEST))


def previous_inputs(u: Tensor, before: Tensor | None, time: int = 0) -> Tensor:
    """u: (t, b, d), or with the time at axis 1, before: (b, d), the input before the first, zeros
    where None -> as u: at i the input i - 1."""
    first = torch.zeros_like(u.select(time, 0)) if before is None else before.to(u.dtype)
    return torch.cat([first.unsqueeze(time), u.narrow(time, 0, u.shape[time] - 1)], dim=time)


def depth_of(layer: int, num_layers: int) -> float:
    """0 for the first layer to 1 for the last. Raises ValueError for a layer that is none."""
    if not 0 <= layer < num_layers:
        raise ValueError(f"layer is {layer}, not one of {num_layers} counted from 0")
    return layer / max(num_layers - 1, 1)


def initial_decay(d_model: int, layer: int, num_layers: int) -> Tensor:
    """log w from -5 to 3 over the channels, with more slow ones in deeper layers (arXiv 2305.13048,
    on initialisation)."""
    places = torch.arange(d_model) / max(d_model - 1, 1)
    return -5 + 8 * places ** (0.7 + 1.3 * depth_of(layer, num_layers))


def initial_mix(d_model: int, layer: int, num_layers: int) -> Tensor:
    """The weight of the present input, rising with the channel and with depth (the same paper)."""
    return (torch.arange(d_model) / d_model) ** (1 - layer / num_layers)
