"""Long convolutions and their filters: a parameter for each tap, or a small network of the tap's
position (Hyena)."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.long_conv.api import long_conv
from recallkit.models.mixers.api import constant_taps, conv_flops, extended, widened

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.models.mixers.api import State


class Filter(nn.Module):
    """`channels` filters of at most `max_length` taps; forward(k) returns their first k taps
    (channels, k), in float32 at least."""

    def __init__(self, channels: int, max_length: int) -> None:
        super().__init__()
        if max_length < 1:
            raise ValueError(f"a filter has at least 1 tap, not {max_length}")
        self.channels, self.max_length = channels, max_length

    def check_length(self, k: int) -> None:
        """Raises ValueError where the filter has fewer than k taps."""
        if k > self.max_length:
            raise ValueError(f"{k} tokens are more than the filter's max_length {self.max_length}")

    def flops(self, k: int) -> int:
        """Operations that compute the first k taps."""
        raise NotImplementedError


class ExplicitFilter(Filter):
    """A parameter (channels, max_length): h[c, s] is learned for each tap s, and soft-thresholded
    by `squash`.

    h = sign(p) max(|p| - squash, 0): small taps become zero, which keeps long filters from fitting
    noise (arXiv 2302.06646, section 3). Taps start normal with variance 1 / max_length: outputs
    start with the variance of the inputs.
    """

    def __init__(self, channels: int, max_length: int, *, squash: float = 0.0) -> None:
        super().__init__(channels, max_length)
        self.squash = squash
        self.taps = nn.Parameter(torch.randn(channels, max_length) / math.sqrt(max_length))

    def forward(self, k: int) -> Tensor:
        """The first k taps (channels, k). Raises ValueError where there are fewer."""
        self.check_length(k)
        taps = widened(self.taps[:, :k])
        return functional.softshrink(taps, self.squash) if self.squash else taps

    def flops(self, k: int) -> int:
        """Zero without a threshold: the taps are parameters."""
        return 2 * k * self.channels * (self.squash > 0)


class ImplicitFilter(Filter):
    """Hyena's filter: h[c, s] = window_c(s) * MLP(position(s))_c (arXiv 2302.10866, section 3.3,
    and its code).

    position(s) = [s / (L - 1), cos(2 pi f s / L), -sin(2 pi f s / L)], L = max_length, f = 1e-4
    MLP: `LAYERS` hidden layers of `WIDTH`, each followed by x -> sin(frequency * x), one learned
        frequency for each unit, shared by the layers, and a linear layer without bias.
    window_c(s) = exp(-a_c s / (L - 1)); a_c runs evenly from ln(100) / `slow_decay` (channel 0) to
        ln(100) / `fast_decay`, so that it has fallen to 0.01 at that many times the length.

    Defaults are those of Zoology's Hyena on synthetic tasks; its language models have frequency 14
    and decays of 0.3 and 1.2 (arXiv 2312.04927, tables 8 and 15). Positions and windows are not
    trained.
    """

    WIDTH, LAYERS = 64, 3
    BAND = 1e-4
    """f above: the one band of a position of three numbers."""

    def __init__(
        self,
        channels: int,
        max_length: int,
        *,
        frequency: float = 1.0,
        fast_decay: float = 0.3,
        slow_decay: float = 1.5,
    ) -> None:
        super().__init__(channels, max_length)
        if fast_decay <= 0 or slow_decay <= 0:
            raise ValueError(f"decays are positive, not {fast_decay} and {slow_decay}")
        self.fast_decay, self.slow_decay = fast_decay, slow_decay
        widths = [3, *[self.WIDTH] * self.LAYERS]
        self.hidden = nn.ModuleList(nn.Linear(*sizes) for sizes in itertools.pairwise(widths))
        self.frequency = nn.Parameter(torch.full((self.WIDTH,), float(frequency)))
        self.last = nn.Linear(self.WIDTH, channels, bias=False)

    def forward(self, k: int) -> Tensor:
        """The first k taps (channels, k). Raises ValueError where there are fewer."""
        self.check_length(k)
        weight = self.last.weight
        place = torch.arange(k, device=weight.device, dtype=widened(weight).dtype)
        # Under autocast the positions would be rounded to 8 bits, and neighbours among thousands
        # would coincide.
        with torch.autocast(weight.device.type, enabled=False):
            time = (place / max(self.max_length - 1, 1)).unsqueeze(-1)
            angles = (2 * math.pi / self.max_length * place).unsqueeze(-1) * self.BAND
            x = torch.cat([time, angles.cos(), -angles.sin()], dim=-1)
            for layer in self.hidden:
                x = torch.sin(widened(self.frequency) * _linear(x, layer))
            slow, fast = math.log(100) / self.slow_decay, math.log(100) / self.fast_decay
            options: Any = {"device": place.device, "dtype": place.dtype}
            rates = torch.linspace(slow, fast, self.channels, **options)
            return (_linear(x, self.last) * torch.exp(-time * rates)).T

    def flops(self, k: int) -> int:
        """Operations that make the first k taps: the network and the window."""
        width = self.WIDTH
        network = 2 * (3 * width + (self.LAYERS - 1) * width**2 + width * self.channels)
        return k * (network + 3 * width * self.LAYERS + 3 * self.channels)


def _linear(x: Tensor, layer: nn.Module) -> Tensor:
    assert isinstance(layer, nn.Linear)
    bias = None if layer.bias is None else widened(layer.bias)
    return functional.linear(x, widened(layer.weight), bias)


class FilterConv(nn.Module):
    """A building block of mixers: y[i] = sum_{s <= i} h[s] u[i - s] (+ skip u[i]) (+ bias), for
    each of the channels.

    State: the inputs so far (b, T, channels), the latest last; shorter rows have zeros at the left,
    which do not change the result; and all taps of the filters, which are computed once.
    """

    def __init__(self, filters: Filter, *, skip: bool = False, bias: bool = False) -> None:
        super().__init__()
        self.filters = filters
        self.skip = nn.Parameter(torch.randn(filters.channels)) if skip else None
        self.bias = nn.Parameter(torch.zeros(filters.channels)) if bias else None

    def forward(self, u: Tensor) -> Tensor:
        """u: (b, t, channels) -> (b, t, channels), in the width of u. Raises ValueError where t is
        more than the filter's length."""
        taps = constant_taps(self.filters, self.filters, u.shape[1])
        return long_conv(u, taps, skip=self.skip, bias=self.bias, out_dtype=u.dtype)

    def reference(self, u: Tensor) -> Tensor:
        """The same, written like the sum."""
        return long_conv(
            u,
            self.filters(u.shape[1]),
            skip=self.skip,
            bias=self.bias,
            out_dtype=u.dtype,
            impl="reference",
        )

    def initial_state(self, batch: int) -> State:
        """The state before the first input."""
        taps = self.filters(self.filters.max_length)
        return {"inputs": taps.new_zeros(batch, 0, self.filters.channels), "taps": taps}

    def read(self, u: Tensor, state: State) -> tuple[Tensor, State]:
        """u: (b, t, channels), the next t inputs of each row -> their outputs and a new state;
        `state` is unchanged."""
        inputs = extended(state, {"inputs": u}, dim=1)["inputs"]
        self.filters.check_length(inputs.shape[1])
        taps = state["taps"][:, : inputs.shape[1]]
        # The first inputs stay in their narrow type, so that a kernel can be used.
        text = inputs if state["inputs"].shape[1] else u
        y = long_conv(
            text,
            taps,
            skip=self.skip,
            bias=self.bias,
            last=u.shape[1],
            out_dtype=u.dtype,
        )
        return y, {"inputs": inputs, "taps": state["taps"]}

    def flops(self, t: int) -> int:
        """Operations on one sequence of t inputs, including the computation of the filter (once for
        the batch)."""
        added = (self.skip is not None) * 2 + (self.bias is not None)
        channels = self.filters.channels
        return self.filters.flops(t) + conv_flops(t, t, channels) + added * t * channels
