"""The compiled loop of the sums by group: entries added to the rows of a large table, all models at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.jit import njit

if TYPE_CHECKING:
    import numpy as np


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def add_entries(total: np.ndarray, row: np.ndarray, tokens: np.ndarray, nlls: np.ndarray) -> None:
    """Adds `tokens` (e,) and `nlls` (v, e) to rows `row` (e,) of `total` (rows, 1 + v), one entry after the other."""
    for entry in range(len(row)):
        into = total[row[entry]]
        into[0] += tokens[entry]
        for value in range(len(nlls)):
            into[1 + value] += nlls[value, entry]
