"""Mamba-2: Mamba with one decay per head, which is equivalent to attention with a decaying mask (Dao and Gu 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.recurrences.api import decayed_attention
from recallkit.kernels.short_conv.api import short_conv
from recallkit.models.mixers.api import Mixer, State, applied, chunk_sizes, linear_flops, widened
from recallkit.models.mixers.mamba import initial_dt_bias

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.choice import Impl

A_RANGE = (1.0, 16.0)
"""The range of the initial rates -A of the heads, uniform (the authors' code)."""


class Mamba2(Mixer):
    """Structured state space duality (arXiv 2405.21060, sections 6 and 7), d_inner = expand d channels in heads of p = head_dim:

        [z, x, B, C, dt] = in_proj(u);  [x, B, C] = silu(conv1d([x, B, C]));  dt = softplus(dt + dt_bias), one per head
        S_i = exp(dt_i A) S_{i-1} + B_i^T (dt_i x_i), of n x p        A = -exp(A_log), one per head
        y = out_proj(norm((C_i S_i + D x_i) * silu(z_i))), norm a root mean square of each group's channels

    B and C of n = `state` numbers are shared by the heads of a group. Parameters have the names of the released checkpoints.
    """

    chunk = 64

    def __init__(
        self,
        d_model: int,
        *,
        state: int = 128,
        expand: int = 2,
        head_dim: int = 64,
        groups: int = 1,
        conv_kernel: int = 4,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(d_model)
        for name, value in (("state", state), ("expand", expand), ("head_dim", head_dim), ("groups", groups), ("conv_kernel", conv_kernel)):
            if value < 1:
                raise ValueError(f"{name} is {value}, not a positive integer")
        self.width = expand * d_model
        if self.width % head_dim or self.width // head_dim % groups:
            raise ValueError(f"{self.width} channels are not {groups} groups of heads of {head_dim}")
        self.num_heads, self.head_dim, self.state, self.groups = self.width // head_dim, head_dim, state, groups
        self.conv_kernel, self.eps = conv_kernel, eps
        self.conv_width = self.width + 2 * groups * state
        self.in_proj = nn.Linear(d_model, self.width + self.conv_width + self.num_heads, bias=False)
        self.conv1d = nn.Conv1d(self.conv_width, self.conv_width, conv_kernel, groups=self.conv_width, padding=conv_kernel - 1)
        self.dt_bias = nn.Parameter(initial_dt_bias(self.num_heads))
        self.A_log = nn.Parameter(torch.empty(self.num_heads).uniform_(*A_RANGE).log())
        self.D = nn.Parameter(torch.ones(self.num_heads))
        self.norm = nn.RMSNorm(self.width, eps=eps)
        self.out_proj = nn.Linear(self.width, d_model, bias=False)

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        return self._mix(*self._projected(u), None, None)[0]

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: the recurrence, token by token."""
        z, convolved, dt = self._projected(u)
        x, write, read = self._split(self._convolved(convolved, None, "reference")[0])
        heads = self.num_heads // self.groups
        write, read = (part.repeat_interleave(heads, dim=2) for part in (write, read))
        dt, rates = functional.softplus(dt + self.dt_bias), -torch.exp(self.A_log)
        state, outputs = x.new_zeros(x.shape[1], self.num_heads, self.state, self.head_dim), []
        for i in range(len(x)):
            new = write[i, :, :, :, None] * (dt[i, :, :, None] * x[i])[:, :, None, :]
            state = torch.exp(dt[i] * rates)[:, :, None, None] * state + new
            outputs.append((read[i, :, :, :, None] * state).sum(-2) + self.D[:, None] * x[i])
        return self._merge(torch.stack(outputs).flatten(2), z)

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: the convolution's last inputs, and S (b, h, n, p)."""
        like = widened(self.A_log)
        return {
            "conv": like.new_zeros(batch, self.conv_kernel - 1, self.conv_width),
            "scan": like.new_zeros(batch, self.num_heads, self.state, self.head_dim),
        }

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        z, convolved, dt = self._projected(u)
        y, conv, scan = self._mix(z, convolved, dt, state["conv"], state["scan"])
        return y, {"conv": conv, "scan": scan}

    def state_size(self, t: int) -> int:
        """expand d n, the scan's state alone, as Zoology's code counts it."""
        return self.width * self.state

    def flops(self, t: int) -> int:
        """Counted: projections, convolution, the pairs of each chunk, two products with S for each token; gate and norm."""
        mixing = t * ((2 * self.conv_kernel + 5) * self.conv_width + (15 + 4 * self.state) * self.width + 9 * self.num_heads)
        for size in chunk_sizes(t, self.chunk):
            mixing += size * (size + 1) // 2 * (2 * self.groups * self.state + self.num_heads * (3 + 2 * self.head_dim))
            mixing += 2 * self.width * self.state + self.num_heads
        return linear_flops(t, self.in_proj, self.out_proj) + mixing

    def _projected(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z (t, b, d_inner), the convolution's input (t, b, d_inner + 2 g n), and dt before its bias (t, b, h), wide."""
        z, convolved, dt = torch.split(self.in_proj(u.transpose(0, 1)), [self.width, self.conv_width, self.num_heads], dim=-1)
        return z, convolved, widened(dt)

    def _split(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (t, b, h, p), B and C (t, b, g, n)."""
        x, write, read = torch.split(convolved, [self.width, self.groups * self.state, self.groups * self.state], dim=-1)
        heads, by_group = (self.num_heads, self.head_dim), (self.groups, self.state)
        return torch.unflatten(x, -1, heads), torch.unflatten(write, -1, by_group), torch.unflatten(read, -1, by_group)

    def _convolved(self, u: Tensor, history: Tensor | None, impl: Impl = "auto") -> tuple[Tensor, Tensor]:
        """u (t, b, c), history (b, conv_kernel - 1, c) -> silu of the convolution (t, b, c), and the new history."""
        taps = self.conv1d.weight.squeeze(1)
        y, latest = short_conv(u.transpose(0, 1), taps, bias=self.conv1d.bias, history=history, activation="silu", impl=impl)
        return y.transpose(0, 1), latest

    def _mix(self, z: Tensor, convolved: Tensor, dt: Tensor, history: Tensor | None, start: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The mixer's output (b, t, d), the convolution's last inputs and S after the last token; `history`, `start`: those before it."""
        convolved, latest = self._convolved(convolved, history)
        x, write, read = self._split(convolved)
        dt = functional.softplus(dt + self.dt_bias)
        written = dt.unsqueeze(-1) * x
        # Kernels need one type for all inputs; on CPU rounding gains nothing.
        written = written.to(x.dtype) if x.is_cuda else written
        q, k, v = (part.permute(1, 2, 0, 3) for part in (read, write, written))
        y, last = decayed_attention(q, k, v, (-torch.exp(widened(self.A_log)) * dt).permute(1, 2, 0), start, chunk=self.chunk)
        return self._merge((widened(y).permute(2, 0, 1, 3) + self.D[:, None] * x).flatten(2), z), latest, last

    def _merge(self, y: Tensor, z: Tensor) -> Tensor:
        """Gated, normalised and projected: y, z (t, b, d_inner) -> (b, t, d)."""
        gated = torch.unflatten(y * functional.silu(z.to(y.dtype)), -1, (self.groups, -1))
        normed = functional.rms_norm(gated, gated.shape[-1:], eps=self.eps).flatten(-2) * self.norm.weight
        return applied(self.out_proj, normed.to(z.dtype)).transpose(0, 1)
