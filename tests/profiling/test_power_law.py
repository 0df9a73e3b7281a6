"""Power laws are those of highest likelihood, found again in samples, and judged by distances that
a hand can check."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.profiling.power_law import MIN_TAIL, PowerLaw, fit_power_law


def masses(weight: Callable[[int], float], x_min: int, x_max: int) -> np.ndarray:
    weights = [weight(d) for d in range(x_min, x_max + 1)]
    return np.array(weights) / math.fsum(weights)


def sample(
    weight: Callable[[int], float], x_min: int, x_max: int, number: int, seed: int = 0
) -> np.ndarray:
    histogram = np.zeros(x_max + 1, np.int64)
    histogram[x_min:] = np.random.default_rng(seed).multinomial(
        number, masses(weight, x_min, x_max)
    )
    return histogram


def likelihood(histogram: np.ndarray, x_min: int, weight: Callable[[int], float]) -> float:
    """Nats a distance, as the formula reads."""
    tail = histogram[x_min:]
    own = masses(weight, x_min, len(histogram) - 1)
    return math.fsum(int(n) * math.log(p) for n, p in zip(tail, own, strict=True) if n) / int(
        tail.sum()
    )


def highest(function: Callable[[float], float], low: float, high: float) -> float:
    """Golden-section search."""
    ratio = (math.sqrt(5) - 1) / 2
    while high - low > 1e-9:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if function(left) > function(right) else (left, high)
    return (low + high) / 2


def fitted(histogram: np.ndarray, x_min: int | None = None) -> PowerLaw:
    fit = fit_power_law(histogram, x_min)
    assert fit is not None
    return fit


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(0, 500), min_size=3, max_size=40).filter(
        lambda c: np.count_nonzero(c) > 1 and sum(c) >= MIN_TAIL
    ),
    x_min=st.integers(1, 3),
)
def test_the_exponent_has_the_highest_likelihood(counts, x_min):
    histogram = np.array([0] * x_min + counts)
    fit = fit_power_law(histogram, x_min)
    best = highest(lambda alpha: likelihood(histogram, x_min, lambda d: d**-alpha), -40, 40)
    if fit is None:
        assert abs(best) > 39
    elif abs(best) < 39:
        assert fit.alpha == pytest.approx(best, abs=2e-4)
        ours, theirs = (
            likelihood(histogram, x_min, lambda d, a=a: d**-a) for a in (fit.alpha, best)
        )
        assert ours >= theirs - 1e-12


def test_ks_by_hand():
    # The mean of ln d is that of four equal counts, (ln 2 + ln 3 + 2 ln 2) / 4: the exponent is 0
    # and each p a quarter.
    fit = fitted(np.array([0, 150, 0, 100, 150]), 1)
    assert fit.alpha == pytest.approx(0, abs=1e-9)
    assert fit.ks == pytest.approx(0.125)  # 0.375 0.375 0.625 1 against 0.25 0.5 0.75 1
    assert (fit.num_tail, fit.x_min, fit.x_max) == (400, 1, 4)


def test_the_tail_begins_where_the_law_does():
    histogram = sample(lambda d: 1.0, 1, 1023, 0)
    histogram[1:64] = 700
    histogram[64:] = np.random.default_rng(1).multinomial(
        30_000, masses(lambda d: d**-1.6, 64, 1023)
    )
    fit = fitted(histogram)
    assert fit.x_min == 64
    assert fit.alpha == pytest.approx(1.6, abs=0.06)
    assert fit.num_tail == 30_000
    distances = {start: fitted(histogram, start).ks for start in (1, 2, 4, 8, 16, 32, 64)}
    assert min(distances, key=distances.__getitem__) == 64
    assert fit.ks == distances[64]


def test_the_gain_is_the_difference_of_the_highest_likelihoods():
    histogram = sample(lambda d: d**-0.8 * math.exp(-d / 150), 1, 255, 20_000)
    fit = fitted(histogram, 1)
    own = likelihood(histogram, 1, lambda d: d**-fit.alpha)
    beta = highest(lambda b: likelihood(histogram, 1, lambda d: d**-b * (256 - d)), -5, 5)
    assert fit.gain_exposed == pytest.approx(
        likelihood(histogram, 1, lambda d: d**-beta * (256 - d)) - own, abs=1e-9
    )
    assert fit.alpha_exposed == pytest.approx(beta, abs=1e-5)


@pytest.mark.parametrize(
    ("weight", "is_exposed"), [(lambda d: d**-1.3, False), (lambda d: d**-1.1 * (1024 - d), True)]
)
def test_the_law_that_made_a_sample_fits_best(weight, is_exposed):
    assert (fitted(sample(weight, 1, 1023, 50_000), 1).gain_exposed > 0) is is_exposed


@pytest.mark.parametrize(
    "histogram",
    [
        np.zeros(100, np.int64),
        np.array([0, MIN_TAIL // 2, MIN_TAIL // 2 - 1, 0, 0]),
        np.array([0, 0, 5000, 0, 0]),
        np.zeros(1, np.int64),
    ],
)
def test_too_little_to_fit(histogram):
    assert fit_power_law(histogram) is None
    assert fit_power_law(histogram, 1) is None


@pytest.mark.parametrize(
    "histogram",
    [
        [0, 10**9, 1] + [0] * 3000,
        [0, 1] + [0] * 3000 + [10**9],
        [0, 0, 10**6, 10**6],
        [0, *[10**8] * 2047],
    ],
)
def test_extreme_histograms_end(histogram):
    fit = fit_power_law(np.array(histogram), 1)
    assert fit is None or math.isfinite(fit.alpha + fit.ks)
