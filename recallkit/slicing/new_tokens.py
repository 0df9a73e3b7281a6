"""Which predicted tokens are new: not earlier in their sequence, whose first id, which is not predicted, counts as well."""

from __future__ import annotations

import numpy as np

from recallkit.jit import njit


def new_tokens(sequence: np.ndarray, prev_token: np.ndarray, token: np.ndarray, repeated: np.ndarray) -> np.ndarray:
    """Whether each of n tokens occurs for the first time in its sequence, bool (n,).

    Rows are those of `tokens.parquet`, sorted, beginning with the first of a sequence: its `prev_token` is the sequence's first id.
    A token that completes a `repeated` bigram is not new, so that only the others are looked up.
    """
    found = np.zeros(len(token), bool)
    _mark_new(sequence, prev_token, token, repeated, np.full(int(max(token.max(initial=0), prev_token.max(initial=0))) + 1, -1), found)
    return found


@njit(cache=True, nogil=True)
def _mark_new(sequence, prev_token, token, repeated, latest, found):  # type: ignore[no-untyped-def]
    """Fills `found`. `latest[id]` is the first row of the last sequence in which an id was looked up, -1 before."""
    start = -1
    for row in range(len(token)):
        if start < 0 or sequence[row] != sequence[start]:
            start = row
            latest[prev_token[row]] = start
        if not repeated[row]:
            found[row] = latest[token[row]] != start
            latest[token[row]] = start
