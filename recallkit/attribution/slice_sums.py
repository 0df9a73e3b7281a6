"""Tokens and NLLs summed by slice and sequence, for any slices: masks of a batch's rows, sums of their runs, and what they add up to."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


@dataclass(frozen=True, slots=True)
class Runs:
    """Sums over runs of rows of one sequence and source that are in a slice: e runs in a batch, reference and m models."""

    slice: np.ndarray  # (e,) place of the slice
    sequence: np.ndarray  # (e,)
    source: np.ndarray  # (e,) code
    tokens: np.ndarray  # (e,) float64
    nlls: np.ndarray  # (1 + m, e) float64, in nats


@dataclass(frozen=True, slots=True)
class SliceSums:
    """Sums of k slices: n sequences, m models, s places of sources, t sources. NLLs and gaps in nats, gaps model minus reference."""

    tokens: np.ndarray  # (n, s, k)
    gaps: np.ndarray  # (n, m, s, k)
    source_tokens: np.ndarray  # (t, k)
    source_nlls: np.ndarray  # (1 + m, t, k), the reference first


def sum_runs(masks: Sequence[np.ndarray], sequence: np.ndarray, source: np.ndarray | None, nlls: Sequence[np.ndarray]) -> Runs:
    """The runs of a batch of rows: `masks` say which are in each slice, each of them bool (rows,), as `nlls` are float32 (rows,).

    Rows of a sequence come one after the other, and sources in documents, so that runs are few. Without `source` there is one.
    """
    import numpy as np

    parts = []
    for place, mask in enumerate(masks):
        rows = np.flatnonzero(mask)
        changes = np.diff(sequence[rows], prepend=-1) != 0
        if source is not None:
            changes |= np.diff(source[rows], prepend=-1) != 0
        starts = np.flatnonzero(changes)
        sums = [np.add.reduceat(nll[rows], starts, dtype=np.float64) if starts.size else np.empty(0) for nll in nlls]
        lengths = np.diff(starts, append=len(rows)).astype(np.float64)
        first = rows[starts]
        sources = np.zeros(len(starts), np.int64) if source is None else source[first].astype(np.int64)
        parts.append((np.full(len(starts), place), sequence[first], sources, lengths, np.stack(sums)))
    return Runs(*(np.concatenate(column, axis=-1) for column in zip(*parts, strict=True)))


def join_runs(batches: Sequence[Runs], sequences: np.ndarray, places: np.ndarray, num_slices: int) -> SliceSums:
    """Runs of all batches added up, their sources by one numbering: `sequences` ascend, as they occur in the labels.

    `places` (t,) is the place of each source among the s that are resampled.
    """
    import numpy as np

    runs = Runs(*(np.concatenate([getattr(batch, part.name) for batch in batches], axis=-1) for part in fields(Runs)))
    row = np.searchsorted(sequences, runs.sequence)
    num_places, num_sources = int(places.max()) + 1, len(places)
    by_sequence = (row * num_places + places[runs.source]) * num_slices + runs.slice
    by_source = runs.source * num_slices + runs.slice

    def scatter(entry: np.ndarray, values: np.ndarray, *shape: int) -> np.ndarray:
        return np.bincount(entry, weights=values, minlength=int(np.prod(shape))).reshape(shape)

    shape = (len(sequences), num_places, num_slices)
    return SliceSums(
        tokens=scatter(by_sequence, runs.tokens, *shape),
        gaps=np.stack([scatter(by_sequence, nll - runs.nlls[0], *shape) for nll in runs.nlls[1:]], axis=1),
        source_tokens=scatter(by_source, runs.tokens, num_sources, num_slices),
        source_nlls=np.stack([scatter(by_source, nll, num_sources, num_slices) for nll in runs.nlls]),
    )
