"""Labelling repeated bigrams: for every predicted token, how far back the same bigram last stood in its sequence.

One pass with a hash table that a sequence clears by moving on to the next epoch, so that nothing is ever erased:
constant time a token, where sorting each window costs ten times as much.
"""

from __future__ import annotations

import numba as nb
import numpy as np

NO_DISTANCE = -1
"""`distance` of a token whose bigram did not stand earlier in its sequence."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def label_bigrams(ids: np.ndarray, offsets: np.ndarray, *, num_threads: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Distance to the latest earlier occurrence of each token's bigram in its sequence, and the number of earlier ones.

    `ids` (n,) flat, unsigned; sequence i is `ids[offsets[i]:offsets[i + 1]]`. The bigram of the id at place j is
    (id at j - 1, id at j); overlaps count, so the second (a, a) of "aaa" is repeated (Zoology 3.1, read literally).
    Returns `distance` int32, in tokens, and `occurrences` int32, for every id that is predicted: n - num_sequences
    values, sequence by sequence, the first id of each sequence left out.
    """
    num_sequences = len(offsets) - 1
    num_predicted = int(offsets[-1] - offsets[0]) - num_sequences
    distance = np.empty(num_predicted, np.int32)
    occurrences = np.empty(num_predicted, np.int32)
    longest = int(np.diff(offsets).max(initial=1))
    bits = max(4, int(2 * longest - 1).bit_length())
    threads = max(1, min(num_threads, num_sequences, nb.get_num_threads()))
    bounds = np.linspace(0, num_sequences, threads + 1).astype(np.int64)
    _label(ids, offsets.astype(np.int64), bounds, bits, distance, occurrences)
    return distance, occurrences


@nb.njit(parallel=True, nogil=True, cache=True)
def _label(ids, offsets, bounds, bits, distance, occurrences):  # type: ignore[no-untyped-def]
    for thread in nb.prange(len(bounds) - 1):
        _label_range(ids, offsets, bounds[thread], bounds[thread + 1], bits, distance, occurrences)


@nb.njit(nogil=True, cache=True)
def _label_range(ids, offsets, first, last, bits, distance, occurrences):  # type: ignore[no-untyped-def]
    size = np.int64(1) << bits
    mask = size - 1
    shift = np.uint64(64 - bits)
    keys = np.empty(size, np.uint64)
    # Epoch, place and number of occurrences of a slot lie together: one cache line a probe.
    slots = np.zeros((size, 3), np.int32)
    for sequence in range(first, last):
        epoch = np.int32(sequence - first + 1)
        start = offsets[sequence]
        out = start - sequence - offsets[0]
        for place in range(1, offsets[sequence + 1] - start):
            key = (np.uint64(ids[start + place - 1]) << np.uint64(32)) | np.uint64(ids[start + place])
            slot = np.int64((key * _MULTIPLIER) >> shift)
            while slots[slot, 0] == epoch and keys[slot] != key:
                slot = (slot + 1) & mask
            if slots[slot, 0] == epoch:
                distance[out] = place - slots[slot, 1]
                occurrences[out] = slots[slot, 2]
                slots[slot, 2] += 1
            else:
                distance[out] = NO_DISTANCE
                occurrences[out] = 0
                slots[slot, 0] = epoch
                slots[slot, 2] = 1
                keys[slot] = key
            slots[slot, 1] = place
            out += 1


def label_bigrams_reference(ids: list[int]) -> tuple[list[int], list[int]]:
    """The same for one sequence, with a dictionary: reads like the definition, and is the oracle of the tests."""
    places: dict[tuple[int, int], list[int]] = {}
    distance, occurrences = [], []
    for place in range(1, len(ids)):
        earlier = places.setdefault((ids[place - 1], ids[place]), [])
        distance.append(place - earlier[-1] if earlier else NO_DISTANCE)
        occurrences.append(len(earlier))
        earlier.append(place)
    return distance, occurrences
