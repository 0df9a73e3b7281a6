"""Arrays and strings as Arrow's are those that `pa.array` makes; rows of unequal length in flat arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from recallkit import arrow
from recallkit.ragged import offsets_of, positions_within, run_starts

_TYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")


@given(values=st.lists(st.integers(0, 127), max_size=70), dtype=st.sampled_from(_TYPES), step=st.sampled_from([1, 2, -1]))
def test_numbers_and_booleans_are_those_of_pyarrow(values: list[int], dtype: str, step: int) -> None:
    array = (np.array(values, np.int64) % (2 if dtype == "bool" else 128)).astype(dtype)[::step]
    assert arrow.array(array).equals(pa.array(array))
    arrow.array(array).validate(full=True)


@given(values=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=9))
def test_strings_and_bytes_are_those_of_pyarrow(values: list[str]) -> None:
    assert arrow.strings(values).equals(pa.array(values, pa.string()))
    encoded = [value.encode() for value in values]
    assert arrow.binaries(encoded).equals(pa.array(encoded, pa.large_binary()))


@given(st.lists(st.integers(0, 6), max_size=12))
def test_offsets_and_positions_are_those_of_rows(lengths: list[int]) -> None:
    rows = [[(row, place) for place in range(length)] for row, length in enumerate(lengths)]
    flat, offsets = [element for row in rows for element in row], offsets_of(lengths)
    assert [flat[offsets[row] : offsets[row + 1]] for row in range(len(lengths))] == rows
    assert positions_within(lengths).tolist() == [place for _, place in flat]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1))))
def test_a_run_begins_where_any_column_changes(rows: list[tuple[int, int]]) -> None:
    columns = np.array(rows, np.int32).reshape(-1, 2).T
    assert run_starts(*columns).tolist() == [place for place, row in enumerate(rows) if not place or row != rows[place - 1]]
