"""Rows of unequal length in flat arrays, against plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recallkit.ragged import offsets_of, positions_within, run_starts

LENGTHS = st.lists(st.integers(0, 6), max_size=12)


@given(LENGTHS)
def test_positions_count_from_zero_in_every_row(lengths):
    found = positions_within(np.array(lengths, np.int32))
    assert found.dtype == np.int64
    assert found.tolist() == [position for length in lengths for position in range(length)]


@given(LENGTHS)
def test_offsets_cut_the_rows_out_of_the_flat_array(lengths):
    rows = [[row] * length for row, length in enumerate(lengths)]
    flat, offsets = [element for row in rows for element in row], offsets_of(lengths)
    assert offsets.dtype == np.int64
    assert [flat[offsets[row] : offsets[row + 1]] for row in range(len(lengths))] == rows


def test_the_examples_of_the_docstrings():
    assert offsets_of([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert positions_within([2, 0, 3]).tolist() == [0, 1, 0, 1, 2]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1))))
def test_a_run_begins_where_any_column_changes(rows):
    columns = np.array(rows, np.int32).reshape(-1, 2).T
    assert run_starts(*columns).tolist() == [place for place, row in enumerate(rows) if not place or row != rows[place - 1]]
