"""Intervals of accuracies and of mean NLLs, and of their differences to a reference, for rows that come in documents.

Several rows may query one document and are then dependent, so the document (in MQAR the sequence) is the unit. Every figure is a
ratio of two totals over documents, r = sum y_d / sum n_d, with y_d of the n_d rows of document d right, or y_d nats of its n_d
tokens. Its variance is that of the linearised residuals u_d = (y_d - r n_d) / sum n (Taylor linearisation, Cochran, Sampling
Techniques, 1977, section 6.3): v = k / (k - 1) sum u_d^2 for k documents; the difference of two ratios on the same documents has
the differences of their residuals. Student's t has m - 1 degrees of freedom, m the effective number of documents (`effective_number`).
docs/intervals.md has the coverage of all of these on real rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import stdtrit  # type: ignore[import-untyped]

from recallkit.measure.intervals import effective_number, number_or_none

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONFIDENCE = 0.95
_LEAST_DESIGN_EFFECT = 0.5
"""A design effect below 1 is real where rows of one document differ more than rows of all, as queries for different keys do, but one
that is estimated far below it is chance: n_eff is at most twice the number of rows."""


class Compared(NamedTuple):
    """A figure of m models, the first of which is the reference: float64 (m,), bounds of 95 % intervals (2, m).

    Standard errors are NaN where they are unknown: for one document, or where every document has the same ratio (or difference).
    The difference of the reference to itself has neither error nor bounds.
    """

    value: np.ndarray
    error: np.ndarray
    bounds: np.ndarray
    difference: np.ndarray
    difference_error: np.ndarray
    difference_bounds: np.ndarray

    def row(self, model: int) -> dict[str, float | None]:
        """Of one model: everything but the figure itself, by the ends of names in tables; None for NaN."""
        columns = {
            "error": self.error,
            "low": self.bounds[0],
            "high": self.bounds[1],
            "difference": self.difference,
            "difference_error": self.difference_error,
            "difference_low": self.difference_bounds[0],
            "difference_high": self.difference_bounds[1],
        }
        return {name: number_or_none(column[model]) for name, column in columns.items()}


def by_document(contains: np.ndarray, documents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """How many rows of each document are true in each column of `contains` bool (n, m), and how many it has: both (k, m).

    Row i is of `documents[i]`; n is at least 1.
    """
    _, places = np.unique(np.array(documents), return_inverse=True)
    right = np.zeros((places.max() + 1, contains.shape[1]))
    np.add.at(right, places, contains)
    return right, np.repeat(np.bincount(places)[:, None], contains.shape[1], axis=1)


def compare_shares(right: np.ndarray, rows: np.ndarray) -> Compared:
    """The shares `right` / `rows`, both (k, m), summed over k documents, and their differences. Bounds are NaN without rows only.

    For a share: the score interval for clustered rows. Wilson's interval (Journal of the American Statistical Association 22, 1927) of
    n_eff = r (1 - r) / v rows, the number of independent rows that would be as uncertain (Korn and Graubard, Survey Methodology 24,
    1998), with t in the place of the normal quantile; Franco, Little, Louis and Slud (Journal of Survey Statistics and Methodology 7,
    2019) recommend it among seven. n_eff is at least m, as if all rows of a document agreed, and at most twice the number of rows; it
    is m where v says nothing, being 0. One document gives about 0 to 1.

    For a difference: Bonett and Price's adjusted Wald interval (Journal of Educational and Behavioral Statistics 37, 2012): one row more
    is counted in which only the one model is right, and one in which only the other is, so that it has a width where all documents
    agree. Here those are 2 of n_eff + 2 rows, with n_eff as for one share: the variance of a row's difference, q - d^2, over v.
    q, the share of rows on which the models disagree, is at least sum |y_d - y'_d| / n, and is taken as that, which makes n_eff no larger.
    """
    share, residuals = _linearised(right, rows)
    quantile = _student(effective_number(rows))
    number = _effective_rows(share * (1.0 - share), _variance(residuals), rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        # Wilson's, divided by t^2 above and below, because t of one document is infinite.
        weight = number / np.square(quantile)
        middle = (weight * share + 0.5) / (weight + 1.0)
        half = np.sqrt(weight * share * (1.0 - share) + 0.25) / (weight + 1.0)
        apart = np.abs(right - right[:, :1]).sum(axis=0) / rows.sum(axis=0)
    low, high = np.clip([middle - half, middle + half], 0.0, 1.0)
    bounds = np.stack([np.minimum(low, share), np.maximum(high, share)])  # 0 and 1 except for rounding

    difference = share - share[0]
    variance = _variance(residuals - residuals[:, :1])
    number = _effective_rows(apart - np.square(difference), variance, rows)
    variance = np.nan_to_num(variance)  # of one document, whose t is infinite
    centre = difference * number / (number + 2.0)
    squares = (number * (number * variance + np.square(difference)) + 2.0) / (number + 2.0)
    half = quantile * np.sqrt((squares - np.square(centre)) / (number + 2.0))
    return _compared(share, residuals, bounds, np.clip([centre - half, centre + half], -1.0, 1.0))


def compare_means(totals: np.ndarray, sizes: np.ndarray) -> Compared:
    """The means `totals` / `sizes`, both (k, m), of quantities that are not negative: t intervals; bounds are NaN for k < 2."""
    mean, residuals = _linearised(totals, sizes)
    quantile = _student(effective_number(sizes))
    half = quantile * np.sqrt(_variance(residuals))
    apart = quantile * np.sqrt(_variance(residuals - residuals[:, :1]))
    bounds = np.stack([np.maximum(mean - half, 0.0), mean + half])
    return _compared(mean, residuals, bounds, np.stack([mean - mean[0] - apart, mean - mean[0] + apart]))


# ------------------------------------------------------------------------------------------------------------ their parts


def _linearised(sums: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ratios of the totals (m,) and their residuals by document (k, m); NaN where the sizes are 0."""
    total = sizes.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = sums.sum(axis=0) / total
        return ratio, (sums - ratio * sizes) / total


