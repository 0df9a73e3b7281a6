"""NLLs of AR hits and of what they are compared with, a row a checkpoint, with 95 % intervals over documents.

What a model recalls is the nats by which AR hits are cheaper than the first occurrences of the same bigrams in the same sequences,
where nothing can be recalled: the first occurrences are matched to the hits one by one, so that what a model knows of a bigram from
training is in both, and a bigram model's difference is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recallkit.display.notebook import Shown
from recallkit.errors import UserError
from recallkit.measure.intervals import effective_number, expanded_interval, freedom_of, group_numbers, number_or_none, resample_totals
from recallkit.measure.labelled import RowReader, batch_ranges, open_scores
from recallkit.storage import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.measure.labelled import LabelledTokens

MEASURES = ("nll", "ar_nll", "first_nll", "other_nll", "recall")
"""Columns with intervals: of all tokens, of AR hits, of their bigrams' first occurrences, of all other tokens, and first less hits."""

LEAST_RECALL = 0.5
"""Nats that are called recall: models of the zoo that learnt to recall no list (RWKV, Hyena, BaseConv) reach 0.2 to 0.4, because a token
that was in the context becomes likelier whatever precedes it; those that learnt to recall reach 1.4 to 4.8 (docs/track.md)."""

_RESAMPLES = 2000
_SLICE_AGAIN = "slice again with --force"


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
class Labels:
    """The AR hits of a text of d documents: rows, and where their bigrams occur first; sizes of documents."""

    tokens: LabelledTokens
    document: np.ndarray  # (n,) of every token
    hits: np.ndarray  # (h,) rows
    first: np.ndarray  # (h,) rows
    sizes: np.ndarray  # (d, 2): tokens, AR hits

    @classmethod
    def read(cls, tokens: LabelledTokens) -> Labels:
        """Reads them. Raises UserError where labels are damaged, and where no token is an AR hit."""
        reader = RowReader(tokens.path, ("document", "position", "first_distance", "repeated", "train_count"), remedy=_SLICE_AGAIN)
        documents, hits, first = [], [], []
        for start, stop in batch_ranges(tokens.path):
            rows = reader.read(start, stop)
            document, position, repeated, count = (rows[name].to_numpy() for name in ("document", "position", "repeated", "train_count"))
            back = rows["first_distance"].fill_null(0).to_numpy()
            if (back >= position).any():
                raise UserError("damaged (a distance leads out of its sequence)", where=tokens.path, remedy=_SLICE_AGAIN)
            inside = np.flatnonzero(repeated & (count <= tokens.max_count))
            documents.append(document)
            hits.append(inside + start)
            first.append(inside + start - back[inside])
        document, hit = np.concatenate(documents), np.concatenate(hits)
        if not len(hit):
            raise UserError("no token of it is an AR hit", where=tokens.path, remedy="slice more text, or with a larger --max-count")
        sizes = np.column_stack([np.bincount(document), np.bincount(document[hit], minlength=int(document.max()) + 1)])
        return cls(tokens, document, hit, np.concatenate(first), sizes[sizes[:, 0] > 0])

    def sums(self, scores: Path) -> np.ndarray:
        """Summed NLLs of a model by document, float64 (d, 3): all tokens, AR hits, the first occurrences of their bigrams."""
        path = open_scores(scores, self.tokens).path
        reader = RowReader(path, ["nll"], remedy="score the model again with --force")
        nll = np.concatenate([reader.read(*batch)["nll"].to_numpy() for batch in batch_ranges(self.tokens.path)]).astype(np.float64)
        if not np.isfinite(nll).all():
            raise UserError("damaged (an NLL is not finite)", where=path, remedy="score the model again with --force")
        number, of_hits = int(self.document.max()) + 1, self.document[self.hits]
        sums = [
            np.bincount(self.document, nll, number),
            np.bincount(of_hits, nll[self.hits], number),
            np.bincount(of_hits, nll[self.first], number),
        ]
        return np.column_stack(sums)[np.bincount(self.document, minlength=number) > 0]


@dataclass(frozen=True, slots=True)
class Tracked:
    """A model of the table: its name, its step (None: the reference) and its `Labels.sums`."""

    name: str
    step: int | None
    sums: np.ndarray


def make_tables(labels: Labels, models: Sequence[Tracked], *, num_resamples: int = _RESAMPLES, seed: int = 0) -> TrackTables:
    """The table of models, in their order; a model of step None, if there is one, is the reference. All are resampled alike."""
    group = group_numbers(len(labels.sizes))
    values = np.column_stack([labels.sizes, *(model.sums for model in models)])
    grouped = np.zeros((int(group.max()) + 1, values.shape[1]))
    np.add.at(grouped, group, values)
    [drawn] = resample_totals([grouped], num_resamples, seed)
    reference = next((place for place, model in enumerate(models) if model.step is None), None)
    spread = [(effective_number(size), freedom_of(size)) for size in (labels.sizes[:, 0], labels.sizes[:, 1])]
    facts = {
        "reference": None if reference is None else models[reference].name,
        "tokens": int(labels.sizes[:, 0].sum()),
        "ar_hits": int(labels.sizes[:, 1].sum()),
        "documents": int(np.count_nonzero(labels.sizes[:, 1])),
        "effective_documents": float(spread[1][0]),
    }
    rows = []
    for place, model in enumerate(models):
        points, samples = _means(values.sum(axis=0)[None], place, reference), _means(drawn, place, reference)
        row: dict[str, Any] = {"model": model.name, "step": model.step, **facts}
        for name, point in points.items():
            low, high = expanded_interval(samples[name], *spread[name not in ("nll", "other_nll")])
            row |= _with_interval(name, float(point[0]), (float(low), float(high)))
        rows.append(row)
    return TrackTables(_frame(rows))


def _means(totals: np.ndarray, place: int, reference: int | None) -> dict[str, np.ndarray]:
    """The MEASURES and the gap in AR hits, each (r,), of totals (r, 2 + 3 m): sizes, then three sums a model."""
    tokens, hits = totals[:, 0], totals[:, 1]
    every, of_hits, first = totals[:, 2 + 3 * place : 5 + 3 * place].T
    other = np.full(len(totals), np.nan) if reference is None else totals[:, 3 + 3 * reference]
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "nll": every / tokens,
            "ar_nll": of_hits / hits,
            "first_nll": first / hits,
            "other_nll": (every - of_hits) / (tokens - hits),
            "recall": (first - of_hits) / hits,
            "ar_gap": (of_hits - other) / hits,
        }


def _with_interval(name: str, value: float, bounds: tuple[float, float]) -> dict[str, float | None]:
    ends = {"": value, "_ci_low": bounds[0], "_ci_high": bounds[1]}
    return {f"{name}{end}": number_or_none(number) for end, number in ends.items()}


def _frame(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    kinds = {"text": pl.String, "whole": pl.Int64, "real": pl.Float64}
    schema = {name: kinds[column.type] for name, column in schemas.LAYOUTS["track/track"].items()}
    return pl.DataFrame([{name: row[name] for name in schema} for row in rows], schema=schema)


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
