"""Labelling repeated bigrams: for every predicted token, the distance to the latest earlier occurrence of the same bigram.

One pass with a hash table of positions. A slot contains only the latest position of its bigram: the bigram itself is read from
the ids at that position, and a position before the start of the sequence means that the slot is empty, so that the table is never
cleared. Takes constant time per token; sorting each window would take ten times as long.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from recallkit.jit import frozen, njit

NO_DISTANCE = -1
"""`distance` of a token whose bigram does not occur earlier in its sequence."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

_CACHED_BITS = 14
"""2^14 slots, 128 KiB, fit into a core's L2 cache: fewer would only collide more. Sequences beyond 2^13 ids get more."""


def label_bigrams(ids: np.ndarray, offsets: np.ndarray, *, num_threads: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Distance to the latest earlier occurrence of each token's bigram in its sequence, and the number of earlier ones.

    `ids` (n,) flat, unsigned, of at most 32 bits; sequence i is `ids[offsets[i]:offsets[i + 1]]`, at least one id. The
    bigram of the id at position j is (id at j - 1, id at j); overlaps count, so the second (a, a) of "aaa" is repeated
    (Zoology 3.1, read literally). Returns `distance` int32, in tokens, and `occurrences` int32, for every id that is
    predicted: n - num_sequences values, sequence by sequence, the first id of each sequence left out.
    """
    num_sequences = len(offsets) - 1
    num_predicted = int(offsets[-1] - offsets[0]) - num_sequences
    distance = np.empty(num_predicted, np.int32)
    occurrences = np.empty(num_predicted, np.int32)
    longest = int(np.diff(offsets).max(initial=1))
    bits = max(_CACHED_BITS, (2 * longest - 1).bit_length())
    num_shares = max(1, min(num_threads, num_sequences))
    bounds = [num_sequences * share // num_shares for share in range(num_shares + 1)]
    ids = frozen(ids)
    places = offsets.astype(np.uint64)

    def label(share: int) -> None:
        _label_range(
            ids, places, bounds[share], bounds[share + 1], np.uint64(64 - bits), np.zeros(1 << bits, np.uint64), distance, occurrences
        )

    with ThreadPoolExecutor(num_shares) as pool:
        for _ in pool.map(label, range(num_shares)):
            pass
    return distance, occurrences


@njit(cache=True, nogil=True)
def _label_range(  # type: ignore[no-untyped-def]
    ids, offsets, first, last, shift, slots, distance, occurrences
):
    """Labels sequences [first, last). All positions are unsigned, because signed indexes would be checked for negative values each time."""
    one = np.uint64(1)
    mask = np.uint64(len(slots) - 1)
    for sequence in range(first, last):
        start = offsets[sequence]
        skipped = offsets[0] + np.uint64(sequence + 1)
        previous = ids[start]
        for place in range(start + one, offsets[sequence + 1]):
            token = ids[place]
            slot = (((np.uint64(previous) << np.uint64(32)) | np.uint64(token)) * _MULTIPLIER) >> shift
            earlier = slots[slot]
            while earlier > start and (ids[earlier] != token or ids[earlier - one] != previous):
                slot = (slot + one) & mask
                earlier = slots[slot]
            slots[slot] = place
            out = place - skipped
            if earlier > start:
                distance[out] = place - earlier
                occurrences[out] = occurrences[out - (place - earlier)] + np.int32(1)
            else:
                distance[out] = NO_DISTANCE
                occurrences[out] = 0
            previous = token
