"""Longest earlier matches: for every predicted token, the longest preceding context shared with an earlier occurrence of it.

An induction mechanism finds the earlier occurrence by its context; this is the length of the context that identifies it. The
fast path extends the match of the previous token, or walks through the earlier positions of the bigram, which are few in real
text. A sequence on which that takes too many steps (few distinct ids, long periods) is processed with a suffix array instead,
so that no sequence takes more than O(n log n) time or 28 bytes per id.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from recallkit.jit import frozen, njit

_STEPS_PER_ID = 64
"""Comparisons on the fast path, per id of the sequence, before the suffix array takes over, which costs about as much."""


def longest_matches(ids: np.ndarray, offsets: np.ndarray, distance: np.ndarray, *, num_threads: int = 2) -> np.ndarray:
    """For each predicted id, the length of the longest preceding context shared with an earlier occurrence in its sequence.

    `ids`, `offsets` and the order of the result are those of `label_bigrams`, `distance` is its result. With L(i) the length
    of the longest run of ids that ends at position i and also at an earlier position of the sequence (the two may overlap), the
    value is max(0, L(i) - 1): 0 if the bigram is not repeated, 1 if it is but the trigram is not. Example: for the ids 1 2 3 9 1 2 3
    the values of the last two are 1 and 2. Returns int32 (num_predicted,).
    """
    num_sequences = len(offsets) - 1
    lengths = np.empty(int(offsets[-1] - offsets[0]) - num_sequences, np.int32)
    num_shares = max(1, min(num_threads, num_sequences))
    bounds = [num_sequences * share // num_shares for share in range(num_shares + 1)]
    ids, distance = frozen(ids), frozen(distance)
    places = offsets.astype(np.int64)
    gave_up = np.zeros(num_sequences, bool)

    def match(share: int) -> None:
        first, last = bounds[share], bounds[share + 1]
        _match_range(ids, places, first, last, distance, _STEPS_PER_ID, lengths, gave_up)
        for sequence in (first + np.flatnonzero(gave_up[first:last])).tolist():  # seldom any, so what sorts is seldom compiled
            start, end = places[sequence : sequence + 2]
            out = start - places[0] - sequence
            _match_by_sorting(ids[start:end], lengths[out : out + end - start - 1])

    with ThreadPoolExecutor(num_shares) as pool:
        for _ in pool.map(match, range(num_shares)):
            pass
    return lengths


@njit(cache=True, nogil=True)
def _match_range(  # type: ignore[no-untyped-def]
    ids, offsets, first, last, distance, steps_per_id, lengths, gave_up
):
    """Matches sequences [first, last), and marks those that take more than `steps_per_id` steps per id: they are not done.

    A match is at most one id longer than that of the previous token: if the earlier occurrence continues with the same id, no match
    can be longer. Otherwise every earlier position of the bigram is tried, the latest first, until one is that long or none is left.
    """
    for sequence in range(first, last):
        start, end = offsets[sequence], offsets[sequence + 1]
        before = offsets[0] + sequence + 1  # ids that come before those of a row and are not predicted
        budget = steps_per_id * (end - start)
        length = source = 0  # of the previous match: the `length` + 1 ids that end there also end at `source`
        for place in range(start + 1, end):
            back = distance[place - before]
            if back < 0:
                length = 0
            elif length > 0 and ids[source + 1] == ids[place]:
                source += 1
                length += 1
            else:
                most, longest = length + 1, 0
                earlier = place
                while back >= 0 and longest < most and budget >= 0:
                    earlier -= back
                    budget -= 1
                    # A longer match than the longest so far must agree at its far end, which is checked first because it rarely does.
                    if earlier - longest > start and ids[earlier - longest - 1] == ids[place - longest - 1]:
                        same = 2
                        while same <= most and same <= earlier - start and ids[earlier - same] == ids[place - same]:
                            same += 1
                        budget -= same
                        if same - 1 > longest:
                            longest, source = same - 1, earlier
                    back = distance[earlier - before] if earlier > start else -1
                length = longest
            if budget < 0:
                gave_up[sequence] = True
                break
            lengths[place - before] = length


@njit(cache=True, nogil=True)
def _match_by_sorting(ids, lengths):  # type: ignore[no-untyped-def]
    """Fills `lengths` (n - 1,) of one sequence (n,) by sorting the suffixes of its reversal, O(n log n) for any content.

    In the reversed sequence, suffixes that begin later are earlier positions. Suffixes are removed from the sorted list in the
    order in which they begin; the longest match of each is with one of the two neighbours that remain.
    """
    num = ids.size
    backwards = ids[::-1].copy()
    order, rank = _sort_suffixes(backwards)
    common = _common_prefixes(backwards, order, rank)
    left, right = np.arange(-1, num - 1).astype(np.int32), np.arange(1, num + 1).astype(np.int32)
    for begin in range(num - 1):
        row = rank[begin]
        before, after = left[row], right[row]
        with_before = common[row]
        with_after = common[after] if after < num else np.int32(0)
        lengths[num - 2 - begin] = max(max(with_before, with_after) - 1, 0)
        if before >= 0:
            right[before] = after
        if after < num:
            left[after] = before
            common[after] = min(with_before, with_after)


@njit(cache=True, nogil=True)
def _sort_suffixes(ids):  # type: ignore[no-untyped-def]
    """The starts of all suffixes (n,) in sorted order, and the rank of each: sorted by their first 1, 2, 4, 8 ... ids.

    Manber and Myers 1993; every round is one counting sort by rank, because the second half of a key is a rank of the round before.
    """
    num = ids.size
    order = _sort_ids(ids)
    rank, second = np.empty(num, np.int32), np.empty(num, np.int32)
    rank[order[0]] = num_ranks = 0
    for row in range(1, num):
        num_ranks += ids[order[row]] != ids[order[row - 1]]
        rank[order[row]] = num_ranks
    num_ranks += 1
    width = 1
    while num_ranks < num:
        # In the order of the second half: first the suffixes too short to have one, then the others by the rank of theirs.
        row = 0
        for begin in range(num - width, num):
            second[row] = begin
            row += 1
        for begin in order:
            if begin >= width:
                second[row] = begin - width
                row += 1
        ends = np.zeros(num_ranks + 1, np.int32)
        for begin in range(num):
            ends[rank[begin] + 1] += 1
        for one in range(num_ranks):
            ends[one + 1] += ends[one]
        for row in range(num):
            begin = second[row]
            order[ends[rank[begin]]] = begin
            ends[rank[begin]] += 1
        second[order[0]] = num_ranks = 0
        for row in range(1, num):
            begin, before = order[row], order[row - 1]
            half = rank[begin + width] if begin + width < num else -1
            half_before = rank[before + width] if before + width < num else -1
            num_ranks += rank[begin] != rank[before] or half != half_before
            second[begin] = num_ranks
        num_ranks += 1
        rank, second = second, rank
        width *= 2
    return order, rank


@njit(cache=True, nogil=True)
def _sort_ids(ids):  # type: ignore[no-untyped-def]
    """Positions (n,) int32 sorted by their ids: a radix sort by bytes, as many as the largest id has."""
    order = np.arange(ids.size).astype(np.int32)
    other = np.empty_like(order)
    largest = np.uint32(ids.max())
    shift = np.uint32(0)
    while shift < 32 and largest >> shift:
        ends = np.zeros(257, np.int32)
        for place in order:
            ends[((np.uint32(ids[place]) >> shift) & np.uint32(255)) + 1] += 1
        for digit in range(256):
            ends[digit + 1] += ends[digit]
        for place in order:
            own = (np.uint32(ids[place]) >> shift) & np.uint32(255)
            other[ends[own]] = place
            ends[own] += 1
        order, other = other, order
        shift += np.uint32(8)
    return order


@njit(cache=True, nogil=True)
def _common_prefixes(ids, order, rank):  # type: ignore[no-untyped-def]
    """Length of the common prefix of each suffix, in sorted order, with the one before it, int32 (n,), the first 0 (Kasai et al. 2001)."""
    num = ids.size
    common = np.zeros(num, np.int32)
    same = 0
    for begin in range(num):
        row = rank[begin]
        if row == 0:
            same = 0
            continue
        before = order[row - 1]
        while max(begin, before) + same < num and ids[begin + same] == ids[before + same]:
            same += 1
        common[row] = same
        same = max(same - 1, 0)
    return common
