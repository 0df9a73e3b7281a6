"""The one rule of intervals: which documents they come from, how far they reach, when there are
none; and tests against zero."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from recallkit.measure import ratio as estimator
from recallkit.measure.ratio import (
    MIN_CLUSTERS,
    MOST_GROUPS,
    Ratio,
    Spread,
    Sum,
    are_distinct,
    expanded_interval,
    group_numbers,
    holm,
    p_values,
    ratio,
)
from recallkit.measure.rows import log2_bucket


def summed(values, sizes=None):
    """A sum of one row, by document; of as many tokens in each, if no sizes are given."""
    sizes = np.ones(len(values)) if sizes is None else np.array(sizes)
    return Sum(np.array(values, np.float64)[:, None], Spread.of_sizes(sizes[:, None]))


TEN = np.arange(10)
# Values of a part and of its whole by document, their sizes; the ratio, the effective number, the
# degrees of freedom.
RULE = {
    "documents of equal size": (TEN, TEN + 1, None, None, 45 / 55, 10, None),
    "the part is in five of them": (TEN < 5, np.ones(10), TEN < 5, None, 0.5, 5, 4),
    "the whole is in six": (np.ones(10), TEN < 6, None, TEN < 6, 10 / 6, 6, 5),
    "two of them move it, alike": (1 + (TEN == 0) - (TEN == 1), np.ones(10), None, None, 1, 10, 1),
    "nothing moves it": (2 * TEN, TEN, None, None, 2, 10, 9),
    "one is as large as all others": (
        TEN,
        TEN + 1,
        np.where(TEN, 1, 9),
        None,
        45 / 55,
        18**2 / 90,
        None,
    ),
    "the part has no tokens": (0 * TEN, TEN, 0 * TEN, None, None, 0, None),
    "the whole is 0": (TEN, 0 * TEN, None, None, None, 10, None),
    "two documents": ([1, 2], [2, 2], None, None, 0.75, 2, None),
}


@pytest.mark.parametrize("case", RULE)
def test_an_interval_comes_from_the_smaller_number_and_the_least_freedom(case):
    part, whole, *sizes, value, effective, freedom = RULE[case]
    sums = [summed(values, size) for values, size in zip((part, whole), sizes, strict=True)]
    figure = ratio(*sums)
    assert figure.effective == pytest.approx(effective)
    assert freedom is None or figure.freedom == pytest.approx(freedom)
    assert figure.row("a")["a"] == (None if value is None else pytest.approx(value))
    is_known = value is not None and effective >= MIN_CLUSTERS
    assert np.isnan([figure.low, figure.high]).all() == (not is_known)
    assert not is_known or figure.low <= value <= figure.high
    assert np.isnan(ratio(*sums, num_resamples=0).low).all()


def test_a_sum_over_itself_is_one_and_what_is_subtracted_is_paired():
    values = np.random.default_rng(0).gamma(1, 1, 30)
    own, more = summed(values), summed(values + 0.5)
    assert [float(end[0]) for end in (ratio(own, own).low, ratio(own, own).high)] == [1, 1]
    difference = ratio(more - own, summed(np.ones(30)))
    assert (difference.low, difference.high) == (pytest.approx(0.5), pytest.approx(0.5))
    assert (2 * own + own).total == pytest.approx(3 * values.sum())
    assert own.at([0, 0]).total == pytest.approx([values.sum()] * 2)


def test_expanded_percentiles_reach_as_far_as_students_t():
    # Of exactly normal samples the bounds are those of the t interval of a mean, scaled as
    # resampling scales: by sqrt((m - 1) / m).
    samples = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)[:, None].repeat(3, axis=1)
    m = np.array([MIN_CLUSTERS, 12.5, 1e6])
    low, high = expanded_interval(samples, m, m - 1)
    assert high == pytest.approx(stats.t.ppf(0.975, m - 1) * np.sqrt(m / (m - 1)), rel=4e-3)
    assert low == pytest.approx(-high)
    assert np.isnan(expanded_interval(samples, MIN_CLUSTERS - 0.01, 9)).all()


def test_samples_that_are_no_numbers_are_left_out(monkeypatch):
    samples = np.array([[1.0, np.nan], [2.0, np.inf], [np.nan, np.nan], [3.0, np.nan]])
    bounds = expanded_interval(samples, 1e9, 1e9)
    assert bounds[:, 0] == pytest.approx([1 + 2 * 0.025, 3 - 2 * 0.025])
    assert np.isnan(bounds[:, 1]).all()


def test_effective_numbers_and_degrees_of_freedom():
    assert Spread.of_sizes(np.array([[4, 1], [4, 0], [4, 0], [0, 0]])).effective.tolist() == [3, 1]
    assert Spread.of_sizes(np.zeros((3, 2))).effective.tolist() == [0, 0]
    assert Spread.of_sizes(np.full((7, 1), 3)).freedom.tolist() == [6]
    # The mean of squares of normal figures, in proportion to the sizes, varies as chi squared of
    # that many degrees (and one more).
    sizes, rng = np.array([1, 2, 2, 5, 9, 10.0]), np.random.default_rng(0)
    squares = np.square(sizes * rng.normal(size=(200_000, len(sizes)))).sum(axis=1)
    freedom = Spread.of_sizes(sizes[:, None]).freedom + 1
    assert 2 * squares.mean() ** 2 / squares.var() == pytest.approx(freedom, rel=0.02)


def test_many_documents_are_resampled_in_groups_of_equal_size():
    assert group_numbers(MOST_GROUPS).tolist() == list(range(MOST_GROUPS))
    sizes = np.bincount(group_numbers(3 * MOST_GROUPS - 1))
    assert (len(sizes), set(sizes)) == (MOST_GROUPS, {2, 3})
    weights = estimator.resample_weights(9, 50, seed=1)
    assert (weights.sum(axis=1) == 9).all()


def test_log2_buckets_change_just_above_each_power_of_two():
    assert log2_bucket(np.arange(18)).tolist() == [0, 1, 2, 3, 3, *[4] * 4, *[5] * 8, 6]
    edges = np.array([[2**k, 2**k + 1] for k in range(1, 50)])
    assert (np.diff(log2_bucket(edges.ravel()).reshape(-1, 2)) == 1).all()


# ------------------------------------------------------------------------------ tests of hypotheses


def test_a_p_value_is_a_twentieth_where_the_interval_ends_at_zero():
    value, low, high, freedom = (
        np.array(column)
        for column in zip((2, 0, 4, 9), (-2, -4, 0, 9), (2, 1, 3, 9), (0, -1, 1, 9), strict=True)
    )
    p = p_values(value, low, high, freedom)
    assert p[:2] == pytest.approx([0.05, 0.05])
    assert p[2] < 0.05
    assert p[3] == 1
    assert np.isnan(p_values(value, np.full(4, np.nan), high, freedom)).all()
    assert p_values(value, low, high, freedom, at=4)[0] == pytest.approx(0.05)


def test_holms_procedure_by_hand():
    columns = {
        (0.01, 0.02, 0.03): (True, True, True),
        (0.017, 0.001, 0.04): (True, True, True),
        (0.01, 0.026, 0.03): (True, False, False),
        (0.02, 0.02, 0.02): (False, False, False),
        (0.04, np.nan, np.nan): (True, False, False),
    }
    assert [tuple(column) for column in holm(np.array(list(columns)).T).T] == list(columns.values())


def test_of_ten_models_without_a_gap_one_is_told_from_zero_in_one_command_of_twenty():
    """In each of 200 commands the documents' gaps get signs at random, for each model anew, so that
    all gaps are zero."""
    rng = np.random.default_rng(0)
    gaps, tokens, distinct = rng.gamma(1, 1, 40), summed(np.ones(40)), []
    for seed in range(200):
        models = [
            ratio(summed(rng.choice([-1, 1], 40) * gaps), tokens, 600, seed) for _ in range(10)
        ]
        excludes_zero = [(model.low > 0) | (model.high < 0) for model in models]
        distinct.append((are_distinct(models).any(), np.any(excludes_zero)))
    by_holm, by_intervals = np.mean(distinct, axis=0)
    assert by_holm <= 0.089, "0.05 and two and a half standard errors of 200 commands"
    assert by_intervals >= 0.2
    unknown = Ratio(*(np.array([value]) for value in (1.0, np.nan, np.nan, 2.0, 1.0)))
    assert np.isnan(are_distinct([unknown, models[0]])).tolist() == [[True], [False]]
