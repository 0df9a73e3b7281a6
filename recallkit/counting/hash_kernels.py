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

from recallkit.jit import frozen, njit
from recallkit.ragged import run_starts

if TYPE_CHECKING:
    from collections.abc import Iterable

ALL = 2**64 - 1
"""The largest hash: a sample up to here has every n-gram."""

_BITS = ALL
_BASE = 0xD1342543DE82EF95
"""Odd, so that every id affects all higher bits; 5 modulo 8, so that no power up to the 2^62nd is 1."""

_ADDED, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class HashRun(NamedTuple):
    """Distinct hashes, uint64 (m,), strictly increasing."""

    hashes: np.ndarray


def ngram_hash(ids: Iterable[int]) -> int:
    """The hash of one n-gram, by its definition: 0 to 2^64 - 1."""
    polynomial = 0
    for token in ids:
        polynomial = (polynomial * _BASE + token) & _BITS
    state = (polynomial + _ADDED) & _BITS
    mixed = ((state ^ (state >> 30)) * _FIRST) & _BITS
    mixed = ((mixed ^ (mixed >> 27)) * _SECOND) & _BITS
    return mixed ^ (mixed >> 31)


def leading_power(size: int) -> np.uint64:
    """What the id that leaves an n-gram of `size` ids is multiplied by when the polynomial rolls on (`rolled`): uint64."""
    return np.uint64(pow(_BASE, size, 2**64))


@njit(cache=True, nogil=True)
def polynomial_of(ids, first, stop):  # type: ignore[no-untyped-def]
    """The polynomial of the n-gram ids[first:stop], all unsigned: uint64."""
    found = np.uint64(0)
    for place in range(first, stop):
        found = found * np.uint64(_BASE) + np.uint64(ids[place])
    return found


@njit(cache=True, nogil=True, inline="always")
def rolled(polynomial, entering, leaving, power):  # type: ignore[no-untyped-def]
    """The polynomial of the next n-gram, of the ids that enter and leave and the `leading_power`: uint64."""
    return polynomial * np.uint64(_BASE) + (np.uint64(entering) - np.uint64(leaving) * power)


@njit(cache=True, nogil=True, inline="always")
def mixed(polynomial):  # type: ignore[no-untyped-def]
    """The hash of an n-gram, from its polynomial: uint64."""
    state = polynomial + np.uint64(_ADDED)
    found = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(_SECOND)
    return found ^ (found >> np.uint64(31))


class HashSampler:
    """Samples the n-grams of a text that comes in chunks."""

    def __init__(self, size: int, most: int) -> None:
        """n-grams of `size` ids, of whose hashes the `most` smallest are kept."""
        self.size, self.most = size, most
        self.restart()

    def restart(self) -> None:
        """Begins with another text: what follows does not depend on the chunks before it."""
        self._largest = ALL
        """No hash beyond it can be among the smallest of all chunks together."""

    def count(self, ids: np.ndarray, segment_starts: np.ndarray) -> HashRun:
        """Hashes of a chunk: together with those of all earlier chunks they contain the `most` smallest of all.

        `ids` is (n,), unsigned, of at most 32 bits; `segment_starts` (s,) int64, ascending, the first 0: no n-gram extends across one.
        """
        ids = frozen(ids)
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
        power, at, kept = leading_power(self.size), 0, np.empty(0, np.uint64)
        room = np.empty(min(2 * self.most, len(ids) + 1), np.uint64)
        while at < len(ids):
            at, found = _collect(ids, segment_starts, at, len(ids), self.size, power, np.uint64(largest), room[len(kept) :])
            kept = _distinct(room[: len(kept) + found])[: self.most]
            room[: len(kept)] = kept
            if len(kept) == self.most:
                largest = int(kept[-1])
        return kept


@njit(cache=True, nogil=True)
def _collect(  # type: ignore[no-untyped-def]
    ids, segment_starts, at, stop, size, power, largest, buffer
):
    """Hashes up to `largest` of the n-grams that end at positions [at, stop), until `buffer` is full.

    Returns the position at which to continue and the number of hashes. Example: size 3, segments from 0 and 4: n-grams end at 2, 3, 6 ...
    """
    found = 0
    segment = np.searchsorted(segment_starts, at, side="right") - 1
    while at < stop:
        end = min(stop, segment_starts[segment + 1]) if segment + 1 < len(segment_starts) else stop
        place, until = np.uint64(max(at, segment_starts[segment] + size - 1)), np.uint64(end)
        width = np.uint64(size)
        if place < until:
            polynomial = polynomial_of(ids, place + np.uint64(1) - width, place + np.uint64(1))
            while True:
                hashed = mixed(polynomial)
                if hashed <= largest:
                    buffer[found] = hashed
                    found += 1
                    if found == len(buffer):
                        return np.int64(place) + 1, found
                place += np.uint64(1)
                if place >= until:
                    break
                polynomial = rolled(polynomial, ids[place], ids[place - width], power)
        at = end
        segment += 1
    return at, found


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


@njit(cache=True, nogil=True)
def mark_ngrams(  # type: ignore[no-untyped-def]
    ids, starts, size, power, largest, hashes, places, shift, marks, first, stop, waiting
):
    """Sets `marks` at the ids of every n-gram whose hash is up to `largest` and among `hashes`; returns how many of the n-grams that end at
    [first, stop) have a hash up to `largest`, and how many of these are among `hashes`.

    `places[hash >> shift]` is where in `hashes` to begin to look. Hashes are looked up some at a time, as many as there is room for in
    `waiting`, uint64 (4, some), so that they are fetched from memory side by side. Here, because numba's cache does not notice when a
    loop that it has inlined from another file changes.
    """
    num_sampled = num_found = 0
    one, width = np.uint64(1), np.uint64(size)
    kept, ends, begins, nearest = waiting[0], waiting[1], waiting[2], waiting[3]
    for segment in range(len(starts)):
        begin, end = starts[segment], starts[segment + 1] if segment + 1 < len(starts) else len(ids)
        if end - begin < size:
            continue
        place, until, unmarked, num = np.uint64(begin + size - 1), np.uint64(end), np.uint64(begin), 0
        polynomial = polynomial_of(ids, place + one - width, place + one)
        while True:
            hashed = mixed(polynomial)
            if hashed <= largest:
                kept[num], ends[num] = hashed, place
                num += 1
            is_last = place + one >= until
            if is_last or num == len(kept):
                for k in range(num):
                    begins[k] = places[kept[k] >> shift]
                for k in range(num):
                    nearest[k] = hashes[begins[k]] if begins[k] < len(hashes) else ALL
                for k in range(num):
                    is_counted = first <= ends[k] < stop
                    num_sampled += is_counted
                    at, last, there = begins[k], places[(kept[k] >> shift) + one], nearest[k]
                    while at < last and there < kept[k]:
                        at += one
                        there = hashes[at] if at < last else ALL
                    if at < last and there == kept[k]:
                        num_found += is_counted
                        for marked in range(max(unmarked, ends[k] + one - width), ends[k] + one):
                            marks[marked] = size
                        unmarked = ends[k] + one
                num = 0
            if is_last:
                break
            place += one
            polynomial = rolled(polynomial, ids[place], ids[place - width], power)
    return num_sampled, num_found
