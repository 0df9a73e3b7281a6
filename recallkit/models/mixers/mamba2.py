"""Mamba-2: Mamba with one decay per head, which is equivalent to attention with a decaying mask
(Dao and Gu 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.recurrences.api import decayed_attention
from recallkit.kernels.short_conv.api import short_conv
from recallkit.models.mixers.api import (
    Recurrence,
    State,
    applied,
    check_positive,
    chunk_pairs,
    chunk_sizes,
    linear_flops,
    widened,
)
from recallkit.models.mixers.mamba import initial_dt_bias

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.choice import Impl

A_RANGE = (1.0, 16.0)
"""The range of the initial rates -A of the heads, uniform (the authors' code)."""


class Mamba2(Recurrence):
    """Structured state space duality (arXiv 2405.21060, sections 6 and 7), d_inner = expand d
    channels in heads of p = head_dim:

        [z, x, B, C, dt] = in_proj(u);  [x, B, C] = silu(conv1d([x, B, C]))
        dt = softplus(dt + dt_bias),  A = -exp(A_log), one of each per head
        S_i = exp(dt_i A) S_{i-1} + B_i^T (dt_i x_i), of n x p
        y = out_proj(norm((C_i S_i + D x_i) * silu(z_i)))

    The norm is a root mean square of each group's channels.
    B and C of n = `state` numbers are shared by the heads of a group. Parameters have the names of
    the released checkpoints.
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
        sizes = {"state": state, "expand": expand, "head_dim": head_dim, "groups": groups}
        check_positive(conv_kernel=conv_kernel, **sizes)
        self.width = expand * d_model
        if self.width % head_dim or self.width // head_dim % groups:
            raise ValueError(
                f"{self.width} channels are not {groups} groups of heads of {head_dim}",
            )
        self.num_heads, self.head_dim, self.state, self.groups = (
            self.width // head_dim,
            head_dim,
            state,
            groups,
        )
        self.conv_kernel, self.eps = conv_kernel, eps
        self.conv_width = self.width + 2 * groups * state
        self.in_proj = nn.Linear(d_model, self.width + self.conv_width + self.num_heads, bias=False)
        self.conv1d = nn.Conv1d(
            self.conv_width,
            self.conv_width,
            conv_kernel,
            groups=self.conv_width,
        )
        self.dt_bias = nn.Parameter(initial_dt_bias(self.num_heads))
        self.A_log = nn.Parameter(torch.empty(self.num_heads).uniform_(*A_RANGE).log())
        self.D = nn.Parameter(torch.ones(self.num_heads))
        self.norm = nn.RMSNorm(self.width, eps=eps)
        self.out_proj = nn.Linear(self.width, d_model, bias=False)

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: the convolution's last inputs, and S (b, h, n, p)."""
        like = widened(self.A_log)
        return {
            "conv": like.new_zeros(batch, self.conv_kernel - 1, self.conv_width),
            "scan": like.new_zeros(batch, self.num_heads, self.state, self.head_dim),
        }

    def mix(self, u: Tensor, state: State, impl: Impl = "auto") -> tuple[Tensor, State]:
        """See `Recurrence.mix`: all chunks at once except for the states between them."""
        # Time is the first axis in memory: z (t, b, d_inner), and dt (t, b, h) before
        # its bias.
        sizes = [self.width, self.conv_width, self.num_heads]
        z, convolved, dt = torch.split(self.in_proj(u.transpose(0, 1)), sizes, dim=-1)
        convolved, latest = short_conv(
            *(convolved.transpose(0, 1), self.conv1d.weight.squeeze(1)),
            bias=self.conv1d.bias,
            history=state.get("conv"),
            activation="silu",
            impl=impl,
        )
        by_group = self.groups * self.state
        sizes = [self.width, by_group, by_group]
        x, write, read = torch.split(convolved.transpose(0, 1), sizes, dim=-1)
        x = torch.unflatten(x, -1, (self.num_heads, -1))
        write, read = (torch.unflatten(part, -1, (self.groups, -1)) for part in (write, read))
        dt = functional.softplus(widened(dt) + self.dt_bias)
        written = dt.unsqueeze(-1) * x
        # Kernels need one type for all inputs; on CPU rounding gains nothing.
        written = written.to(x.dtype) if x.is_cuda else written
        q, k, v = (part.permute(1, 2, 0, 3) for part in (read, write, written))
        log_decay = (-torch.exp(widened(self.A_log)) * dt).permute(1, 2, 0)
        y, last = decayed_attention(
            *(q, k, v, log_decay, state.get("scan")),
            chunk=self.chunk,
            impl=impl,
        )
        y = (widened(y).permute(2, 0, 1, 3) + self.D[:, None] * x).flatten(2)
        return self._merge(y, z), {"conv": latest, "scan": last}

    def state_size(self, t: int) -> int:
        """expand d n, the scan's state alone, as Zoology's code counts it."""
        return self.width * self.state

    def flops(self, t: int) -> int:
        """Counted: projections, convolution, the pairs of each chunk, two products with S for each
        token; gate and norm."""
        heads, n = self.num_heads, self.state
        token = (2 * self.conv_kernel + 5) * self.conv_width + (15 + 4 * n) * self.width + 9 * heads
        pair = 2 * self.groups * n + heads * (3 + 2 * self.head_dim)
        mixing = t * token + chunk_pairs(t, self.chunk) * pair
        mixing += len(chunk_sizes(t, self.chunk)) * (2 * self.width * n + heads)
        return linear_flops(t, self.in_proj, self.out_proj) + mixing

    def _merge(self, y: Tensor, z: Tensor) -> Tensor:
        """Gated, normalised and projected: y, z (t, b, d_inner) -> (b, t, d)."""
        gated = torch.unflatten(y * functional.silu(z.to(y.dtype)), -1, (self.groups, -1))
        normed = functional.rms_norm(gated, gated.shape[-1:], eps=self.eps).flatten(-2)
        return applied(self.out_proj, (normed * self.norm.weight).to(z.dtype)).transpose(0, 1)
