"""Intervals of accuracies and of mean NLLs, and of their differences to a reference, for rows
that come in documents.

Several rows may query one document and are then dependent, so the document (in MQAR the sequence)
is the unit. Every figure is a ratio of two sums over documents, r = sum y_d / sum n_d, with y_d of
the n_d rows of document d right, or y_d nats of its n_d answers; so is a difference, since two
models answer the same rows. Mean NLLs have the intervals of every ratio (`measure.ratio.ratio`).
Shares may be 0 or 1, or agree in every document, and then resamples all agree, however uncertain
that is: theirs come from the variance of the linearised residuals u_d = (y_d - r n_d) / sum n
(Cochran, Sampling Techniques, 1977, section 6.3), v = k / (k - 1) sum u_d^2 for k documents, with
the effective number of documents m and the degrees of freedom of all intervals
(`measure.ratio.Spread`). docs/intervals.md has the coverage on real rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import stdtrit  # type: ignore[import-untyped]

from recallkit.measure.ratio import Spread, Sum, group_numbers, number_or_none, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST_DESIGN_EFFECT = 0.5
"""A design effect below 1 is real where rows of one document differ more than rows of all, as
queries for different keys do, but one that is estimated far below it is chance: n_eff is at
most twice the number of rows."""


class Compared(NamedTuple):
    """Of a figure of m models, the first of which is the reference: bounds of 95 % intervals (2,
    m), and its difference to the reference's (m,) with its bounds; standard errors (m,) of
    shares alone.

    NaN where unknown: standard errors of one document, or where every document has the same ratio
    (or difference). The difference of the reference to itself has neither error nor bounds.
    """

    bounds: np.ndarray
    difference: np.ndarray
    difference_bounds: np.ndarray
    error: np.ndarray | None = None
    difference_error: np.ndarray | None = None

    def row(self, model: int) -> dict[str, float | None]:
        """Of one model, by the ends of names in tables; None for NaN."""
        columns = {
            "error": self.error,
            "low": self.bounds[0],
            "high": self.bounds[1],
            "difference": self.difference,
            "difference_error": self.difference_error,
            "difference_low": self.difference_bounds[0],
            "difference_high": self.difference_bounds[1],
        }
        known = {name: column for name, column in columns.items() if column is not None}
        return {name: number_or_none(column[model]) for name, column in known.items()}


def by_document(contains: np.ndarray, documents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """How many rows of each document are true in each column of `contains` bool (n, m), and how
    many it has: both (k, m).

    Row i is of `documents[i]`; n is at least 1.
    """
    _, places = np.unique(np.array(documents), return_inverse=True)
    right = np.zeros((places.max() + 1, contains.shape[1]))
    np.add.at(right, places, contains)
    return right, np.repeat(np.bincount(places)[:, None], contains.shape[1], axis=1)


def compare_means(totals: np.ndarray, sizes: np.ndarray) -> Compared:
    """The means `totals` / `sizes`, both (k, m), and their differences over what is measured of
    both models."""
    means = ratio(_sum(totals, sizes), _sum(sizes, sizes))
    both = np.minimum(sizes, sizes[:, :1])  # one of the two may have no NLLs at all
    differences = ratio(_sum(totals - totals[:, :1], both), _sum(both, both))
    bounds = np.stack([differences.low, differences.high])
    bounds[:, 0] = np.nan
    return Compared(np.stack([means.low, means.high]), differences.value, bounds)


def _sum(by_document: np.ndarray, sizes: np.ndarray) -> Sum:
    """A quantity of k documents, whose `sizes` are rows; both (k, m)."""
    groups = group_numbers(len(by_document))
    by_group = np.zeros((1 + groups.max(), by_document.shape[1]))
    np.add.at(by_group, groups, by_document)
    return Sum(by_group, Spread.of_sizes(sizes))


def compare_shares(right: np.ndarray, rows: np.ndarray) -> Compared:
    """The shares `right` / `rows`, both (k, m), summed over k documents, and their differences;
    NaN without rows.

    For a share: the score interval for clustered rows. Wilson's interval (Journal of the American
    Statistical Association 22, 1927) of n_eff = r (1 - r) / v rows, the number of independent rows
    that would be as uncertain (Korn and Graubard, Survey Methodology 24, 1998), with t in the place
    of the normal quantile; Franco, Little, Louis and Slud (Journal of Survey Statistics and
    Methodology 7, 2019) recommend it among seven. n_eff is at least m, as if all rows of a document
    agreed, and at most twice the number of rows; it is m where v says nothing, being 0. One
    document gives about 0 to 1.

    For a difference: Bonett and Price's adjusted Wald interval (Journal of Educational and
    Behavioral Statistics 37, 2012): one row more is counted in which only the one model is right,
    and one in which only the other is, so that it has a width where all documents agree. Here those
    are 2 of n_eff + 2 rows, with n_eff as for one share: the variance of a row's difference, q -
    d^2, over v. q, the share of rows on which the models disagree, is at least sum |y_d - y'_d| /
    n, and is taken as that, which makes n_eff no larger.
    """
    total, spread = rows.sum(axis=0), Spread.of_sizes(rows)
    # Student's t of one document is without bound: 0.1 degrees of freedom keep it finite.
    quantile = -stdtrit(np.maximum(spread.freedom, 0.1), 0.025)

    def effective_rows(of_a_row: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """How many independent rows of this variance have a mean of that variance, (m,)."""
        is_known = (of_a_row > 0) & (variance > 0)
        number = np.divide(of_a_row, variance, where=is_known, out=spread.effective.copy())
        most = np.maximum(spread.effective, total / _LEAST_DESIGN_EFFECT)
        bounded: np.ndarray = np.clip(number, spread.effective, most)
        return bounded

    with np.errstate(invalid="ignore", divide="ignore"):
        share = right.sum(axis=0) / total
        residuals = (right - share * rows) / total
        variance, apart_variance = _variance(residuals), _variance(residuals - residuals[:, :1])
        # Wilson's, divided by t^2 above and below.
        weight = effective_rows(share * (1.0 - share), variance) / np.square(quantile)
        middle = (weight * share + 0.5) / (weight + 1.0)
        half = np.sqrt(weight * share * (1.0 - share) + 0.25) / (weight + 1.0)
        low, high = np.clip([middle - half, middle + half], 0.0, 1.0)
        # A share of 0 or 1 is its own bound, except for rounding.
        bounds = np.stack([np.minimum(low, share), np.maximum(high, share)])

        difference = share - share[0]
        apart = np.abs(right - right[:, :1]).sum(axis=0) / total
        number = effective_rows(apart - np.square(difference), apart_variance)
        centre = difference * number / (number + 2.0)
        squares = number * (number * np.nan_to_num(apart_variance) + np.square(difference))
        squares = (squares + 2.0) / (number + 2.0)
        half = quantile * np.sqrt((squares - np.square(centre)) / (number + 2.0))
    difference_bounds = np.clip([centre - half, centre + half], -1.0, 1.0)
    difference_bounds[:, 0] = np.nan
    errors = [np.sqrt(np.where(one > 0, one, np.nan)) for one in (variance, apart_variance)]
    return Compared(bounds, difference, difference_bounds, *errors)


def _variance(residuals: np.ndarray) -> np.ndarray:
    """The variance (m,) of ratios with these residuals (k, m): NaN for one document, 0 except
    for rounding where they vanish."""
    documents = len(residuals)
    if documents < 2:
        return np.full(residuals.shape[1], np.nan)
    variance: np.ndarray = documents / (documents - 1) * np.square(residuals).sum(axis=0)
    return np.where(variance < 1e-24, 0.0, variance)
