"""Tokens and NLLs summed by sequence, source and slice, batch by batch, and the sums over all batches."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from recallkit.ragged import run_starts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

_BLOCK = 1 << 15
"""Rows summed at a time: the temporaries stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of one or several batches: e entries, each of a sequence, a source and a slice; most combinations do not occur."""

    slice: np.ndarray  # index of the slice among k
    sequence: np.ndarray  # (e,)
    source: np.ndarray  # (e,) code
    tokens: np.ndarray  # (e,)
    values: np.ndarray  # (v, e) float64: NLLs of the reference and m models, or m gaps, in nats


@dataclass(frozen=True, slots=True)
class SliceSums:
    """Sums of k slices: n sequences, m models, s source indices, t sources. NLLs and gaps in nats, gaps model minus reference."""

    tokens: np.ndarray  # (n, s, k)
    gaps: np.ndarray  # (n, m, s, k)
    source_tokens: np.ndarray  # (t, k)
    source_nlls: np.ndarray  # (1 + m, t, k), the reference first


def sum_rows(slice_: np.ndarray, sequence: np.ndarray, source: np.ndarray, nlls: Sequence[np.ndarray], num_slices: int) -> Sums:
    """The sums of a batch of rows, each in one slice: all (rows,).

    Rows of a sequence are contiguous, and so are sources, document by document, so that runs of both are few: an entry is one run.
    """
    import numpy as np

    if len(sequence) > _BLOCK:
        blocks = (slice(start, start + _BLOCK) for start in range(0, len(sequence), _BLOCK))
        return join_sums([sum_rows(slice_[at], sequence[at], source[at], [nll[at] for nll in nlls], num_slices) for at in blocks])
    starts = run_starts(sequence, source)
    entry = np.repeat(np.arange(len(starts)) * num_slices, np.diff(starts, append=len(sequence)))
    entry += slice_
    tokens = np.bincount(entry)
    occur = np.flatnonzero(tokens)
    first = starts[occur // num_slices]
    return Sums(
        slice=occur % num_slices,
        sequence=sequence[first],
        source=source[first],
        tokens=tokens[occur],
        values=np.stack([np.bincount(entry, weights=nll)[occur] for nll in nlls]),
    )


def sum_cells(cells: Sums) -> Sums:
    """Cells of the same sequence, source and slice added up, in their order."""
    import numpy as np

    num_sources, num_slices = (int(codes.max(initial=0)) + 1 for codes in (cells.source, cells.slice))
    key = (cells.sequence.astype(np.int64) * num_sources + cells.source) * num_slices + cells.slice
    _, first, entry = np.unique(key, return_index=True, return_inverse=True)
    return Sums(
        slice=cells.slice[first],
        sequence=cells.sequence[first],
        source=cells.source[first],
        tokens=np.bincount(entry, weights=cells.tokens),
        values=np.stack([np.bincount(entry, weights=value) for value in cells.values]),
    )


def join_sums(batches: Sequence[Sums], codes: Sequence[np.ndarray] | None = None) -> Sums:
    """The entries of all batches, concatenated; `codes` of each number its sources in one common order."""
    import numpy as np

    if codes is not None:
        batches = [replace(batch, source=own[batch.source]) for batch, own in zip(batches, codes, strict=True)]
    return Sums(*(np.concatenate([getattr(batch, part.name) for batch in batches], axis=-1) for part in fields(Sums)))


def add_up(sums: Sums, sequences: np.ndarray, places: np.ndarray, num_slices: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (n, s, k) and values (n, v, s, k) by sequence; `sequences` (n,) ascend, `places` (t,) are the indices of sources among s."""
    import numpy as np

    return _scatter(
        sums, np.searchsorted(sequences, sums.sequence), places[sums.source], (len(sequences), int(places.max()) + 1, num_slices)
    )


def sum_slices(sums: Sums, sequences: np.ndarray, places: np.ndarray, num_slices: int) -> SliceSums:
    """The sums of slices, whose values are NLLs, by sequence (see `add_up`) and by source."""
    import numpy as np

    tokens, nlls = add_up(sums, sequences, places, num_slices)
    source_tokens, source_nlls = _scatter(sums, np.zeros_like(sums.slice), sums.source, (1, len(places), num_slices))
    return SliceSums(tokens, nlls[:, 1:] - nlls[:, :1], source_tokens[0], source_nlls[0])


def _scatter(sums: Sums, row: np.ndarray, place: np.ndarray, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    entry, size = np.ravel_multi_index((row, place, sums.slice), shape), int(np.prod(shape))
    tokens, *values = (np.bincount(entry, weights=part, minlength=size).reshape(shape) for part in (sums.tokens, *sums.values))
    return tokens, np.stack(values, axis=1)
