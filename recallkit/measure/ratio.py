"""Every figure is a ratio of two sums over documents; its 95 % interval is the expanded percentile
bootstrap.

Tokens of a document depend on each other; documents are the independent units (docs/intervals.md),
or what else is resampled: clusters. Every sum is resampled with the same weights, so that
differences between models, slices and sources are paired.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit import config

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_CLUSTERS = config.MIN_CLUSTERS
"""Of equal size: see `Spread`."""

MOST_GROUPS = 1024
"""Clusters are resampled singly up to this number, and beyond it in so many groups, drawn at
random: a standard error is then known to 2 % (1 / sqrt(2 g)), and time and memory do not grow with
the text."""

NUM_RESAMPLES = 2000

FAMILY_ERROR = 0.05
"""How often at least one of a command's models that do not differ from the reference is found
to."""

_LEAST_FREEDOM = 1.0
_ROUNDED = 1e-9
"""Of the largest part: less than this does not move a ratio."""


# --------------------------------------------------------------------------------------------- sums


@dataclass(frozen=True, slots=True)
class Spread:
    """Over how many clusters the tokens of K rows are spread, and how evenly; each (K,).

    clusters: their number. effective: how many of equal size tell as much, (sum n)^2 / sum n^2 of
    sizes n (Kish), by which one cluster with half of the tokens is not counted as one of many.
    freedom: degrees of freedom of a variance between them, (sum n^2)^2 / sum n^4 - 1 of sizes n
    (Satterthwaite's approximation: a sum of squares, each in proportion to n^2, varies as one of so
    many equal ones); n - 1 for n equal sizes.
    """

    clusters: np.ndarray
    effective: np.ndarray
    freedom: np.ndarray

    @classmethod
    def of_powers(cls, powers: Sequence[np.ndarray]) -> Spread:
        """From the sums over clusters of their sizes to the powers 0, 1, 2 and 4."""
        number, total, squares, fourths = powers
        return cls(
            number.astype(np.int64),
            _squared_ratio(total, squares),
            _squared_ratio(squares, fourths) - 1,
        )

    @classmethod
    def of_sizes(cls, sizes: np.ndarray) -> Spread:
        """From the size of each of n clusters in each row, (n, K)."""
        sizes = np.asarray(sizes, np.float64)
        return cls.of_powers(
            [(sizes > 0).sum(axis=0), *((sizes**power).sum(axis=0) for power in (1, 2, 4))]
        )

    def at(self, rows: Any) -> Spread:
        """Of these rows alone, any index of numpy's."""
        return Spread(self.clusters[rows], self.effective[rows], self.freedom[rows])


def _squared_ratio(total: np.ndarray, squares: np.ndarray) -> np.ndarray:
    ratio: np.ndarray = np.square(total, dtype=np.float64) / np.maximum(
        squares, np.finfo(np.float64).tiny
    )
    return ratio


@dataclass(frozen=True, slots=True)
class Sum:
    """A quantity added up over the tokens of K rows by group of clusters, `by_group` (g, K), and
    their `spread`."""

    by_group: np.ndarray
    spread: Spread

    @property
    def total(self) -> np.ndarray:
        """Of all groups, (K,)."""
        total: np.ndarray = self.by_group.sum(axis=0)
        return total

    def __sub__(self, other: Sum) -> Sum:
        """The difference of two quantities of the same tokens."""
        return Sum(self.by_group - other.by_group, self.spread)

    def __add__(self, other: Sum) -> Sum:
        """The sum of two quantities of the same tokens."""
        return Sum(self.by_group + other.by_group, self.spread)

    def __rmul__(self, factor: float) -> Sum:
        """The quantity times a number."""
        return Sum(factor * self.by_group, self.spread)

    def at(self, rows: Any) -> Sum:
        """The quantity of these rows alone, any index of numpy's."""
        return Sum(self.by_group[:, rows], self.spread.at(rows))


