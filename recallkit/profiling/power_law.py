"""A power law of distances, fitted by maximum likelihood to a histogram, compared with alternative distributions.

Clauset, Shalizi and Newman 2009 (arXiv 0706.1062), for bounded whole numbers: a distance cannot exceed the length of
its sequence, so the power law is a zeta distribution truncated at both ends. All distributions here are exponential families,
p(d) = w(d) exp(theta . T(d)) / Z: their likelihood has one maximum, and depends on the data only through the means of T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_TAIL = 100
"""Fewest distances that a distribution is fitted to."""
MIN_REACH = 8
"""The tail extends from x_min to at least 8 x_min: a straight line over fewer octaves is little evidence of a power law."""
_MAX_STEPS = 200
_PRECISION = 1e-12
_STEEPEST = 50.0
"""Exponents are searched in -50..50: beyond, all mass is on a single distance."""


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """p(d) proportional to d^-alpha on x_min..x_max, fitted to `num_tail` distances.

    `ks` is the Kolmogorov-Smirnov distance, the largest difference of the two distribution functions (0 to 1). A gain is the
    log-likelihood of another distribution on the same tail minus that of the power law, in nats per distance: above 0 the other
    fits better; None if it has no fit. `geometric` is an exponential law; `lognormal` has a quadratic in ln d as its
    exponent and contains the power law as a special case (one more parameter, so its gain is never below 0); `exposed` is
    d^-alpha times the number of predictions of a full sequence that have d others before them.
    """

    alpha: float
    x_min: int
    x_max: int
    num_tail: int
    ks: float
    gain_geometric: float | None
    gain_lognormal: float | None
    gain_exposed: float | None
    alpha_exposed: float | None


def cut_points(x_max: int, given: int | None = None) -> list[int]:
    """Distances at which a tail may begin: the powers of two up to `x_max`, and `given`, in ascending order."""
    powers = {1 << exponent for exponent in range(max(1, x_max).bit_length())}
    return sorted(powers | ({given} if given is not None else set()))


def fit_power_law(histogram: np.ndarray, x_min: int | None = None) -> PowerLaw | None:
    """The power law of distances 1..x_max; `histogram[d]` (int64, x_max + 1 entries) is the number of distances d.

    `x_min` is where the tail begins; if not given, the power of two that gives the smallest Kolmogorov-Smirnov distance, among
    those with MIN_TAIL distances in the tail and MIN_REACH x_min <= x_max (1 is always tried). None if the tail has fewer than
    MIN_TAIL distances, or if all are equal.
    """
    x_max = len(histogram) - 1
    starts = [x_min] if x_min is not None else [s for s in cut_points(x_max) if s == 1 or MIN_REACH * s <= x_max]
    fits = [(ks, start, alpha) for start in starts if (found := _fit_tail(histogram, start)) is not None for alpha, ks in [found]]
    if not fits:
        return None
    ks, start, alpha = min(fits)
    return _compared(histogram, start, alpha, ks)


def tail_alpha(mean_log: float, x_min: int, x_max: int) -> float | None:
    """The maximum-likelihood exponent if the mean of ln d over the tail is `mean_log`; None beyond -50..50.

    It decreases in the mean, so that percentiles of resampled means give those of resampled exponents.
    """
    logs = np.log(np.arange(x_min, x_max + 1))
    return _solve_alpha(mean_log, logs, np.zeros(len(logs)))


def power_law_masses(alpha: float, x_min: int, x_max: int) -> np.ndarray:
    """p(d) for d = x_min..x_max, float64."""
    logs = np.log(np.arange(x_min, x_max + 1))
    masses: np.ndarray = np.exp(_log_masses(np.array([-alpha]), logs[None], np.zeros(len(logs))))
    return masses


def _fit_tail(histogram: np.ndarray, x_min: int) -> tuple[float, float] | None:
    """(alpha, Kolmogorov-Smirnov distance) of the tail from `x_min` on, if it has a fit."""
    tail = histogram[x_min:]
    num_tail = int(tail.sum())
    if num_tail < MIN_TAIL or np.count_nonzero(tail) < 2:
        return None
    x_max = len(histogram) - 1
    alpha = tail_alpha(float(tail @ np.log(np.arange(x_min, x_max + 1))) / num_tail, x_min, x_max)
    if alpha is None:
        return None
    expected = np.cumsum(power_law_masses(alpha, x_min, x_max))
    return alpha, float(np.abs(np.cumsum(tail) / num_tail - expected).max())


def _compared(histogram: np.ndarray, x_min: int, alpha: float, ks: float) -> PowerLaw:
    """The fit and its comparison with the other distributions on the same tail."""
    x_max = len(histogram) - 1
    support = np.arange(x_min, x_max + 1, dtype=np.float64)
    shares = histogram[x_min:] / histogram[x_min:].sum()
    logs, even = np.log(support), np.zeros(len(support))
    own = float(shares @ _log_masses(np.array([-alpha]), logs[None], even))

    def gain(statistics: Sequence[np.ndarray], start: Sequence[float], weight: np.ndarray) -> tuple[float, np.ndarray] | None:
        table = np.stack(statistics)
        theta = _solve(table, table @ shares, weight, np.array(start))
        return None if theta is None else (float(shares @ _log_masses(theta, table, weight)) - own, theta)

    room = np.log(x_max + 1 - support)  # of x_max + 1 predictions, so many are at least d after the first
    mean = float(shares @ support) - x_min
    geometric = gain([support / x_max], [x_max * float(np.log(mean / (1 + mean)))], even)
    lognormal = gain([logs, logs**2], [-alpha, 0.0], even) if np.count_nonzero(shares) > 2 else None
    exposed = gain([logs], [-alpha], room)
    gains = [None if found is None else found[0] for found in (geometric, lognormal, exposed)]
    alpha_exposed = None if exposed is None else -float(exposed[1][0])
    return PowerLaw(alpha, x_min, x_max, int(histogram[x_min:].sum()), ks, gains[0], gains[1], gains[2], alpha_exposed)


def _log_masses(theta: np.ndarray, statistics: np.ndarray, log_weight: np.ndarray) -> np.ndarray:
    """ln p(d) (n,) of the family with `statistics` (k, n), `log_weight` (n,) and parameters `theta` (k,)."""
    exponents = theta @ statistics + log_weight
    largest = exponents.max()
    masses: np.ndarray = exponents - (largest + np.log(np.exp(exponents - largest).sum()))
    return masses


def _solve_alpha(mean: float, logs: np.ndarray, log_weight: np.ndarray) -> float | None:
    """The alpha whose mean of ln d is `mean`: Newton's method, with bisection if a step would leave the bracket."""
    low, high = -_STEEPEST, _STEEPEST
    alpha = 1.0
    for _ in range(_MAX_STEPS):
        masses = np.exp(_log_masses(np.array([-alpha]), logs[None], log_weight))
        expected = float(masses @ logs)
        low, high = (alpha, high) if expected > mean else (low, alpha)
        variance = float(masses @ (logs - expected) ** 2)
        following = alpha + (expected - mean) / variance if variance > 0 else np.nan
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - alpha) <= _PRECISION * max(1.0, abs(alpha)):
            return None if abs(following) > _STEEPEST - 1e-6 else float(following)
        alpha = following
    return None


def _solve(statistics: np.ndarray, means: np.ndarray, log_weight: np.ndarray, theta: np.ndarray) -> np.ndarray | None:
    """Parameters (k,) at which the means of `statistics` (k, n) are `means` (k,): Newton's method with step halving."""

    def cost(at: np.ndarray) -> float:
        exponents = at @ statistics + log_weight
        return float(exponents.max() + np.log(np.exp(exponents - exponents.max()).sum()) - at @ means)

    best = cost(theta)
    for _ in range(_MAX_STEPS):
        masses = np.exp(_log_masses(theta, statistics, log_weight))
        expected = statistics @ masses
        centred = statistics - expected[:, None]
        try:
            step = np.linalg.solve((centred * masses) @ centred.T, means - expected)
        except np.linalg.LinAlgError:
            return None
        slope = float(step @ (means - expected))  # twice the predicted gain of the step, in nats
        if slope < 1e-14:
            return theta
        length = 1.0
        while (after := cost(theta + length * step)) > best - 1e-4 * length * slope and length > 1e-9:
            length /= 2
        if length <= 1e-9:
            return theta if slope < 1e-9 else None
        theta, best = theta + length * step, after
    return None
