"""Short causal convolution of each channel, as used by many mixers next to their projections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.long_conv.api import long_conv
from recallkit.kernels.short_conv.api import MOST_TAPS, short_conv
from recallkit.models.mixers.api import widened

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.models.mixers.api import State


class ShortConv(nn.Module):
    """A building block of mixers: y[i] = sum_{s < kernel} h[s] u[i - s] + bias, a filter h for each
    of the channels.

    The weight is stored as in nn.Conv1d, `conv.weight` (channels, 1, kernel) with the latest
    input's tap last: as in published checkpoints. History: the last kernel - 1 inputs (b, kernel -
    1, channels), zeros before the first.
    """

    def __init__(self, channels: int, kernel: int = 3, *, bias: bool = True) -> None:
        super().__init__()
        if kernel < 1:
            raise ValueError(f"a convolution's kernel has at least 1 tap, not {kernel}")
        self.channels, self.kernel = channels, kernel
        self.conv = nn.Conv1d(channels, channels, kernel, groups=channels, bias=bias)

    def filters(self) -> Tensor:
        """The taps (channels, kernel), that of the latest input first."""
        return self.conv.weight.squeeze(1).flip(-1)

    def forward(
        self,
        u: Tensor,
        *,
        activation: str | None = None,
        gate: Tensor | None = None,
    ) -> Tensor:
        """u: (b, t, channels) -> (b, t, channels), contiguous and in the width of u; `activation`,
        `gate`: see `short_conv`.

        The channels stay contiguous: for values whose last stride is not 1, attention would
        materialise its full matrix.
        """
        if self.kernel <= MOST_TAPS:
            return self._convolve(u, None, activation, gate)[0].contiguous()
        y = long_conv(u, self.filters(), bias=self.conv.bias)
        y = functional.silu(y) if activation == "silu" else y
        return (y if gate is None else y * gate).to(u.dtype).contiguous()

    def reference(self, u: Tensor) -> Tensor:
        """The same without activation and gate, written like the sum."""
        return short_conv(u, self.conv.weight.squeeze(1), bias=self.conv.bias, impl="reference")[0]

    def initial_state(self, batch: int) -> Tensor:
        """The history (b, kernel - 1, channels) before the first input."""
        return widened(self.conv.weight).new_zeros(batch, self.kernel - 1, self.channels)

    def read(
        self,
        u: Tensor,
        history: Tensor | None,
        *,
        activation: str | None = None,
        gate: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """u: (b, t, channels), the next t inputs of each row -> their outputs, contiguous, and a
        new history; `history` is unchanged, and nothing where None."""
        if self.kernel <= MOST_TAPS:
            y, latest = self._convolve(u, history, activation, gate)
            return y.contiguous(), latest
        history = self.initial_state(len(u)) if history is None else history
        inputs = torch.cat([history, u.to(history.dtype)], dim=1)
        if gate is not None:
            gate = functional.pad(gate, (0, 0, history.shape[1], 0))
        y = self.forward(inputs, activation=activation, gate=gate)[:, self.kernel - 1 :]
        return y.to(u.dtype).contiguous(), inputs[:, inputs.shape[1] - self.kernel + 1 :]

    def state_size(self) -> int:
        """Elements that Zoology counts for one sequence: kernel x channels, one more input than the
        history has."""
        return self.kernel * self.channels

    def flops(self, t: int) -> int:
        """Operations on one sequence of t inputs: two per tap, one for a bias."""
        return t * self.channels * (2 * self.kernel + (self.conv.bias is not None))

    def _convolve(
        self,
        u: Tensor,
        history: Tensor | None,
        activation: str | None,
        gate: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        taps = self.conv.weight.squeeze(1)
        return short_conv(
            u,
            taps,
            bias=self.conv.bias,
            history=history,
            activation=activation,
            gate=gate,
        )


def make_short_conv(channels: int, kernel: int) -> ShortConv | None:
    """The convolution of a mixer's option `short_conv`; None where it has no taps."""
    return ShortConv(channels, kernel, bias=False) if kernel else None


def initial_history(conv: ShortConv | None, batch: int) -> State:
    """The history of a convolution that a mixer may have, as its state has it."""
    return {} if conv is None else {"recent": conv.initial_state(batch)}


def convolution_flops(conv: ShortConv | None, t: int) -> int:
    """Operations of a convolution that a mixer may have on t tokens."""
    return 0 if conv is None else conv.flops(t)


def read_convolved(conv: ShortConv | None, z: Tensor, state: State) -> tuple[Tensor, State]:
    """The next values z (b, t, channels) after a short convolution, if there is one, and its
    history: the new `recent` of a state."""
    if conv is None:
        return z, {}
    z, recent = conv.read(z, state.get("recent"))
    return z, {"recent": recent}
