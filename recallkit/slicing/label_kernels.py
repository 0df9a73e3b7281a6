"""Labelling repeated bigrams: for every predicted token, what of it occurred earlier in its sequence, and where.

One pass with two hash tables of positions, of bigrams and of single ids. A slot contains only the latest position of its bigram or id,
plus one: what it is of is read from the ids there, and a position before the start of the sequence means that the slot is empty, so
that the tables are never cleared. Takes constant time per token; sorting each window would take ten times as long.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from recallkit.jit import frozen, njit

NO_DISTANCE = -1
"""`distance` of a token whose bigram does not occur earlier in its sequence."""

CONTEXT_CLASSES = ("bigram", "token", "new")
"""What of a token is in its context already: its bigram, else the token alone, else nothing."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

_CACHED_BITS = 14
"""2^14 slots, 128 KiB, fit into a core's L2 cache: fewer would only collide more. Sequences beyond 2^13 ids get more."""


class BigramLabels(NamedTuple):
    """Labels of every id that is predicted, each (n - num_sequences,), sequence by sequence, without the first id of each.

    Of ids 5 6 5 6 7 5 6: the last bigram (5, 6) has distance 3, first distance 5, 2 occurrences, and is not overwritten; of 5 6 5 7 5 6
    it is overwritten, because 5 was followed by 7 since.
    """

    distance: np.ndarray
    """Tokens back to the latest earlier occurrence of the bigram, int32; NO_DISTANCE if there is none."""
    first_distance: np.ndarray
    """Tokens back to the first occurrence of the bigram, int32; NO_DISTANCE if this is the first one."""
    occurrences: np.ndarray
    """Earlier occurrences of the bigram, int32."""
    context_class: np.ndarray
    """Its number in CONTEXT_CLASSES, int8. The first id of a sequence, which is not predicted, is in the context as well."""
    overwritten: np.ndarray
    """Whether the key, the id before, was followed by another token since the bigram's latest occurrence, bool; false of a new bigram."""


def label_bigrams(ids: np.ndarray, offsets: np.ndarray, *, num_threads: int = 2) -> BigramLabels:
    """What of each predicted id occurred earlier in its sequence.

    `ids` (n,) flat, unsigned, of at most 32 bits; sequence i is `ids[offsets[i]:offsets[i + 1]]`, at least one id. The
    bigram of the id at position j is (id at j - 1, id at j); overlaps count, so the second (a, a) of "aaa" is repeated
    (Zoology 3.1, read literally).
    """
    num_sequences = len(offsets) - 1
    size = int(offsets[-1] - offsets[0]) - num_sequences
    distance, first_distance, occurrences = (np.empty(size, np.int32) for _ in range(3))
    labels = BigramLabels(distance, first_distance, occurrences, np.empty(size, np.int8), np.empty(size, bool))
    longest = int(np.diff(offsets).max(initial=1))
    bits = max(_CACHED_BITS, (2 * longest - 1).bit_length())
    num_shares = max(1, min(num_threads, num_sequences))
    bounds = [num_sequences * share // num_shares for share in range(num_shares + 1)]
    ids = frozen(ids)
    places = offsets.astype(np.uint64)

    def label(share: int) -> None:
        slots = np.zeros((2, 1 << bits), np.uint64)
        _label_range(ids, places, bounds[share], bounds[share + 1], np.uint64(64 - bits), slots[0], slots[1], *labels)

    with ThreadPoolExecutor(num_shares) as pool:
        for _ in pool.map(label, range(num_shares)):
            pass
    return labels


@njit(cache=True, nogil=True)
def _label_range(  # type: ignore[no-untyped-def]
    ids, offsets, first, last, shift, bigrams, tokens, distance, first_distance, occurrences, context_class, overwritten
):
    """Labels sequences [first, last). All positions are unsigned, because signed indexes would be checked for negative values each time.

    Example: in ids 5 6 5 7 5 6 from `start`, at `place` 5 the bigram (5, 6) was latest at 1, and its key, 5, latest at 2 before the key
    itself at 4: 2 is not 1 - 1, so that 7 has overwritten 6.
    """
    one = np.uint64(1)
    mask = np.uint64(len(bigrams) - 1)
    for sequence in range(first, last):
        start = offsets[sequence]
        skipped = offsets[0] + np.uint64(sequence + 1)
        previous = ids[start]
        tokens[((np.uint64(previous) + one) * _MULTIPLIER) >> shift] = start + one  # of an earlier sequence no slot is looked at
        key = np.uint64(0)  # the key's latest position before this one, plus one; at most `start`: none
        for place in range(start + one, offsets[sequence + 1]):
            token = ids[place]
            slot = (((np.uint64(previous) << np.uint64(32)) | np.uint64(token)) * _MULTIPLIER) >> shift
            while bigrams[slot] > start + one and (ids[bigrams[slot] - one] != token or ids[bigrams[slot] - one - one] != previous):
                slot = (slot + one) & mask
            earlier = bigrams[slot] - one if bigrams[slot] > start + one else start
            bigrams[slot] = place + one
            slot = ((np.uint64(token) + one) * _MULTIPLIER) >> shift
            while tokens[slot] > start and ids[tokens[slot] - one] != token:
                slot = (slot + one) & mask
            same = tokens[slot]
            tokens[slot] = place + one
            out = place - skipped
            if earlier > start:
                back = place - earlier
                distance[out] = back
                occurrences[out] = occurrences[out - back] + np.int32(1)
                first_distance[out] = np.int32(back) + max(first_distance[out - back], np.int32(0))
                context_class[out] = 0
                overwritten[out] = key != earlier  # `earlier` - 1 is where the key was then
            else:
                distance[out] = first_distance[out] = NO_DISTANCE
                occurrences[out] = 0
                context_class[out] = 1 if same > start else 2
                overwritten[out] = False
            key = same
            previous = token
