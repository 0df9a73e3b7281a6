"""Training counts of many bigrams at once: a binary search inside the row of each bigram's first token.

The table stays sorted arrays, which can be memory-mapped; a hash table would be faster to ask, and twice as large and
slower to build.
"""

from __future__ import annotations

import numba as nb
import numpy as np


def index_rows(keys: np.ndarray, *, max_rows: int = 1 << 22) -> tuple[np.ndarray, int]:
    """Where each row of sorted bigram keys begins: (starts int64 (num_rows + 1,), shift).

    Row r holds the keys whose first token, shifted right by `shift`, is r; `shift` is 0 unless ids exceed `max_rows`.
    """
    largest = int(keys[-1] >> np.uint64(32)) if len(keys) else 0
    shift = max(0, largest.bit_length() - (max_rows - 1).bit_length())
    num_rows = (largest >> shift) + 1
    starts = np.empty(num_rows + 1, np.int64)
    _fill_starts(keys, np.uint64(shift + 32), starts)
    return starts, shift


@nb.njit(nogil=True, cache=True)
def _fill_starts(keys, shift, starts):  # type: ignore[no-untyped-def]
    row = 0
    starts[0] = 0
    for place in range(len(keys)):
        mine = np.int64(keys[place] >> shift)
        while row < mine:
            row += 1
            starts[row] = place
    while row < len(starts) - 1:
        row += 1
        starts[row] = len(keys)


@nb.njit(parallel=True, nogil=True, cache=True)
def lookup_counts(keys, counts, starts, shift, first, second):  # type: ignore[no-untyped-def]
    """Counts (int64) of the bigrams (first[i], second[i]); 0 for those not in the table.

    `keys` uint64 sorted, first << 32 | second; `starts`, `shift` from `index_rows`.
    """
    found = np.zeros(len(first), np.int64)
    for i in nb.prange(len(first)):
        row = np.int64(first[i]) >> shift
        if row >= len(starts) - 1:
            continue
        key = (np.uint64(first[i]) << np.uint64(32)) | np.uint64(second[i])
        low = starts[row]
        size = starts[row + 1] - low
        end = low + size
        while size > 1:
            half = size // 2
            if keys[low + half] <= key:
                low += half
            size -= half
        if low < end and keys[low] == key:
            found[i] = np.int64(counts[low])
    return found
