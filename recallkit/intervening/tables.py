"""What models lose where earlier occurrences are changed, and the share of a gap that is recall, with intervals over documents.

With NLLs of a token in the text and in the changed text, in nats: what is lost by a change is the second minus the first; what is
recalled, tau, is what is lost by `span` minus what is lost by `placebo`. A slice's mean is weighted by the tokens that each sample
represents. The recall share of the gap between a model and the reference in a slice of N tokens is N (mean tau of the reference - mean
tau of the model) / (sum over all tokens of the model's NLL - the reference's): the part of the gap that is there because the reference
recalls more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recallkit.display.notebook import Shown
from recallkit.intervening.estimates import Documents, WeightedMeans
from recallkit.intervening.places import CHANGES
from recallkit.intervening.sampling import FIRST_RARE, SliceReader
from recallkit.measure.classes import log2_bucket
from recallkit.measure.intervals import effective_number, expanded_interval, freedom_of, number_or_none
from recallkit.measure.labelled import RowReader, batch_ranges, open_scores, open_tokens
from recallkit.measure.shares import WholeGap, like_uniform
from recallkit.storage import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.intervening.changed_text import ChangedText
    from recallkit.measure.labelled import LabelledTokens
    from recallkit.slicing.definitions import Slice

MEASURES = ("nll", *CHANGES, "recall")
"""Columns with intervals: the mean NLL in the text, what each change loses, and tau."""

REPEATED, SPLIT_OF_REPEATED = "repeated", ("ar_hit", "repeated_frequent")
"""The row of all repeated bigrams, and the slices that it adds up."""

_RESAMPLES = 2000
_AGAIN = "score the model again with --force"


@dataclass(frozen=True, slots=True)
class InterveneTables(Shown):
    """What models lose by changes of their context, in nats per token, with 95 % intervals `*_ci_low`, `*_ci_high` over documents.

    intervene: model x slice: `tokens` of the slice, `samples` asked, `excluded` ones, `documents` with samples and their effective number;
    `nll`, what is lost by `completion`, `key`, `span` and `placebo`, and `recall`: `span` less `placebo`.
    by_distance, by_count: the same by distance of the latest earlier occurrence and by training count (`low`..`high`, both included).
    recall_share: model x slice: `gap_share`, the share of the gap to `reference` that lies in the slice, and `recall_share`, the share that
    is there because the reference recalls more. Slice `repeated` is ar_hit and repeated_frequent together; first_rare is the control: what
    the AR hits' recall share would be with what first occurrences lose.
    """

    intervene: pl.DataFrame
    by_distance: pl.DataFrame
    by_count: pl.DataFrame
    recall_share: pl.DataFrame


def measure(
    tokens: LabelledTokens,
    changed: ChangedText,
    files: Mapping[str, tuple[Path, Path]],
    slices: Sequence[Slice],
    *,
    num_resamples: int = _RESAMPLES,
    seed: int = 0,
) -> InterveneTables:
    """The tables of models, the reference first, from their scores of the text and of the changed text (`files`).

    Raises UserError if scores are damaged or of other text.
    """
    names = list(files)
    text = read_text(tokens, [own for own, _ in files.values()], changed.samples["row"].to_numpy(), slices)
    asked = changed.samples.with_columns(number=pl.int_range(pl.len())).filter(excluded="")
    values = read_values(asked, text.sampled, changed, [other for _, other in files.values()])
    vocab_size = (tokens.manifest.get("tokenizer") or {}).get("vocab_size")
    measured = Measured(names, asked, values, text, Documents(text.document, num_resamples, seed), vocab_size)
    order = [slice_.name for slice_ in slices if slice_.name in set(asked["slice"])]
    excluded = changed.samples.filter(pl.col("excluded") != "")["slice"].value_counts()
    left_out = dict(excluded.iter_rows())
    rows = [
        {**row, "slice": slice_, "tokens": changed.manifest["tokens_of_slices"][slice_], "excluded": left_out.get(slice_, 0)}
        for slice_ in order
        for row in measured.means(asked["slice"] == slice_)
    ]
    return InterveneTables(
        _frame("intervene/intervene", rows),
        _frame("intervene/by_distance", list(measured.by_bucket(order, "distance"))),
        _frame("intervene/by_count", list(measured.by_bucket(order, "train_count"))),
        _frame("intervene/recall_share", measured.shares(order)),
    )


def _frame(layout: str, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    kinds = {"text": pl.String, "whole": pl.Int64, "real": pl.Float64, "flag": pl.Boolean}
    schema = {name: kinds[column.type] for name, column in schemas.LAYOUTS[layout].items()}
    return pl.DataFrame([{name: row[name] for name in schema} for row in rows], schema=schema)


# ---------------------------------------------------------------------------------------------------------- the scores


@dataclass(frozen=True, slots=True)
class TextSums:
    """Sums over the d documents that have tokens, of all tokens (first) and of each slice; NLLs of m models in nats.

    `document`: their numbers; `tokens` (d, 1 + s); `nlls` (m, d, 1 + s); `sampled` (m, n): the NLLs of the sampled rows.
    """

    document: np.ndarray
    tokens: np.ndarray
    nlls: np.ndarray
    sampled: np.ndarray
    slices: list[str]

    def place(self, slice_: str) -> int:
        """The column of a slice; of FIRST_RARE that of the slice whose places its tokens borrow, the first of the others."""
        return 1 + self.slices.index(slice_ if slice_ != FIRST_RARE else next(each for each in self.slices if each != FIRST_RARE))


def read_text(tokens: LabelledTokens, scores: Sequence[Path], rows: np.ndarray, slices: Sequence[Slice]) -> TextSums:
    """One pass over the labels and scores of the text."""
    labels = SliceReader(tokens, slices, "document")
    readers = [RowReader(open_scores(path, tokens).path, ["nll"], remedy=_AGAIN) for path in scores]
    last = labels.read(tokens.num_rows - 1, tokens.num_rows)[0]["document"][0].as_py()
    counted = np.zeros((last + 1, 1 + len(slices)))
    nlls, sampled = np.zeros((len(scores), *counted.shape)), np.empty((len(scores), len(rows)))
    for start, stop in batch_ranges(tokens.path):
        table, found = labels.read(start, stop)
        document = table["document"].to_numpy()
        low, high = int(document.min()), int(document.max()) + 1
        inside = np.flatnonzero((rows >= start) & (rows < stop))
        masks = [np.ones(stop - start, bool), *found]
        for place, mask in enumerate(masks):
            counted[low:high, place] += np.bincount(document - low, mask, high - low)
        for model, reader in enumerate(readers):
            nll = reader.read(start, stop)["nll"].to_numpy().astype(np.float64)
            sampled[model, inside] = nll[rows[inside] - start]
            for place, mask in enumerate(masks):
                nlls[model, low:high, place] += np.bincount(document - low, nll * mask, high - low)
    held = np.flatnonzero(counted[:, 0])
    return TextSums(held, counted[held], nlls[:, held], sampled, [slice_.name for slice_ in slices])


def read_values(asked: pl.DataFrame, sampled: np.ndarray, changed: ChangedText, scores: Sequence[Path]) -> np.ndarray:
    """The MEASURES of each model and asked token, float64 (m, n, 6)."""
    tokens = open_tokens(changed.folder / "tokens.parquet")
    rows = asked.select(f"{change}_row" for change in CHANGES).to_numpy()
    values = np.empty((len(scores), len(asked), len(MEASURES)))
    for model, path in enumerate(scores):
        reader = RowReader(open_scores(path, tokens).path, ["nll"], remedy=_AGAIN)
        parts = [reader.read(start, stop)["nll"].to_numpy() for start, stop in batch_ranges(tokens.path)]
        before = sampled[model][asked["number"].to_numpy()]
        lost = np.concatenate(parts).astype(np.float64)[rows] - before[:, None]
        tau = lost[:, CHANGES.index("span")] - lost[:, CHANGES.index("placebo")]
        values[model] = np.column_stack([before, lost, tau])
    return values


# ----------------------------------------------------------------------------------------------------------- estimates


class Measured:
    """Weighted means of asked tokens and shares of gaps."""

    def __init__(
        self, names: Sequence[str], asked: pl.DataFrame, values: np.ndarray, text: TextSums, documents: Documents, vocab_size: int | None
    ) -> None:
        self._names, self._asked, self._text, self._documents, self._vocab_size = names, asked, text, documents, vocab_size
        self._values = np.moveaxis(values, 0, 1)
        self._weight = asked["weight"].to_numpy()

    def means(self, chosen: pl.Series) -> list[dict[str, Any]]:
        """The MEASURES over the chosen tokens, with intervals, samples and documents: a row for each model."""
        means = self._weighted(chosen)
        lows, highs = expanded_interval(means.resampled, means.effective, means.freedom)
        facts = {"samples": means.samples, "documents": means.num_documents, "effective_documents": means.effective}
        rows = []
        for model, name in enumerate(self._names):
            row: dict[str, Any] = {"model": name, **facts}
            for place, measured in enumerate(MEASURES):
                row |= _with_interval(measured, means.mean[model, place], (lows[model, place], highs[model, place]))
            rows.append(row)
        return rows

    def by_bucket(self, slices: Sequence[str], column: str) -> list[dict[str, Any]]:
        """`means` of each slice by the log2 bucket of a column."""
        bucket = pl.Series(log2_bucket(self._asked[column].to_numpy()))
        rows = []
        for slice_ in slices:
            inside = self._asked["slice"] == slice_
            for number in bucket.filter(inside).unique().sort():
                low, high = (number, number) if number < 3 else ((1 << (number - 2)) + 1, 1 << (number - 1))
                rows += [{**row, "slice": slice_, "low": low, "high": high} for row in self.means(inside & (bucket == number))]
        return rows

    def shares(self, slices: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of `recall_share`: each model but the reference, each slice, and the repeated bigrams together."""
        parts: dict[str, Sequence[str]] = {slice_: (slice_,) for slice_ in slices}
        if {*SPLIT_OF_REPEATED} <= set(slices):
            parts = {**{name: (name,) for name in SPLIT_OF_REPEATED}, REPEATED: SPLIT_OF_REPEATED, **parts}
        return [self._share(model, name, of) for model in range(1, len(self._names)) for name, of in parts.items()]

    def _share(self, model: int, name: str, slices: Sequence[str]) -> dict[str, Any]:
        """One row: the slices' parts added up."""
        sums = np.column_stack([self._text.nlls[model] - self._text.nlls[0], self._text.tokens])
        places = [self._text.place(slice_) for slice_ in slices]
        means = [self._weighted(self._asked["slice"] == slice_) for slice_ in slices]
        sizes = self._text.tokens[:, 0]
        effective = min(float(effective_number(sizes)), *(each.effective for each in means))
        freedom = min(float(freedom_of(sizes)), *(each.freedom for each in means))
        [point] = _shares(sums.sum(axis=0)[None], [each.mean[None] for each in means], model, places)
        drawn = _shares(self._documents.resampled(sums), [each.resampled for each in means], model, places)
        bounds = expanded_interval(drawn, effective, freedom)
        tokens = self._text.tokens[:, places].sum()
        note = "; ".join(self._whole(model, point[0], bounds[:, 0]).why_void(share_of_tokens=tokens / sizes.sum(), effective=effective))
        known = 0.0 if name != FIRST_RARE else np.nan  # first occurrences stand for AR hits: where the gap lies is not asked of them
        return {
            "reference": self._names[0],
            "model": self._names[model],
            "slice": name,
            "tokens": int(tokens),
            "share_of_tokens": float(tokens / sizes.sum()),
            **_with_interval("recall_share", point[2], bounds[:, 2]),
            **_with_interval("gap_share", point[1] + known, bounds[:, 1] + known),
            "samples": sum(each.samples for each in means),
            "documents": min(each.num_documents for each in means),
            "effective_documents": effective,
            "note": note,
            "void": bool(note),
        }

    def _whole(self, model: int, gap: float, bounds: np.ndarray) -> WholeGap:
        """What shares of a model's gap are judged by: the gap summed over all tokens, and its interval."""
        sizes = self._text.tokens[:, 0]
        nll_reference, nll_model = (self._text.nlls[place][:, 0].sum() / sizes.sum() for place in (0, model))
        interval = None if np.isnan(bounds).any() else (float(bounds[0]), float(bounds[1]))
        uniform = like_uniform(nll_reference, nll_model, self._vocab_size)
        return WholeGap(gap, interval, uniform, float(effective_number(sizes)))

    def _weighted(self, chosen: pl.Series) -> WeightedMeans:
        """Means (m, 6) of the chosen tokens."""
        inside = np.flatnonzero(chosen.to_numpy())
        weight, document = self._weight[inside], self._asked["document"].to_numpy()[inside]
        sums = self._documents.sums(document, self._values[inside] * weight[:, None, None])
        return WeightedMeans(self._documents, len(inside), self._documents.sums(document, weight), sums)


def _shares(sums: np.ndarray, means: Sequence[np.ndarray], model: int, places: Sequence[int]) -> np.ndarray:
    """The gap in nats, the share of it in the slices, and that which is recall, (r, 3), of a text and its resamples.

    `sums` (r, 2 (1 + s)): of the gap, then of tokens, of all tokens and of each slice; `means` (r, m, 6) of each slice at `places`.
    """
    gaps, tokens = np.split(sums, 2, axis=1)
    tau = len(MEASURES) - 1
    recalled = sum(tokens[:, place] * (mean[:, 0, tau] - mean[:, model, tau]) for place, mean in zip(places, means, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.column_stack([gaps[:, 0], gaps[:, places].sum(axis=1) / gaps[:, 0], recalled / gaps[:, 0]])


def _with_interval(name: str, value: float, bounds: Sequence[float] | np.ndarray) -> dict[str, float | None]:
    ends = {"": value, "_ci_low": bounds[0], "_ci_high": bounds[1]}
    return {f"{name}{end}": number_or_none(float(number)) for end, number in ends.items()}
