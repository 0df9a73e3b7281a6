"""Mamba: a state space model whose step, input and output depend on the token (Gu and Dao 2023)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.selective_scan.api import selective_scan, selective_scan_step
from recallkit.kernels.short_conv.api import short_conv
from recallkit.models.mixers.api import (
    Recurrence,
    State,
    applied,
    check_positive,
    linear_flops,
    widened,
)

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.choice import Impl

DT_RANGE = (1e-3, 1e-1)
"""The range of the initial steps dt of the channels, log-uniform (section 3.6); also for
Mamba-2."""


class Mamba(Recurrence):
    """Selective state space (arXiv 2312.00752, algorithm 2 and figure 3); d_inner = expand d
    channels, n state entries for each:

        [x, z] = in_proj(u);  x = silu(conv1d(x));  [r, B, C] = x_proj(x);  dt =
            softplus(dt_proj(r))
        h_i = exp(dt_i A) h_{i-1} + dt_i B_i x_i        A = -exp(A_log), of (d_inner, n)
        y = out_proj((C_i h_i + D x_i) silu(z_i))

    Parameters have the names of the released checkpoints. State: the scan's h and the convolution's
    last inputs.
    """

    def __init__(
        self,
        d_model: int,
        *,
        state: int = 16,
        expand: int = 2,
        conv_kernel: int = 4,
        dt_rank: int | None = None,
    ) -> None:
        """`dt_rank`: rank of the projection of the steps dt, ceil(d / 16) where None."""
        super().__init__(d_model)
        dt_rank = math.ceil(d_model / 16) if dt_rank is None else dt_rank
        check_positive(state=state, expand=expand, conv_kernel=conv_kernel, dt_rank=dt_rank)
        self.state, self.width = state, expand * d_model
        self.conv_kernel, self.dt_rank = conv_kernel, dt_rank
        self.in_proj = nn.Linear(d_model, 2 * self.width, bias=False)
        self.conv1d = nn.Conv1d(self.width, self.width, conv_kernel, groups=self.width)
        self.x_proj = nn.Linear(self.width, dt_rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(dt_rank, self.width)
        self.A_log = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(self.width, 1))
        self.D = nn.Parameter(torch.ones(self.width))
        self.out_proj = nn.Linear(self.width, d_model, bias=False)
        nn.init.uniform_(self.dt_proj.weight, -(dt_rank**-0.5), dt_rank**-0.5)
        with torch.no_grad():
            self.dt_proj.bias.copy_(initial_dt_bias(self.width))

    def initial_state(self, batch: int) -> State:
        like = widened(self.A_log)
        return {
            "conv": like.new_zeros(batch, self.conv_kernel - 1, self.width),
            "scan": like.new_zeros(batch, self.state, self.width),
        }

    def mix(self, u: Tensor, state: State, impl: Impl = "auto") -> tuple[Tensor, State]:
        x, z = self.in_proj(u).chunk(2, dim=-1)
        x, latest = short_conv(
            *(x, self.conv1d.weight.squeeze(1)),
            bias=self.conv1d.bias,
            history=state.get("conv"),
            activation="silu",
            impl=impl,
        )
        r, write, read = self.x_proj(x).split([self.dt_rank, self.state, self.state], dim=-1)
        rates, start = -torch.exp(widened(self.A_log)), state.get("scan")
        # Time is the scan's first axis: a view of rows that lie one after the other, as everywhere
        # else in a model.
        parts = (x, functional.linear(r, self.dt_proj.weight), write, read, z)
        x, dt, write, read, z = (part.transpose(0, 1) for part in parts)
        # The scan adds the bias in float32: in bfloat16, steps of 0.001 would be lost in rounding.
        bias = self.dt_proj.bias
        if start is not None and len(x) == 1:
            y, last = selective_scan_step(
                *(x[0], dt[0], rates, write[0], read[0], start),
                skip=self.D,
                gate=z[0],
                dt_bias=bias,
                dt_softplus=True,
            )
            y = y.unsqueeze(0)
        else:
            y, last = selective_scan(
                *(x, dt, rates, write, read, start),
                skip=self.D,
                gate=z,
                dt_bias=bias,
                dt_softplus=True,
                impl=impl,
            )
        y = applied(self.out_proj, y.to(z.dtype).transpose(0, 1))
        return y, {"conv": latest, "scan": last}

    def state_size(self, t: int) -> int:
        """expand d n, the scan's state alone, as Zoology and Based (arXiv 2402.18668, appendix E.2)
        count it."""
        return self.width * self.state

    def flops(self, t: int) -> int:
        """Counted: projections, the convolution, and for each of the d_inner n elements of state 7
        operations per token.

        These are dt A and its power, B (dt x), decay times state and their sum, and the product
        with C and its sum.
        """
        linear = linear_flops(t, self.in_proj, self.x_proj, self.dt_proj, self.out_proj)
        return linear + t * self.width * (2 * self.conv_kernel + 7 * self.state + 5)


def initial_dt_bias(channels: int) -> Tensor:
    """The initial bias of dt (channels,): softplus of it is log-uniform in `DT_RANGE`."""
    low, high = (math.log(bound) for bound in DT_RANGE)
    dt = torch.exp(low + torch.rand(channels) * (high - low))
    return dt + torch.log(-torch.expm1(-dt))
