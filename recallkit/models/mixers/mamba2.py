"""Mamba-2: Mamba with one decay for each head, which makes it an attention with a decaying mask (Dao and Gu 2024)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.models.mixers.api import Mixer, State, chunk_sizes, linear_flops, widened
from recallkit.models.mixers.mamba import initial_dt_bias
from recallkit.models.mixers.shift import short_convolution, short_convolution_reference

if TYPE_CHECKING:
    from torch import Tensor

A_RANGE = (1.0, 16.0)
"""The rates -A with which heads start, uniform (the authors' code)."""


class Mamba2(Mixer):
    """Structured state space duality (arXiv 2405.21060, sections 6 and 7), d_inner = expand d channels in heads of p = head_dim:

        [z, x, B, C, dt] = in_proj(u);  [x, B, C] = silu(conv1d([x, B, C]));  dt = softplus(dt + dt_bias), one a head
        S_i = exp(dt_i A) S_{i-1} + B_i^T (dt_i x_i), of n x p        A = -exp(A_log), one a head
        y = out_proj(norm((C_i S_i + D x_i) * silu(z_i))), norm a root mean square of each group's channels

    B and C of n = `state` numbers are shared by the heads of a group. Parameters have the names of the released checkpoints.
    """

    chunk = 64
    """Tokens that are compared pair by pair; earlier ones act through the state."""

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
                raise ValueError(f"{name} is {value}, not a positive whole number")
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
        """See `Mixer.forward`."""
        return self._mix(*self._projected(u), None, None)[0]

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: the recurrence, token by token."""
        z, convolved, dt = self._projected(u)
        convolved = functional.silu(short_convolution_reference(convolved, self.conv1d.weight.squeeze(1), self._conv_bias()))
        x, write, read = self._split(convolved)
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
        """See `Mixer.read`."""
        z, convolved, dt = self._projected(u)
        history = state["conv"].transpose(0, 1)
        y, scan = self._mix(z, convolved, dt, history, state["scan"])
        latest = torch.cat([history, convolved.to(history.dtype)])[len(convolved) :]
        return y, {"conv": latest.transpose(0, 1), "scan": scan}

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
        """z (t, b, d_inner), what is convolved (t, b, d_inner + 2 g n), wide, and dt before its bias (t, b, h), wide."""
        z, convolved, dt = torch.split(self.in_proj(u.transpose(0, 1)), [self.width, self.conv_width, self.num_heads], dim=-1)
        return z, widened(convolved), widened(dt)

    def _split(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (t, b, h, p), B and C (t, b, g, n)."""
        x, write, read = torch.split(convolved, [self.width, self.groups * self.state, self.groups * self.state], dim=-1)
        heads, by_group = (self.num_heads, self.head_dim), (self.groups, self.state)
        return torch.unflatten(x, -1, heads), torch.unflatten(write, -1, by_group), torch.unflatten(read, -1, by_group)

    def _mix(self, z: Tensor, convolved: Tensor, dt: Tensor, history: Tensor | None, start: Tensor | None) -> tuple[Tensor, Tensor]:
        """The mixer's output (b, t, d) and S after the last token; `history` and `start`: the state before the first."""
        weight, bias = widened(self.conv1d.weight.squeeze(1)), widened(self._conv_bias())
        x, write, read = self._split(functional.silu(short_convolution(convolved, weight, bias, history)))
        dt = functional.softplus(dt + self.dt_bias)
        with torch.autocast(z.device.type, enabled=False):
            y, last = ssd(x, dt, -torch.exp(widened(self.A_log)), write, read, start, self.chunk)
        return self._merge((y + self.D[:, None] * x).flatten(2), z), last

    def _merge(self, y: Tensor, z: Tensor) -> Tensor:
        """Gated, normalised and projected: y, z (t, b, d_inner) -> (b, t, d)."""
        gated = torch.unflatten(y * functional.silu(z.to(y.dtype)), -1, (self.groups, -1))
        normed = functional.rms_norm(gated, gated.shape[-1:], eps=self.eps).flatten(-2) * self.norm.weight
        mixed: Tensor = self.out_proj(normed.to(z.dtype))
        return mixed.transpose(0, 1)

    def _conv_bias(self) -> Tensor:
        assert self.conv1d.bias is not None
        return self.conv1d.bias


def ssd(x: Tensor, dt: Tensor, rates: Tensor, write: Tensor, read: Tensor, start: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
    """The recurrence of S in chunks (section 6): x (t, b, h, p), dt (t, b, h), rates A (h), B and C (t, b, g, n) -> y as x, S (b, h, n, p).

    Pairs within a chunk are weighted by exp(l_i - l_j), l the running sum of dt A there, at most 0 by itself and in each
    difference that is used; what came before a chunk acts through S at its beginning. The sums and their differences are in
    float64: small ones of late tokens would cancel after large steps of early ones.
    """
    t, _, h, _ = x.shape
    size, dtype = min(chunk, t), x.dtype
    by_group = (write.shape[2], h // write.shape[2])
    x, write, read = (_in_chunks(part, size) for part in (dt.unsqueeze(-1) * x, write, read))
    logs = _in_chunks((dt * rates).unsqueeze(-1), size).squeeze(-1).double().cumsum(-1)
    scores = (read @ write.transpose(-1, -2)).unsqueeze(2)
    between = torch.unflatten(_lower((logs.unsqueeze(-1) - logs.unsqueeze(-2)).to(dtype)).exp(), 1, by_group)
    inside = (scores * between).flatten(1, 2) @ x
    until_end = (logs[..., -1:] - logs).to(dtype).exp().unsqueeze(-1)
    logs = logs.to(dtype)
    added = (write.transpose(-1, -2).unsqueeze(2) @ torch.unflatten(x * until_end, 1, by_group)).flatten(1, 2)
    states = _states(added, logs[..., -1:, None].exp(), start)
    earlier = (read.unsqueeze(2) @ torch.unflatten(torch.stack(states[:-1], dim=2), 1, by_group)).flatten(1, 2)
    y = inside + earlier * logs.exp().unsqueeze(-1)
    return y.flatten(2, 3)[:, :, :t].permute(2, 0, 1, 3), states[-1]


def _in_chunks(x: Tensor, size: int) -> Tensor:
    """(t, b, h, width) -> (b, h, chunks, size, width); zeros at the end neither add to S nor let it fade."""
    t = len(x)
    return torch.unflatten(functional.pad(x.permute(1, 2, 0, 3), (0, 0, 0, -t % size)), 2, (-1, size))


def _lower(differences: Tensor) -> Tensor:
    """The differences (..., i, j) where j <= i; minus infinity elsewhere."""
    size = differences.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=differences.device).triu(1)
    return differences.masked_fill(later, -math.inf)


def _states(added: Tensor, kept: Tensor, start: Tensor | None) -> list[Tensor]:
    """S before each chunk and after the last; added: (b, h, chunks, n, p), kept: the share of S that a chunk leaves."""
    states = [torch.zeros_like(added[:, :, 0]) if start is None else start]
    for more, share in zip(added.unbind(2), kept.unbind(2), strict=True):
        states.append(share * states[-1] + more)
    return states
