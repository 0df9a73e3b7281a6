"""The hash of an n-gram of ids, which depends on these alone; tables of counts contain it, so that
it never changes.

The hash is a polynomial of the ids, modulo 2^64 in an odd base, which rolls from one n-gram to the
next, mixed as splitmix64 mixes its state (G. Steele, D. Lea, C. Flood, "Fast splittable
pseudorandom number generators", 2014), which is a bijection: two n-grams collide only if their
polynomials do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

ALL = 2**64 - 1
"""The largest hash: a sample up to here has every n-gram."""

_BITS = ALL
BASE = 0xD1342543DE82EF95
"""Odd, so that every id affects all higher bits; 5 modulo 8, so that no power up to the 2^62nd is
1."""

ADDED, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def ngram_hash(ids: Iterable[int]) -> int:
    """The hash of one n-gram, by its definition: 0 to 2^64 - 1."""
    polynomial = 0
    for token in ids:
        polynomial = (polynomial * BASE + token) & _BITS
    state = (polynomial + ADDED) & _BITS
    mixed = ((state ^ (state >> 30)) * FIRST) & _BITS
    mixed = ((mixed ^ (mixed >> 27)) * SECOND) & _BITS
    return mixed ^ (mixed >> 31)


def ngram_hashes(ids: np.ndarray, size: int) -> np.ndarray:
    """The hash of every n-gram of `size` ids: uint64 (n - size + 1,), of the one that begins at
    each place of `ids`, (n,) unsigned."""
    if len(ids) < size:
        return np.empty(0, np.uint64)
    state = _polynomials(ids.astype(np.uint64), size) + np.uint64(ADDED)
    for shift, factor in ((30, FIRST), (27, SECOND)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    return state


def _polynomials(ids: np.ndarray, size: int) -> np.ndarray:
    """The polynomial of every n-gram, both uint64: those of twice as many ids are of two
    neighbours, so that 50 ids take 7 steps."""
    if size == 1:
        return ids
    half = size // 2
    of_half = _polynomials(ids, half)
    joined = of_half[:-half] * np.uint64(pow(BASE, half, 2**64))
    joined += of_half[half:]
    if size % 2:
        joined = joined[:-1] * np.uint64(BASE)
        joined += ids[size - 1 :]
    return joined


def small_hashes(
    ids: np.ndarray,
    segment_starts: np.ndarray,
    block: slice,
    size: int,
    largest: int,
) -> np.ndarray:
    """The hashes up to `largest` of the n-grams that begin in a block of `ids` and extend across no
    segment start, uint64.

    `ids` is (n,), unsigned; `segment_starts` (s,) int64, ascending.
    """
    first, stop = block.start, block.stop + size - 1
    hashes = ngram_hashes(ids[first:stop], size)
    is_small = hashes <= np.uint64(largest)
    # Of size 3, with a segment from 4: the n-grams that begin at 2 and 3 extend into it.
    inside = np.searchsorted(segment_starts, (first + 1, stop))
    for start in (segment_starts[slice(*inside)] - first).tolist():
        is_small[max(0, start - size + 1) : start] = False
    return hashes[is_small]
