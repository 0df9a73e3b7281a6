"""Intervals of rows that come in documents: against slow ones, where documents say nothing, and how
often they cover."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import t as student

from recallkit.recall.accuracy import by_document, compare_means, compare_shares


def rows_of(
    rng: np.random.Generator,
    num_documents: int,
    share: float,
) -> tuple[np.ndarray, list[str]]:
    """Verdicts (n, 2) of one to six rows a document, whose own share is Beta-distributed: rows of a
    document agree."""
    sizes = rng.integers(1, 7, num_documents)
    own = rng.beta(share * 7 / 3, (1 - share) * 7 / 3, (num_documents, 2))
    verdicts = rng.random((sizes.sum(), 2)) < np.repeat(own, sizes, axis=0)
    return verdicts, [f"d{number}" for number in np.repeat(np.arange(num_documents), sizes)]


def test_mean_nlls_are_paired_by_document():
    rng = np.random.default_rng(4)
    answers = np.repeat(rng.integers(1, 7, (30, 1)), 3, axis=1).astype(float)
    nats = answers * rng.exponential(2, (30, 1)) + answers * np.array([0, 0.5, 0.25])
    intervals = compare_means(nats, answers)
    assert intervals.difference == pytest.approx([0, 0.5, 0.25])
    assert intervals.difference_bounds[:, 1:] == pytest.approx(np.array([[0.5, 0.25]] * 2)), (
        "each document differs by as much"
    )
    assert (intervals.bounds[1] - intervals.bounds[0] > 0.5).all()
    silent = compare_means(nats * [0, 1, 1], answers * [0, 1, 1])  # a reference without NLLs
    assert np.isnan(silent.difference[1:]).all()
    assert silent.bounds[:, 1:] == pytest.approx(intervals.bounds[:, 1:])


@pytest.mark.parametrize("right", [[1, 0, 1, 1, 0, 0, 1, 0, 1, 1], [0] * 10, [1] * 10])
def test_a_bound_is_the_share_that_is_just_not_refuted(right):
    """Wilson's definition, solved for the bound: |share - p| = t sqrt(p (1 - p) / n), of ten
    documents of a row."""
    quantile, share = student.ppf(0.975, 9), np.mean(right)

    def excess(bound: float) -> float:
        return abs(share - bound) - quantile * np.sqrt(bound * (1 - bound) / 10)

    low, high = compare_shares(np.array(right, float)[:, None], np.ones((10, 1))).bounds[:, 0]
    assert low == pytest.approx(brentq(excess, 1e-12, share - 1e-9) if share else 0.0)
    assert high == pytest.approx(brentq(excess, share + 1e-9, 1 - 1e-12) if share < 1 else 1.0)


def test_single_rows_have_the_adjusted_wald_interval_of_their_discordant_counts():
    """With one row more in which only the one is right, and one in which only the other is; the
    variance is that of a sample."""
    first, second = np.array([1] * 8 + [0] * 12), np.array([1] * 5 + [0] * 3 + [1] * 1 + [0] * 11)
    bounds = compare_shares(
        np.column_stack([first, second]).astype(float),
        np.ones((20, 2)),
    ).difference_bounds
    apart, discordant = (1 - 3) / 20, (1 + 3) / 20
    squares = 20 / 19 * (discordant - apart**2) + apart**2
    centre = 20 * apart / 22
    half = student.ppf(0.975, 19) * np.sqrt(((20 * squares + 2) / 22 - centre**2) / 22)
    assert bounds[:, 1] == pytest.approx([centre - half, centre + half])


@pytest.mark.parametrize("verdict", [False, True])
def test_agreement_of_all_documents_is_no_certainty(verdict):
    """Thirty rows of six documents say as much as six rows, if nothing shows that rows of a
    document differ."""
    documents = [f"d{number // 5}" for number in range(30)]
    intervals = compare_shares(*by_document(np.full((30, 2), verdict), documents))
    of_documents = compare_shares(*by_document(np.full((6, 2), verdict), documents[::5]))
    assert intervals.bounds == pytest.approx(of_documents.bounds)
    assert intervals.difference_bounds[:, 1] == pytest.approx(of_documents.difference_bounds[:, 1])
    assert intervals.bounds[:, 0] == pytest.approx([0.476, 1] if verdict else [0, 0.524], abs=1e-3)
    assert intervals.difference_bounds[0, 1] < -0.1 < 0.1 < intervals.difference_bounds[1, 1]
    assert np.isnan(intervals.error).all(), "an error of 0 would say that it is known"
    assert np.isnan(intervals.difference_bounds[:, 0]).all(), "a model does not differ from itself"


def test_few_documents_say_little_and_none_nothing():
    intervals = compare_shares(
        *by_document(np.array([[True, False], [False, False], [True, True]]), ["d"] * 3),
    )
    assert intervals.bounds == pytest.approx(np.array([[0, 0], [1, 1]]), abs=1e-6)
    assert intervals.difference_bounds[:, 1].tolist() == [-1, 1]
    assert np.isnan(compare_means(np.ones((1, 2)), np.ones((1, 2))).bounds).all()
    for compare in (compare_shares, compare_means):
        none = compare(np.zeros((3, 2)), np.zeros((3, 2)))
        assert np.isnan([none.bounds, none.difference_bounds]).all()
    right, rows = (
        np.array([[9.0], [0], [1], [0], [1], [0]]),
        np.array([[90.0], [2], [2], [2], [2], [2]]),
    )
    even = compare_shares(np.full((6, 1), 2.0), np.full((6, 1), 16.0))
    assert np.ptp(compare_shares(right, rows).bounds) > max(0.5, np.ptp(even.bounds)), (
        "a document with most rows is not one of many"
    )


@pytest.mark.parametrize(
    ("share", "num_documents"),
    [(0.02, 200), (0.1, 50), (0.5, 20), (0.98, 20)],
)
def test_accuracies_cover(share, num_documents):
    """docs/intervals.md has the same of real rows. 600 trials of 95 % cover in 93 to 97 %; few
    wrong ones are wide."""
    rng, nats = (
        np.random.default_rng(int(1000 * share) + num_documents + number) for number in (0, 1)
    )
    covered, trials = Counter(), 600
    for _ in range(trials):
        right, rows = by_document(*rows_of(rng, num_documents, share))
        intervals, means = (
            compare_shares(right, rows),
            compare_means(rows * nats.exponential(3, right.shape), rows),
        )
        covered["mean"] += means.bounds[0, 0] <= 3 <= means.bounds[1, 0]
        covered["difference of means"] += (
            means.difference_bounds[0, 1] <= 0 <= means.difference_bounds[1, 1]
        )
        covered["share"] += intervals.bounds[0, 0] <= share <= intervals.bounds[1, 0]
        covered["difference"] += (
            intervals.difference_bounds[0, 1] <= 0 <= intervals.difference_bounds[1, 1]
        )
    assert min(covered.values()) >= 0.92 * trials, covered
    if num_documents * min(share, 1 - share) >= 4:
        assert max(covered.values()) <= 0.985 * trials, covered
