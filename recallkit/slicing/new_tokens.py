"""Which predicted tokens are new: not in their sequence before, its first id, which is not predicted, included."""

from __future__ import annotations

import numpy as np


def new_tokens(sequence: np.ndarray, prev_token: np.ndarray, token: np.ndarray, repeated: np.ndarray) -> np.ndarray:
    """Whether each of n tokens is at its first place in its sequence, bool (n,).

    Rows are those of `tokens.parquet`, sorted, from the first of a sequence on: its `prev_token` is the sequence's first id.
    A token that completes a `repeated` bigram is not new, so that only the others are looked at.
    """
    candidates = np.flatnonzero(~repeated)
    ids, places = token[candidates], np.arange(len(candidates), dtype=np.int32)
    starts = np.flatnonzero(np.diff(sequence, prepend=-1))
    bounds = np.append(np.searchsorted(candidates, starts), len(candidates)).tolist()
    # Of places that are written to one id from last to first the first remains; a sequence leaves nothing that the next one reads,
    # since it writes all ids that it looks up.
    first_place = np.empty(int(max(token.max(initial=0), prev_token.max(initial=0))) + 1, np.int32)
    backwards, places_backwards = ids[::-1], places[::-1]
    is_first = np.empty(len(candidates), bool)
    for context, begin, end in zip(prev_token[starts].tolist(), bounds, bounds[1:], strict=False):
        first_place[backwards[len(ids) - end : len(ids) - begin]] = places_backwards[len(ids) - end : len(ids) - begin]
        first_place[context] = -1
        is_first[begin:end] = first_place[ids[begin:end]] == places[begin:end]
    found = np.zeros(len(token), bool)
    found[candidates] = is_first
    return found


def new_tokens_reference(ids: list[int]) -> list[bool]:
    """The same for the ids of one sequence, as it is defined: the oracle of the tests."""
    return [token not in ids[:place] for place, token in enumerate(ids) if place]
