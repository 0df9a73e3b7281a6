"""What models lose where earlier occurrences are changed, and the share of a gap that is recall, with intervals over documents.

With NLLs of a token in the text and in the changed text, in nats: what is lost by a change is the second minus the first; what is
recalled by association, tau, is what is lost by `moved` minus what is lost by `moved_placebo`; any use of the earlier occurrences is the
same of `span` and `placebo`. A slice's mean is weighted by the tokens that each sample represents. The recall share of the gap between a
model and the reference in a slice of N tokens is N (mean tau of the reference - mean tau of the model) / (sum over all tokens of the
model's NLL - the reference's): without what both recall there, the gap would be that part of it smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display.notebook import Shown
from recallkit.intervening.changed_text import FIRST_RARE
from recallkit.intervening.changes import CHANGES
from recallkit.measure.classes import log2_bucket
from recallkit.measure.intervals import effective_number, estimates, freedom_of, freedom_of_ratio, number_or_none, resample_totals
from recallkit.measure.labelled import RowReader, open_scores, open_tokens
from recallkit.measure.shares import WholeGap, gap_intervals, gap_rows
from recallkit.measure.sums import add_up
from recallkit.slicing.definitions import STANDARD
from recallkit.storage.schemas import frame_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.intervening.changed_text import ChangedText
    from recallkit.measure.labelled import LabelledTokens
    from recallkit.measure.sums import RowSums
    from recallkit.slicing.definitions import Slice

MEASURES = ("nll", *CHANGES, "use", "recall", "points")
"""Columns with intervals: the mean NLL in the text, what each change loses, any use of the earlier occurrences, tau, and the same as tau in
probability."""

_RECALL, _USE, _POINTS = (MEASURES.index(name) for name in ("recall", "use", "points"))

REPEATED, SPLIT_OF_REPEATED = "repeated", ("ar_hit", "repeated_frequent")
"""The row of all repeated bigrams, and the slices that it adds up."""


@dataclass(frozen=True, slots=True, repr=False)
class InterveneTables(Shown):
    """What models lose by changes of their context, in nats per token, with 95 % intervals `*_ci_low`, `*_ci_high` over documents.

    intervene: model x slice: `tokens` of the slice, `samples`, `excluded` ones, which represent `excluded_share` of the tokens,
    `documents` with samples and their effective number; `nll`, what is lost by each of CHANGES, `use` (`span` less `placebo`), `recall`
    (`moved` less `moved_placebo`), and `points`, how much less probable tokens are under `moved` than under `moved_placebo`: a fraction.
    by_distance, by_count: the same by distance of the latest earlier occurrence and by training count (`low`..`high`, both included).
    recall_share: model x slice: `gap`, of all tokens, in nats per token; `gap_share`, the share of it that lies in the slice;
    `recall_share` and `use_share`, how much smaller it would be if neither could recall by association there, or use the earlier
    occurrences at all; `points_difference`: the model's points less the reference's. Slice `repeated` is ar_hit and repeated_frequent
    together; first_rare is the control: what the AR hits' shares would be with what first occurrences lose.
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
    changes: Sequence[str] = tuple(CHANGES),
) -> InterveneTables:
    """The tables of models, the reference first, from their scores of the text and of the changed text (`files`).

    Columns of changes that were not made are null.

    Raises UserError if scores are damaged or of other text.
    """
    scores = [open_scores(path, tokens) for path, _ in files.values()]
    text, names = add_up(tokens, scores, slices, every_table=False), [slice_.name for slice_ in slices]
    samples = changed.samples.filter(changed.samples["position"] > max(score.read_exactly for score in scores))
    asked = samples.filter(excluded="")
    values = read_values(asked, tokens, changed, list(files.values()), changes)
    vocab_size = tokens.vocab_size
    rows = make_rows(list(files), names, asked, values, text.tables["slices"], text.row_of_cluster, vocab_size)
    for row in rows["intervene"]:
        of_slice = samples.filter(slice=row["slice"])
        left_out = of_slice.filter(of_slice["excluded"] != "")
        row |= {"tokens": changed.manifest["tokens_of_slices"][row["slice"]], "excluded": len(left_out)}
        row["excluded_share"] = float(np.sum(left_out["weight"].to_numpy()) / np.sum(of_slice["weight"].to_numpy()))
    return InterveneTables(**{table: frame_of(f"intervene/{table}", of_table) for table, of_table in rows.items()})


