"""95 % confidence intervals of gaps and of shares of them, by resampling clusters of text.

The same resamples are used for every model, source, slice and bucket, so that what is printed side by side is paired.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recallkit.attribution.bootstrap import expanded_interval, resample_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recallkit.attribution.collect import ClusterSums


@dataclass(frozen=True, slots=True)
class GapIntervals:
    """Intervals of the K rows of a breakdown, (2, ...) low and high, for m models and 1 + s sources (all first; 1 if not by source).

    NaN where the effective number of clusters is below `bootstrap.MIN_CLUSTERS`, or no resample gives a number.
    """

    delta_nll: np.ndarray  # (2, m, 1 + s, K), nats per token
    share: np.ndarray  # (2, m, 1 + s, K), of the gap of the same source
    clusters: np.ndarray  # (1 + s, K), that have tokens of the row
    effective: np.ndarray  # (1 + s, K)


def gap_intervals(sums: Mapping[str, ClusterSums], whole: str, num_resamples: int, seed: int) -> dict[str, GapIntervals]:
    """Intervals of each breakdown; `whole`: the one whose first row is all tokens, by source. With `num_resamples` 0 all are NaN.

    A share is a ratio of two sums: its effective number of clusters is the smaller one of the row's and of all tokens', and so are its
    degrees of freedom.
    """
    totals = dict(zip(sums, resample_blocks([_flat(part) for part in sums.values()], num_resamples, seed), strict=True))
    whole_gap = np.stack([_with_all(gaps, sums[whole])[..., :1] for gaps in _apart(totals[whole], sums[whole])[1]])
    of_whole = sums[whole].effective[:, :1], sums[whole].freedom[:, :1]
    return {name: _intervals(part, totals[name], whole_gap, of_whole) for name, part in sums.items()}


def _intervals(sums: ClusterSums, totals: np.ndarray, whole_gap: np.ndarray, of_whole: tuple[np.ndarray, np.ndarray]) -> GapIntervals:
    """One model at a time: over all sources and rows, samples are the largest arrays here. `whole_gap`: (m, num_resamples, 1 + s, 1).

    `of_whole`: the effective number of clusters of all tokens, and their degrees of freedom, (1 + s, 1).
    """
    held = np.flatnonzero(sums.clusters[0])  # rows without a token need no samples
    all_tokens, gaps = _apart(totals, sums)
    tokens, num_sources = _with_all(all_tokens, sums)[..., held], len(sums.effective)
    of_row = sums.effective[:, held], sums.freedom[:, held]
    of_share = [np.minimum(row, whole[:num_sources]) for row, whole in zip(of_row, of_whole, strict=True)]
    delta_nll, share = (np.full((2, len(gaps), *sums.effective.shape), np.nan) for _ in range(2))
    for model, (model_gaps, whole) in enumerate(zip(gaps, whole_gap, strict=True)):
        rows = _with_all(model_gaps, sums)[..., held]
        with np.errstate(divide="ignore", invalid="ignore"):
            delta_nll[:, model, :, held] = np.moveaxis(expanded_interval(rows / tokens, *of_row), -1, 0)
            share[:, model, :, held] = np.moveaxis(expanded_interval(rows / whole[:, :num_sources], *of_share), -1, 0)
    return GapIntervals(delta_nll, share, sums.clusters, sums.effective)


def _flat(sums: ClusterSums) -> np.ndarray:
    """Sums by group, side by side: (g, (1 + m) s K)."""
    return np.hstack([part.reshape(len(part), -1) for part in (sums.tokens, sums.gaps)])


def _apart(totals: np.ndarray, sums: ClusterSums) -> tuple[np.ndarray, np.ndarray]:
    """Totals of what `_flat` put side by side: tokens (num_resamples, s, K) and gaps (m, num_resamples, s, K)."""
    end = sums.tokens[0].size
    tokens = totals[:, :end].reshape(-1, *sums.tokens.shape[1:])
    return tokens, np.moveaxis(totals[:, end:].reshape(-1, *sums.gaps.shape[1:]), 1, 0)


def _with_all(rows: np.ndarray, sums: ClusterSums) -> np.ndarray:
    """(..., s, K) sums to (..., 1 + s, K), all sources first; to (..., 1, K) if not by source."""
    return rows if len(sums.effective) == 1 else np.concatenate([rows.sum(axis=-2, keepdims=True), rows], axis=-2)
