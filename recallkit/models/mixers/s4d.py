"""Diagonal state space models: S4D and DSS, and the diagonal recurrence that H3 and GSS share with them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.long_conv.api import long_conv
from recallkit.models.mixers.api import Mixer, State, constant_taps, conv_flops, linear_flops, widened

if TYPE_CHECKING:
    from torch import Tensor

READ_CHUNK = 512
"""Tokens per chunk; for each row, channel and pole about the square root of that many numbers are in memory at a time."""

INITIAL_FREQUENCIES = ("lin", "inv", "legs", "random")


class StateSpace(nn.Module):
    """Linear recurrences over channels, which are convolutions: what is the same whatever their transition."""

    c: nn.Parameter

    def kernel(self, t: int) -> Tensor:
        """The convolution's first t taps (channels, t)."""
        raise NotImplementedError

    def carried(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """What the state before t inputs u adds to their outputs (b, t, channels), and the state after them."""
        raise NotImplementedError

    def forward(self, u: Tensor) -> Tensor:
        """u: (b, t, channels) -> (b, t, channels), by a convolution with the kernel, in float32 at least."""
        return long_conv(u, constant_taps(self, self.kernel, u.shape[1]))

    def read(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """u: (b, t, channels), the next t inputs of each row -> their outputs and a new state; `state` is unchanged."""
        outputs = []
        for start in range(0, u.shape[1], READ_CHUNK):
            part = u[:, start : start + READ_CHUNK]
            with torch.autocast(self.c.device.type, enabled=False):
                carried, state = self.carried(widened(part), state)
            outputs.append(self.forward(part) + carried)
        return torch.cat(outputs, dim=1), state


class DiagonalSSM(StateSpace):
    """A building block of mixers: `channels` linear recurrences with a complex diagonal transition.

        x_i = a x_{i-1} + b u_i,  y_i = 2 Re(sum_n c_n x_{i,n})           x: `poles` complex numbers for each channel
        zoh:      a = exp(dt A),                    b = (a - 1) / A        (arXiv 2206.11893, section 3)
        bilinear: a = (1 + dt A / 2) / (1 - dt A / 2),  b = dt / (1 - dt A / 2)
        as a convolution: y_i = sum_s k_s u_{i-s},  k_s = 2 Re(sum_n c_n b_n a_n^s)   (a Vandermonde product)

    A = -exp(log_decay) + i frequency, for each channel its own or one for all (`shared`); dt = exp(log_dt) for each channel,
    or 1 without `steps`. The factor 2 accounts for the conjugates of the poles; without `conjugates` it is 1. Poles are initialised with
    the imaginary parts of S4D-Lin, S4D-Inv or S4D-LegS (ibid., section 4) or at random ("random", GSS). Complex parameters
    are kept as pairs of real numbers, the state as pairs, too: (..., channels, poles, 2).
    """

    def __init__(
        self,
        channels: int,
        poles: int,
        *,
        start: str = "lin",
        discretization: str = "zoh",
        shared: bool = False,
        conjugates: bool = True,
        steps: tuple[float, float] | None = (0.001, 0.1),
    ) -> None:
        super().__init__()
        if poles < 1:
            raise ValueError(f"a state space has at least 1 pole, not {poles}")
        if discretization not in ("zoh", "bilinear"):
            raise ValueError(f"a discretization is zoh or bilinear, not {discretization}")
        if start not in INITIAL_FREQUENCIES:
            raise ValueError(f"initial poles are one of {', '.join(INITIAL_FREQUENCIES)}, not {start}")
        self.channels, self.poles, self.discretization, self.factor = channels, poles, discretization, 1 + conjugates
        copies = 1 if shared else channels
        decays = torch.randn(poles) if start == "random" else torch.full((poles,), math.log(0.5))
        self.log_decay = nn.Parameter(decays.repeat(copies, 1))
        self.frequency = nn.Parameter(initial_frequencies(start, poles).repeat(copies, 1))
        self.log_dt: nn.Parameter | None = None
        if steps:
            least, most = (math.log(step) for step in steps)
            self.log_dt = nn.Parameter(least + (most - least) * torch.rand(channels))
        self.c = nn.Parameter(torch.randn(channels, poles, 2) / math.sqrt(self.factor))

    def kernel(self, t: int) -> Tensor:
        """k (channels, t).

        With s = r i + j the powers are products, a^s = a^(r i) a^j: instead of t powers per channel and pole only about 2 sqrt(t)
        are computed, and the sum over the poles is a matrix product.
        """
        r = math.isqrt(t - 1) + 1
        with torch.autocast(self.c.device.type, enabled=False):
            log_a, weight = self._discrete()
            rows = weight.unsqueeze(1) * _powers(r * log_a, r).mT
            kernel = _real_and_negative_imaginary(rows) @ _real_and_imaginary(_powers(log_a, r).mT).mT
            return self.factor * kernel.flatten(1)[:, :t]

    def reference(self, u: Tensor) -> Tensor:
        """The same, written like the recurrence."""
        decay, dt = self.log_decay.exp(), 1.0 if self.log_dt is None else self.log_dt.exp().unsqueeze(-1)
        big_a = torch.complex(-decay, self.frequency)
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
        """u: (*batch, channels), the next input of each row -> its output and a new state; `state` is unchanged.

        The state is kept without the factor b, which is absorbed into c: x_i = a x_{i-1} + u_i.
        """
        log_a, weight = self._discrete()
        x = torch.exp(log_a) * torch.view_as_complex(state) + widened(u).unsqueeze(-1)
        return self.factor * (weight * x).sum(-1).real, torch.view_as_real(x)

    def carried(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """With x the state (b, channels, poles):

        outputs: 2 Re(sum_n c b a^(i + 1) x), after: a^t x + sum_s a^s u_{t-1-s}; powers are taken as in `kernel`.
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
        """Operations on one sequence of t inputs: the kernel, four per tap and pole, and the convolution of copies x channels."""
        return 4 * self.channels * self.poles * t + conv_flops(t, t, copies * self.channels)

    def _discrete(self) -> tuple[Tensor, Tensor]:
        """log a (channels, poles), or (1, poles) where it is the same for all, and c b (channels, poles)."""
        big_a = torch.complex(-widened(self.log_decay).exp(), widened(self.frequency))
        c = torch.view_as_complex(widened(self.c))
        step = big_a if self.log_dt is None else widened(self.log_dt).exp().unsqueeze(-1) * big_a
        if self.discretization == "zoh":
            return step, c * torch.expm1(step) / big_a
        # b = dt / (1 - dt A / 2) = (dt A / A) / (1 - dt A / 2)
        return torch.log((1 + step / 2) / (1 - step / 2)), c * step / big_a / (1 - step / 2)


def _powers(log_a: Tensor, k: int) -> Tensor:
    """log_a: (c, n) -> a^0, ..., a^(k - 1) (c, n, k). Real exp, cos and sin are several times faster than a complex exp."""
    logs = log_a.unsqueeze(-1) * torch.arange(k, device=log_a.device)
    return torch.polar(logs.real.exp(), logs.imag)


def _real_and_imaginary(z: Tensor) -> Tensor:
    """(..., n) complex -> (..., 2 n) real."""
    return torch.cat([z.real, z.imag], dim=-1)


def _real_and_negative_imaginary(z: Tensor) -> Tensor:
    """The same of the conjugate: its inner product with `_real_and_imaginary` of w is the real part of the sum of z w."""
    return torch.cat([z.real, -z.imag], dim=-1)


def initial_frequencies(start: str, poles: int) -> Tensor:
    """Imaginary parts of the poles (poles,); N = 2 poles with their conjugates (arXiv 2206.11893, section 4).

    lin: pi n.  inv: N / pi (N / (2 n + 1) - 1).  legs: the eigenvalues of HiPPO-LegS's normal part, largest first.
    random: exp of standard normal numbers (arXiv 2206.13947, section 3).
    """
    n = torch.arange(poles, dtype=torch.float64)
    size = 2 * poles
    if start == "lin":
        frequencies = math.pi * n
    elif start == "inv":
        frequencies = size / math.pi * (size / (2 * n + 1) - 1)
    elif start == "legs":
        root = torch.sqrt(2 * torch.arange(size, dtype=torch.float64) + 1)
        lower = torch.outer(root, root).tril(-1) / 2
        frequencies = torch.linalg.eigvalsh(1j * (lower - lower.T)).flip(0)[:poles]
    else:
        frequencies = torch.randn(poles, dtype=torch.float64).exp()
    return frequencies.float()


class StateSpaceMixer(Mixer):
    """A mixer around one diagonal state space, `ssm`: y = outputs(ssm(w), w, u), w = inputs(u)."""

    ssm: DiagonalSSM

    def inputs(self, u: Tensor) -> Tensor:
        """What the state space reads (..., channels), of u (..., d)."""
        return u

    def outputs(self, mixed: Tensor, w: Tensor, u: Tensor) -> Tensor:
        """The mixer's outputs (..., d), of those of the state space (..., channels), its inputs, and u."""
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
        """Counted from the state: two real numbers per pole and channel; d `state` for S4D, twice that for DSS."""
        return 2 * self.ssm.channels * self.ssm.poles


class GatedStateSpace(StateSpaceMixer):
    """y = glu(out_proj(gelu(k conv u + D u))), k the kernel of a state space for each channel, glu([a, b]) = a sigmoid(b)."""

    def __init__(self, d_model: int, ssm: DiagonalSSM, *, glu: bool) -> None:
        super().__init__(d_model)
        self.ssm = ssm
        self.glu = glu
        self.skip = nn.Parameter(torch.randn(d_model))
        self.out_proj = nn.Linear(d_model, (1 + glu) * d_model)

    def flops(self, t: int) -> int:
        """Of our forward: kernel, convolution, skip, eight for each gelu, projection, five for each gate of the glu."""
        return self.ssm.flops(t) + linear_flops(t, self.out_proj) + t * self.d_model * (2 + 8 + 5 * self.glu)

    def outputs(self, mixed: Tensor, w: Tensor, u: Tensor) -> Tensor:
        y: Tensor = self.out_proj(functional.gelu(mixed + self.skip * u).to(u.dtype))
        return functional.glu(y, dim=-1) if self.glu else y


VARIANTS = ("s4d-lin", "s4d-inv", "s4d-legs", "dss")


class S4D(GatedStateSpace):
    """Diagonal state spaces, one for each channel.

    s4d-lin, s4d-inv, s4d-legs: S4D (arXiv 2206.11893, section 4), `state` / 2 poles with their conjugates and zero-order hold;
    they differ in their initial poles. dss: DSS-EXP (arXiv 2203.14343, proposition 1 a), `state` poles that all channels
    share, without conjugates, initialised from those of LegS; its authors' layer has no glu. See `DiagonalSSM` for the recurrence.
    """

    def __init__(self, d_model: int, *, state: int = 64, variant: str = "s4d-lin", glu: bool = True) -> None:
        if variant not in VARIANTS:
            raise ValueError(f"S4D's variant is one of {', '.join(VARIANTS)}, not {variant}")
        if variant == "dss":
            ssm = DiagonalSSM(d_model, state, start="legs", shared=True, conjugates=False)
        elif state % 2:
            raise ValueError(f"S4D's state consists of pairs: an even number, not {state}")
        else:
            ssm = DiagonalSSM(d_model, state // 2, start=variant.removeprefix("s4d-"))
        super().__init__(d_model, ssm, glu=glu)
