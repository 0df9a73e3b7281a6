"""NLLs of a run's checkpoints and what they recall by association, a row per checkpoint, with 95 % intervals over documents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display.notebook import Shown
from recallkit.measure.intervals import NUM_RESAMPLES, estimates, expanded_interval, number_or_none
from recallkit.measure.labelled import open_scores
from recallkit.measure.sums import RowSums, add_up, resampled
from recallkit.storage.schemas import frame_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.intervening.run import AskedHits
    from recallkit.measure.labelled import LabelledTokens

LEAST_RECALL = 0.2
"""Nats per AR hit that are called recall: the zoo's models that learnt to recall no list reach LOW, those that did HIGH (docs/track.md)."""

ALL, HITS, OTHER, FIRST = range(4)
"""The rows of `read_sums`: all tokens, AR hits, all other tokens, and the first occurrences of the AR hits' bigrams."""

APPEARS, ABSENT, GONE, UNKNOWN = "appears", "absent", "gone", "unknown"
"""The verdicts on a run."""


@dataclass(frozen=True, slots=True, repr=False)
class TrackTables(Shown):
    """A run's checkpoints by step, the reference (if there is one; step null) first.

    track: `tokens`, `ar_hits`, `documents` with sampled AR hits and their effective number; in nats per token, each with
    `*_ci_low` and `*_ci_high` (95 % over documents): `nll` of all tokens, `ar_nll` of AR hits, `first_nll` of the first occurrences of
    their bigrams in their sequences, `other_nll` of all tokens that are no AR hits, `recall`, what AR hits lose where ids of their earlier
    matches are moved less what as many moves elsewhere cost (docs/causal.md), and `ar_gap`, the AR hits' NLL less the reference's.

    verdict, one row. `appears`: the interval of the last checkpoint's recall is above LEAST_RECALL; `step` is the first one from which on
    recall is above it, with an interval (null: later than the last). `absent`: that interval is below LEAST_RECALL. `gone`: it is, but at
    `step`, the first such, recall was above, by intervals that hold for all checkpoints together. `unknown`: neither is shown; `step`
    as before, if there is one.

    by_context, only with `context_gain`: `step`, and the columns of `GapTables.by_context` of that checkpoint's gap to the reference.
    """

    track: pl.DataFrame
    verdict: pl.DataFrame
    by_context: pl.DataFrame | None = None


@dataclass(frozen=True, slots=True)
class Tracked:
    """A model of the table: its name, its step (None: the reference), its sums, one of those of `read_sums`, and the nats that it recalls.

    `recalled` (n,): of each sampled hit (`intervening.association`).
    """

    name: str
    step: int | None
    sums: RowSums
    recalled: np.ndarray


def read_sums(tokens: LabelledTokens, scores: Sequence[Path]) -> list[RowSums]:
    """The sums of each score file, in rows ALL, HITS, OTHER and FIRST. Raises UserError if a file is damaged, or of other sequences."""
    found = add_up(tokens, [open_scores(path, tokens) for path in scores], every_table=False)
    names, of_first = (list(found.rows[table].keys["slice"]) for table in ("slices", "first"))
    slices = found.tables["slices"].at(np.array([names.index(name) for name in ("all", "ar_hit", "other")]))
    first = found.tables["first"].at(np.array([of_first.index("ar_hit")]))
    every = RowSums.joined([slices, first])
    return [replace(every, nlls=every.nlls[[model]]) for model in range(len(scores))]


