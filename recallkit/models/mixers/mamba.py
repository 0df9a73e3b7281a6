"""Mamba: a state space model whose step, input and output depend on the token (Gu and Dao 2023)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.models.mixers.api import Mixer, State, linear_flops, widened
from recallkit.models.mixers.scan import selective_scan, selective_scan_reference
from recallkit.models.mixers.shift import short_convolution, short_convolution_reference

if TYPE_CHECKING:
    from torch import Tensor

DT_RANGE = (1e-3, 1e-1)
"""The steps dt with which channels start, log-uniform (section 3.6); those of Mamba-2 as well."""


class Mamba(Mixer):
    """Selective state space (arXiv 2312.00752, algorithm 2 and figure 3); d_inner = expand d channels, n numbers of state for each:

        [x, z] = in_proj(u);  x = silu(conv1d(x));  [r, B, C] = x_proj(x);  dt = softplus(dt_proj(r))
        h_i = exp(dt_i A) h_{i-1} + dt_i B_i x_i        A = -exp(A_log), of (d_inner, n)
        y = out_proj((C_i h_i + D x_i) silu(z_i))

    Parameters have the names of the released checkpoints. State: the scan's h and the convolution's last inputs.
    """

    def __init__(self, d_model: int, *, state: int = 16, expand: int = 2, conv_kernel: int = 4, dt_rank: int | None = None) -> None:
        """`dt_rank`: width of the projection that the steps dt are made through, ceil(d / 16) where None."""
        super().__init__(d_model)
        dt_rank = math.ceil(d_model / 16) if dt_rank is None else dt_rank
        for name, value in (("state", state), ("expand", expand), ("conv_kernel", conv_kernel), ("dt_rank", dt_rank)):
            if value < 1:
                raise ValueError(f"{name} is {value}, not a positive whole number")
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
        """See `Mixer.forward`."""
        x, z = self.in_proj(u.transpose(0, 1)).chunk(2, dim=-1)
        return self._mix(widened(x), z, None, None)[0].transpose(0, 1)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`."""
        x, z = self.in_proj(u.transpose(0, 1)).chunk(2, dim=-1)
        x = functional.silu(short_convolution_reference(x, self.conv1d.weight.squeeze(1), self._conv_bias()))
        r, write, read = self.x_proj(x).split([self.dt_rank, self.state, self.state], dim=-1)
        dt = functional.softplus(self.dt_proj(r))
        start = x.new_zeros(x.shape[1], self.state, self.width)
        y, _ = selective_scan_reference(x, dt, -torch.exp(self.A_log), write, read, start)
        mixed: Tensor = self.out_proj((y + self.D * x) * functional.silu(z))
        return mixed.transpose(0, 1)

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`."""
        like = widened(self.A_log)
        return {
            "conv": like.new_zeros(batch, self.conv_kernel - 1, self.width),
            "scan": like.new_zeros(batch, self.state, self.width),
        }

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`."""
        x, z = self.in_proj(u.transpose(0, 1)).chunk(2, dim=-1)
        x, history = widened(x), state["conv"].transpose(0, 1)
        y, scan = self._mix(x, z, history, state["scan"])
        latest = torch.cat([history, x.to(history.dtype)])[len(x) :]
        return y.transpose(0, 1), {"conv": latest.transpose(0, 1), "scan": scan}

    def state_size(self, t: int) -> int:
        """expand d n, the scan's state alone, as Zoology and Based (arXiv 2402.18668, appendix E.2) count it."""
        return self.width * self.state

    def flops(self, t: int) -> int:
        """Counted: projections, the convolution, and for each of the d_inner n elements of state 7 operations a token.

        These are dt A and its power, B (dt x), decay times state and their sum, and the product with C and its sum.
        """
        linear = linear_flops(t, self.in_proj, self.x_proj, self.dt_proj, self.out_proj)
        return linear + t * self.width * (2 * self.conv_kernel + 7 * self.state + 5)

    def _mix(self, x: Tensor, z: Tensor, history: Tensor | None, start: Tensor | None) -> tuple[Tensor, Tensor]:
        """x, z: (t, b, d_inner), x wide, not yet convolved -> the mixer's output (t, b, d) and the scan's last state."""
        x = functional.silu(short_convolution(x, widened(self.conv1d.weight.squeeze(1)), widened(self._conv_bias()), history))
        r, write, read = self.x_proj(x.to(z.dtype)).split([self.dt_rank, self.state, self.state], dim=-1)
        # The bias is added wide: steps of 0.001 would be rounded away beside it in bfloat16.
        dt = functional.softplus(widened(functional.linear(r, self.dt_proj.weight)) + self.dt_proj.bias)
        y, last = selective_scan(x, dt, -torch.exp(widened(self.A_log)), widened(write), widened(read), start)
        gated = (y + self.D * x) * functional.silu(widened(z))
        mixed: Tensor = self.out_proj(gated.to(z.dtype))
        return mixed, last

    def _conv_bias(self) -> Tensor:
        assert self.conv1d.bias is not None
        return self.conv1d.bias


def initial_dt_bias(channels: int) -> Tensor:
    """What softplus maps to steps drawn log-uniformly from `DT_RANGE`: the start of the bias of dt (channels,)."""
    low, high = (math.log(bound) for bound in DT_RANGE)
    dt = torch.exp(low + torch.rand(channels) * (high - low))
    return dt + torch.log(-torch.expm1(-dt))