# ------------------------------------------------------------------------------------------- ratios


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure of each of K rows with the ends of its 95 % interval, each float64 (K,); NaN where
    it is not known.

    effective: the effective number of the clusters that the interval comes from; freedom: its
    degrees of freedom.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    effective: np.ndarray
    freedom: np.ndarray

    def where(self, is_known: np.ndarray) -> Ratio:
        """The figure of the rows of which it is known, bool (K,); NaN of others."""
        value, low, high = (
            np.where(is_known, end, np.nan) for end in (self.value, self.low, self.high)
        )
        return Ratio(value, low, high, self.effective, self.freedom)

    def columns(self, name: str) -> dict[str, np.ndarray]:
        """NAME, NAME_ci_low and NAME_ci_high."""
        return {name: self.value, f"{name}_ci_low": self.low, f"{name}_ci_high": self.high}

    def row(self, name: str) -> dict[str, float | None]:
        """`columns` of a single row, None in place of NaN."""
        return {
            column: number_or_none(np.ravel(value)[0])
            for column, value in self.columns(name).items()
        }


def ratio(part: Sum, whole: Sum, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> Ratio:
    """`part` over `whole`, sums of K rows, or `whole` of one; NaN where `part` has no tokens or
    `whole` is 0.

    The one rule of all intervals: they come from the smaller effective number of the clusters of
    both sums, with the least of three degrees of freedom: of the clusters of either sum by their
    sizes (`Spread`), and of what each group moves the ratio by (`_freedom`). Below MIN_CLUSTERS, or
    with `num_resamples` 0, there is none.
    """
    effective = np.minimum(part.spread.effective, whole.spread.effective)
    freedom = np.minimum(part.spread.freedom, whole.spread.freedom)
    freedom = np.minimum(freedom, _freedom(part.by_group, whole.by_group))
    is_known = (part.spread.clusters > 0) & (whole.total != 0)
    weights = resample_weights(len(part.by_group), num_resamples, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(is_known, part.total / whole.total, np.nan)
        samples = _resampled(weights, part.by_group) / _resampled(weights, whole.by_group)
    low, high = expanded_interval(samples, np.where(is_known, effective, 0.0), freedom)
    return Ratio(value, low, high, effective, freedom)


def _freedom(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    """Degrees of freedom of the variance of a ratio r of two sums (g, K): (sum z^2)^2 / sum z^4 -
    1, (K,).

    z is what a group moves the ratio by, its part less r of its whole: where few groups are unlike
    all others, they show the spread no better than so few of equal size do. Without bound where no
    group moves it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        moves = parts - wholes * (parts.sum(axis=0) / wholes.sum(axis=0))
    moves[np.abs(moves) < _ROUNDED * np.abs(parts).max(axis=0, initial=0.0)] = 0.0
    squares = np.square(moves)
    number = _squared_ratio(squares.sum(axis=0), np.square(squares).sum(axis=0))
    return np.where(number > 0, number - 1.0, np.inf)


def expanded_interval(
    samples: np.ndarray, effective: np.ndarray | float, freedom: np.ndarray | float
) -> np.ndarray:
    """Bounds (2, ...) of `samples` (num_resamples, ...), ratios resampled from `effective` (...)
    clusters.

    They are quantiles of the samples, as far in the tails as a t interval of m = `effective`
    clusters is wider than the normal interval of resampled means: at Phi(-+ sqrt(m / (m - 1)) t), t
    the quantile of Student's distribution with `freedom` (...), in place of m - 1, degrees of
    freedom (the expanded percentile interval of Hesterberg, The American Statistician 69, 2015).
    Samples that are not finite (a resample without the slice) are left out. NaN where m is below
    MIN_CLUSTERS, or nothing is left.
    """
    from scipy.special import ndtr, stdtrit  # type: ignore[import-untyped]

    if len(samples) == 0:
        return np.full((2, *samples.shape[1:]), np.nan)
    effective = np.broadcast_to(np.asarray(effective, np.float64), samples.shape[1:])
    number = np.maximum(effective, MIN_CLUSTERS)
    quantile = stdtrit(np.maximum(freedom, _LEAST_FREEDOM), 0.025)
    tail = ndtr(np.sqrt(number / (number - 1)) * quantile)
    ordered = np.sort(np.where(np.isfinite(samples), samples, np.nan), axis=0)
    last = np.maximum(np.count_nonzero(~np.isnan(ordered), axis=0) - 1, 0)
    bounds = np.stack(
        [_interpolate(ordered, tail * last), _interpolate(ordered, (1.0 - tail) * last)]
    )
    return np.where(effective >= MIN_CLUSTERS, bounds, np.nan)


def _interpolate(ordered: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The value at the fractional rank `place` (...) of `ordered` (n, ...)."""
    ranks = (np.floor(place).astype(np.int64)[None], np.ceil(place).astype(np.int64)[None])
    below, above = (np.take_along_axis(ordered, rank, axis=0)[0] for rank in ranks)
    value: np.ndarray = below + (above - below) * (place - np.floor(place))
    return value


# ---------------------------------------------------------------------------------------- resamples


def group_numbers(num_clusters: int) -> np.ndarray:
    """The group of each cluster, int64 (num_clusters,): one of its own, or one of MOST_GROUPS of
    equal size."""
    if num_clusters <= MOST_GROUPS:
        return np.arange(num_clusters)
    groups: np.ndarray = np.random.default_rng(0).permutation(num_clusters) % MOST_GROUPS
    return groups


@functools.lru_cache(maxsize=2)
def resample_weights(
    num_groups: int, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> np.ndarray:
    """How often each group is drawn in each resample, float64 (num_resamples, num_groups):
    num_groups in all.

    Each resample draws with replacement (numpy's PCG64 from `seed`, resample after resample).
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    draws = rng.integers(0, num_groups, size=(num_resamples, num_groups))
    draws += np.arange(num_resamples)[:, None] * num_groups
    counts = np.bincount(draws.ravel(), minlength=num_resamples * num_groups)
    return counts.reshape(num_resamples, num_groups).astype(np.float64)


def _resampled(weights: np.ndarray, by_group: np.ndarray) -> np.ndarray:
    """Totals over resampled groups, (num_resamples, K)."""
    # the last bits do not depend on the number of processors
    with _thread_pools().limit(limits=1, user_api="blas"):
        totals: np.ndarray = weights @ by_group
    return totals


@functools.cache
def _thread_pools() -> Any:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


# ------------------------------------------------------------------------------ tests of hypotheses


def p_values(
    value: np.ndarray, low: np.ndarray, high: np.ndarray, freedom: np.ndarray, at: float = 0.0
) -> np.ndarray:
    """Two-sided p-values (...) against a figure's being `at`; NaN without an interval.

    At most 0.05 where the 95 % interval excludes `at`. The half of the interval that lies towards
    `at` counts as t standard errors, with t the 97.5 % quantile of Student's distribution with
    `freedom` (...) degrees of freedom.
    """
    from scipy.special import stdtr, stdtrit

    freedom = np.maximum(freedom, _LEAST_FREEDOM)
    is_above = (low > at) | ((value > at) & (high >= at))
    half = np.where(is_above, value - low, high - value)
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(value == at, 0.0, np.abs(value - at) / np.maximum(half, 0))
    p: np.ndarray = 2 * stdtr(freedom, -errors * stdtrit(freedom, 0.975))
    return np.where(np.isnan(low), np.nan, p)


def holm(p: np.ndarray) -> np.ndarray:
    """Which of m hypotheses (m, ...) are rejected by Holm's step-down procedure at 5 % in all,
    bool; NaN is none.

    Of m true ones, one or more is rejected in at most 5 % of cases, whatever depends on what (Holm,
    Scandinavian Journal of Statistics 6, 1979).
    """
    order = np.argsort(p, axis=0)
    left = np.count_nonzero(~np.isnan(p), axis=0) - np.arange(len(p)).reshape(
        -1, *[1] * (p.ndim - 1)
    )
    below = np.take_along_axis(p, order, axis=0) * np.maximum(left, 1) <= FAMILY_ERROR
    rejected = np.empty(p.shape, bool)
    np.put_along_axis(rejected, order, np.logical_and.accumulate(below, axis=0), axis=0)
    return rejected


def are_distinct(ratios: Sequence[Ratio]) -> np.ndarray:
    """Which figures of m models differ from 0 at 5 % for all models together, (m, K): 1, 0, or NaN
    without intervals."""
    p = np.stack([p_values(one.value, one.low, one.high, one.freedom) for one in ratios])
    return np.where(np.isnan(p), np.nan, holm(p))


def number_or_none(value: float) -> float | None:
    """A value for a table: None, not NaN, if it is unknown."""
    return None if math.isnan(value) else float(value)
