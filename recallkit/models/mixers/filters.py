"""Long convolutions and their filters: a parameter for each tap, or a small network of the tap's position (Hyena)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.long_conv.api import long_conv
from recallkit.models.mixers.api import constant_taps, conv_flops, widened

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.models.mixers.api import State


class Filter(nn.Module):
    """`channels` filters of at most `max_length` taps; forward(k) returns their first k taps (channels, k), in float32 at least."""

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
    """A parameter (channels, max_length): h[c, s] is learned for each tap s, and soft-thresholded by `squash`.

    h = sign(p) max(|p| - squash, 0): small taps become zero, which keeps long filters from fitting noise (arXiv
    2302.06646, section 3). Taps start normal with variance 1 / max_length: outputs start with the variance of the inputs.
    """

    def __init__(self, channels: int, max_length: int, *, squash: float = 0.0) -> None:
        super().__init__(channels, max_length)
        if squash < 0:
            raise ValueError(f"squash is at least 0, not {squash}")
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


MOST_LAYERS = 64


class PositionFilter(Filter):
    """The base of filters that are a network of the tap's position (arXiv 2302.10866, section 3.3, and its code).

    position(s) = [s / (L - 1), cos(2 pi f s / L), -sin(2 pi f s / L)], L = max_length, frequencies f evenly from 1e-4 to K - 1
        for K bands: `features` = 2 K + 1 numbers.
    """

    last: nn.Linear

    def __init__(self, channels: int, max_length: int, features: int) -> None:
        super().__init__(channels, max_length)
        if features < 3 or features % 2 == 0:
            raise ValueError(f"features of a position are the time, sines and cosines: an odd number of at least 3, not {features}")
        self.features = features

    def forward(self, k: int) -> Tensor:
        """The first k taps (channels, k). Raises ValueError where there are fewer."""
        self.check_length(k)
        # Under autocast the positions would be rounded to 8 bits, and neighbours among thousands would coincide.
        with torch.autocast(self.last.weight.device.type, enabled=False):
            return self._made(torch.arange(k, device=self.last.weight.device, dtype=widened(self.last.weight).dtype)).T

    def _made(self, place: Tensor) -> Tensor:
        """The taps (k, channels) at these positions (k,)."""
        raise NotImplementedError

    def _positions(self, place: Tensor) -> Tensor:
        """place: (k,) -> (k, features)."""
        bands = torch.linspace(1e-4, (self.features - 1) // 2 - 1, (self.features - 1) // 2, device=place.device, dtype=place.dtype)
        angles = 2 * math.pi / self.max_length * place.unsqueeze(-1) * bands
        return torch.cat([self._time(place).unsqueeze(-1), angles.cos(), -angles.sin()], dim=-1)

    def _time(self, place: Tensor) -> Tensor:
        return place / max(self.max_length - 1, 1)


class ImplicitFilter(PositionFilter):
    """Hyena's filter: h[c, s] = window_c(s) * MLP(position(s))_c (arXiv 2302.10866, section 3.3, and its code).

    MLP: `layers` + 1 hidden layers of `width`, each followed by x -> sin(frequency * x) with one learned frequency for each
        unit, shared by the layers, and a linear layer without bias.
    window_c(s) = exp(-a_c s / (L - 1)) + shift; a_c runs evenly from ln(100) / `slow_decay` (channel 0) to ln(100) /
        `fast_decay`, so that the window has fallen to 0.01 at that many times the length.

    Defaults are those of Zoology's Hyena on synthetic tasks; its language models have frequency 14 and decays of 0.3 and 1.2
    (arXiv 2312.04927, tables 8 and 15), and those of safari have 33 features. Positions and windows
    are not trained.
    """

    def __init__(
        self,
        channels: int,
        max_length: int,
        *,
        features: int = 3,
        width: int = 64,
        layers: int = 2,
        frequency: float = 1.0,
        shift: float = 0.0,
        fast_decay: float = 0.3,
        slow_decay: float = 1.5,
    ) -> None:
        super().__init__(channels, max_length, features)
        if fast_decay <= 0 or slow_decay <= 0:
            raise ValueError(f"a window's decays are positive, not {fast_decay} and {slow_decay}")
        self.fast_decay, self.slow_decay = fast_decay, slow_decay
        self.shift = shift
        if layers > MOST_LAYERS:
            raise ValueError(f"a filter's network has at most {MOST_LAYERS} hidden layers, not {layers}")
        self.hidden = nn.ModuleList([nn.Linear(features, width), *(nn.Linear(width, width) for _ in range(layers))])
        self.frequency = nn.Parameter(torch.full((width,), float(frequency)))
        self.last = nn.Linear(width, channels, bias=False)

    def flops(self, k: int) -> int:
        """Operations that make the first k taps: the network and the window."""
        width = self.frequency.numel()
        network = 2 * (self.features * width + (len(self.hidden) - 1) * width**2 + width * self.channels)
        return k * (network + 3 * width * len(self.hidden) + 3 * self.channels)

    def _made(self, place: Tensor) -> Tensor:
        x = self._positions(place)
        for layer in self.hidden:
            x = torch.sin(widened(self.frequency) * _linear(x, layer))
        return _linear(x, self.last) * self._windows(place)

    def _windows(self, place: Tensor) -> Tensor:
        """place: (k,) -> (k, channels)."""
        slow, fast = math.log(100) / self.slow_decay, math.log(100) / self.fast_decay
        rates = torch.linspace(slow, fast, self.channels, device=place.device, dtype=place.dtype)
        return torch.exp(-self._time(place).unsqueeze(-1) * rates) + self.shift


class ReluFilter(PositionFilter):
    """The filter of Zoology's listing 2 (arXiv 2312.04927, appendix B): h[c, s] = (W2 max(W1 position(s) + b1, 0) + b2)_c, no window.

    position(s) of `features` numbers, see `PositionFilter`; one hidden layer of `width`.
    """

    def __init__(self, channels: int, max_length: int, *, features: int = 3, width: int = 16) -> None:
        super().__init__(channels, max_length, features)
        self.hidden = nn.Linear(features, width)
        self.last = nn.Linear(width, channels)

    def flops(self, k: int) -> int:
        """Operations that make the first k taps: two linear layers with biases, and a comparison for each hidden unit."""
        width = self.last.in_features
        return k * (2 * self.features * width + 2 * width + (2 * width + 1) * self.channels)

    def _made(self, place: Tensor) -> Tensor:
        return _linear(torch.relu(_linear(self._positions(place), self.hidden)), self.last)


def _linear(x: Tensor, layer: nn.Module) -> Tensor:
    assert isinstance(layer, nn.Linear)
    return functional.linear(x, widened(layer.weight), None if layer.bias is None else widened(layer.bias))


def make_filter(kind: str, channels: int, max_length: int, **options: float) -> Filter:
    """The filter of this kind, "implicit", "relu" or "explicit". Raises ValueError for another kind."""
    if kind not in FILTERS:
        raise ValueError(f"a filter is one of {', '.join(FILTERS)}, not {kind}")
    return FILTERS[kind](channels, max_length, **options)


FILTERS: dict[str, type[Filter]] = {"implicit": ImplicitFilter, "relu": ReluFilter, "explicit": ExplicitFilter}
"""Name -> class."""


class FilterConv(nn.Module):
    """A building block of mixers: y[i] = sum_{s <= i} h[s] u[i - s] (+ skip u[i]) (+ bias), for each of the channels.

    State: the inputs so far (b, T, channels), the latest last; shorter rows have zeros at the left, which do not change the result;
    and all taps of the filters, which are computed once.
    """

    def __init__(self, filters: Filter, *, skip: bool = False, bias: bool = False) -> None:
        super().__init__()
        self.filters = filters
        self.skip = nn.Parameter(torch.randn(filters.channels)) if skip else None
        self.bias = nn.Parameter(torch.zeros(filters.channels)) if bias else None

    def forward(self, u: Tensor) -> Tensor:
        """u: (b, t, channels) -> (b, t, channels), in the width of u. Raises ValueError where t is more than the filter's length."""
        taps = constant_taps(self.filters, self.filters, u.shape[1])
        return long_conv(u, taps, skip=self.skip, bias=self.bias, out_dtype=u.dtype)

    def reference(self, u: Tensor) -> Tensor:
        """The same, written like the sum."""
        return long_conv(u, self.filters(u.shape[1]), skip=self.skip, bias=self.bias, out_dtype=u.dtype, impl="reference")

    def initial_state(self, batch: int) -> State:
        """The state before the first input."""
        taps = self.filters(self.filters.max_length)
        return {"inputs": taps.new_zeros(batch, 0, self.filters.channels), "taps": taps}

    def read(self, u: Tensor, state: State) -> tuple[Tensor, State]:
        """u: (b, t, channels), the next t inputs of each row -> their outputs and a new state; `state` is unchanged."""
        inputs = torch.cat([state["inputs"], u.to(state["inputs"].dtype)], dim=1)
        self.filters.check_length(inputs.shape[1])
        taps = state["taps"][:, : inputs.shape[1]]
        # The first inputs stay in their narrow type, so that a kernel can be used.
        whole = inputs if state["inputs"].shape[1] else u
        y = long_conv(whole, taps, skip=self.skip, bias=self.bias, last=u.shape[1], out_dtype=u.dtype)
        return y, {"inputs": inputs, "taps": state["taps"]}

    def flops(self, t: int) -> int:
        """Operations on one sequence of t inputs, including the computation of the filter (once for the batch)."""
        added = (self.skip is not None) * 2 + (self.bias is not None)
        return self.filters.flops(t) + conv_flops(t, t, self.filters.channels) + added * t * self.filters.channels
