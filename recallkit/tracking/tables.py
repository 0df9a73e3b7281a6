"""NLLs of AR hits and of what they are compared with, a row a checkpoint, with 95 % intervals over documents.

What a model recalls is the nats by which AR hits are cheaper than the first occurrences of the same bigrams in the same sequences,
where nothing can be recalled: the first occurrences are matched to the hits one by one, so that what a model knows of a bigram from
training is in both, and a bigram model's difference is zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display.notebook import Shown
from recallkit.measure.intervals import NUM_RESAMPLES, estimates, number_or_none
from recallkit.measure.labelled import open_scores
from recallkit.measure.sums import RowSums, add_up, resampled
from recallkit.storage.schemas import frame_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.measure.labelled import LabelledTokens

LEAST_RECALL = 0.5
"""Nats that are called recall: models of the zoo that learnt to recall no list (RWKV, Hyena, BaseConv) reach 0.2 to 0.4, because a token
that was in the context becomes likelier whatever precedes it; those that learnt to recall reach 1.4 to 4.8 (docs/track.md)."""

ALL, HITS, OTHER, FIRST = range(4)
"""The rows of `read_sums`: all tokens, AR hits, all other tokens, and the first occurrences of the AR hits' bigrams."""


@dataclass(frozen=True, slots=True)
class TrackTables(Shown):
    """A run's checkpoints by step, the reference (if there is one; step null) first.

    track: `tokens`, `ar_hits`, `documents` with AR hits and their effective number; in nats per token, each with `*_ci_low` and
    `*_ci_high` (95 % over documents): `nll` of all tokens, `ar_nll` of AR hits, `first_nll` of the first occurrences of their
    bigrams in their sequences, `other_nll` of all tokens that are no AR hits, `recall` = first_nll - ar_nll, and `ar_gap`, the AR
    hits' NLL less the reference's.
    """

    track: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Tracked:
    """A model of the table: its name, its step (None: the reference) and its sums, one of those of `read_sums`."""

    name: str
    step: int | None
    sums: RowSums


def read_sums(tokens: LabelledTokens, scores: Sequence[Path]) -> list[RowSums]:
    """The sums of each score file, in rows ALL, HITS, OTHER and FIRST. Raises UserError if a file is damaged, or of other sequences."""
    found = add_up(tokens, [open_scores(path, tokens) for path in scores], every_table=False)
    names, of_first = (list(found.rows[table].keys["slice"]) for table in ("slices", "first"))
    slices = found.tables["slices"].at(np.array([names.index(name) for name in ("all", "ar_hit", "other")]))
    first = found.tables["first"].at(np.array([of_first.index("ar_hit")]))
    every = RowSums.joined([slices, first])
    return [replace(every, nlls=every.nlls[[model]]) for model in range(len(scores))]


def make_tables(models: Sequence[Tracked], *, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> TrackTables:
    """The table of models, in their order; a model of step None, if there is one, is the reference. All are resampled alike."""
    if not models:
        return TrackTables(frame_of("track/track", []))
    sizes = models[0].sums
    every = replace(sizes, nlls=np.concatenate([model.sums.nlls for model in models]))
    reference = next((place for place, model in enumerate(models) if model.step is None), None)
    values, samples = (_figures(totals, reference) for totals in (every.totals, resampled([every], num_resamples, seed)[0]))
    facts = {
        "reference": None if reference is None else models[reference].name,
        "tokens": int(sizes.tokens[:, ALL].sum()),
        "ar_hits": int(sizes.tokens[:, HITS].sum()),
        "documents": int(sizes.clusters[HITS]),
        "effective_documents": float(sizes.effective[HITS]),
    }
    rows: list[dict[str, Any]] = [{"model": model.name, "step": model.step, **facts} for model in models]
    for name, value in values.items():
        documents = ALL if name in ("nll", "other_nll") else HITS
        for column, of_models in estimates(name, value, samples[name].T, sizes.effective[documents], sizes.freedom[documents]).items():
            for row, number in zip(rows, of_models, strict=True):
                row[column] = number_or_none(number)
    return TrackTables(frame_of("track/track", rows))


def _figures(totals: np.ndarray, reference: int | None) -> dict[str, np.ndarray]:
    """The columns with intervals, each (m, ...), of totals (1 + m, ..., 4): tokens, then the NLLs of m models, in nats."""
    with np.errstate(divide="ignore", invalid="ignore"):
        nll, hits, other, first = np.moveaxis(totals[1:] / totals[0], -1, 0)
    gap = np.full_like(hits, np.nan) if reference is None else hits - hits[reference]
    return {"nll": nll, "ar_nll": hits, "first_nll": first, "other_nll": other, "recall": first - hits, "ar_gap": gap}


def recall_appears(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """The first step from which on, to the last one, the interval of `recall` lies above LEAST_RECALL; None where there is none.

    That requires it of the last checkpoint, too: a run that recalls nothing is called recalling no more often than one interval of 95 %
    lies above the truth, once in forty, however many checkpoints there are.
    """
    found = None
    for row in sorted((row for row in rows if row["step"] is not None), key=lambda row: row["step"], reverse=True):
        if row["recall_ci_low"] is None or row["recall_ci_low"] <= LEAST_RECALL:
            return found
        found = int(row["step"])
    return found
