"""Long convolutions and their filters: a parameter for each tap, or a small network of the tap's position (Hyena)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.long_conv.api import long_conv
from recallkit.models.mixers.api import conv_flops, widened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


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

KEPT_AT_ONCE = 1024
"""Cached taps are computed in blocks of this many, so that the rounding of a tap does not depend on how many are requested."""


@dataclass(frozen=True)
class _Kept:
    """Cached taps (k, channels), and the parameters that they were computed from."""

    taps: Tensor
    versions: Sequence[tuple[object, ...]]
    parameters: list[nn.Parameter]  # referenced, so that no other tensor gets the address by which they are recognised


class PositionFilter(Filter):
    """The base of filters that are a network of the tap's position (arXiv 2302.10866, section 3.3, and its code).

    position(s) = [s / (L - 1), cos(2 pi f s / L), -sin(2 pi f s / L)], L = max_length, frequencies f evenly from 1e-4 to K - 1
        for K bands: `features` = 2 K + 1 numbers.

    In evaluation, without gradients, taps are cached until a parameter changes: a step of generation needs those of the step
    before. Changes that autograd does not see (through `.data`) take effect after the next `train()`.
    """

    _kept: _Kept | None = None

    def __init__(self, channels: int, max_length: int, features: int) -> None:
        super().__init__(channels, max_length)
        if features < 3 or features % 2 == 0:
            raise ValueError(f"features of a position are the time, sines and cosines: an odd number of at least 3, not {features}")
        self.features = features

    def forward(self, k: int) -> Tensor:
        """The first k taps (channels, k). Raises ValueError where there are fewer."""
        self.check_length(k)
        return (self._kept_taps(k) if self._may_keep() else self._make(0, k)).T

    def train(self, mode: bool = True) -> PositionFilter:
        """See `nn.Module.train`; discards cached taps."""
        self._kept = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickling and copying: everything except cached taps."""
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}

    def _make(self, start: int, end: int) -> Tensor:
        """Taps from `start` to `end` (end - start, channels)."""
        raise NotImplementedError

    def _may_keep(self) -> bool:
        """Whether cached taps can be matched to the present parameters, and no gradient is needed."""
        if self.training or torch.compiler.is_compiling() or any(p.is_inference() for p in self.parameters()):
            return False
        return not (torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()))

    def _kept_taps(self, k: int) -> Tensor:
        """The first k taps (k, channels), of which only those not in the cache are computed."""
        versions = [(id(p), p._version, p.data_ptr(), p.dtype, p.device) for p in self.parameters()]
        kept = self._kept if self._kept is not None and self._kept.versions == versions else None
        num_kept = 0 if kept is None else len(kept.taps)
        if kept is None or num_kept < k:
            # A tensor of inference mode could not be saved for a backward pass through other tensors.
            with torch.inference_mode(False), torch.no_grad():
                starts = range(num_kept, max(k, 1), KEPT_AT_ONCE)
                made = [self._make(start, min(start + KEPT_AT_ONCE, self.max_length)) for start in starts]
                taps = torch.cat(made if kept is None else [kept.taps, *made])
            self._kept = kept = _Kept(taps, versions, list(self.parameters()))
        return kept.taps[:k]

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

    def _make(self, start: int, end: int) -> Tensor:
        """Taps from `start` to `end` (end - start, channels)."""
        # Under autocast the positions would be rounded to 8 bits, and neighbours among thousands would coincide.
        with torch.autocast(self.last.weight.device.type, enabled=False):
            frequency = widened(self.frequency)
            place = torch.arange(start, end, device=frequency.device, dtype=frequency.dtype)
            x = self._positions(place)
            for layer in self.hidden:
                x = torch.sin(frequency * _linear(x, layer))
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

    def _make(self, start: int, end: int) -> Tensor:
        with torch.autocast(self.last.weight.device.type, enabled=False):
            weight = widened(self.last.weight)
            place = torch.arange(start, end, device=weight.device, dtype=weight.dtype)
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

    History: the inputs so far (b, T, channels), the latest last; shorter rows have zeros at the left, which do not change the result.
    """

    def __init__(self, filters: Filter, *, skip: bool = False, bias: bool = False) -> None:
        super().__init__()
        self.filters = filters
        self.skip = nn.Parameter(torch.randn(filters.channels)) if skip else None
        self.bias = nn.Parameter(torch.zeros(filters.channels)) if bias else None

    def forward(self, u: Tensor) -> Tensor:
        """u: (b, t, channels) -> (b, t, channels), in the width of u. Raises ValueError where t is more than the filter's length."""
        return long_conv(u, self.filters(u.shape[1]), skip=self.skip, bias=self.bias, out_dtype=u.dtype)

    def reference(self, u: Tensor) -> Tensor:
        """The same, written like the sum."""
        return long_conv(u, self.filters(u.shape[1]), skip=self.skip, bias=self.bias, out_dtype=u.dtype, impl="reference")

    def initial_state(self, batch: int) -> Tensor:
        """The history before the first input: empty."""
        return widened(next(self.filters.parameters()).new_zeros(batch, 0, self.filters.channels))

    def read(self, u: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """u: (b, t, channels), the next t inputs of each row -> their outputs and a new history; `history` is unchanged."""
        inputs = torch.cat([history, u.to(history.dtype)], dim=1)
        if history.shape[1] == 0:
            return self.forward(u), inputs
        filters = self.filters(inputs.shape[1])
        return long_conv(inputs, filters, skip=self.skip, bias=self.bias, last=u.shape[1], out_dtype=u.dtype), inputs

    def flops(self, t: int) -> int:
        """Operations on one sequence of t inputs, including the computation of the filter (once for the batch)."""
        added = (self.skip is not None) * 2 + (self.bias is not None)
        return self.filters.flops(t) + conv_flops(t, t, self.filters.channels) + added * t * self.filters.channels
