"""95 % confidence intervals of means and shares: the expanded percentile bootstrap over documents, or what else is resampled.

Tokens of a document depend on each other; documents are the independent units (docs/intervals.md). Every sum is resampled with the same
weights, so that differences between models, slices and sources are paired.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from recallkit import config

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_CLUSTERS = config.MIN_CLUSTERS
"""Of equal size: see `effective_number`."""

MOST_GROUPS = 1024
"""Clusters are resampled singly up to this number, and beyond it in so many groups, drawn at random: a standard error is then known to
2 % (1 / sqrt(2 g)), and time and memory do not grow with the text."""

NUM_RESAMPLES = 2000

FAMILY_ERROR = 0.05
"""How often at least one of a command's models that do not differ from the reference is found to."""

_LEAST_FREEDOM = 1.0
_ROUNDED = 1e-9
"""Of the largest part: less than this does not move a ratio."""


def group_numbers(num_clusters: int) -> np.ndarray:
    """The group of each cluster, int64 (num_clusters,): a group of its own, or one of MOST_GROUPS of equal size."""
    if num_clusters <= MOST_GROUPS:
        return np.arange(num_clusters)
    groups: np.ndarray = np.random.default_rng(0).permutation(num_clusters) % MOST_GROUPS
    return groups


def resample_totals(blocks: Sequence[np.ndarray], num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> list[np.ndarray]:
    """Totals over resampled clusters, float64 (num_resamples, k), of each block of sums by cluster (n, k), from the same resamples.

    Each resample draws n of the n clusters with replacement (numpy's PCG64 from `seed`, resample after resample). Each block is
    multiplied separately, so that its totals do not depend, in any bit, on the other blocks.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    weights = draw_weights(np.random.Generator(np.random.PCG64(seed)), num_resamples, len(blocks[0]))
    with threadpool_limits(1, user_api="blas"):  # the last bits do not depend on the number of processors
        return [weights @ block for block in blocks]


def draw_weights(rng: np.random.Generator, num_resamples: int, num_clusters: int) -> np.ndarray:
    """How often each cluster is drawn in each resample, float64 (num_resamples, num_clusters); rows sum to num_clusters."""
    draws = rng.integers(0, num_clusters, size=(num_resamples, num_clusters))
    draws += np.arange(num_resamples)[:, None] * num_clusters
    counts = np.bincount(draws.ravel(), minlength=num_resamples * num_clusters)
    return counts.reshape(num_resamples, num_clusters).astype(np.float64)


def effective_number(sizes: np.ndarray) -> np.ndarray:
    """How many clusters of equal size tell as much as these, float64 (...): (sum n)^2 / sum n^2 of `sizes` (n, ...) in tokens; 0 of none.

    Kish's effective sample size, by which one cluster with half of the tokens is not counted as one of many.
    """
    sizes = np.asarray(sizes, np.float64)
    return ratio_of_squares(sizes.sum(axis=0), np.square(sizes).sum(axis=0))


def ratio_of_squares(total: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """`effective_number` from the sum of the sizes and the sum of their squares, both (...)."""
    effective: np.ndarray = np.square(total, dtype=np.float64) / np.maximum(squares, np.finfo(np.float64).tiny)
    return effective


def freedom_of(sizes: np.ndarray) -> np.ndarray:
    """Degrees of freedom of a variance estimated from clusters of `sizes` (n, ...), float64 (...): (sum n^2)^2 / sum n^4 - 1.

    Satterthwaite's approximation: a sum of squares, each in proportion to n^2, varies as one of so many equal ones. n - 1 for equal sizes.
    """
    squares = np.square(np.asarray(sizes, np.float64))
    return ratio_of_squares(squares.sum(axis=0), np.square(squares).sum(axis=0)) - 1.0


def freedom_of_ratio(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    """Degrees of freedom of the variance of the ratio r of two sums over clusters (n, ...), float64 (...): (sum z^2)^2 / sum z^4 - 1.

    z is what a cluster moves the ratio by, its part less r of its whole: where few clusters are unlike all others, they show the spread no
    better than so few clusters of equal size do (`freedom_of`). Without bound where no cluster moves it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        moves = parts - wholes * (parts.sum(axis=0) / wholes.sum(axis=0))
    moves[np.abs(moves) < _ROUNDED * np.abs(parts).max(axis=0)] = 0.0
    squares = np.square(moves)
    number = ratio_of_squares(squares.sum(axis=0), np.square(squares).sum(axis=0))
    return np.where(number > 0, number - 1.0, np.inf)


def expanded_interval(
    samples: np.ndarray, effective: np.ndarray | float, freedom: np.ndarray | float, confidence: float = 0.95
) -> np.ndarray:
    """Bounds (2, ...) of `samples` (num_resamples, ...), which are ratios resampled from `effective` (...) clusters.

    They are quantiles of the samples, as far in the tails as a t interval of m = `effective` clusters is wider than the normal
    interval of resampled means: at Phi(-+ sqrt(m / (m - 1)) t), t the quantile of Student's distribution with `freedom` (...), in place of
    m - 1, degrees of freedom (the expanded percentile interval of Hesterberg, The American Statistician 69, 2015; for clusters of
    unequal sizes see `freedom_of`). Samples that are not finite (a resample without the slice) are left out. NaN where m is
    below MIN_CLUSTERS, or nothing is left.
    """
    from scipy.special import ndtr, stdtrit  # type: ignore[import-untyped]

    if len(samples) == 0:
        return np.full((2, *samples.shape[1:]), np.nan)
    effective = np.broadcast_to(np.asarray(effective, np.float64), samples.shape[1:])
    number = np.maximum(effective, MIN_CLUSTERS)
    quantile = stdtrit(np.maximum(freedom, _LEAST_FREEDOM), (1.0 - confidence) / 2.0)
    tail = ndtr(np.sqrt(number / (number - 1)) * quantile)
    ordered = np.sort(np.where(np.isfinite(samples), samples, np.nan), axis=0)
    last = np.maximum(np.count_nonzero(~np.isnan(ordered), axis=0) - 1, 0)
    bounds = np.stack([_interpolate(ordered, tail * last), _interpolate(ordered, (1.0 - tail) * last)])
    return np.where(effective >= MIN_CLUSTERS, bounds, np.nan)


def _interpolate(ordered: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The value at the fractional rank `place` (...) of `ordered` (n, ...)."""
    below, above = (np.take_along_axis(ordered, rank(place).astype(np.int64)[None], axis=0)[0] for rank in (np.floor, np.ceil))
    result: np.ndarray = below + (above - below) * (place - np.floor(place))
    return result


def estimates(
    name: str, value: np.ndarray, samples: np.ndarray, effective: np.ndarray | float, freedom: np.ndarray | float
) -> dict[str, np.ndarray]:
    """The columns NAME, NAME_ci_low and NAME_ci_high: a figure (...) and its `expanded_interval`."""
    low, high = expanded_interval(samples, effective, freedom)
    return {name: value, f"{name}_ci_low": low, f"{name}_ci_high": high}


def p_values(figures: np.ndarray, freedom: np.ndarray, at: float = 0.0) -> np.ndarray:
    """Two-sided p-values (...) against a figure's being `at`: at most 0.05 where its 95 % interval excludes that; NaN without one.

    `figures` (3, ...): values with the ends of their intervals. The half of the interval towards `at` is taken for so many standard errors
    as it is of Student's distribution with `freedom` (...) degrees of freedom.
    """
    from scipy.special import stdtr, stdtrit

    value, low, high = figures
    freedom = np.maximum(freedom, _LEAST_FREEDOM)
    is_above = (low > at) | ((value > at) & (high >= at))
    half = np.where(is_above, value - low, high - value)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(value == at, 0.0, np.abs(value - at) / np.maximum(half, 0))
    found: np.ndarray = 2 * stdtr(freedom, -ratio * stdtrit(freedom, 0.975))
    return np.where(np.isnan(low), np.nan, found)


def holm(p: np.ndarray) -> np.ndarray:
    """Which of m hypotheses (m, ...) are rejected by Holm's step-down procedure at 5 % in all, bool; NaN is no hypothesis.

    Of m true ones, one or more is rejected in at most 5 % of cases, whatever depends on what (Holm, Scandinavian Journal of Statistics 6,
    1979).
    """
    order = np.argsort(p, axis=0)
    left = np.count_nonzero(~np.isnan(p), axis=0) - np.arange(len(p)).reshape(-1, *[1] * (p.ndim - 1))
    below = np.take_along_axis(p, order, axis=0) * np.maximum(left, 1) <= FAMILY_ERROR
    rejected = np.empty(p.shape, bool)
    np.put_along_axis(rejected, order, np.logical_and.accumulate(below, axis=0), axis=0)
    return rejected


def number_or_none(value: float) -> float | None:
    """A value for a table: None, not NaN, if it is unknown."""
    return None if math.isnan(value) else float(value)
