"""Samples are stratified, weighted back to their slice, and the same for the same seed."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallkit.intervening import sampling
from recallkit.intervening.sampling import allocate, draw_samples
from recallkit.measure.classes import log2_bucket
from recallkit.measure.labelled import open_tokens
from recallkit.slicing.definitions import parse_slices

SLICES = parse_slices(["ar_hit", "repeated_frequent", "first_rare"], without=())


@given(
    strata=st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 50)), min_size=1, max_size=30),
    more=st.integers(0, 500),
)
def test_allocation_uses_what_there_is(strata, more):
    totals = np.array([total for total, _ in strata])
    most = np.minimum(totals, [number for _, number in strata])
    size = len(strata) + more
    wanted = allocate(totals, most, size)
    assert wanted.sum() == min(size, most.sum())
    assert ((wanted >= 1) & (wanted <= most)).all()


def test_allocation_is_by_the_square_root():
    assert allocate(np.array([100, 400, 900]), np.array([100, 400, 900]), 63).tolist() == [11, 21, 31]


def test_weights_add_up_to_each_stratum(small_slices):
    tokens = pl.read_parquet(small_slices / "tokens.parquet").with_row_index("row")
    most = open_tokens(small_slices / "tokens.parquet").max_count
    masks = [
        pl.col("repeated") & (pl.col("train_count") <= most),
        pl.col("repeated") & (pl.col("train_count") > most),
        ~pl.col("repeated") & (pl.col("train_count") <= most),
    ]
    size = 150  # more than there are strata
    for sample, mask in zip(draw_samples(open_tokens(small_slices / "tokens.parquet"), SLICES, [size] * 3, 3), masks, strict=True):
        inside = tokens.filter(mask)
        assert sample.num_tokens == len(inside)
        assert len(sample) == min(size, len(inside))
        assert set(sample.row) <= set(inside["row"])
        assert len(set(sample.row)) == len(sample)
        assert (np.diff(sample.row) > 0).all()
        drawn = tokens[sample.row.tolist()]
        assert drawn["position"].to_list() == sample.position.tolist()
        assert drawn["distance"].fill_null(0).to_list() == sample.distance.tolist()
        for column in ("distance", "train_count"):
            in_text = np.bincount(log2_bucket(inside[column].fill_null(0).to_numpy()), minlength=9)
            assert np.bincount(log2_bucket(getattr(sample, column)), sample.weight, minlength=9) == pytest.approx(in_text)


def test_batches_do_not_change_the_sample(small_slices, monkeypatch):
    """Candidates are kept by their keys, whatever the rows are read in; with fewer samples than strata, strata are merged."""
    tokens = open_tokens(small_slices / "tokens.parquet")
    once = draw_samples(tokens, SLICES, [40] * 3, 5)
    ranges = [(start, min(start + 100, tokens.num_rows)) for start in range(0, tokens.num_rows, 100)]
    monkeypatch.setattr(sampling, "batch_ranges", lambda _: ranges)
    again = draw_samples(tokens, SLICES, [40] * 3, 5)
    assert [sample.row.tolist() for sample in once] == [sample.row.tolist() for sample in again]
    [few] = draw_samples(tokens, SLICES[:1], [3], 5)
    assert len(few) == 3
    assert few.weight.sum() == pytest.approx(few.num_tokens)
