"""`long_conv` by the convolution theorem: for CPU, for long inputs on a GPU, and for gradients.

A few taps, or a single output, are cheaper to sum directly. Everything is computed in float32, or
in float64 where an input is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

DIRECT_TAPS = 8
"""Filters up to this length are applied directly: a few shifted multiply-adds are cheaper than
three transforms."""


def long_conv_torch(
    u: Tensor,
    filters: Tensor,
    skip: Tensor | None,
    bias: Tensor | None,
    in_gate: Tensor | None,
    out_gate: Tensor | None,
    last: int,
    spectrum: Tensor | None,
) -> Tensor:
    """Shapes as in `long_conv`, k <= t."""
    with torch.autocast(u.device.type, enabled=False):
        u = u.to(torch.promote_types(_widened(u).dtype, filters.dtype))
        z = u if in_gate is None else in_gate * u
        filters = filters.to(z.dtype)
        y = _convolved(z, filters, skip, last, spectrum)
        if out_gate is not None:
            y = out_gate * y
        if bias is not None:
            y = y + bias
        return y


def filter_spectrum_torch(filters: Tensor, t: int) -> Tensor:
    """filters: (c, k), k <= t -> (c, n // 2 + 1), n >= t + k - 1: so that the circular convolution
    does not wrap around."""
    spectrum: Tensor = torch.fft.rfft(_widened(filters), n=transform_length(t, filters.shape[1]))
    return spectrum


def transform_length(t: int, taps: int) -> int:
    """Length of the transforms of t inputs and a filter."""
    return fast_length(t + taps - 1)


def fast_length(n: int) -> int:
    """The least length of at least n that is 1, 3 or 5 times a power of two: transforms of such
    lengths are fast."""
    return min(odd << max(math.ceil(math.log2(n / odd)), 0) for odd in (1, 3, 5))


def _convolved(
    z: Tensor, filters: Tensor, skip: Tensor | None, last: int, spectrum: Tensor | None
) -> Tensor:
    """z: (b, t, c) -> (b, last, c): the sum and the skip."""
    if last == 1 and z.shape[1] > 1:
        return _last_output(z, _with_skip(filters, skip))
    few = filters.shape[1] <= DIRECT_TAPS
    y = (
        direct_conv(z.mT, _with_skip(filters, skip))
        if few
        else fft_conv(z.mT, filters, skip, spectrum)
    )
    return y.mT[:, z.shape[1] - last :]


def _with_skip(filters: Tensor, skip: Tensor | None) -> Tensor:
    """Filters with the skip added to tap 0, that of the present input."""
    return (
        filters
        if skip is None
        else torch.cat([filters[:, :1] + skip.unsqueeze(-1), filters[:, 1:]], dim=1)
    )


def fft_conv(
    z: Tensor, filters: Tensor, skip: Tensor | None = None, spectrum: Tensor | None = None
) -> Tensor:
    """z: (b, c, t), filters: (c, k), k <= t -> (b, c, t). Adding to tap 0 adds to every
    frequency."""
    t = z.shape[-1]
    n = transform_length(t, filters.shape[1])
    spectrum = filter_spectrum_torch(filters, t) if spectrum is None else spectrum
    if spectrum.shape != (len(filters), n // 2 + 1):
        raise ValueError(
            f"the spectrum of these filters and {t} inputs is {(len(filters), n // 2 + 1)}, not "
            f"{tuple(spectrum.shape)}"
        )
    if skip is not None:
        spectrum = spectrum + skip.unsqueeze(-1)
    y: Tensor = torch.fft.irfft(torch.fft.rfft(z, n=n) * spectrum, n=n)
    return y[..., :t]


def direct_conv(z: Tensor, filters: Tensor) -> Tensor:
    """z: (b, c, t), filters: (c, k) -> (b, c, t), by multiplying each input with its k - 1
    neighbours before it."""
    taps = filters.to(z.dtype).flip(-1).unsqueeze(1)
    y: Tensor = functional.conv1d(
        functional.pad(z, (taps.shape[-1] - 1, 0)), taps, groups=len(filters)
    )
    return y


def _last_output(z: Tensor, filters: Tensor) -> Tensor:
    """z: (b, t, c), filters: (c, k), k <= t -> (b, 1, c)."""
    return (z[:, z.shape[1] - filters.shape[1] :] * filters.flip(-1).T).sum(1, keepdim=True)


def _widened(x: Tensor) -> Tensor:
    """In float32 where it is narrower."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
