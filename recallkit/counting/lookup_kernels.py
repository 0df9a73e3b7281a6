"""Training counts of many bigrams at once: by a hash index of the sorted table, or by searching the table itself.

The table is sorted arrays; searching it needs nothing else. The index takes 12 more bytes per bigram and answers several times as
fast. Each row of the table (the bigrams of one first token) has a small hash table of its own in the index: building it passes through
memory once, front to back, and a query causes about one cache miss.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from recallkit.counting.bigram_kernels import _run
from recallkit.jit import frozen, njit

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIER = np.uint64(0x9E3779B1)

_BLOCK = 64
"""Queries answered together: their cache misses overlap, with no unpredictable branch in between."""


def index_rows(keys: np.ndarray) -> np.ndarray:
    """Where each row of sorted bigram keys begins: int64 (num_rows + 1,); row r has the keys whose first token is r.

    Example: the bigrams (0, 5), (0, 7), (2, 1) have starts [0, 2, 2, 3].
    """
    num_rows = int(keys[-1] >> _HALF) + 1 if len(keys) else 1
    firsts = np.arange(num_rows, dtype=np.uint64) << _HALF
    return np.append(np.searchsorted(keys, firsts), len(keys))


def search_counts(keys: np.ndarray, counts: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Counts (int64) of the bigrams (first[i], second[i]) in a table, `keys` uint64 sorted, first << 32 | second; 0 for those not in it.

    Each is searched once, in the order of the keys, so that neighbours share what is in the cache.
    """
    asked, which = np.unique((first.astype(np.uint64) << _HALF) | second.astype(np.uint64), return_inverse=True)
    if not len(keys):
        return np.zeros(len(which), np.int64)
    rows = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[rows] == asked, counts[rows], np.uint64(0)).astype(np.int64)[which]


def build_index(keys: np.ndarray, counts: np.ndarray, starts: np.ndarray, *, num_threads: int = 2) -> np.ndarray:
    """The hash index of a table, for `lookup_indexed`: uint64 slots, second << 32 | count, 0 if empty.

    `starts` from `index_rows`. Counts of 2^32 - 1 and more are looked up in the table.
    """
    num_rows = len(starts) - 1
    slots = np.zeros(int(starts[-1]) + int(starts[-1]) // 2 + 2 * num_rows, np.uint64)
    # Rows differ greatly in length, so threads divide bigrams rather than rows.
    shares = [int(starts[-1]) * share // num_threads for share in range(1, num_threads)]
    bounds = [0, *np.searchsorted(starts[:-1], shares).tolist(), num_rows]
    keys, counts = frozen(keys), frozen(counts)
    with ThreadPoolExecutor(num_threads) as pool:
        _run(pool, lambda share: _fill_slots(keys, counts, starts, bounds[share], bounds[share + 1], slots), range(num_threads))
    return slots


def lookup_indexed(
    keys: np.ndarray,
    counts: np.ndarray,
    starts: np.ndarray,
    slots: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    *,
    num_threads: int = 2,
) -> np.ndarray:
    """The same as `search_counts`, by the index; ids of at most 32 bits. Each thread looks up an equal share."""
    begins, first, second = starts.view(np.uint64), frozen(first), frozen(second)
    found = np.empty(len(first), np.int64)
    bounds = [len(first) * share // num_threads for share in range(num_threads + 1)]
    shares = [slice(bounds[share], bounds[share + 1]) for share in range(num_threads)]
    with ThreadPoolExecutor(num_threads) as pool:
        _run(pool, lambda part: _ask_slots(begins, slots, np.empty(_BLOCK, np.uint64), first[part], second[part], found[part]), shares)
    huge = np.flatnonzero(found == int(_LOW))
    if huge.size:
        found[huge] = search_counts(keys, counts, first[huge], second[huge])
    return found


@njit(inline="always", nogil=True, cache=True)
def _room(starts, row):  # type: ignore[no-untyped-def]
    """First and last slot of a row: one and a half times as many as it has bigrams, and two more, so that one is always empty.

    A row of keys [low, high) has slots [low + low // 2 + 2 * row, high + high // 2 + 2 * (row + 1)).
    """
    one = np.uint64(1)
    low, high = np.uint64(starts[row]), np.uint64(starts[row + one])
    return low + (low >> one) + (row << one), high + (high >> one) + ((row + one) << one)


@njit(inline="always", nogil=True, cache=True)
def _home(token, begin, end):  # type: ignore[no-untyped-def]
    """The slot at which the search for a second token begins."""
    return begin + ((((token * _MULTIPLIER) & _LOW) * (end - begin)) >> _HALF)


@njit(nogil=True, cache=True)
def _fill_slots(keys, counts, starts, first_row, last_row, slots):  # type: ignore[no-untyped-def]
    for row in range(np.uint64(first_row), np.uint64(last_row)):
        begin, end = _room(starts, row)
        for place in range(starts[row], starts[row + np.uint64(1)]):
            token = keys[place] & _LOW
            slot = _home(token, begin, end)
            while slots[slot] != 0:
                slot += np.uint64(1)
                if slot == end:
                    slot = begin
            # A count of 0 leaves the slot empty, and an empty slot reads as 0.
            count = np.uint64(counts[place])
            if count:
                slots[slot] = (token << _HALF) | (count if count < _LOW else _LOW)


@njit(nogil=True, cache=True)
def _ask_slots(starts, slots, homes, first, second, found):  # type: ignore[no-untyped-def]
    """A block at a time, as many bigrams as there is room for in `homes`: so their slots are fetched from memory side by side."""
    num_rows, one, num = np.uint64(len(starts) - 1), np.uint64(1), np.uint64(len(first))
    block = np.uint64(0)
    while block < num:
        stop = block + np.uint64(len(homes))
        stop = stop if stop < num else num
        for place in range(block, stop):
            row = np.uint64(first[place])
            begin, end = _room(starts, row if row < num_rows else num_rows - one)
            homes[place - block] = _home(np.uint64(second[place]), begin, end)
        for place in range(block, stop):
            found[place] = slots[homes[place - block]]
        for place in range(block, stop):
            row, token, word = np.uint64(first[place]), np.uint64(second[place]), np.uint64(found[place])
            if row >= num_rows:
                word = np.uint64(0)
            elif (word >> _HALF) != token and word != 0:
                begin, end = _room(starts, row)
                slot = homes[place - block]
                while (word >> _HALF) != token and word != 0:
                    slot += one
                    if slot == end:
                        slot = begin
                    word = slots[slot]
            found[place] = word & _LOW
        block = stop
