"""Rows of unequal length in flat arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recallkit.ragged import offsets_of, positions_within, run_starts


@given(st.lists(st.integers(0, 6), max_size=12))
def test_offsets_and_positions_are_those_of_rows(lengths: list[int]) -> None:
    rows = [[(row, place) for place in range(length)] for row, length in enumerate(lengths)]
    flat, offsets = [element for row in rows for element in row], offsets_of(lengths)
    assert [flat[offsets[row] : offsets[row + 1]] for row in range(len(lengths))] == rows
    assert positions_within(lengths).tolist() == [place for _, place in flat]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1))))
def test_a_run_begins_where_any_column_changes(rows: list[tuple[int, int]]) -> None:
    columns = np.array(rows, np.int32).reshape(-1, 2).T
    assert run_starts(*columns).tolist() == [
        place for place, row in enumerate(rows) if not place or row != rows[place - 1]
    ]
