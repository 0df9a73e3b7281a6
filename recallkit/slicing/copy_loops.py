"""Compiled loops over the hashes of n-grams: they mark where a text has known ones.

They are in one file, because numba's cache does not notice when a loop that it has inlined from
another one changes.
"""

from __future__ import annotations

import numpy as np

from recallkit.counting.ngram_hash import ADDED, ALL, BASE, FIRST, SECOND
from recallkit.jit import njit


def leading_power(size: int) -> np.uint64:
    """What the id that leaves an n-gram of `size` ids is multiplied by when the polynomial rolls on
    (`rolled`): uint64."""
    return np.uint64(pow(BASE, size, 2**64))


@njit(cache=True, nogil=True)
def polynomial_of(ids, first, stop):  # type: ignore[no-untyped-def]
    """The polynomial of the n-gram ids[first:stop], all unsigned: uint64."""
    polynomial = np.uint64(0)
    for place in range(first, stop):
        polynomial = polynomial * np.uint64(BASE) + np.uint64(ids[place])
    return polynomial


@njit(cache=True, nogil=True, inline="always")
def rolled(polynomial, entering, leaving, power):  # type: ignore[no-untyped-def]
    """The polynomial of the next n-gram, of the ids that enter and leave and the `leading_power`:
    uint64."""
    return polynomial * np.uint64(BASE) + (np.uint64(entering) - np.uint64(leaving) * power)


@njit(cache=True, nogil=True, inline="always")
def mixed(polynomial):  # type: ignore[no-untyped-def]
    """The hash of an n-gram, from its polynomial: uint64."""
    state = polynomial + np.uint64(ADDED)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(SECOND)
    return state ^ (state >> np.uint64(31))


@njit(cache=True, nogil=True)
def mark_ngrams(  # type: ignore[no-untyped-def]
    ids, starts, size, power, largest, hashes, places, shift, marks, first, stop, waiting
):
    """Sets `marks` at the ids of every n-gram whose hash is up to `largest` and among `hashes`.

    Returns how many of the n-grams that end at [first, stop) have a hash up to `largest`, and how
    many of these are among `hashes`. `places[hash >> shift]` is where in `hashes` to begin to look.
    Hashes are looked up some at a time, as many as there is room for in `waiting`, uint64 (4,
    some), so that they are fetched from memory side by side.
    """
    num_sampled = num_found = 0
    one, width = np.uint64(1), np.uint64(size)
    small, ends, begins, nearest = waiting[0], waiting[1], waiting[2], waiting[3]
    for segment in range(len(starts)):
        begin, end = starts[segment], starts[segment + 1] if segment + 1 < len(starts) else len(ids)
        if end - begin < size:
            continue
        place, until = np.uint64(begin + size - 1), np.uint64(end)
        unmarked, num = np.uint64(begin), 0
        polynomial = polynomial_of(ids, place + one - width, place + one)
        while True:
            hashed = mixed(polynomial)
            if hashed <= largest:
                small[num], ends[num] = hashed, place
                num += 1
            is_last = place + one >= until
            if is_last or num == len(small):
                for k in range(num):
                    begins[k] = places[small[k] >> shift]
                for k in range(num):
                    nearest[k] = hashes[begins[k]] if begins[k] < len(hashes) else ALL
                for k in range(num):
                    is_counted = first <= ends[k] < stop
                    num_sampled += is_counted
                    at, last, there = begins[k], places[(small[k] >> shift) + one], nearest[k]
                    while at < last and there < small[k]:
                        at += one
                        there = hashes[at] if at < last else ALL
                    if at < last and there == small[k]:
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
