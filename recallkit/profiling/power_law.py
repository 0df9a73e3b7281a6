"""A power law of distances, fitted by maximum likelihood, and one that knows the window.

Clauset, Shalizi and Newman 2009 (arXiv 0706.1062), for bounded whole numbers: a distance cannot
exceed the length of its sequence, so the power law is a zeta distribution truncated at both ends.
Both laws, p(d) = w(d) d^-alpha / Z, are exponential families: their likelihood has one maximum, and
depends on the data only through the mean of ln d.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MIN_TAIL = 100
"""Fewest distances that a distribution is fitted to."""
MIN_REACH = 8
"""The tail extends from x_min to 8 x_min or more: fewer octaves are little evidence of a law."""
_STEEPEST = 50.0
"""Exponents are searched in -50..50: beyond, all mass is on a single distance."""


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """p(d) proportional to d^-alpha on x_min..x_max, fitted to `num_tail` distances.

    `ks` is the Kolmogorov-Smirnov distance, the largest difference of the two distribution
    functions (0 to 1). `gain_exposed` is the log-likelihood of another law on the same tail minus
    that of the power law, in nats per distance: above 0 the other fits better; None if it has no
    fit. It is d^-`alpha_exposed` times the number of predictions of a full sequence that have d
    others before them.
    """

    alpha: float
    x_min: int
    x_max: int
    num_tail: int
    ks: float
    gain_exposed: float | None
    alpha_exposed: float | None


def fit_power_law(histogram: np.ndarray, x_min: int | None = None) -> PowerLaw | None:
    """The power law of distances 1..x_max.

    `histogram[d]` (int64, x_max + 1 entries) is the number of distances d. `x_min` is where the
    tail begins; if it is None, the power of two with the smallest Kolmogorov-Smirnov distance,
    among those with MIN_TAIL distances in the tail and MIN_REACH x_min <= x_max (1 is always
    tried). None if the tail has fewer than MIN_TAIL distances, or if all are equal.
    """
    x_max = len(histogram) - 1
    starts = [1 if x_min is None else x_min]
    while x_min is None and MIN_REACH * 2 * starts[-1] <= x_max:
        starts.append(2 * starts[-1])
    fits = []
    for start in starts:
        fit = _fit_tail(histogram, start)
        if fit is not None:
            fits.append((fit[1], start, fit[0]))
    if not fits:
        return None
    ks, start, alpha = min(fits)
    return _compared(histogram, start, alpha, ks)


def tail_alpha(
    mean_log: float,
    x_min: int,
    x_max: int,
    log_weight: np.ndarray | float = 0.0,
) -> float | None:
    """The exponent of highest likelihood if the mean of ln d over the tail is `mean_log`.

    None beyond -50..50. `log_weight`: of a power law times a weight, its logarithm at each
    distance. The exponent decreases in the mean, so that percentiles of resampled means give those
    of resampled exponents.
    """
    from scipy.optimize import brentq  # type: ignore[import-untyped]

    logs = np.log(np.arange(x_min, x_max + 1))

    def excess(alpha: float) -> float:
        return float(np.exp(_log_masses(alpha, logs, log_weight)) @ logs) - mean_log

    if not excess(-_STEEPEST) > 0 > excess(_STEEPEST):
        return None
    return float(brentq(excess, -_STEEPEST, _STEEPEST, xtol=1e-13))


def power_law_masses(alpha: float, x_min: int, x_max: int) -> np.ndarray:
    """p(d) for d = x_min..x_max, float64."""
    masses: np.ndarray = np.exp(_log_masses(alpha, np.log(np.arange(x_min, x_max + 1))))
    return masses


def _fit_tail(histogram: np.ndarray, x_min: int) -> tuple[float, float] | None:
    """(alpha, Kolmogorov-Smirnov distance) of the tail from `x_min` on, if it has a fit."""
    tail = histogram[x_min:]
    num_tail = int(tail.sum())
    if num_tail < MIN_TAIL or np.count_nonzero(tail) < 2:
        return None
    x_max = len(histogram) - 1
    mean_log = float(tail @ np.log(np.arange(x_min, x_max + 1))) / num_tail
    alpha = tail_alpha(mean_log, x_min, x_max)
    if alpha is None:
        return None
    expected = np.cumsum(power_law_masses(alpha, x_min, x_max))
    return alpha, float(np.abs(np.cumsum(tail) / num_tail - expected).max())


def _compared(histogram: np.ndarray, x_min: int, alpha: float, ks: float) -> PowerLaw:
    """The fit and its comparison with `exposed` on the same tail."""
    x_max, tail = len(histogram) - 1, histogram[x_min:]
    support = np.arange(x_min, x_max + 1)
    logs, shares = np.log(support), tail / tail.sum()
    # Of 2,048 predictions 2,048 - d have d others before them; x_max is 2,047.
    room = np.log(x_max + 1 - support)
    exposed, gain = tail_alpha(float(shares @ logs), x_min, x_max, room), None
    if exposed is not None:
        gain = float(shares @ (_log_masses(exposed, logs, room) - _log_masses(alpha, logs)))
    return PowerLaw(alpha, x_min, x_max, int(tail.sum()), ks, gain, exposed)


def _log_masses(
    alpha: float,
    logs: np.ndarray,
    log_weight: np.ndarray | float = 0.0,
) -> np.ndarray:
    """ln p(d) (n,) of the power law at distances with these `logs` (n,), times a weight."""
    exponents = log_weight - alpha * logs
    largest = exponents.max()
    masses: np.ndarray = exponents - (largest + np.log(np.exp(exponents - largest).sum()))
    return masses
