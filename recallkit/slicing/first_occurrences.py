"""Where the bigram of each predicted token occurs for the first time in its sequence: there it cannot be recalled from the context."""

from __future__ import annotations

import numpy as np

from recallkit.jit import njit


def first_occurrences(sequence: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """The row in which the bigram of each of n tokens occurs first in its sequence, int64 (n,): its own if it is not repeated.

    Rows are those of `tokens.parquet`, in its order, beginning with the first of a sequence. `distance` int32 (n,) is the number of
    tokens back to the latest earlier occurrence, 0 if there is none; following it from occurrence to occurrence ends at the first
    one. Of the ids 5 5 5 5, whose bigrams are in rows 0, 1 and 2 with distances 0, 1 and 1, all are row 0: overlaps count, as in labels.

    Raises ValueError with the row of a distance that leads out of its sequence.
    """
    first = np.empty(len(distance), np.int64)
    wrong = _follow(sequence, distance, first)
    if wrong >= 0:
        raise ValueError(f"row {wrong:,}: distance {distance[wrong]:,} leads out of its sequence")
    return first


@njit(cache=True, nogil=True)
def _follow(sequence, distance, first):  # type: ignore[no-untyped-def]
    """Fills `first` in the order of rows: the latest earlier occurrence is done by then. Returns the first row that is wrong, or -1."""
    for row in range(len(distance)):
        earlier = row - distance[row]
        if earlier == row:
            first[row] = row
        elif earlier < 0 or earlier > row or sequence[earlier] != sequence[row]:
            return row
        else:
            first[row] = first[earlier]
    return -1
