"""Bigram counts equal the readable reference's, for any split and number of threads."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.counting import bigram_kernels
from recallkit.counting.bigram_kernels import BigramRun, count_bigrams, merge_runs


def count_bigrams_reference(ids: np.ndarray, segment_starts: np.ndarray) -> BigramRun:
    """A plain Python version of `count_bigrams`."""
    starts = set(segment_starts.tolist())
    tokens = ids.tolist()
    return run_of(
        Counter((tokens[i - 1] << 32) | tokens[i] for i in range(len(tokens)) if i not in starts),
    )


def run_of(table: dict[int, int]) -> BigramRun:
    return BigramRun(
        np.array(sorted(table), np.uint64),
        np.array([table[key] for key in sorted(table)], np.uint64),
    )


def assert_same(run: BigramRun, expected: BigramRun) -> None:
    for column, expected_column in zip(run, expected, strict=True):
        assert column.dtype == np.uint64
        np.testing.assert_array_equal(column, expected_column)


@st.composite
def chunks(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Ids of one of many vocabularies, often repeated, with any segment starts, some of empty
    segments."""
    dtype = draw(st.sampled_from([np.uint16, np.uint32]))
    largest = min(
        draw(st.sampled_from([0, 1, 33, 4095, 65535, (1 << 32) - 1])),
        int(np.iinfo(dtype).max),
    )
    ids = draw(st.lists(st.integers(0, largest) | st.integers(0, min(2, largest)), max_size=120))
    starts = draw(st.lists(st.integers(0, len(ids)), max_size=20))
    return np.array(ids, dtype), np.array(sorted([0, *starts]), np.int64)


@given(chunk=chunks(), num_threads=st.integers(1, 3), piece=st.sampled_from([1, 7, 50, 1000]))
@settings(max_examples=100)
def test_counts_equal_the_reference_however_a_chunk_is_divided(chunk, num_threads, piece) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bigram_kernels, "_SORTED_TOKENS", piece)
        assert_same(count_bigrams(*chunk, num_threads=num_threads), count_bigrams_reference(*chunk))


@given(
    st.lists(
        st.dictionaries(
            st.integers(0, 30) | st.integers(2**63 - 2, 2**64 - 1),
            st.integers(1, 2**61),
        ),
        max_size=5,
    )
)
@settings(max_examples=100)
def test_merged_runs_add_exactly(tables: list[dict[int, int]]) -> None:
    total: Counter[int] = Counter()
    for table in tables:
        total.update(table)
    assert_same(merge_runs([run_of(table) for table in tables]), run_of(total))
