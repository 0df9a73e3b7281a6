"""Which predicted tokens are new: not earlier in their sequence, whose first id, which is not predicted, counts as well."""

from __future__ import annotations

import numpy as np

from recallkit.ragged import run_starts


def new_tokens(sequence: np.ndarray, prev_token: np.ndarray, token: np.ndarray, repeated: np.ndarray) -> np.ndarray:
    """Whether each of n tokens occurs for the first time in its sequence, bool (n,).

    Rows are those of `tokens.parquet`, sorted, beginning with the first of a sequence: its `prev_token` is the sequence's first id.
    A token that completes a `repeated` bigram is not new, so that only the others are looked up.
    """
    candidates = np.flatnonzero(~repeated)
    ids, places = token[candidates].astype(np.intp), np.arange(len(candidates), dtype=np.int32)
    starts = run_starts(sequence)
    contexts = prev_token[starts]
    bounds = np.append(np.searchsorted(candidates, starts), len(candidates)).tolist()
    # Positions are written by id from last to first, so that the first one remains; nothing is cleared between sequences,
    # since each writes all ids that it looks up.
    first_place = np.empty(int(max(ids.max(initial=0), contexts.max(initial=0))) + 1, np.int32)
    found = np.zeros(len(token), bool)
    for context, begin, end in zip(contexts.tolist(), bounds, bounds[1:], strict=False):
        own, own_places = ids[begin:end], places[begin:end]
        first_place[own[::-1]] = own_places[::-1]
        first_place[context] = -1
        found[candidates[begin:end]] = first_place[own] == own_places
    return found
