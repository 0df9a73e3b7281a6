"""Ragged arrays: rows of different lengths one after another in a flat array, such as the ids of
sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


def offsets_of(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    """Where each row begins and the last one ends, int64 (rows + 1,): of lengths 2, 0, 3 they are
    0, 2, 2, 5."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def positions_within(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    """The position of each element in its own row, int64 (elements,): of lengths 2, 0, 3 they are
    0, 1, 0, 1, 2."""
    offsets = offsets_of(lengths)
    positions: np.ndarray = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return positions


def run_starts(*columns: np.ndarray) -> np.ndarray:
    """Where a run of rows begins that are equal in all columns (n,), int64: of 5, 5, 7 it is at 0
    and 2."""
    changes = np.zeros(len(columns[0]), bool)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)
