"""Labelling repetition: for every predicted token, what of it occurred earlier in its sequence, and
where, and the longest earlier match.

Bigrams take one pass with two hash tables of positions, of bigrams and of single ids. A slot
contains only the latest position of its bigram or id, plus one: what it is of is read from the ids
there, and a position before the start of the sequence means that the slot is empty, so that the
tables are never cleared. Takes constant time per token; sorting each window would take ten times as
long.

An induction mechanism finds the earlier occurrence by its context; a match is as long as the
context that identifies it. It is read off the sequence's suffix automaton (Blumer et al. 1985)
while that grows by one id after another, in linear time whatever the ids are.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recallkit.jit import njit, read_only

if TYPE_CHECKING:
    from collections.abc import Callable

NO_DISTANCE = -1
"""`distance` of a token whose bigram does not occur earlier in its sequence."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

_CACHED_BITS = 14
"""2^14 slots, 128 KiB, fit into a core's L2 cache: fewer would only collide more.

Sequences beyond 2^13 ids get more.
"""


class BigramLabels(NamedTuple):
    """Labels of every id that is predicted, each (n - num_sequences,), sequence by sequence,
    without the first id of each.

    Of ids 5 6 5 6 7 5 6: the last bigram (5, 6) has distance 3, first distance 5, 2 occurrences,
    and is not overwritten; of 5 6 5 7 5 6 it is overwritten, because 5 was followed by 7 since.
    """

    distance: np.ndarray
    """Tokens back to the latest earlier occurrence of the bigram, int32; NO_DISTANCE if there is
    none."""
    first_distance: np.ndarray
    """Tokens back to the first occurrence of the bigram, int32; NO_DISTANCE if this is the first
    one."""
    occurrences: np.ndarray
    """Earlier occurrences of the bigram, int32."""
    context_class: np.ndarray
    """Its number in `definitions.CONTEXT_CLASSES`, int8.

    The first id of a sequence, which is not predicted, is in the context as well.
    """
    overwritten: np.ndarray
    """Whether the key, the id before, was followed by another token since the bigram's latest
    occurrence, bool; false of a new bigram."""


