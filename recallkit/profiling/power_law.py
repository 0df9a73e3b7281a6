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


def fit_power_law(histogram: np.ndarray, x_min: int | None = None) -> PowerLaw | None:
    """The power law of distances 1..x_max; `histogram[d]` (int64, x_max + 1 entries) is the number of distances d.

    `x_min` is where the tail begins; if not given, the power of two that gives the smallest Kolmogorov-Smirnov distance, among
    those with MIN_TAIL distances in the tail and MIN_REACH x_min <= x_max (1 is always tried). None if the tail has fewer than
    MIN_TAIL distances, or if all are equal.
    """
    x_max = len(histogram) - 1
    powers = [1 << exponent for exponent in range(max(1, x_max).bit_length())]
    starts = [x_min] if x_min is not None else [start for start in powers if start == 1 or MIN_REACH * start <= x_max]
    fits = [(ks, start, alpha) for start in starts if (found := _fit_tail(histogram, start)) is not None for alpha, ks in [found]]
    if not fits:
        return None
    ks, start, alpha = min(fits)
    return _compared(histogram, start, alpha, ks)


def tail_alpha(mean_log: float, x_min: int, x_max: int) -> float | None:
    """The maximum-likelihood exponent if the mean of ln d over the tail is `mean_log`; None beyond -50..50.

    It decreases in the mean, so that percentiles of resampled means give those of resampled exponents.
    """
    from scipy.optimize import brentq  # type: ignore[import-untyped]

    logs = np.log(np.arange(x_min, x_max + 1))

    def excess(alpha: float) -> float:
        return float(np.exp(_log_masses(np.array([-alpha]), logs[None], np.zeros(len(logs)))) @ logs) - mean_log

    if not excess(-_STEEPEST) > 0 > excess(_STEEPEST):
        return None
    return float(brentq(excess, -_STEEPEST, _STEEPEST, xtol=1e-13))


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
    room = np.log(x_max + 1 - support)  # of x_max + 1 predictions, so many are at least d after the first
    of_power_law = float(shares @ _log_masses(np.array([-alpha]), logs[None], even))

    def gain(statistics: Sequence[np.ndarray], start: Sequence[float], weight: np.ndarray) -> tuple[float | None, np.ndarray | None]:
        theta = _most_likely(np.stack(statistics), shares, weight, np.array(start))
        if theta is None:
            return None, None
        return float(shares @ _log_masses(theta, np.stack(statistics), weight)) - of_power_law, theta

    mean = float(shares @ support) - x_min
    geometric, _ = gain([support / x_max], [x_max * float(np.log(mean / (1 + mean)))], even)
    lognormal, _ = gain([logs, logs**2], [-alpha, 0.0], even) if np.count_nonzero(shares) > 2 else (None, None)
    exposed, theta = gain([logs], [-alpha], room)
    return PowerLaw(
        alpha, x_min, x_max, int(histogram[x_min:].sum()), ks, geometric, lognormal, exposed, None if theta is None else -float(theta[0])
    )


def _log_masses(theta: np.ndarray, statistics: np.ndarray, log_weight: np.ndarray) -> np.ndarray:
    """ln p(d) (n,) of the family with `statistics` (k, n), `log_weight` (n,) and parameters `theta` (k,)."""
    exponents = theta @ statistics + log_weight
    largest = exponents.max()
    masses: np.ndarray = exponents - (largest + np.log(np.exp(exponents - largest).sum()))
    return masses


def _most_likely(statistics: np.ndarray, shares: np.ndarray, log_weight: np.ndarray, start: np.ndarray) -> np.ndarray | None:
    """Parameters (k,) of the highest likelihood for `shares` (n,) of the distances, from `start` on; None where none is found.

    The likelihood is concave: its gradient is the difference of the means of the statistics, its curvature their covariance.
    """
    from scipy.optimize import minimize

    means = statistics @ shares

    def cost(theta: np.ndarray) -> tuple[float, np.ndarray]:
        logs = _log_masses(theta, statistics, log_weight)
        return -float(shares @ logs), statistics @ np.exp(logs) - means

    def curvature(theta: np.ndarray) -> np.ndarray:
        masses = np.exp(_log_masses(theta, statistics, log_weight))
        centred = statistics - (statistics @ masses)[:, None]
        curved: np.ndarray = (centred * masses) @ centred.T
        return curved

    found = minimize(cost, start, jac=True, hess=curvature, method="trust-exact", options={"gtol": 1e-9, "maxiter": 400})
    return np.asarray(found.x) if np.linalg.norm(found.jac) < 1e-6 else None
