"""Causal convolution of sequences, a filter for each channel: by FFT, directly where the filter is short, and as the sum says.

    y[i] = sum_{s = 0}^{min(i, k - 1)} h[s] u[i - s]

Values are summed in float32 at least, whatever the inputs are, and come back as wide as they were summed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from recallkit.models.mixers.api import widened

if TYPE_CHECKING:
    from torch import Tensor

DIRECT_TAPS = 8
"""Filters up to this length are applied directly: a few multiplications of neighbours are cheaper than three transforms."""


def causal_conv(u: Tensor, filters: Tensor) -> Tensor:
    """u: (b, t, c), filters: (c, k) -> (b, t, c), channel by channel; what of the filters is longer than t is not used."""
    filters = filters[:, : u.shape[1]]
    convolve = direct_conv if filters.shape[1] <= DIRECT_TAPS else fft_conv
    return convolve(u.transpose(1, 2), filters).transpose(1, 2)


def causal_conv_after(inputs: Tensor, filters: Tensor, t: int) -> Tensor:
    """inputs: (b, T, c), filters: (c, k), k >= T -> (b, t, c): the convolution at the last t inputs alone, T >= t >= 1."""
    if t > 1:
        return causal_conv(inputs, filters)[:, inputs.shape[1] - t :]
    return (widened(inputs) * widened(filters)[:, : inputs.shape[1]].flip(-1).T).sum(1, keepdim=True)


def causal_conv_reference(u: Tensor, filters: Tensor) -> Tensor:
    """The same, as the sum is written."""
    y = torch.zeros_like(u)
    for i in range(u.shape[1]):
        for s in range(min(i + 1, filters.shape[1])):
            y[:, i] += filters[:, s] * u[:, i - s]
    return y


def fft_conv(u: Tensor, filters: Tensor) -> Tensor:
    """u: (..., c, t), filters: (c, k) or what broadcasts with u, k <= t -> (..., c, t), by the convolution theorem.

    Both are padded with zeros to at least t + k - 1, so that the end of the product does not come round to its beginning.
    """
    t = u.shape[-1]
    n = fast_length(t + filters.shape[-1] - 1)
    product = torch.fft.rfft(widened(u), n=n) * torch.fft.rfft(widened(filters), n=n)
    y: Tensor = torch.fft.irfft(product, n=n)
    return y[..., :t]


def direct_conv(u: Tensor, filters: Tensor) -> Tensor:
    """u: (b, c, t), filters: (c, k) -> (b, c, t), by multiplying each input with its k - 1 neighbours before it."""
    u, filters = widened(u), widened(filters)
    with torch.autocast(u.device.type, enabled=False):
        taps = filters.flip(-1).unsqueeze(1).to(u.dtype)
        y: Tensor = functional.conv1d(functional.pad(u, (filters.shape[1] - 1, 0)), taps, groups=len(filters))
        return y


def fast_length(n: int) -> int:
    """The least length from n on that is 2, 3 or 5 times a power of two or one itself: transforms of such lengths are fast."""
    return min(odd << max(math.ceil(math.log2(n / odd)), 0) for odd in (1, 3, 5))


def conv_flops(t: int, taps: int, channels: int) -> int:
    """Operations of `causal_conv` on one sequence: two a tap, or two transforms of 5 n log2 n and a product of spectra.

    The filters' own transform is counted, too: they are parameters, so each forward makes it again, once for the batch.
    """
    taps = min(taps, t)
    if taps <= DIRECT_TAPS:
        return 2 * taps * t * channels
    n = fast_length(t + taps - 1)
    return channels * math.ceil(3 * 5 * n * math.log2(n) + 6 * (n // 2 + 1))
