"""The cost of a causal convolution on a CPU: by FFT, or directly where the filter is short (`kernels/long_conv/torch_impl.py`)."""

from __future__ import annotations

import math

from recallkit.kernels.long_conv.torch_impl import DIRECT_TAPS, transform_length


def conv_flops(t: int, taps: int, channels: int) -> int:
    """Operations of a convolution of one sequence: two per tap, or two transforms of 5 n log2 n and a product of spectra.

    The filters' own transform is included: it is computed in each forward pass, once for the batch.
    """
    taps = min(taps, t)
    if taps <= DIRECT_TAPS:
        return 2 * taps * t * channels
    n = transform_length(t, taps)
    return channels * math.ceil(3 * 5 * n * math.log2(n) + 6 * (n // 2 + 1))