def read_values(
    asked: pl.DataFrame,
    tokens: LabelledTokens,
    changed: ChangedText,
    files: Sequence[tuple[Path, Path]],
    changes: Sequence[str] = tuple(CHANGES),
) -> np.ndarray:
    """The MEASURES of n asked tokens under each of m models, float64 (n, m, 10): nats, the last one in probability; NaN if not known."""
    before, made = read_nlls(asked, tokens, changed, files, changes)
    after = {change: made.get(change, np.full_like(before, np.nan)) for change in CHANGES}
    lost = {change: nlls - before for change, nlls in after.items()}
    probability = {change: np.exp(-nlls) for change, nlls in after.items()}
    use, recall = lost["span"] - lost["placebo"], lost["moved"] - lost["moved_placebo"]
    return np.stack([before, *lost.values(), use, recall, probability["moved_placebo"] - probability["moved"]], axis=-1)


def read_nlls(
    asked: pl.DataFrame,
    tokens: LabelledTokens,
    changed: ChangedText,
    files: Sequence[tuple[Path, Path]],
    changes: Sequence[str] = tuple(CHANGES),
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The NLLs of n asked tokens in the text, and in the changed text under each of `changes`, nats, float64 (n, m) each.

    `files`: each of m models' scores of the text and of the changed text. Raises UserError if scores are damaged or of other text.
    """
    changed_tokens = open_tokens(changed.folder / "tokens.parquet")
    before = np.stack([_nlls(of_text, tokens)[asked["row"].to_numpy()] for of_text, _ in files], axis=1)
    after = np.stack([_nlls(of_changed, changed_tokens) for _, of_changed in files], axis=1)
    return before, {change: after[asked[f"{change}_row"].to_numpy()] for change in changes}


def _nlls(path: Path, tokens: LabelledTokens) -> np.ndarray:
    """All NLLs of a score file, float64 (n,)."""
    reader = RowReader(open_scores(path, tokens).path, ["nll"])
    nlls: np.ndarray = reader.read(0, tokens.num_rows)["nll"].to_numpy().astype(np.float64)
    return nlls


# ------------------------------------------------------------------------------------------------------------- estimates


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the asked tokens: their number, the documents that have any, and how many these tell as much as (`measure.intervals`).

    `means` (1 + r, m, 10): the weighted means of the MEASURES of m models, first in the sample, then in its resamples; NaN where one has
    none of the tokens.
    """

    samples: int
    documents: int
    effective: float
    freedom: float
    means: np.ndarray

    @classmethod
    def of(cls, asked: pl.DataFrame, totals: np.ndarray) -> Part:
        """From the tokens, and `totals` (1 + r, 1 + 10 m): the sum of their weights, and the weighted sums of the MEASURES."""
        documents, place = np.unique(asked["document"].to_numpy(), return_inverse=True)
        sizes = np.bincount(place, asked["weight"].to_numpy())
        with np.errstate(divide="ignore", invalid="ignore"):
            means = (totals[:, 1:] / totals[:, :1]).reshape(len(totals), -1, len(MEASURES))
        return cls(len(asked), len(documents), float(effective_number(sizes)), float(freedom_of(sizes)), means)


def make_rows(
    names: Sequence[str],
    slices: Sequence[str],
    asked: pl.DataFrame,
    values: np.ndarray,
    text: RowSums,
    row_of_document: np.ndarray,
    vocab_size: int | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """The rows of the tables by name, of m models (`names`, the reference first), all from the same resamples of documents.

    `values` (n, m, 10): the MEASURES of the `asked` tokens. `text`: the sums of STANDARD and of `slices`, in which each document is added
    to the row `row_of_document`.
    """
    chosen: dict[tuple[str, str, int], np.ndarray] = {}
    buckets = {"by_distance": log2_bucket(asked["distance"].to_numpy()), "by_count": log2_bucket(asked["train_count"].to_numpy())}
    for name in (name for name in slices if name in set(asked["slice"])):
        chosen["intervene", name, 0] = inside = (asked["slice"] == name).to_numpy()
        for table, bucket in buckets.items():
            chosen |= {(table, name, number): inside & (bucket == number) for number in np.unique(bucket[inside]).tolist()}
    weighted = np.column_stack([np.ones(len(asked)), values.reshape(len(asked), -1)]) * asked["weight"].to_numpy()[:, None]
    row = row_of_document[asked["document"].to_numpy()]
    blocks = [np.hstack([text.tokens, *text.nlls])]
    for inside in chosen.values():
        blocks.append(np.zeros((len(text.tokens), weighted.shape[1])))
        np.add.at(blocks[-1], row[inside], weighted[inside])
    # First the text itself, then its resamples.
    totals, *of_parts = (np.vstack([block.sum(axis=0), drawn]) for block, drawn in zip(blocks, resample_totals(blocks), strict=True))
    parts = {key: Part.of(asked.filter(chosen[key]), of_part) for key, of_part in zip(chosen, of_parts, strict=True)}
    rows: dict[str, list[dict[str, Any]]] = {"intervene": [], "by_distance": [], "by_count": []}
    for (table, name, number), part in parts.items():
        low, high = (number, number) if number < 3 else ((1 << (number - 2)) + 1, 1 << (number - 1))  # 2 -> 2, 3 -> 3..4, 4 -> 5..8
        common = {"slice": name, "low": low, "high": high, "samples": part.samples, "documents": part.documents}
        common["effective_documents"] = part.effective
        for model, shown in enumerate(names):
            estimates = _estimates(MEASURES, part.means[:, model], part.effective, part.freedom)
            rows[table].append({"model": shown, **common, **estimates})
    gaps = _Gaps(names, slices, text, totals.reshape(len(totals), 1 + len(names), -1), vocab_size)
    rows["recall_share"] = gaps.rows({name: part for (table, name, _), part in parts.items() if table == "intervene"})
    return rows


class _Gaps:
    """Shares of the gaps of m models to the first one, by the sums of a text, `totals` (1 + r, 1 + m, K): tokens, then NLLs in nats."""

    def __init__(self, names: Sequence[str], slices: Sequence[str], text: RowSums, totals: np.ndarray, vocab_size: int | None) -> None:
        self._names, self._text, self._totals = names, text, totals
        every = text.at(np.array([0]))
        intervals = gap_intervals({"all": every}, {})["all"]
        gaps = [gap_rows({}, every, every.totals, model, intervals)[0] for model in range(1, len(names))]
        self._wholes = {model: WholeGap.of(row, vocab_size) for model, row in enumerate(gaps, 1)}
        self._column = {name: len(STANDARD) + place for place, name in enumerate(slices)}
        # First occurrences stand for the tokens of the slice whose places they borrow, the first of the others.
        self._column[FIRST_RARE] = next(self._column[name] for name in slices if name != FIRST_RARE)

    def rows(self, parts: Mapping[str, Part]) -> list[dict[str, Any]]:
        """The rows of `recall_share`: each model but the reference, each slice, and the repeated bigrams together."""
        together = {name: [name] for name in parts}
        if {*SPLIT_OF_REPEATED} <= parts.keys():
            together = {**{name: [name] for name in SPLIT_OF_REPEATED}, REPEATED: [*SPLIT_OF_REPEATED], **together}
        return [
            self._row(model, name, [self._column[slice_] for slice_ in of], [parts[slice_] for slice_ in of])
            for model in range(1, len(self._names))
            for name, of in together.items()
        ]

    def _row(self, model: int, name: str, columns: Sequence[int], parts: Sequence[Part]) -> dict[str, Any]:
        """The slices in these columns of the sums together, by their asked tokens."""
        tokens, gaps = self._totals[:, 0], self._totals[:, 1 + model] - self._totals[:, 1]
        # What the model has more than the reference, summed over the tokens of each column: (1 + r, 10).
        more = sum(tokens[:, [column]] * (part.means[:, model] - part.means[:, 0]) for column, part in zip(columns, parts, strict=True))
        # Where the gap lies is not asked of first occurrences.
        inside = gaps[:, columns].sum(axis=1) if name != FIRST_RARE else np.full(len(gaps), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.column_stack([inside, -more[:, _RECALL], -more[:, _USE]]) / gaps[:, :1]
            points = more[:, _POINTS] / tokens[:, columns].sum(axis=1)
        effective = min(float(self._text.effective[0]), *(part.effective for part in parts))
        in_document = self._text.gaps(model - 1)
        of_ratio = float(freedom_of_ratio(in_document[:, columns].sum(axis=1), in_document[:, 0]))
        freedom = min(float(self._text.freedom[0]), of_ratio, *(part.freedom for part in parts))
        share_of_tokens = float(tokens[0, columns].sum() / tokens[0, 0])
        note = "; ".join(self._wholes[model].why_void(share_of_tokens=share_of_tokens, effective=effective, slice_=name))
        return {
            "reference": self._names[0],
            "model": self._names[model],
            "slice": name,
            "tokens": int(tokens[0, columns].sum()),
            "share_of_tokens": share_of_tokens,
            "gap": float(gaps[0, 0] / tokens[0, 0]),
            **_estimates(("gap_share", "recall_share", "use_share"), shares, effective, freedom),
            **_estimates(("points_difference",), points[:, None], effective, freedom),
            "samples": sum(part.samples for part in parts),
            "documents": min(part.documents for part in parts),
            "effective_documents": effective,
            "note": note,
            "void": bool(note),
        }


def _estimates(names: Sequence[str], figures: np.ndarray, effective: float, freedom: float) -> dict[str, float | None]:
    """Columns NAME, NAME_ci_low and NAME_ci_high of figures (1 + r, names), first those of a text, then of its resamples."""
    found: dict[str, np.ndarray] = {}
    for name, (value, *samples) in zip(names, figures.T, strict=True):
        found |= estimates(name, value, np.array(samples), effective, freedom)
    return {name: number_or_none(float(value)) for name, value in found.items()}
