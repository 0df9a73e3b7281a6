"""Mamba-3: Mamba-2 with inputs weighed by the trapezoidal rule, in place of a convolution, and with
a state that turns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.recurrences.api import decayed_attention
from recallkit.models.mixers.api import (
    Mixer,
    State,
    applied,
    check_positive,
    chunk_pairs,
    chunk_sizes,
    linear_flops,
    rms_normed,
    widened,
)
from recallkit.models.mixers.mamba import initial_dt_bias

if TYPE_CHECKING:
    from torch import Tensor

SLOWEST = 1e-4
"""The smallest rate -A (the authors' code)."""


class Tokens(NamedTuple):
    """What a text is turned into before the recurrence, all wide but z."""

    z: Tensor
    """(b, t, d_inner)"""
    x: Tensor
    """(b, h, t, p)"""
    write: Tensor
    """B with its bias, (b, h, t, n)"""
    read: Tensor
    """C with its bias, (b, h, t, n)"""
    log_decay: Tensor
    """dt A, (b, h, t)"""
    now: Tensor
    """The weight of the present input, lambda dt, (b, h, t)"""
    before: Tensor
    """That of the previous one before it decays, (1 - lambda) dt, (b, h, t)"""
    turn: Tensor
    """dt pi tanh(theta), (b, h, t, a)"""


class Mamba3(Mixer):
    """The exponential-trapezoidal recurrence with a complex state (arXiv 2603.15569), one input and
    output (SISO):

        [z, x, B, C, dt, A, lambda, theta] = in_proj(u)
        dt = softplus(dt + dt_bias),   A = -softplus(A),   lambda = sigmoid(lambda)
        B = norm(B) + B_bias,   C = norm(C) + C_bias, the biases of a head
        R_i turns pairs of entries by -dt_i pi tanh(theta_i)
        S_i = exp(dt_i A_i) R_i (S_{i-1} + (1 - lambda_i) dt_i B_{i-1}^T x_{i-1})
              + lambda_i dt_i B_i^T x_i,  of n x p
        y = out_proj((C_i S_i + D x_i) * silu(z_i))

    d_inner = expand d channels are heads of p = `head_dim`; B and C of n = `state` numbers are
    shared by the heads of a group before their biases, theta of a = `rope_fraction` n / 2 pairs by
    all; the other entries do not turn. Parameters have the names of the authors' code, and A is as
    in its first release. Turning S is the same as turning B and C by the sum of all angles so far,
    as `forward` does. The state is S, that sum, B_i turned by it and x_i.
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
        rope_fraction: float = 0.5,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(d_model)
        check_positive(state=state, expand=expand, head_dim=head_dim, groups=groups)
        self.width = expand * d_model
        if self.width % head_dim or self.width // head_dim % groups:
            raise ValueError(
                f"{self.width} channels are not {groups} groups of heads of {head_dim}",
            )
        self.angles = int(state * rope_fraction) // 2
        if rope_fraction > 1 or self.angles < 1:
            bounds = f"one pair at least and {state // 2} at most"
            raise ValueError(f"rope_fraction {rope_fraction} of a state of {state} is not {bounds}")
        self.num_heads, self.head_dim, self.state, self.groups = (
            self.width // head_dim,
            head_dim,
            state,
            groups,
        )
        self.sizes = [
            self.width,
            self.width,
            groups * state,
            groups * state,
            *[self.num_heads] * 3,
            self.angles,
        ]
        self.in_proj = nn.Linear(d_model, sum(self.sizes), bias=False)
        self.dt_bias = nn.Parameter(initial_dt_bias(self.num_heads))
        self.B_bias = nn.Parameter(torch.ones(self.num_heads, state))
        self.C_bias = nn.Parameter(torch.ones(self.num_heads, state))
        self.B_norm, self.C_norm = (nn.RMSNorm(state, eps=eps) for _ in range(2))
        self.D = nn.Parameter(torch.ones(self.num_heads))
        self.out_proj = nn.Linear(self.width, d_model, bias=False)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: the recurrence, token by token, of a state that turns."""
        tokens = self._projected(u)
        shape = len(u), self.num_heads, self.state, self.head_dim
        state, previous, outputs = tokens.x.new_zeros(shape), tokens.x.new_zeros(shape), []
        for i in range(u.shape[1]):
            vectors = (tokens.write, tokens.read, tokens.x)
            write, read, x = (part[:, :, i, :, None] for part in vectors)
            numbers = (tokens.log_decay.exp(), tokens.now, tokens.before)
            decay, now, before = (part[:, :, i, None, None] for part in numbers)
            turned = turn_pairs((state + before * previous).mT, -tokens.turn[:, :, i, None]).mT
            previous = write * x.mT
            state = decay * turned + now * previous
            outputs.append((read * state).sum(-2) + self.D[:, None] * x[..., 0])
        return self._merge(torch.stack(outputs, dim=2), tokens.z)

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: S (b, h, n, p), the sum of the angles (b, h, a), the previous
        B (b, h, n) and x (b, h, p)."""
        like = widened(self.D)
        return {
            "scan": like.new_zeros(batch, self.num_heads, self.state, self.head_dim),
            "angle": like.new_zeros(batch, self.num_heads, self.angles),
            "write": like.new_zeros(batch, self.num_heads, self.state),
            "x": like.new_zeros(batch, self.num_heads, self.head_dim),
        }

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`: all chunks at once except for the states between them.

        The share of an input in the next token's step is added to it at once: from the next token
        on, both shares decay alike. What is too much of it at its own token is taken away. Only the
        last input of the tokens before has its share added to S.
        """
        tokens = self._projected(u)
        angle = torch.cumsum(tokens.turn, dim=2, dtype=torch.float64) + state["angle"].unsqueeze(2)
        angle = torch.remainder(angle, 2 * math.pi).to(tokens.turn.dtype)
        write, read = turn_pairs(tokens.write, angle), turn_pairs(tokens.read, angle)
        later = functional.pad(tokens.before[:, :, 1:], (0, 1))
        values = (tokens.now + later).unsqueeze(-1) * tokens.x
        start = state["scan"] + tokens.before[:, :, 0, None, None] * state["write"].unsqueeze(
            -1,
        ) * state["x"].unsqueeze(-2)
        # Kernels need half precision where there is one; on CPU rounding gains nothing.
        q, k, v = (part.to(u.dtype) if u.is_cuda else part for part in (read, write, values))
        y, scan = decayed_attention(q, k, v, tokens.log_decay, start, chunk=self.chunk)
        early = later * (read * write).sum(dim=-1)
        y = widened(y) + (self.D[:, None] - early).unsqueeze(-1) * tokens.x
        after = {
            "scan": scan,
            "angle": angle[:, :, -1],
            "write": write[:, :, -1],
            "x": tokens.x[:, :, -1],
        }
        return self._merge(y, tokens.z), after

    def state_size(self, t: int) -> int:
        """S, the angles, B and x of every head, h (n p + a + n + p); for all t."""
        n, p = self.state, self.head_dim
        return self.num_heads * (n * p + self.angles + n + p)

    def flops(self, t: int) -> int:
        """Counted: projections, norms and biases; steps, angles and turns; the pairs of each chunk,
        two products with S; skip and gate."""
        n, p, a = self.state, self.head_dim, self.angles
        head = 22 + 4 * n + 17 * a + 11 * p + 4 * n * p
        mixing = t * (8 * self.groups * n + 6 * a + self.num_heads * head)
        pair, chunk = 2 * n + 3 + 2 * p, 2 * n * p + 1
        num_chunks = len(chunk_sizes(t, self.chunk))
        mixing += self.num_heads * (chunk_pairs(t, self.chunk) * pair + num_chunks * chunk)
        return linear_flops(t, self.in_proj, self.out_proj) + mixing

    def _projected(self, u: Tensor) -> Tokens:
        z, *parts = torch.split(self.in_proj(u), self.sizes, dim=-1)
        x, write, read, dt, rate, share, theta = map(widened, parts)
        # The bias is added in float32: in bfloat16, steps of 0.001 would be lost in rounding.
        dt = functional.softplus(dt + self.dt_bias).transpose(1, 2)
        rate = functional.softplus(rate).clamp(min=SLOWEST).transpose(1, 2)
        share = torch.sigmoid(share).transpose(1, 2)
        write, read = (
            self._normed(write, self.B_norm, self.B_bias),
            self._normed(read, self.C_norm, self.C_bias),
        )
        turn = dt.unsqueeze(-1) * (math.pi * torch.tanh(theta)).unsqueeze(1)
        x = torch.unflatten(x, -1, (self.num_heads, -1)).transpose(1, 2)
        return Tokens(z, x, write, read, -rate * dt, share * dt, (1 - share) * dt, turn)

    def _normed(self, x: Tensor, norm: nn.RMSNorm, bias: Tensor) -> Tensor:
        """(b, t, g n) -> (b, h, t, n): normalised in each group, with the bias of each of its
        heads."""
        x = rms_normed(torch.unflatten(x, -1, (self.groups, -1)), norm)
        return x.repeat_interleave(self.num_heads // self.groups, dim=2).transpose(
            1,
            2,
        ) + bias.unsqueeze(1)

    def _merge(self, y: Tensor, z: Tensor) -> Tensor:
        """The heads' outputs (b, h, t, p), gated by z (b, t, d_inner) and projected."""
        y = y.transpose(1, 2).flatten(start_dim=2)
        return applied(self.out_proj, (y * functional.silu(z.to(y.dtype))).to(z.dtype))


def turn_pairs(x: Tensor, angle: Tensor) -> Tensor:
    """x (..., n), its entries 2j and 2j + 1 turned by angle (..., a), j < a; the rest unchanged."""
    width = 2 * angle.shape[-1]
    even, odd = torch.unflatten(x[..., :width], -1, (-1, 2)).unbind(-1)
    cos, sin = torch.cos(angle), torch.sin(angle)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
    return torch.cat([turned, x[..., width:]], dim=-1)
