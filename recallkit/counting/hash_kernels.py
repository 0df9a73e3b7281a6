"""Hashes of a text's n-grams, of which the smallest are kept: a sample in bounded memory that tells copied text from new.

The hash of an n-gram depends on its ids alone, so the same n-gram is kept or left out wherever it occurs, in training text as in the
text that is sliced. The `most` smallest distinct hashes are kept (a bottom-k sketch: A. Broder, "On the resemblance and containment of
documents", 1997). Those of two texts together are the smallest of both samples, so the sample does not depend on where the text
was divided. All hashes up to the largest one kept are known, which are a uniform sample of the distinct n-grams.

The hash is a polynomial of the ids, modulo 2^64 in an odd base, which rolls from one n-gram to the next, mixed as splitmix64 mixes
its state (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014), which is a bijection: two
n-grams collide only if their polynomials do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recallkit.ragged import run_starts

if TYPE_CHECKING:
    from collections.abc import Iterable

ALL = 2**64 - 1
"""The largest hash: a sample up to here has every n-gram."""

_BITS = ALL
BASE = 0xD1342543DE82EF95
"""Odd, so that every id affects all higher bits; 5 modulo 8, so that no power up to the 2^62nd is 1."""

ADDED, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

_BLOCK = 1 << 15
"""n-grams hashed at a time: their numbers stay in the cache."""
_COMPILED_FROM = 1 << 26
"""Ids of a text beyond which loops save the half second that numba takes to be imported."""


class HashRun(NamedTuple):
    """Distinct hashes, uint64 (m,), strictly increasing."""

    hashes: np.ndarray


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
    """The hash of every n-gram of `size` ids: uint64 (n - size + 1,), of the one that begins at each place of `ids`, (n,) unsigned."""
    if len(ids) < size:
        return np.empty(0, np.uint64)
    state = _polynomials(ids.astype(np.uint64), size) + np.uint64(ADDED)
    for shift, factor in ((30, FIRST), (27, SECOND)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    return state


def _polynomials(ids: np.ndarray, size: int) -> np.ndarray:
    """The polynomial of every n-gram, both uint64: those of twice as many ids are of two neighbours, so that 50 ids take 7 steps."""
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


def small_hashes(ids: np.ndarray, segment_starts: np.ndarray, block: slice, size: int, largest: int) -> np.ndarray:
    """The hashes up to `largest` of the n-grams that begin in a block of `ids` and extend across no segment start, uint64.

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


class HashSampler:
    """Samples the n-grams of a text that comes in chunks."""

    def __init__(self, size: int, most: int) -> None:
        """n-grams of `size` ids, of whose hashes the `most` smallest are kept."""
        self.size, self.most = size, most
        self._num_ids = 0
        self.restart()

    def restart(self) -> None:
        """Begins with another text: what follows does not depend on the chunks before it."""
        self._largest = ALL
        """No hash beyond it can be among the smallest of all chunks together."""

    def count(self, ids: np.ndarray, segment_starts: np.ndarray) -> HashRun:
        """Hashes of a chunk: together with those of all earlier chunks they contain the `most` smallest of all.

        `ids` is (n,), unsigned, of at most 32 bits; `segment_starts` (s,) int64, ascending, the first 0: no n-gram extends across one.
        """
        self._num_ids += len(ids)
        # Hashes are uniform: up to here there are `most`, and three quarters more for n-grams that occur several times.
        expected = min(self._largest, ALL * 7 * self.most // (4 * len(ids))) if len(ids) else self._largest
        kept = self._smallest(ids, segment_starts, expected)
        if len(kept) < self.most and expected < self._largest:
            kept = self._smallest(ids, segment_starts, self._largest)
        if len(kept) == self.most:
            self._largest = int(kept[-1])
        return HashRun(kept)

    def _smallest(self, ids: np.ndarray, segment_starts: np.ndarray, largest: int) -> np.ndarray:
        """The smallest hashes up to `largest` of a chunk, at most `most`: whenever twice as many are found, larger ones are left out."""
        small = small_hashes
        if self._num_ids > _COMPILED_FROM:
            from recallkit.counting.hash_loops import small_hashes as small
        found, num_found = [np.empty(0, np.uint64)], 0
        for first in range(0, len(ids), _BLOCK):
            found.append(small(ids, segment_starts, slice(first, first + _BLOCK), self.size, largest))
            num_found += len(found[-1])
            if num_found > 2 * self.most:
                found = [_distinct(np.concatenate(found))[: self.most]]
                num_found = len(found[0])
                largest = int(found[0][-1]) if num_found == self.most else largest
        return _distinct(np.concatenate(found))[: self.most]


def _distinct(hashes: np.ndarray) -> np.ndarray:
    """The hashes in order, equal ones once: `np.unique` has a hash table, which takes ten times as long as sorting."""
    ordered = np.sort(hashes)
    found: np.ndarray = ordered[run_starts(ordered)]
    return found


def merge_hashes(runs: Iterable[HashRun]) -> HashRun:
    """The distinct hashes of all runs, which may be memory-mapped."""
    return HashRun(_distinct(np.concatenate([hashes for (hashes,) in runs])))


def smallest(runs: Iterable[HashRun], most: int) -> HashRun:
    """The `most` smallest distinct hashes of all runs, which may be memory-mapped."""
    kept = np.empty(0, np.uint64)
    for (hashes,) in runs:
        end = np.searchsorted(hashes, kept[-1]) if len(kept) == most else len(hashes)
        kept = _distinct(np.concatenate([kept, hashes[:end]]))[:most]
    return HashRun(kept)
