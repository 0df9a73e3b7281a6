"""Longest earlier matches: for every predicted token, the longest preceding context shared with an earlier occurrence of it.

An induction mechanism finds the earlier occurrence by its context; this is the length of the context that identifies it. It is read off
the sequence's suffix automaton (Blumer et al. 1985) while that grows by one id after another, in linear time whatever the ids are.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from recallkit.jit import frozen, njit

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def longest_matches(ids: np.ndarray, offsets: np.ndarray, *, num_threads: int = 2) -> np.ndarray:
    """For each predicted id, the length of the longest preceding context shared with an earlier occurrence in its sequence.

    `ids`, `offsets` and the order of the result are those of `label_bigrams`. With L(i) the length of the longest run of ids that ends at
    position i and also at an earlier position of the sequence (the two may overlap), the value is max(0, L(i) - 1): 0 if the bigram is not
    repeated, 1 if it is but the trigram is not. Example: for the ids 1 2 3 9 1 2 3 the values of the last two are 1 and 2.
    Returns int32 (num_predicted,).
    """
    num_sequences = len(offsets) - 1
    lengths = np.empty(int(offsets[-1] - offsets[0]) - num_sequences, np.int32)
    num_shares = max(1, min(num_threads, num_sequences))
    bounds = [num_sequences * share // num_shares for share in range(num_shares + 1)]
    ids, places, longest = frozen(ids), offsets.astype(np.int64), int(np.diff(offsets).max(initial=1))
    bits = (4 * longest).bit_length()  # of an automaton of n ids there are at most 2 n states and 3 n edges

    def match(share: int) -> None:
        states, edges = np.empty((3, 2 * longest + 1), np.int32), np.empty((3, 3 * longest + 1), np.int32)
        edge_ids, slots = np.empty(3 * longest + 1, ids.dtype), np.empty(1 << bits, np.int32)
        _match_range(ids, places, bounds[share], bounds[share + 1], states, edges, edge_ids, slots, np.uint64(64 - bits), lengths)

    with ThreadPoolExecutor(num_shares) as pool:
        for _ in pool.map(match, range(num_shares)):
            pass
    return lengths


@njit(cache=True, nogil=True)
def _match_range(ids, offsets, first, last, states, edges, edge_ids, slots, shift, lengths):  # type: ignore[no-untyped-def]
    """Matches sequences [first, last).

    A state is a set of runs that end at the same places, and `length` that of its longest one; its `link` is the state of the longest run
    that ends at more places. So the link of the newest state, which is of the whole sequence so far, has the length of the longest run
    that ends here and has ended before. State 0 is of the empty run. An edge is in the list of its state and in a hash table, both of
    which have its number, from 1.
    """
    length, link, newest_edge = states
    origin, target, next_edge = edges
    for sequence in range(first, last):
        start, end = offsets[sequence], offsets[sequence + 1]
        slots[:] = 0
        length[0], link[0], newest_edge[0] = 0, -1, 0
        num_states, num_edges, whole = 1, 0, 0
        for place in range(start, end):
            token = ids[place]
            new, state = num_states, whole
            num_states += 1
            length[new], link[new], newest_edge[new] = length[whole] + 1, 0, 0
            edge = _find(slots, origin, edge_ids, state, token, shift)
            while edge == 0:
                num_edges += 1
                _add(slots, edges, edge_ids, newest_edge, num_edges, state, token, new, shift)
                state = link[state]
                if state < 0:
                    break
                edge = _find(slots, origin, edge_ids, state, token, shift)
            if state >= 0:
                same = target[edge]
                link[new] = same
                if length[same] > length[state] + 1:  # of its runs only those up to this length end here: they become a state of their own
                    clone = num_states
                    num_states += 1
                    length[clone], link[clone], newest_edge[clone] = length[state] + 1, link[same], 0
                    copied = newest_edge[same]
                    while copied:
                        num_edges += 1
                        _add(slots, edges, edge_ids, newest_edge, num_edges, clone, edge_ids[copied], target[copied], shift)
                        copied = next_edge[copied]
                    link[same] = link[new] = clone
                    while edge and target[edge] == same:
                        target[edge] = clone
                        state = link[state]
                        edge = _find(slots, origin, edge_ids, state, token, shift) if state >= 0 else 0
            whole = new
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
def _add(slots, edges, edge_ids, newest_edge, edge, state, token, target, shift):  # type: ignore[no-untyped-def]
    """Adds edge number `edge`, which is not there yet."""
    slot = _slot(state, token, shift)
    mask = np.uint64(len(slots) - 1)
    while slots[slot]:
        slot = (slot + np.uint64(1)) & mask
    slots[slot] = edge
    edges[0, edge], edges[1, edge], edges[2, edge], edge_ids[edge] = state, target, newest_edge[state], token
    newest_edge[state] = edge
