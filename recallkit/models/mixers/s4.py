"""S4: state spaces whose transition is diagonal and of low rank, as HiPPO's is in a basis of its
own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.models.mixers.api import conv_flops, widened
from recallkit.models.mixers.s4d import GatedStateSpace, StateSpace, check_even, initial_log_dt

if TYPE_CHECKING:
    from torch import Tensor


def hippo_legs(size: int) -> tuple[Tensor, Tensor]:
    """HiPPO-LegS: A (size, size) and B (size,) in float64 of dx/dt = (A x + B u) / t (arXiv
    2008.07669, theorem 2; appendix D).

    x are coefficients of all inputs so far by orthonormal Legendre polynomials.
    """
    n = torch.arange(size, dtype=torch.float64)
    root = torch.sqrt(2 * n + 1)
    return -torch.outer(root, root).tril(-1) - torch.diag(n + 1), root


def normal_plus_low_rank(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """HiPPO-LegS as V (diag(poles) - p p^*) V^* with V unitary: poles, p and V^* B, complex
    (size,), those of positive frequency first.

    With p_n = sqrt(n + 1/2), A + p p^T is -1/2 I plus a skew-symmetric matrix (S4, arXiv
    2111.00396, theorem 1, appendix C.1).
    """
    a, b = hippo_legs(size)
    p = torch.sqrt(torch.arange(size, dtype=torch.float64) + 0.5)
    frequencies, v = torch.linalg.eigh(-1j * (a + torch.outer(p, p) + 0.5 * torch.eye(size)))
    frequencies, v = frequencies.flip(0), v.flip(1)
    return (
        torch.complex(torch.full_like(frequencies, -0.5), frequencies),
        v.mH @ p.to(v.dtype),
        v.mH @ b.to(v.dtype),
    )


class LowRankSSM(StateSpace):
    """A building block of mixers: `channels` linear recurrences, each of `state` / 2 complex poles
    with their conjugates.

        dx/dt = (diag(poles) - p p^*) x + b u,   y = 2 Re(c x)
        as a convolution: y_i = sum_s k_s u_{i-s},   k_s = C A^s B

    It is discretised with the bilinear rule and a step dt.
    poles, p, b, c and dt are learned for each channel, and begin as HiPPO-LegS (arXiv 2111.00396).
    Real and imaginary parts are the coordinates in which A, B and C are real matrices: a normal one
    less one of rank 1 (`dense`).
    """

    def __init__(self, channels: int, state: int) -> None:
        super().__init__()
        check_even(state)
        self.channels, self.state = channels, state
        parts = normal_plus_low_rank(state)
        poles, p, b = (part[: state // 2].to(torch.complex64) for part in parts)
        self.log_decay = nn.Parameter((-poles.real).log().repeat(channels, 1))
        self.frequency = nn.Parameter(poles.imag.repeat(channels, 1))
        self.p = nn.Parameter(torch.view_as_real(p).repeat(channels, 1, 1))
        self.b = nn.Parameter(torch.view_as_real(b).repeat(channels, 1, 1))
        self.c = nn.Parameter(torch.randn(channels, state // 2, 2) / math.sqrt(2))
        self.log_dt = initial_log_dt(channels)

    def dense(self) -> tuple[Tensor, Tensor, Tensor]:
        """A (channels, state, state), B and C (channels, state) of the continuous system, for x's
        real parts, then its imaginary ones."""
        decay, frequency = widened(self.log_decay).exp(), widened(self.frequency)
        p, b, c = (widened(part).mT.flatten(1) for part in (self.p, self.b, self.c))
        decay, frequency = decay.diag_embed(), frequency.diag_embed()
        above = torch.cat([-decay, -frequency], dim=2)
        rotation = torch.cat([above, torch.cat([frequency, -decay], dim=2)], dim=1)
        real, imaginary = c.chunk(2, dim=1)
        signed = torch.cat([real, -imaginary], dim=1)
        return rotation - 2 * p.unsqueeze(2) * p.unsqueeze(1), b, 2 * signed

    def discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        """A, B and C of the recurrence x_i = A x_{i-1} + B u_i, y_i = C x_i."""
        with torch.autocast(self.c.device.type, enabled=False):
            a, b, c = self.dense()
            half = widened(self.log_dt).exp().view(-1, 1, 1) / 2
            eye = torch.eye(self.state, dtype=a.dtype, device=a.device)
            solved = torch.linalg.solve(
                eye - half * a,
                torch.cat([eye + half * a, 2 * half * b.unsqueeze(2)], dim=2),
            )
            return solved[..., :-1], solved[..., -1], c

    def kernel(self, t: int) -> Tensor:
        """k (channels, t). With s = r i + j, k_s is (C A^(r i)) (A^j B): about 2 sqrt(t) vectors
        per channel, and a matrix product."""
        r = math.isqrt(t - 1) + 1
        with torch.autocast(self.c.device.type, enabled=False):
            a, b, c = self.discrete()
            rows = powers_times(torch.linalg.matrix_power(a, r).mT, c, r)
            return (rows.mT @ powers_times(a, b, r)).flatten(1)[:, :t]

    def reference(self, u: Tensor) -> Tensor:
        """The same, written like the recurrence."""
        a, b, c = self.discrete()
        x, outputs = self.initial_state(len(u)), []
        for i in range(u.shape[1]):
            x = (a @ x.unsqueeze(-1)).squeeze(-1) + b * u[:, i].unsqueeze(-1)
            outputs.append((c * x).sum(-1))
        return torch.stack(outputs, dim=1)

    def initial_state(self, *batch: int) -> Tensor:
        """Zeros (*batch, channels, state)."""
        return widened(self.c).new_zeros(*batch, self.channels, self.state)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """u: (*batch, channels), the next input of each row -> its output and a new state; `state`
        is unchanged."""
        a, b, c = self.discrete()
        x = (a @ state.unsqueeze(-1)).squeeze(-1) + b * widened(u).unsqueeze(-1)
        return (c * x).sum(-1), x

    def carried(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """With x the state (b, channels, state):

        outputs: C A^(i + 1) x, after: A^t x + sum_s A^s B u_{t-1-s}; powers are taken as in
        `kernel`.
        """
        t, x = u.shape[1], state
        r = math.isqrt(t - 1) + 1
        a, b, c = self.discrete()
        far = torch.linalg.matrix_power(a, r)
        rows = powers_times(a.mT, (c.unsqueeze(1) @ a).squeeze(1), r)
        carried = (powers_times(far, x, r).mT @ rows).flatten(2)[..., :t]
        backwards = functional.pad(u.flip(1).mT, (0, r * r - t)).view(len(u), self.channels, r, r)
        # Column i: sum_j A^j B u of r i + j places before the end.
        added = powers_times(a, b, r) @ backwards.mT
        after = added[..., -1]
        for i in range(r - 2, -1, -1):
            after = (far @ after.unsqueeze(-1)).squeeze(-1) + added[..., i]
        return carried.mT, after + (torch.linalg.matrix_power(a, t) @ x.unsqueeze(-1)).squeeze(-1)

    def flops(self, t: int) -> int:
        """Operations on one sequence of t inputs: A and B solved (8/3 n^3, n = `state`), powers,
        their products, the convolution."""
        n, r = self.state, math.isqrt(t - 1) + 1
        doublings = max(r - 1, 0).bit_length()
        powers = 2 * n**3 * (r.bit_length() + 2 * doublings) + 2 * 2 * n * n * r
        return self.channels * (8 * n**3 // 3 + powers + 2 * n * r * r) + conv_flops(
            t,
            t,
            self.channels,
        )


def powers_times(a: Tensor, x: Tensor, k: int) -> Tensor:
    """a: (c, n, n), x: (..., c, n) -> x, a x, ..., a^(k - 1) x (..., c, n, k), in log k steps of
    twice as many."""
    products = x.unsqueeze(-1)
    while products.shape[-1] < k:
        products = torch.cat([products, a @ products], dim=-1)
        a = a @ a
    return products[..., :k]


class S4(GatedStateSpace):
    """State spaces of HiPPO-LegS, one for each channel.

    S4 (arXiv 2111.00396): what `S4D` leaves out is the term of rank 1 beside the diagonal, see
    `LowRankSSM`. `state` numbers per channel.
    """

    def __init__(self, d_model: int, *, state: int = 64) -> None:
        super().__init__(d_model, LowRankSSM(d_model, state))
