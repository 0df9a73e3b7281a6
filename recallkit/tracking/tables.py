"""A run's checkpoints by step: recall gain, NLLs and what is retained of a reference's recall; and
whether recall appears."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recallkit.display.notebook import NotebookResult
from recallkit.measure.ratio import Ratio, holm, p_values, ratio
from recallkit.measure.shares import efficiency, retained
from recallkit.storage.schemas import LAYOUTS, frame_of, frame_of_columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recallkit.measure.sums import TableSums

LEAST_GAIN = 0.01
"""Recall gain that is called recall: presence and position alone are worth half a point, the zoo's
weakest recaller has 4.5 (docs/track.md)."""

APPEARS, ABSENT, GONE, UNKNOWN = "appears", "absent", "gone", "unknown"
"""The verdicts on a run."""


@dataclass(frozen=True, slots=True, repr=False)
class TrackTables(NotebookResult):
    """A run's checkpoints by step, the reference (if there is one; step null) first.

    track: `tokens`, `ar_hits`, `documents` with AR hits and their effective number; each with
    `*_ci_low` and `*_ci_high` (95 % over documents): in nats per token `nll` of all tokens,
    `ar_nll` of AR hits, `first_nll` of the first occurrences of their bigrams in their sequences,
    `other_nll` of all other tokens; `gain`, the recall gain on AR hits, the mean of p(token) less p
    at that first occurrence, a fraction; and, where there is a reference, `retained`, the gain over
    the reference's, null where that is not shown to exceed 0.1 points, and `ar_gap`, the AR hits'
    NLL less the reference's. `causal`, on request: causal recall on AR hits, a fraction, the
    points of `InterveneTables`.

    verdict, one row. `appears`: the interval of the last checkpoint's gain is above LEAST_GAIN;
    `step` is the first one from which on the gain is above it, and its interval the same of the
    upper and of the lower ends of gains. `absent`: that interval is below LEAST_GAIN. `gone`: it
    is, but at `step`, the first such, the gain was above (Holm over all checkpoints). `unknown`:
    neither is shown; `step` as before, if there is one.

    by_slice, only with named slices: `tokens`, and with intervals `nll`, the recall `gain`, and
    `efficiency`, 1 less the summed NLL over that at first occurrences, null where tokens of the
    slice repeat no bigram.
    """

    track: pl.DataFrame
    verdict: pl.DataFrame
    by_slice: pl.DataFrame | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model of the table: its step (None: the reference), its score file, its row of `track`, its
    recall gain, and its rows of named slices, if there are any."""

    step: int | None
    file: Path
    row: dict[str, Any]
    gain: Ratio
    by_slice: pl.DataFrame | None = None


def measure(
    model: str,
    step: int | None,
    file: Path,
    sums: TableSums,
    reference: str | None = None,
    slices: Sequence[str] = (),
) -> Checkpoint:
    """The rows of a model: the last of `sums`, after the reference, if there is one.

    `slices`: those that are also followed, besides all tokens, AR hits and other tokens.
    """
    every, hits, other = (sums.slice(name) for name in ("all", "ar_hit", "other"))
    place, tokens = int(reference is not None), hits["tokens"]
    figures = {
        "nll": ratio(every[f"nll_{place}"], every["tokens"]),
        "ar_nll": ratio(hits[f"nll_{place}"], tokens),
        "first_nll": ratio(hits[f"first_nll_{place}"], tokens),
        "other_nll": ratio(other[f"nll_{place}"], other["tokens"]),
        "gain": ratio(hits.gain(place), tokens),
    }
    if reference is not None and step is not None:
        figures["retained"] = retained(hits.gain(place), hits.gain(0), tokens)
        figures["ar_gap"] = ratio(hits.gap(place), tokens)
    row: dict[str, Any] = dict.fromkeys(LAYOUTS["track/track"])
    row |= {
        "model": model,
        "step": step,
        "reference": reference,
        "tokens": int(every["tokens"].total[0]),
        "ar_hits": int(tokens.total[0]),
        "documents": hits.spread.clusters[0],
        "effective_documents": hits.spread.effective[0],
    }
    for name, figure in figures.items():
        row |= figure.row(name)
    by_slice = _rows_by_slice(sums.slice(*slices), place, model, step) if slices else None
    return Checkpoint(step, file, row, figures["gain"], by_slice)


def _rows_by_slice(sums: TableSums, place: int, model: str, step: int | None) -> pl.DataFrame:
    """The rows of `by_slice` of model number `place` of the sums of slices."""
    tokens = sums["tokens"]
    columns: dict[str, Any] = {"model": model, "step": step, "tokens": tokens.total}
    columns |= ratio(sums[f"nll_{place}"], tokens).columns("nll")
    columns |= ratio(sums.gain(place), tokens).columns("gain")
    columns |= efficiency(sums, place).columns("efficiency")
    return frame_of_columns("track/by_slice", sums.keys, columns)


def make_tables(checkpoints: Sequence[Checkpoint]) -> TrackTables:
    """The tables of checkpoints by ascending step, the reference, if there is one, first."""
    by_slice = [one.by_slice for one in checkpoints if one.by_slice is not None]
    steps = [one for one in checkpoints if one.step is not None]
    return TrackTables(
        track=frame_of("track/track", [one.row for one in checkpoints]),
        verdict=frame_of("track/verdict", [_verdict(steps)] if steps else []),
        by_slice=pl.concat(by_slice) if by_slice else None,
    )


# ---------------------------------------------------------------------------------------- verdict


def _verdict(checkpoints: Sequence[Checkpoint]) -> dict[str, Any]:
    """The row of `verdict`, of checkpoints by ascending step.

    The last checkpoint's own interval decides, so that a run that recalls nothing is called
    recalling no more often than one interval of 95 % lies above the truth, once in forty, however
    many checkpoints there are. That an earlier one was above holds for all of them together.
    """
    steps, gains = [one.step for one in checkpoints], [one.gain for one in checkpoints]
    ends = [(gain.value, gain.low, gain.high, gain.freedom) for gain in gains]
    value, low, high, freedom = np.hstack(ends)  # (steps,) each
    row: dict[str, Any] = dict.fromkeys(LAYOUTS["track/verdict"])
    if low[-1] > LEAST_GAIN:
        row["verdict"] = APPEARS
        # Where gains are at their upper ends, recall appears earlier.
        for name, curve in {"step": value, "step_ci_low": high, "step_ci_high": low}.items():
            below = np.flatnonzero(~(curve > LEAST_GAIN))
            row[name] = steps[below.max(initial=-1) + 1]
        return row
    is_above = holm(p_values(value, low, high, freedom, at=LEAST_GAIN)) & (value > LEAST_GAIN)
    if is_above.any():
        row["step"] = steps[is_above.argmax()]
    row["verdict"] = UNKNOWN
    if high[-1] < LEAST_GAIN:
        row["verdict"] = GONE if is_above.any() else ABSENT
    return row
