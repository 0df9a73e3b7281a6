"""Samples are stratified, weighted back to their slice, and the same for the same seed."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallkit.intervening.sampling import allocate, draw_samples, that_repeat
from recallkit.measure import labelled
from recallkit.measure.labelled import open_tokens
from recallkit.measure.rows import log2_bucket
from recallkit.slicing.definitions import SLICES

SLICES_TO_SAMPLE = [that_repeat(SLICES[name]) for name in ("ar_hit", "all", "first_rare")]


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
    assert allocate(
        np.array([100, 400, 900]),
        np.array([100, 400, 900]),
        63,
    ).tolist() == [11, 21, 31]


def test_weights_add_up_to_each_stratum_of_the_tokens_that_repeat_a_bigram(small_slices):
    labels = open_tokens(small_slices / "tokens.parquet")
    tokens = pl.read_parquet(labels.path).with_row_index("row")
    is_rare = pl.col("train_count") <= labels.max_count
    size = 150  # more than there are strata
    masks = [pl.col("repeated") & is_rare, pl.col("repeated"), ~pl.col("repeated") & is_rare]
    for sample, mask in zip(
        draw_samples(labels, SLICES_TO_SAMPLE, [size] * 3, 3),
        masks,
        strict=True,
    ):
        inside = tokens.filter(mask)
        assert len(sample) == min(size, len(inside))
        assert set(sample["row"]) <= set(inside["row"])
        assert (np.diff(sample["row"]) > 0).all()
        drawn = tokens[sample["row"].to_list()].with_columns(pl.col("distance").fill_null(0))
        assert (
            drawn.select(
                "position",
                "distance",
                "train_count",
            ).rows()
            == sample.select("position", "distance", "train_count").rows()
        )
        for column in ("distance", "train_count"):
            in_text = np.bincount(log2_bucket(inside[column].fill_null(0).to_numpy()), minlength=9)
            assert np.bincount(
                log2_bucket(sample[column].to_numpy()),
                sample["weight"],
                minlength=9,
            ) == pytest.approx(in_text)


def test_a_sample_does_not_depend_on_batches_and_few_samples_have_the_weight_of_all(
    small_slices,
    monkeypatch,
):
    """Candidates are kept by their keys, whatever the rows are read in; with fewer samples than
    strata, strata are merged."""
    tokens = open_tokens(small_slices / "tokens.parquet")
    once = draw_samples(tokens, SLICES_TO_SAMPLE, [40] * 3, 5)
    lengths = pl.read_parquet(tokens.path).group_by("sequence", maintain_order=True).len()["len"]
    ends = [0, *lengths.cum_sum()]
    batches = [*itertools.pairwise(ends)]
    monkeypatch.setattr(labelled, "batch_ranges", lambda _: batches)
    again = draw_samples(tokens, SLICES_TO_SAMPLE, [40] * 3, 5)
    assert len(batches) > 2
    assert all(sample.equals(other) for sample, other in zip(once, again, strict=True))
    [few] = draw_samples(tokens, SLICES_TO_SAMPLE[:1], [3], 5)
    assert len(few) == 3
    assert few["weight"].sum() == pytest.approx(once[0]["weight"].sum())
