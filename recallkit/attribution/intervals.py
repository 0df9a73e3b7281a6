"""Confidence intervals of the gap and of its shares, from the sums of each sequence.

One set of resamples serves every model, source, slice and threshold, so that what is printed side by side is paired.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recallkit.attribution.bootstrap import percentile_interval, resample_totals

if TYPE_CHECKING:
    import numpy as np

    from recallkit.attribution.cells import SequenceSums

SLICES = ("all", "ar_hit", "other")


@dataclass(frozen=True, slots=True)
class GapIntervals:
    """95 % percentile intervals, (2, ...) low and high: m models, 1 + s places (all sources first), 3 SLICES, c classes.

    NaN where fewer than two sequences hold tokens of the slice, or no resample gives a number.
    """

    delta_nll: np.ndarray  # (2, m, 1 + s, 3), nats a token
    share: np.ndarray  # (2, m, 1 + s, 3), of the gap of the same source
    class_share: np.ndarray  # (2, m, c), share of repeated tokens in count classes 0..c of the overall gap
    num_sequences: np.ndarray  # (1 + s, 3), sequences that hold tokens of the slice
    class_num_sequences: np.ndarray  # (c,)


def gap_intervals(sums: SequenceSums, num_resamples: int, seed: int) -> GapIntervals:
    """Intervals of every gap and share by resampling sequences; `num_resamples` 0 leaves them all out (NaN).

    Samples are made a model at a time: with all sources and slices side by side they are the largest arrays here.
    """
    import numpy as np

    num_sequences, num_models = sums.gaps.shape[:2]
    blocks = [block.reshape(num_sequences, -1) for block in (sums.tokens, sums.gaps, sums.class_gaps)]
    totals = resample_totals(np.hstack(blocks), num_resamples, seed)
    ends = np.cumsum([block.shape[1] for block in blocks])[:-1]
    parts = np.split(totals, ends, axis=1)
    tokens = _with_all(parts[0].reshape(-1, *sums.tokens.shape[1:]))
    gaps = parts[1].reshape(-1, *sums.gaps.shape[1:])
    class_gaps = parts[2].reshape(-1, *sums.class_gaps.shape[1:])

    held = np.count_nonzero(_with_all(sums.tokens), axis=0)
    class_held = np.count_nonzero(np.cumsum(sums.class_tokens, axis=1), axis=0)
    delta_nll, share, class_share = [], [], []
    for model in range(num_models):
        gap = _with_all(gaps[:, model])
        with np.errstate(divide="ignore", invalid="ignore"):
            delta_nll.append(_interval(gap / tokens, held))
            share.append(_interval(gap / gap[..., :1], held))
            class_share.append(_interval(np.cumsum(class_gaps[:, model], axis=1) / gap[:, :1, 0], class_held))
    return GapIntervals(
        delta_nll=np.stack(delta_nll, axis=1),
        share=np.stack(share, axis=1),
        class_share=np.stack(class_share, axis=1),
        num_sequences=held,
        class_num_sequences=class_held,
    )


def _with_all(sums: np.ndarray) -> np.ndarray:
    """(..., s, 2) sums of other tokens and AR hits to (..., 1 + s, 3): all sources together first, slices as in SLICES."""
    import numpy as np

    other, hits = sums[..., 0], sums[..., 1]
    by_source = np.stack([other + hits, hits, other], axis=-1)
    return np.concatenate([by_source.sum(axis=-2, keepdims=True), by_source], axis=-2)


def _interval(samples: np.ndarray, num_sequences: np.ndarray) -> np.ndarray:
    """(2, ...) bounds of the (num_resamples, ...) samples; one sequence says nothing of the spread between sequences."""
    import numpy as np

    if samples.shape[0] == 0:
        return np.full((2, *samples.shape[1:]), np.nan)
    bounds = np.stack(percentile_interval(np.where(np.isfinite(samples), samples, np.nan)))
    return np.where(num_sequences >= 2, bounds, np.nan)
