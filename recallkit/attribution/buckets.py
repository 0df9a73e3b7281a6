"""Buckets of counts, distances, matches and positions, computed in numpy: on millions of tokens SQL's log2 is ten times slower.

The queries group by these small integers; the meaning of a bucket is defined only here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy as np

_BLOCK = 1 << 15
"""Values processed at a time: the temporaries stay in the processor's cache."""

_POWERS = [1 << exponent for exponent in range(52)]

LARGEST_COUNT = _POWERS[-1]
"""Largest training count that is distinguished: float64 is exact up to here, also after one half is subtracted."""


def log2_bucket(values: np.ndarray) -> np.ndarray:
    """Bucket of each whole number, uint8 (n,): 0 -> 0, 1 -> 1, 2 -> 2, 3-4 -> 3, 5-8 -> 4: (2^(b-2), 2^(b-1)] -> b."""
    import numpy as np

    buckets = np.empty(values.size, np.uint8)
    scratch = np.empty(_BLOCK)
    for start in range(0, values.size, _BLOCK):
        block = values[start : start + _BLOCK]
        size = block.size
        # The exponent of v - 1/2 is ceil(log2 v) exactly, in bits 52 to 62; v = 0 becomes 1/4, whose exponent is one below that of v = 1.
        np.subtract(block, 0.5, out=scratch[:size])
        np.maximum(scratch[:size], 0.25, out=scratch[:size])
        exponent = scratch[:size].view(np.int64)
        exponent >>= 52
        np.subtract(exponent, 1021, out=buckets[start : start + size], casting="unsafe")
    return buckets


def match_bucket(lengths: np.ndarray) -> np.ndarray:
    """Bucket of each match's length, uint8 (n,): 0, 1, 2 and 3 are their own, 4-7 -> 4, 8-15 -> 5: [2^(b-2), 2^(b-1)) -> b.

    These buckets begin with a power of two, the least length of their matches; those of `log2_bucket` end with one.
    """
    buckets = log2_bucket(lengths + 1)
    buckets -= lengths < 3
    return buckets


def count_thresholds(extra: Collection[int]) -> list[int]:
    """Every threshold on a training count at which a table may be cut: 0, the powers of two and `extra`, ascending."""
    return sorted({0, *_POWERS, *extra})


def count_class(counts: np.ndarray, extra: Collection[int]) -> np.ndarray:
    """Index of the smallest of `count_thresholds(extra)` that is at least the count, uint8 (n,).

    The classes refine both the log2 buckets and the cut at any threshold: each of these is a union of whole classes.
    """
    classes = log2_bucket(counts)
    for threshold in sorted(set(extra) - {0, *_POWERS}):
        classes += counts > threshold
    return classes


def position_bucket(positions: np.ndarray, seq_len: int, num_buckets: int) -> np.ndarray:
    """Bucket, uint8 (n,), of positions 1..seq_len divided into `num_buckets` (at most 256) of equal width, from 0."""
    import numpy as np

    table = (np.maximum(np.arange(seq_len + 1) - 1, 0) * num_buckets // seq_len).astype(np.uint8)
    buckets: np.ndarray = table.take(positions, mode="clip")
    return buckets
