"""Diagonal state space models: S4D, and the diagonal recurrence that H3 and GSS share with them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.long_conv.api import long_conv
from recallkit.models.mixers.api import (
    Mixer,
    State,
    applied,
    constant_taps,
    conv_flops,
    linear_flops,
    widened,
)

if TYPE_CHECKING:
    from torch import Tensor

READ_CHUNK = 512
"""Tokens per chunk; for each row, channel and pole about the square root of that many numbers are
in memory at a time."""


class StateSpace(nn.Module):
    """Linear recurrences over channels, which are convolutions: what is the same whatever their
    transition."""

    c: nn.Parameter
    channels: int

    def kernel(self, t: int) -> Tensor:
        """The convolution's first t taps (channels, t)."""
        raise NotImplementedError

    def carried(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """What the state before t inputs u adds to their outputs (b, t, channels), and the state
        after them."""
        raise NotImplementedError

    def reference(self, u: Tensor) -> Tensor:
        """As `forward`, written like the recurrence."""
        raise NotImplementedError

    def initial_state(self, *batch: int) -> Tensor:
        """Zeros (*batch, channels, ...)."""
        raise NotImplementedError

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """u: (*batch, channels), the next input of each row -> its output and a new state."""
        raise NotImplementedError

    def flops(self, t: int) -> int:
        """Operations on one sequence of t inputs."""
        raise NotImplementedError

    def forward(self, u: Tensor) -> Tensor:
        """u: (b, t, channels) -> (b, t, channels), by a convolution with the kernel, in float32 at
        least."""
        return long_conv(u, constant_taps(self, self.kernel, u.shape[1]))

    def read(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """u: (b, t, channels), the next t inputs of each row -> their outputs and a new state;
        `state` is unchanged."""
        outputs = []
        for start in range(0, u.shape[1], READ_CHUNK):
            part = u[:, start : start + READ_CHUNK]
            with torch.autocast(self.c.device.type, enabled=False):
                carried, state = self.carried(widened(part), state)
            outputs.append(self.forward(part) + carried)
        return torch.cat(outputs, dim=1), state


class DiagonalSSM(StateSpace):
    """A building block of mixers: `channels` linear recurrences with a complex diagonal transition.

        x_i = a x_{i-1} + b u_i,  y_i = 2 Re(sum_n c_n x_{i,n}) zoh:      a = exp(dt A),
        b = (a - 1) / A bilinear: a = (1 + dt A / 2) / (1 - dt A / 2),  b = dt / (1 - dt A / 2)
        as a convolution: y_i = sum_s k_s u_{i-s},  k_s = 2 Re(sum_n c_n b_n a_n^s)

    x is `poles` complex numbers for each channel; zero-order hold is that of arXiv 2206.11893,
    section 3. The taps k are a Vandermonde product. A = -exp(log_decay) + i frequency and dt =
    exp(log_dt), for each channel; poles start with the imaginary parts pi n of S4D-Lin (ibid.,
    section 4). The factor 2 accounts for the conjugates of the poles. `simplified` (GSS, arXiv
    2206.13947, section 3): all channels share their poles, which start at random and have no
    conjugates, so that the factor is 1, and dt is 1. Complex parameters are kept as pairs of real
    numbers, and so is the state (..., channels, poles, 2).
    """

    def __init__(
        self,
        channels: int,
        poles: int,
        *,
        discretization: str = "zoh",
        simplified: bool = False,
    ) -> None:
        super().__init__()
        if poles < 1:
            raise ValueError(f"a state space has at least 1 pole, not {poles}")
        self.channels, self.poles, self.discretization = channels, poles, discretization
        self.factor = 1 if simplified else 2
        self.log_dt: nn.Parameter | None = None
        if simplified:
            decays, frequencies = torch.randn(1, poles), torch.randn(1, poles).exp()
        else:
            decays = torch.full((channels, poles), math.log(0.5))
            frequencies = math.pi * torch.arange(poles).repeat(channels, 1)
        self.log_decay = nn.Parameter(decays)
        self.frequency = nn.Parameter(frequencies)
        if not simplified:
            self.log_dt = initial_log_dt(channels)
        self.c = nn.Parameter(torch.randn(channels, poles, 2) / math.sqrt(self.factor))

    def kernel(self, t: int) -> Tensor:
        """k (channels, t).

        With s = r i + j the powers are products, a^s = a^(r i) a^j: instead of t powers per channel
        and pole only about 2 sqrt(t) are computed, and the sum over the poles is a matrix product.
        """
        r = math.isqrt(t - 1) + 1
        with torch.autocast(self.c.device.type, enabled=False):
            log_a, weight = self._discrete()
            rows = weight.unsqueeze(1) * _powers(r * log_a, r).mT
            columns = _real_and_imaginary(_powers(log_a, r).mT)
            kernel = _real_and_negative_imaginary(rows) @ columns.mT
            return self.factor * kernel.flatten(1)[:, :t]

    def reference(self, u: Tensor) -> Tensor:
        """The same, written like the recurrence."""
        big_a = torch.complex(-self.log_decay.exp(), self.frequency)
        dt = torch.ones(1) if self.log_dt is None else self.log_dt.exp().unsqueeze(-1)
        if self.discretization == "zoh":
            a = torch.exp(dt * big_a)
            b = (a - 1) / big_a
        else:
            a = (1 + dt * big_a / 2) / (1 - dt * big_a / 2)
            b = dt / (1 - dt * big_a / 2)
        x = torch.zeros(*u[:, 0].shape, self.poles, dtype=big_a.dtype, device=u.device)
        outputs = []
        for i in range(u.shape[1]):
            x = a * x + b * u[:, i].unsqueeze(-1)
            outputs.append(self.factor * (torch.view_as_complex(self.c) * x).sum(-1).real)
        return torch.stack(outputs, dim=1)

    def initial_state(self, *batch: int) -> Tensor:
        """Zeros (*batch, channels, poles, 2)."""
        return widened(self.c).new_zeros(*batch, self.channels, self.poles, 2)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """u: (*batch, channels), the next input of each row -> its output and a new state; `state`
        is unchanged.

        The state is kept without the factor b, which is absorbed into c: x_i = a x_{i-1} + u_i.
        """
        log_a, weight = self._discrete()
        x = torch.exp(log_a) * torch.view_as_complex(state) + widened(u).unsqueeze(-1)
        return self.factor * (weight * x).sum(-1).real, torch.view_as_real(x)

    def carried(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """With x the state (b, channels, poles):

        outputs: 2 Re(sum_n c b a^(i + 1) x), after: a^t x + sum_s a^s u_{t-1-s}; powers are taken
        as in `kernel`.
        """
        t, x = u.shape[1], torch.view_as_complex(state)
        r = math.isqrt(t - 1) + 1
        log_a, weight = self._discrete()
        high, low = _powers(r * log_a, r).mT, _powers(log_a, r).mT
        rows = (weight * torch.exp(log_a) * x).unsqueeze(2) * high
        carried = self.factor * (_real_and_negative_imaginary(rows) @ _real_and_imaginary(low).mT)
        backwards = functional.pad(u.flip(1).mT, (0, r * r - t)).view(*x.shape[:2], r, r)
        added = torch.complex(*(backwards @ _real_and_imaginary(low)).chunk(2, dim=-1))
        after = torch.exp(t * log_a) * x + (added * high).sum(2)
        return carried.flatten(2)[..., :t].mT, torch.view_as_real(after)

    def flops(self, t: int, copies: int = 1) -> int:
        """Operations on one sequence of t inputs: the kernel, four per tap and pole, and the
        convolution of copies x channels."""
        return 4 * self.channels * self.poles * t + conv_flops(t, t, copies * self.channels)

    def _discrete(self) -> tuple[Tensor, Tensor]:
        """log a (channels, poles), or (1, poles) where it is the same for all, and c b (channels,
        poles)."""
        big_a = torch.complex(-widened(self.log_decay).exp(), widened(self.frequency))
        c = torch.view_as_complex(widened(self.c))
        step = big_a if self.log_dt is None else widened(self.log_dt).exp().unsqueeze(-1) * big_a
        if self.discretization == "zoh":
            return step, c * torch.expm1(step) / big_a
        # b = dt / (1 - dt A / 2) = (dt A / A) / (1 - dt A / 2)
        return torch.log((1 + step / 2) / (1 - step / 2)), c * step / big_a / (1 - step / 2)


def _powers(log_a: Tensor, k: int) -> Tensor:
    """log_a: (c, n) -> a^0, ..., a^(k - 1) (c, n, k). Real exp, cos and sin are several times
    faster than a complex exp."""
    logs = log_a.unsqueeze(-1) * torch.arange(k, device=log_a.device)
    return torch.polar(logs.real.exp(), logs.imag)


def _real_and_imaginary(z: Tensor) -> Tensor:
    """(..., n) complex -> (..., 2 n) real."""
    return torch.cat([z.real, z.imag], dim=-1)


def _real_and_negative_imaginary(z: Tensor) -> Tensor:
    """The same of the conjugate: its inner product with `_real_and_imaginary` of w is the real part
    of the sum of z w."""
    return torch.cat([z.real, -z.imag], dim=-1)


def initial_log_dt(channels: int) -> nn.Parameter:
    """The logarithms of steps that are log-uniform from 0.001 to 0.1, (channels,)."""
    least, most = math.log(0.001), math.log(0.1)
    return nn.Parameter(least + (most - least) * torch.rand(channels))


class StateSpaceMixer(Mixer):
    """A mixer around one diagonal state space, `ssm`: y = outputs(ssm(w), w, u), w = inputs(u)."""

    ssm: StateSpace

    def inputs(self, u: Tensor) -> Tensor:
        """What the state space reads (..., channels), of u (..., d)."""
        return u

    def outputs(self, mixed: Tensor, w: Tensor, u: Tensor) -> Tensor:
        """The mixer's outputs (..., d), of those of the state space (..., channels), its inputs,
        and u."""
        raise NotImplementedError

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        w = self.inputs(u)
        return self.outputs(self.ssm(w), w, u)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        w = self.inputs(u)
        return self.outputs(self.ssm.reference(w), w, u)

    def initial_state(self, batch: int) -> State:
        """The poles' sums (b, channels, poles, 2), real and imaginary parts."""
        return {"poles": self.ssm.initial_state(batch)}

    def step(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        w = self.inputs(u)
        mixed, poles = self.ssm.step(w, state["poles"])
        return self.outputs(mixed, w, u), {"poles": poles}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        w = self.inputs(u)
        mixed, poles = self.ssm.read(w, state["poles"])
        return self.outputs(mixed, w, u), {"poles": poles}

    def state_size(self, t: int) -> int:
        """Counted from the state: two real numbers per pole and channel; d `state` for S4D."""
        return self.ssm.initial_state(1).numel()


class GatedStateSpace(StateSpaceMixer):
    """y = glu(out_proj(gelu(k conv u + D u))), k the kernel of a state space for each channel,
    glu([a, b]) = a sigmoid(b)."""

    def __init__(self, d_model: int, ssm: StateSpace) -> None:
        super().__init__(d_model)
        self.ssm = ssm
        self.skip = nn.Parameter(torch.randn(d_model))
        self.out_proj = nn.Linear(d_model, 2 * d_model)

    def flops(self, t: int) -> int:
        """Of our forward: kernel, convolution, skip, eight for each gelu, projection, five for each
        gate of the glu."""
        return self.ssm.flops(t) + linear_flops(t, self.out_proj) + 15 * t * self.d_model

    def outputs(self, mixed: Tensor, w: Tensor, u: Tensor) -> Tensor:
        activated = functional.gelu(mixed + self.skip * u).to(u.dtype)
        return functional.glu(applied(self.out_proj, activated), dim=-1)


class S4D(GatedStateSpace):
    """Diagonal state spaces, one for each channel: S4D-Lin (arXiv 2206.11893, section 4), `state` /
    2 poles with their conjugates and zero-order hold. See `DiagonalSSM` for the recurrence."""

    def __init__(self, d_model: int, *, state: int = 64) -> None:
        check_even(state)
        super().__init__(d_model, DiagonalSSM(d_model, state // 2))


def check_even(state: int) -> None:
    """Raises ValueError for a state that does not consist of pairs of a pole and its conjugate."""
    if state < 2 or state % 2:
        raise ValueError(f"a state consists of pairs: an even number of at least 2, not {state}")
