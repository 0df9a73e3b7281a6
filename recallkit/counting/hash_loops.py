"""Compiled loops over the hashes of n-grams: collects the small ones of long texts, and marks where
a text has known ones.

Of long texts they take half the time of `ngram_hash`, but numba takes half a second to be imported.
"""

from __future__ import annotations

import numpy as np

from recallkit.counting.ngram_hash import ADDED, ALL, BASE, FIRST, SECOND
from recallkit.jit import frozen, njit


def leading_power(size: int) -> np.uint64:
    """What the id that leaves an n-gram of `size` ids is multiplied by when the polynomial rolls on
    (`rolled`): uint64."""
    return np.uint64(pow(BASE, size, 2**64))


@njit(cache=True, nogil=True)
def polynomial_of(ids, first, stop):  # type: ignore[no-untyped-def]
    """The polynomial of the n-gram ids[first:stop], all unsigned: uint64."""
    found = np.uint64(0)
    for place in range(first, stop):
        found = found * np.uint64(BASE) + np.uint64(ids[place])
    return found


@njit(cache=True, nogil=True, inline="always")
def rolled(polynomial, entering, leaving, power):  # type: ignore[no-untyped-def]
    """The polynomial of the next n-gram, of the ids that enter and leave and the `leading_power`:
    uint64."""
    return polynomial * np.uint64(BASE) + (np.uint64(entering) - np.uint64(leaving) * power)


@njit(cache=True, nogil=True, inline="always")
def mixed(polynomial):  # type: ignore[no-untyped-def]
    """The hash of an n-gram, from its polynomial: uint64."""
    state = polynomial + np.uint64(ADDED)
    found = (state ^ (state >> np.uint64(30))) * np.uint64(FIRST)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(SECOND)
    return found ^ (found >> np.uint64(31))


def small_hashes(
    ids: np.ndarray,
    segment_starts: np.ndarray,
    block: slice,
    size: int,
    largest: int,
) -> np.ndarray:
    """As `ngram_hash.small_hashes`."""
    ends = slice(block.start + size - 1, min(block.stop + size - 1, len(ids)))
    found = np.empty(max(0, ends.stop - ends.start), np.uint64)
    bounds = ends.start, ends.stop
    number = _collect(
        frozen(ids),
        segment_starts,
        *bounds,
        size,
        leading_power(size),
        np.uint64(largest),
        found,
    )
    return found[:number]


@njit(cache=True, nogil=True)
def _collect(  # type: ignore[no-untyped-def]
    ids, segment_starts, at, stop, size, power, largest, found
):
    """Puts hashes up to `largest` of the n-grams that end at positions [at, stop) into `found`;
    returns their number.

    Example: size 3, segments from 0 and 4: n-grams end at 2, 3, 6 ...
    """
    number = 0
    width = np.uint64(size)
    segment = np.searchsorted(segment_starts, at, side="right") - 1
    while at < stop:
        end = min(stop, segment_starts[segment + 1]) if segment + 1 < len(segment_starts) else stop
        place, until = np.uint64(max(at, segment_starts[segment] + size - 1)), np.uint64(end)
        if place < until:
            polynomial = polynomial_of(ids, place + np.uint64(1) - width, place + np.uint64(1))
            while True:
                hashed = mixed(polynomial)
                if hashed <= largest:
                    found[number] = hashed
                    number += 1
                place += np.uint64(1)
                if place >= until:
                    break
                polynomial = rolled(polynomial, ids[place], ids[place - width], power)
        at = end
        segment += 1
    return number


@njit(cache=True, nogil=True)
def mark_ngrams(  # type: ignore[no-untyped-def]
    ids, starts, size, power, largest, hashes, places, shift, marks, first, stop, waiting
):
    """Sets `marks` at the ids of every n-gram whose hash is up to `largest` and among `hashes`;
    returns how many of the n-grams that end at [first, stop) have a hash up to `largest`, and how
    many of these are among `hashes`.

    `places[hash >> shift]` is where in `hashes` to begin to look. Hashes are looked up some at a
    time, as many as there is room for in `waiting`, uint64 (4, some), so that they are fetched from
    memory side by side. Here, because numba's cache does not notice when a loop that it has inlined
    from another file changes.
    """
    num_sampled = num_found = 0
    one, width = np.uint64(1), np.uint64(size)
    kept, ends, begins, nearest = waiting[0], waiting[1], waiting[2], waiting[3]
    for segment in range(len(starts)):
        begin, end = starts[segment], starts[segment + 1] if segment + 1 < len(starts) else len(ids)
        if end - begin < size:
            continue
        place, until, unmarked, num = (
            np.uint64(begin + size - 1),
            np.uint64(end),
            np.uint64(begin),
            0,
        )
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
