"""Exact bigram counts of a chunk of token ids, as sorted runs that merge: the step that reads every
training token.

Bigrams are keys, which NumPy sorts with vector instructions: of 32 bits for ids of 16, else of 64,
which take twice as long.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recallkit.ragged import run_starts

if TYPE_CHECKING:
    from collections.abc import Sequence

_SORTED_TOKENS = 1 << 24
"""Tokens sorted at once: 64 MiB of keys per thread for ids of 16 bits."""


class BigramRun(NamedTuple):
    """Distinct bigrams and their counts, both uint64 (m,): `keys` is first << 32 | second, strictly
    increasing."""

    keys: np.ndarray
    counts: np.ndarray


def count_bigrams(
    ids: np.ndarray,
    segment_starts: np.ndarray,
    *,
    num_threads: int = 2,
) -> BigramRun:
    """The distinct bigrams of a chunk with their counts; `num_threads` threads share it, and do not
    affect the result.

    `ids` is (n,), unsigned, of at most 32 bits. `segment_starts` is (s,) int64, ascending from 0 to
    at most n: positions whose id is not the second of a bigram, such as the first of every document
    (an empty document repeats one).
    """
    bounds = [*range(1, ids.size, _SORTED_TOKENS), ids.size]
    count = functools.partial(_sorted_run, ids, segment_starts)
    with ThreadPoolExecutor(num_threads) as pool:
        return merge_runs(list(pool.map(count, bounds[:-1], bounds[1:])))


def _sorted_run(ids: np.ndarray, segment_starts: np.ndarray, first: int, last: int) -> BigramRun:
    """The bigrams whose second id is at positions [first, last)."""
    half = np.uint64(16 if ids.dtype.itemsize <= 2 else 32)
    keys: np.ndarray = ids[first - 1 : last - 1].astype(np.uint32 if half == 16 else np.uint64)
    keys <<= keys.dtype.type(half)
    keys |= ids[first:last]
    starts = segment_starts[slice(*np.searchsorted(segment_starts, [first, last]))]
    if starts.size:
        keys = np.delete(keys, starts - first)
    keys.sort()
    changes = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    begins = np.concatenate([np.zeros(min(1, keys.size), np.int64), changes])
    # Of 16 bits each, first << 16 | second becomes first << 32 | second.
    distinct = keys[begins].astype(np.uint64)
    distinct = distinct >> half << np.uint64(32) | distinct & np.uint64(2 ** int(half) - 1)
    return BigramRun(distinct, np.diff(begins, append=keys.size).astype(np.uint64))


def merge_runs(runs: Sequence[BigramRun]) -> BigramRun:
    """Merges any number of runs, which may be memory-mapped, in memory: a stable sort merges what
    is sorted already."""
    if len(runs) == 1:
        return runs[0]
    keys = np.concatenate([np.empty(0, np.uint64), *(run.keys for run in runs)])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    begins = run_starts(keys)
    counts = np.concatenate([np.empty(0, np.uint64), *(run.counts for run in runs)])[order]
    return BigramRun(keys[begins], np.add.reduceat(counts, begins) if len(begins) else counts)