def _variance(residuals: np.ndarray) -> np.ndarray:
    """The variance (m,) of ratios with these residuals (k, m): NaN for one document, 0 except for rounding where they vanish."""
    documents = len(residuals)
    if documents < 2:
        return np.full(residuals.shape[1], np.nan)
    found: np.ndarray = documents / (documents - 1) * np.square(residuals).sum(axis=0)
    return np.where(found < 1e-24, 0.0, found)


def _error(residuals: np.ndarray) -> np.ndarray:
    """Standard errors (m,); NaN where the variance is unknown or 0."""
    variance = _variance(residuals)
    return np.sqrt(np.where(variance > 0, variance, np.nan))


def _effective_rows(of_a_row: np.ndarray, variance: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """How many independent rows, each with the variance `of_a_row` (m,), have a mean with this variance (m,); `rows` is (k, m)."""
    least = effective_number(rows)
    known = (of_a_row > 0) & (variance > 0)
    found = np.divide(of_a_row, variance, where=known, out=least.copy())
    number: np.ndarray = np.clip(found, least, np.maximum(least, rows.sum(axis=0) / _LEAST_DESIGN_EFFECT))
    return number


def _student(effective: np.ndarray) -> np.ndarray:
    """The quantile of Student's t (m,) of `effective` - 1 degrees of freedom: without bound for a single document, and kept finite."""
    quantile: np.ndarray = -stdtrit(np.maximum(effective - 1.0, 0.1), (1.0 - _CONFIDENCE) / 2.0)
    return quantile


def _compared(value: np.ndarray, residuals: np.ndarray, bounds: np.ndarray, difference_bounds: np.ndarray) -> Compared:
    difference_bounds[:, 0] = np.nan
    errors = _error(residuals), _error(residuals - residuals[:, :1])
    return Compared(value, errors[0], bounds, value - value[0], errors[1], difference_bounds)
