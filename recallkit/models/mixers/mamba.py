"""Mamba: a state space model whose step, input and output depend on the token (Gu and Dao 2023)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.selective_scan.api import selective_scan, selective_scan_step
from recallkit.kernels.short_conv.api import short_conv
from recallkit.models.mixers.api import Mixer, State, applied, linear_flops, widened

if TYPE_CHECKING:
    from torch import Tensor

DT_RANGE = (1e-3, 1e-1)
"""The range of the initial steps dt of the channels, log-uniform (section 3.6); also for Mamba-2."""


class Mamba(Mixer):
    """Selective state space (arXiv 2312.00752, algorithm 2 and figure 3); d_inner = expand d channels, n state entries for each:

        [x, z] = in_proj(u);  x = silu(conv1d(x));  [r, B, C] = x_proj(x);  dt = softplus(dt_proj(r))
        h_i = exp(dt_i A) h_{i-1} + dt_i B_i x_i        A = -exp(A_log), of (d_inner, n)
        y = out_proj((C_i h_i + D x_i) silu(z_i))

    Parameters have the names of the released checkpoints. State: the scan's h and the convolution's last inputs.
    """

    def __init__(self, d_model: int, *, state: int = 16, expand: int = 2, conv_kernel: int = 4, dt_rank: int | None = None) -> None:
        """`dt_rank`: rank of the projection of the steps dt, ceil(d / 16) where None."""
        super().__init__(d_model)
        dt_rank = math.ceil(d_model / 16) if dt_rank is None else dt_rank
        for name, value in (("state", state), ("expand", expand), ("conv_kernel", conv_kernel), ("dt_rank", dt_rank)):
            if value < 1:
                raise ValueError(f"{name} is {value}, not a positive integer")
        self.state, self.width, self.conv_kernel, self.dt_rank = state, expand * d_model, conv_kernel, dt_rank
        self.in_proj = nn.Linear(d_model, 2 * self.width, bias=False)
        self.conv1d = nn.Conv1d(self.width, self.width, conv_kernel, groups=self.width, padding=conv_kernel - 1)
        self.x_proj = nn.Linear(self.width, dt_rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(dt_rank, self.width)
        self.A_log = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(self.width, 1))
        self.D = nn.Parameter(torch.ones(self.width))
        self.out_proj = nn.Linear(self.width, d_model, bias=False)
        nn.init.uniform_(self.dt_proj.weight, -(dt_rank**-0.5), dt_rank**-0.5)
        with torch.no_grad():
            self.dt_proj.bias.copy_(initial_dt_bias(self.width))

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        return self._mix(u, None, None)[0]

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        x, z = self.in_proj(u).chunk(2, dim=-1)
        x, _ = short_conv(x, self.conv1d.weight.squeeze(1), bias=self.conv1d.bias, activation="silu", impl="reference")
        r, write, read = self.x_proj(x).split([self.dt_rank, self.state, self.state], dim=-1)
        dt = functional.softplus(self.dt_proj(r))
        x, dt, write, read, z = (part.transpose(0, 1) for part in (x, dt, write, read, z))
        y, _ = selective_scan(x, dt, -torch.exp(self.A_log), write, read, skip=self.D, gate=z, impl="reference")
        return applied(self.out_proj, y.transpose(0, 1))

    def initial_state(self, batch: int) -> State:
        like = widened(self.A_log)
        return {"conv": like.new_zeros(batch, self.conv_kernel - 1, self.width), "scan": like.new_zeros(batch, self.state, self.width)}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        y, conv, scan = self._mix(u, state["conv"], state["scan"])
        return y, {"conv": conv, "scan": scan}

    def state_size(self, t: int) -> int:
        """expand d n, the scan's state alone, as Zoology and Based (arXiv 2402.18668, appendix E.2) count it."""
        return self.width * self.state

    def flops(self, t: int) -> int:
        """Counted: projections, the convolution, and for each of the d_inner n elements of state 7 operations per token.

        These are dt A and its power, B (dt x), decay times state and their sum, and the product with C and its sum.
        """
        linear = linear_flops(t, self.in_proj, self.x_proj, self.dt_proj, self.out_proj)
        return linear + t * self.width * (2 * self.conv_kernel + 7 * self.state + 5)

    def _mix(self, u: Tensor, history: Tensor | None, start: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """u (b, t, d) -> the mixer's output (b, t, d), the convolution's last inputs and the scan's last state."""
        x, z = self.in_proj(u).chunk(2, dim=-1)
        taps, bias = self.conv1d.weight.squeeze(1), self.conv1d.bias
        x, latest = short_conv(x, taps, bias=bias, history=history, activation="silu")
        r, write, read = self.x_proj(x).split([self.dt_rank, self.state, self.state], dim=-1)
        # The scan adds the bias in float32: in bfloat16, steps of 0.001 would be lost in rounding.
        dt, bias = functional.linear(r, self.dt_proj.weight), self.dt_proj.bias
        rates = -torch.exp(widened(self.A_log))
        # Time is the scan's first axis: a view of rows that lie one after the other, as everywhere else in a model.
        x, dt, write, read, z = (part.transpose(0, 1) for part in (x, dt, write, read, z))
        if start is not None and len(x) == 1:
            step = (x[0], dt[0], rates, write[0], read[0], start)
            y, last = selective_scan_step(*step, skip=self.D, gate=z[0], dt_bias=bias, dt_softplus=True)
            y = y.unsqueeze(0)
        else:
            text = (x, dt, rates, write, read, start)
            y, last = selective_scan(*text, skip=self.D, gate=z, dt_bias=bias, dt_softplus=True)
        return self.out_proj(y.to(z.dtype).transpose(0, 1)), latest, last


def initial_dt_bias(channels: int) -> Tensor:
    """The initial bias of dt (channels,): softplus of it is log-uniform in `DT_RANGE`."""
    low, high = (math.log(bound) for bound in DT_RANGE)
    dt = torch.exp(low + torch.rand(channels) * (high - low))
    return dt + torch.log(-torch.expm1(-dt))
