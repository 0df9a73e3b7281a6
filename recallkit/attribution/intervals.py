"""Confidence intervals of the gap and of its shares, from the sums of each sequence.

The same resamples are used for every model, source, slice and threshold, so that what is printed side by side is paired.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recallkit.attribution.bootstrap import percentile_interval, resample_blocks

if TYPE_CHECKING:
    import numpy as np

    from recallkit.attribution.cells import SequenceSums


@dataclass(frozen=True, slots=True)
class GapIntervals:
    """95 % percentile intervals, (2, ...) low and high: m models, 1 + s sources (all first), c classes of counts, p of PARTITION.

    k slices: those of STANDARD, then the requested ones. NaN if fewer than two sequences have tokens of the slice, or no
    resample gives a number.
    """

    delta_nll: np.ndarray  # (2, m, 1 + s, k), nats per token
    share: np.ndarray  # (2, m, 1 + s, k), of the gap of the same source
    class_share: np.ndarray  # (2, m, c), share of repeated tokens in count classes 0..c of the overall gap
    partition_share: np.ndarray  # (2, m, p), of the overall gap
    num_sequences: np.ndarray  # (1 + s, k), sequences that have tokens of the slice
    class_num_sequences: np.ndarray  # (c,)


def gap_intervals(sums: SequenceSums, num_resamples: int, seed: int) -> GapIntervals:
    """Intervals of every gap and share by resampling sequences; with `num_resamples` 0 all of them are NaN.

    Samples are computed one model at a time: over all sources and slices they are the largest arrays here.
    """
    import numpy as np

    num_models = sums.gaps.shape[1]
    blocks = [_flat(sums.tokens, sums.gaps, sums.class_gaps), _flat(sums.partition.gaps)]
    if sums.given is not None:
        blocks.append(_flat(sums.given.tokens, sums.given.gaps))
    whole, classes, *given = resample_blocks(blocks, num_resamples, seed)
    tokens, gaps, class_gaps = _apart(whole, sums.tokens, sums.gaps, sums.class_gaps)
    [part_gaps] = _apart(classes, sums.partition.gaps)
    given_tokens, given_gaps = (None, None) if sums.given is None else _apart(given[0], sums.given.tokens, sums.given.gaps)
    tokens = _with_all(tokens, given_tokens)

    held = np.count_nonzero(_with_all(sums.tokens, None if sums.given is None else sums.given.tokens), axis=0)
    class_held = np.count_nonzero(np.cumsum(sums.class_tokens, axis=1), axis=0)
    part_held = np.count_nonzero(sums.partition.tokens[:, 0], axis=0)
    delta_nll, share, class_share, partition_share = [], [], [], []
    for model in range(num_models):
        gap = _with_all(gaps[:, model], None if given_gaps is None else given_gaps[:, model])
        with np.errstate(divide="ignore", invalid="ignore"):
            delta_nll.append(_interval(gap / tokens, held))
            share.append(_interval(gap / gap[..., :1], held))
            class_share.append(_interval(np.cumsum(class_gaps[:, model], axis=1) / gap[:, :1, 0], class_held))
            partition_share.append(_interval(part_gaps[:, model, 0] / gap[:, :1, 0], part_held))
    return GapIntervals(
        delta_nll=np.stack(delta_nll, axis=1),
        share=np.stack(share, axis=1),
        class_share=np.stack(class_share, axis=1),
        partition_share=np.stack(partition_share, axis=1),
        num_sequences=held,
        class_num_sequences=class_held,
    )


def _flat(*sums: np.ndarray) -> np.ndarray:
    """Sums by sequence, of any shapes, concatenated: (n, ...) each to (n, k)."""
    import numpy as np

    return np.hstack([block.reshape(len(block), -1) for block in sums])


def _apart(totals: np.ndarray, *like: np.ndarray) -> list[np.ndarray]:
    """The totals of what `_flat` concatenated, in their shapes."""
    import numpy as np

    ends = np.cumsum([block[0].size for block in like])[:-1]
    return [part.reshape(-1, *block.shape[1:]) for part, block in zip(np.split(totals, ends, axis=1), like, strict=True)]


def _with_all(sums: np.ndarray, given: np.ndarray | None) -> np.ndarray:
    """(..., s, 2) sums of other tokens and AR hits, and of further slices, to (..., 1 + s, k): all sources first, STANDARD first."""
    import numpy as np

    other, hits = sums[..., 0], sums[..., 1]
    by_source = np.stack([other + hits, hits, other], axis=-1)
    by_source = by_source if given is None else np.concatenate([by_source, given], axis=-1)
    return np.concatenate([by_source.sum(axis=-2, keepdims=True), by_source], axis=-2)


def _interval(samples: np.ndarray, num_sequences: np.ndarray) -> np.ndarray:
    """(2, ...) bounds of the (num_resamples, ...) samples; NaN for one sequence, which shows no spread between sequences."""
    import numpy as np

    if samples.shape[0] == 0:
        return np.full((2, *samples.shape[1:]), np.nan)
    bounds = np.stack(percentile_interval(np.where(np.isfinite(samples), samples, np.nan)))
    return np.where(num_sequences >= 2, bounds, np.nan)
