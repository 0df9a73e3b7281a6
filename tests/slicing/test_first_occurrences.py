"""First occurrences equal a search in the list of a sequence's bigrams, and distances that cannot be are errors."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.slicing.first_occurrences import first_occurrences
from recallkit.slicing.label_kernels import label_bigrams
from tests.slicing.references import first_occurrences_reference

id_lists = st.sampled_from([1, 3, 20]).flatmap(lambda top: st.lists(st.integers(0, top), min_size=1, max_size=80))


@settings(max_examples=200)
@given(st.lists(id_lists, min_size=1, max_size=6))
def test_first_occurrences_equal_the_reference(sequences):
    """From the distances of the labels; a sequence of one id has no row."""
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in sequences])])
    distance, _ = label_bigrams(np.concatenate(sequences).astype(np.uint32), offsets)
    starts = np.cumsum([0, *(len(ids) - 1 for ids in sequences)])
    expected = [start + row for start, ids in zip(starts, sequences, strict=False) for row in first_occurrences_reference(ids)]
    rows = np.repeat(np.arange(len(sequences), dtype=np.int32), np.diff(starts))
    assert first_occurrences(rows, np.maximum(distance, 0)).tolist() == expected


def test_the_first_bigram_of_a_sequence_and_overlaps_count():
    """5 5 5 5, then 5 5: the second sequence remembers nothing of the first."""
    found = first_occurrences(np.array([0, 0, 0, 1], np.int32), np.array([0, 1, 1, 0], np.int32))
    assert found.tolist() == [0, 0, 0, 3]


def test_real_labels_lead_to_the_same_bigram_where_it_is_not_repeated(small_slices):
    tokens = pl.read_parquet(small_slices / "tokens.parquet")
    first = first_occurrences(tokens["sequence"].to_numpy(), tokens["distance"].fill_null(0).to_numpy())
    same = ["sequence", "prev_token", "token", "train_count"]
    assert tokens[first].select(same).equals(tokens.select(same))
    assert not tokens[first]["repeated"].any()
    assert ((first == np.arange(len(tokens))) == ~tokens["repeated"].to_numpy()).all()


@pytest.mark.parametrize(("row", "distance"), [(0, 1), (2, 3), (2, -1), (3, 1), (3, 2**31 - 1), (4, -(2**31))])
def test_a_distance_that_leads_out_of_its_sequence_is_an_error(row, distance):
    distances = np.zeros(5, np.int32)
    distances[row] = distance
    with pytest.raises(ValueError, match=f"row {row}: distance "):
        first_occurrences(np.array([0, 0, 0, 1, 1], np.int32), distances)