def make_tables(models: Sequence[Tracked], hits: AskedHits, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> TrackTables:
    """The tables of models, in their order; a model of step None, if there is one, is the reference. All are resampled alike."""
    if not models:
        return TrackTables(frame_of("track/track", []), frame_of("track/verdict", []))
    sizes = models[0].sums
    every = replace(sizes, nlls=np.concatenate([model.sums.nlls for model in models]))
    reference = next((place for place, model in enumerate(models) if model.step is None), None)
    of_text, drawn = (_figures(totals, reference) for totals in (every.totals, resampled([every], num_resamples, seed)[0]))
    values = {name: np.vstack([of_text[name], drawn[name].T]) for name in of_text}  # first the text itself, then its resamples
    values["recall"] = hits.means(np.column_stack([model.recalled for model in models]), num_resamples, seed)
    number, effective, freedom = hits.documents
    facts = {
        "reference": None if reference is None else models[reference].name,
        "tokens": int(sizes.tokens[:, ALL].sum()),
        "ar_hits": int(sizes.tokens[:, HITS].sum()),
        "documents": number,
        "effective_documents": effective,
    }
    rows: list[dict[str, Any]] = [{"model": model.name, "step": model.step, **facts} for model in models]
    for name, value in values.items():
        of = ALL if name in ("nll", "other_nll") else HITS
        of_name = (effective, freedom) if name == "recall" else (sizes.effective[of], sizes.freedom[of])
        for column, of_models in estimates(name, value[0], value[1:], *of_name).items():
            for row, one in zip(rows, of_models, strict=True):
                row[column] = number_or_none(one)
    steps = [place for place, model in enumerate(models) if model.step is not None]
    order = sorted(steps, key=lambda place: models[place].step or 0)
    verdict = _verdict([rows[place] for place in order], values["recall"][:, order], effective, freedom)
    return TrackTables(frame_of("track/track", rows), frame_of("track/verdict", verdict))


def _figures(totals: np.ndarray, reference: int | None) -> dict[str, np.ndarray]:
    """Columns with intervals, each (m, ...), of totals (1 + m, ..., 4): tokens, then the NLLs of m models, in nats."""
    with np.errstate(divide="ignore", invalid="ignore"):
        nll, hits, other, first = np.moveaxis(totals[1:] / totals[0], -1, 0)
    gap = np.full_like(hits, np.nan) if reference is None else hits - hits[reference]
    return {"nll": nll, "ar_nll": hits, "first_nll": first, "other_nll": other, "ar_gap": gap}


# --------------------------------------------------------------------------------------------------------------- verdict


def _verdict(rows: Sequence[dict[str, Any]], recall: np.ndarray, effective: float, freedom: float) -> list[dict[str, Any]]:
    """The row of `verdict`, of checkpoints by ascending step; `recall` (1 + r, m): in the text, then in its resamples.

    The last checkpoint's own interval decides, so that a run that recalls nothing is called recalling no more often than one interval of
    95 % lies above the truth, once in forty, however many checkpoints there are. That an earlier one was above holds of all together.
    """
    if not rows:
        return []
    steps, last, found = [row["step"] for row in rows], rows[-1], dict.fromkeys(("step", "step_ci_low", "step_ci_high"))
    if last["recall_ci_low"] is None:
        return [{"verdict": UNKNOWN, **found}]
    if last["recall_ci_low"] > LEAST_RECALL:
        since = np.array([_since(one) for one in recall])
        low, high = expanded_interval(since[1:].astype(np.float64), effective, freedom)
        places = [int(since[0]), int(np.floor(low)), int(np.ceil(high))]
        found = dict(zip(found, (steps[place] if place < len(steps) else None for place in places), strict=True))
        return [{"verdict": APPEARS, **found}]
    if len(earlier := np.flatnonzero(_above_together(recall, effective, freedom))):
        found["step"] = steps[int(earlier[0])]
    if last["recall_ci_high"] < LEAST_RECALL:
        return [{"verdict": ABSENT if found["step"] is None else GONE, **found}]
    return [{"verdict": UNKNOWN, **found}]


def _since(recall: np.ndarray) -> int:
    """The place from which on, to the last one, all of `recall` (m,) is above LEAST_RECALL; m if the last is not."""
    below = np.flatnonzero(~(recall > LEAST_RECALL))
    return int(below[-1]) + 1 if len(below) else 0


def _above_together(recall: np.ndarray, effective: float, freedom: float) -> np.ndarray:
    """Where recall (1 + r, m) is above LEAST_RECALL for certain, bool (m,): the lower bounds of a 95 % band around all checkpoints.

    The band is as many standard errors wide as the largest deviation of any checkpoint is in 97.5 % of the resamples, and as much wider
    for few documents as `expanded_interval` is.
    """
    from scipy.special import ndtri, stdtrit  # type: ignore[import-untyped]

    value, samples = recall[0], recall[1:]
    error = np.maximum(np.nanstd(samples, axis=0), np.finfo(float).tiny)
    most = np.nanquantile(np.nanmax((samples - value) / error, axis=1), 0.975)
    wider = np.sqrt(effective / (effective - 1)) * stdtrit(freedom, 0.975) / ndtri(0.975)
    above: np.ndarray = value - wider * most * error > LEAST_RECALL
    return above
