"""Documents and their end tokens copied into one stream of ids, in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.jit import njit

if TYPE_CHECKING:
    import numpy as np


@njit(cache=True, nogil=True)
def copy_joined(ids: np.ndarray, offsets: np.ndarray, end_token_id: int, end_comes_first: bool, joined: np.ndarray) -> None:
    """Fills `joined` (n + documents,): document i is `ids[offsets[i]:offsets[i + 1]]`, its end token before or after it."""
    place = 0
    for document in range(offsets.size - 1):
        if end_comes_first:
            joined[place] = end_token_id
            place += 1
        for at in range(offsets[document], offsets[document + 1]):
            joined[place] = ids[at]
            place += 1
        if not end_comes_first:
            joined[place] = end_token_id
            place += 1