def _share(label: Callable[[int, int], None], num_sequences: int, num_threads: int) -> None:
    """Labels sequences [first, last), as many in each thread."""
    num_shares = max(1, min(num_threads, num_sequences))
    bounds = [num_sequences * share // num_shares for share in range(num_shares + 1)]
    with ThreadPoolExecutor(num_shares) as pool:
        for _ in pool.map(label, bounds[:-1], bounds[1:]):
            pass


def label_bigrams(ids: np.ndarray, offsets: np.ndarray, *, num_threads: int = 2) -> BigramLabels:
    """What of each predicted id occurred earlier in its sequence.

    `ids` (n,) flat, unsigned, of at most 32 bits; sequence i is `ids[offsets[i]:offsets[i + 1]]`,
    at least one id. The bigram of the id at position j is (id at j - 1, id at j); overlaps count,
    so the second (a, a) of "aaa" is repeated (Zoology 3.1, read literally).
    """
    num_sequences = len(offsets) - 1
    size = int(offsets[-1] - offsets[0]) - num_sequences
    distance, first_distance, occurrences = (np.empty(size, np.int32) for _ in range(3))
    labels = BigramLabels(
        distance,
        first_distance,
        occurrences,
        np.empty(size, np.int8),
        np.empty(size, bool),
    )
    longest = int(np.diff(offsets).max(initial=1))
    bits = max(_CACHED_BITS, (2 * longest - 1).bit_length())
    ids = read_only(ids)
    places = offsets.astype(np.uint64)

    def label(first: int, last: int) -> None:
        slots = np.zeros((2, 1 << bits), np.uint64)
        _label_range(ids, places, first, last, np.uint64(64 - bits), slots[0], slots[1], *labels)

    _share(label, num_sequences, num_threads)
    return labels


@njit(cache=True, nogil=True)
def _label_range(  # type: ignore[no-untyped-def]
    ids,
    offsets,
    first,
    last,
    shift,
    bigrams,
    tokens,
    distance,
    first_distance,
    occurrences,
    context_class,
    overwritten,
):
    """Labels sequences [first, last).

    All positions are unsigned, because signed indexes would be checked for negative values each
    time.

    Example: in ids 5 6 5 7 5 6 from `start`, at `place` 5 the bigram (5, 6) was latest at 1, and
    its key, 5, latest at 2 before the key itself at 4: 2 is not 1 - 1, so that 7 has overwritten 6.
    """
    one = np.uint64(1)
    mask = np.uint64(len(bigrams) - 1)
    for sequence in range(first, last):
        start = offsets[sequence]
        skipped = offsets[0] + np.uint64(sequence + 1)
        previous = ids[start]
        # The slot may be of an earlier sequence, of which no slot is read.
        tokens[((np.uint64(previous) + one) * _MULTIPLIER) >> shift] = start + one
        # The key's latest position before this one, plus one; at most `start`: none.
        key = np.uint64(0)
        for place in range(start + one, offsets[sequence + 1]):
            token = ids[place]
            bigram = (np.uint64(previous) << np.uint64(32)) | np.uint64(token)
            slot = (bigram * _MULTIPLIER) >> shift
            while bigrams[slot] > start + one:
                latest = bigrams[slot] - one
                if ids[latest] == token and ids[latest - one] == previous:
                    break
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


def longest_matches(ids: np.ndarray, offsets: np.ndarray, *, num_threads: int = 2) -> np.ndarray:
    """For each predicted id, the length of the longest preceding context shared with an earlier
    occurrence in its sequence.

    `ids`, `offsets` and the order of the result are those of `label_bigrams`. With L(i) the length
    of the longest run of ids that ends at position i and also at an earlier position of the
    sequence (the two may overlap), the value is max(0, L(i) - 1): 0 if the bigram is not repeated,
    1 if it is but the trigram is not. Example: for the ids 1 2 3 9 1 2 3 the values of the last two
    are 1 and 2. Returns int32 (num_predicted,).
    """
    num_sequences = len(offsets) - 1
    lengths = np.empty(int(offsets[-1] - offsets[0]) - num_sequences, np.int32)
    ids, places = read_only(ids), offsets.astype(np.int64)
    longest = int(np.diff(offsets).max(initial=1))
    # An automaton of n ids has at most 2 n states and 3 n edges.
    bits = (4 * longest).bit_length()

    def match(first: int, last: int) -> None:
        states = np.empty((3, 2 * longest + 1), np.int32)
        edges = np.empty((3, 3 * longest + 1), np.int32)
        edge_ids, slots = np.empty(3 * longest + 1, ids.dtype), np.empty(1 << bits, np.int32)
        _match_range(
            ids,
            places,
            first,
            last,
            states,
            edges,
            edge_ids,
            slots,
            np.uint64(64 - bits),
            lengths,
        )

    _share(match, num_sequences, num_threads)
    return lengths


@njit(cache=True, nogil=True)
def _match_range(  # type: ignore[no-untyped-def]
    ids, offsets, first, last, states, edges, edge_ids, slots, shift, lengths
):
    """Matches sequences [first, last).

    A state is a set of runs that end at the same places, and `length` that of its longest one; its
    `link` is the state of the longest run that ends at more places. So the link of the newest
    state, which is of the whole sequence so far, has the length of the longest run that ends here
    and has ended before. State 0 is of the empty run. An edge is in the list of its state and in a
    hash table, both of which have its number, from 1.
    """
    length, link, newest_edge = states
    origin, target, next_edge = edges
    for sequence in range(first, last):
        start, end = offsets[sequence], offsets[sequence + 1]
        slots[:] = 0
        length[0], link[0], newest_edge[0] = 0, -1, 0
        num_states, num_edges, newest = 1, 0, 0
        for place in range(start, end):
            token = ids[place]
            # Of one type, or what is called is compiled for three.
            new, state = np.int64(num_states), np.int64(newest)
            num_states += 1
            length[new], link[new], newest_edge[new] = length[newest] + 1, 0, 0
            edge = _find(slots, origin, edge_ids, state, token, shift)
            while edge == 0:
                num_edges += 1
                _add(slots, edges, edge_ids, newest_edge, num_edges, state, token, new, shift)
                state = np.int64(link[state])
                if state < 0:
                    break
                edge = _find(slots, origin, edge_ids, state, token, shift)
            if state >= 0:
                same = target[edge]
                link[new] = same
                if length[same] > length[state] + 1:
                    # Of its runs only those up to this length end here: they become a state of
                    # their own.
                    clone = num_states
                    num_states += 1
                    length[clone], link[clone] = length[state] + 1, link[same]
                    newest_edge[clone] = 0
                    copied = newest_edge[same]
                    while copied:
                        num_edges += 1
                        to = np.int64(target[copied])
                        _add(
                            slots,
                            edges,
                            edge_ids,
                            newest_edge,
                            num_edges,
                            clone,
                            edge_ids[copied],
                            to,
                            shift,
                        )
                        copied = next_edge[copied]
                    link[same] = link[new] = clone
                    while edge and target[edge] == same:
                        target[edge] = clone
                        state = np.int64(link[state])
                        edge = 0
                        if state >= 0:
                            edge = _find(slots, origin, edge_ids, state, token, shift)
            newest = int(new)
            if place > start:
                lengths[place - offsets[0] - sequence - 1] = max(length[link[new]] - 1, 0)


@njit(cache=True, nogil=True)
def _slot(state, token, shift):  # type: ignore[no-untyped-def]
    return (((np.uint64(state) << np.uint64(32)) | np.uint64(token)) * _MULTIPLIER) >> shift


@njit(cache=True, nogil=True)
def _find(slots, origin, edge_ids, state, token, shift):  # type: ignore[no-untyped-def]
    """The edge from a state with an id; 0 if there is none."""
    slot = _slot(state, token, shift)
    mask = np.uint64(len(slots) - 1)
    while slots[slot] and (origin[slots[slot]] != state or edge_ids[slots[slot]] != token):
        slot = (slot + np.uint64(1)) & mask
    return slots[slot]


@njit(cache=True, nogil=True)
def _add(  # type: ignore[no-untyped-def]
    slots, edges, edge_ids, newest_edge, edge, state, token, target, shift
):
    """Adds edge number `edge`, which is not there yet."""
    slot = _slot(state, token, shift)
    mask = np.uint64(len(slots) - 1)
    while slots[slot]:
        slot = (slot + np.uint64(1)) & mask
    slots[slot] = edge
    edges[0, edge], edges[1, edge], edges[2, edge], edge_ids[edge] = (
        state,
        target,
        newest_edge[state],
        token,
    )
    newest_edge[state] = edge
