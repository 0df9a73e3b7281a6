"""The gap between models and a reference, split over AR hits, other tokens and further slices: the main question of recallkit.

Every table is made of the sums of `measure.sums`: the tables are consistent with each other because none reads the tokens again.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.config import MAX_RESAMPLED_SOURCES
from recallkit.display.notebook import Shown
from recallkit.errors import UserError
from recallkit.measure.classes import Classes
from recallkit.measure.intervals import number_or_none
from recallkit.measure.labelled import LabelledTokens, open_scores, open_tokens
from recallkit.measure.shares import WholeGap, clipped_share, enrichment, gap_figures, gap_intervals, like_uniform
from recallkit.measure.sums import Sums, add_up
from recallkit.slicing.definitions import SPLIT, Slice
from recallkit.storage import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.measure.shares import GapIntervals

EMPTY_SLICE = "no tokens in this slice"
SMALL_SOURCE = f"not one of the {MAX_RESAMPLED_SOURCES} largest sources: no interval"

_CONTROL = ("control_share", "control_ci_low", "control_ci_high")
_BOUNDS = ("delta_ci_low", "delta_ci_high", "ci_low", "ci_high")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GapTables(Shown):
    """The gap of each model to the reference. NLLs and differences are in nats per token, shares are fractions.

    gap: model x source (ALL first) x slice (all, ar_hit, other, repeated, then the requested ones); `share_of_tokens` and `gap_share`
    are within the same source. `enrichment` is `gap_share` over `share_of_tokens`. `control_share`, of ar_hit and repeated: the share if
    each token differed as the first occurrence of its bigram in its sequence does, where nothing can be recalled. `void`, as in
    by_threshold and by_partition: whether the share means nothing, which `note` explains.
    `bytes` of text in the slice's tokens, and `bpb_*` = bits of NLL per byte, if the slices have them (null otherwise).
    by_count, by_distance, by_match, by_position: model x bucket (`low`..`high`, both included); their shares are of all tokens.
    by_count: `nll_first_*` are the mean NLLs of the first occurrences, in the same sequence, of the bigrams of a bucket's repeated tokens.
    by_match: by `match_length` of tokens.parquet; bucket 0 is the tokens that are not repeated, which by_distance omits.
    by_threshold: model x largest training count of an AR hit; shares of all tokens.
    by_partition: model x class of `slicing.definitions.PARTITION`, whose tokens and shares add up to all.
    by_context, only with `context_gain`: model x `last` (ids of context) x class (all tokens, AR hits, other repeated, not repeated;
    key_tokens) x whether the reference gains at least 1 nat from the context further back (null: either). `gain_*`: NLL with the last ids
    alone less that with the full context; `delta_nll` = `local_gap` + `far_gap`; `far_share`: of the whole gap; `mirror_share`: the same
    of two models that trade places (docs/context.md).
    by_overlap, only of two requested slices or more: the gap divided among them (Shapley values of the game in which a set of slices is
    worth the gap in their union: a token's gap goes in equal parts to the slices that contain it), and a row of tokens in none; `tokens`,
    `share_of_tokens` and `gap_share` add up to all. `plain_share_of_tokens`, `plain_share`: of all tokens of the slice, as in gap.

    In each table `delta_ci_*` and `ci_*` are the 95 % intervals of `delta_nll` and of `gap_share`, `clusters` the documents (or what
    else is resampled) that have tokens of the row, `effective_clusters` their effective number (`measure.intervals.effective_number`).
    """

    gap: pl.DataFrame
    by_count: pl.DataFrame
    by_distance: pl.DataFrame
    by_match: pl.DataFrame
    by_position: pl.DataFrame
    by_threshold: pl.DataFrame
    by_partition: pl.DataFrame
    by_context: pl.DataFrame | None = None
    by_overlap: pl.DataFrame | None = None

    def frames(self) -> dict[str, pl.DataFrame]:
        """The tables that are there, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if getattr(self, field.name) is not None}


TABLES = tuple(field.name for field in fields(GapTables) if field.default is MISSING)
"""Names of the tables of every comparison."""


def attribute_gap(
    tokens: Path,
    reference: Path,
    models: Sequence[Path],
    *,
    names: Sequence[str] | None = None,
    slices: Sequence[Slice] = (),
    cluster: str = "document",
    clean: bool = False,
    num_resamples: int = 2000,
    seed: int = 0,
) -> GapTables:
    """Splits the gap between each of `models` and `reference` (score files) over the tokens of `tokens` (labels).

    `names`: what the tables call them, the reference first, if not as their files do.
    The slices are AR hits and other tokens, further `slices`, and the classes of PARTITION. `clean`: of the tokens that are not known
    to be in the training text, whose bytes are not known, so that there are no bits per byte.

    A slice's NLL is the mean over its tokens; its share of the gap is the summed difference in it over the summed
    difference in all tokens (Zoology section 3.1, appendix C.1). Intervals are 95 % expanded percentile intervals
    (`measure.intervals.expanded_interval`) over clusters, one of CLUSTERS (`num_resamples` resamples drawn from `seed`, the same for every
    model and slice), for all sources together and for each of the MAX_RESAMPLED_SOURCES largest by tokens. The result
    is bit-identical for the same files and arguments.

    Raises UserError if a file is not as expected, scores are of other sequences, or models repeat.
    """
    import polars as pl

    labelled = open_tokens(tokens)
    scores = [open_scores(path, labelled) for path in (reference, *models)]
    names = names or [score.model for score in scores]
    _check_models(names[1:])
    sums = add_up(labelled, scores, slices, cluster, clean=clean)
    num_rows = sum(len(sums.rows[name]) for name in ("slices", "first"))
    whole = np.arange(sums.resampled_sums.tokens.shape[1]) // num_rows * num_rows
    tables = {"by_source": sums.resampled_sums} | {name: sums.tables[name] for name in sums.rows if name not in ("slices", "first")}
    intervals = gap_intervals(tables, {"by_source": whole}, num_resamples, seed)
    made = _Tables(labelled, names, sums, intervals, cluster, num_bytes={} if clean else _bytes_by_slice(labelled))
    pairs = [made.pair(model) for model in range(1, len(names))]
    return GapTables(**{name: pl.concat([pair[name] for pair in pairs]) for name in pairs[0]})


def _check_models(models: Sequence[str]) -> None:
    if not models:
        raise UserError("no model to compare with the reference", remedy="name two models: the reference first")
    for model in models:
        if models.count(model) > 1:
            raise UserError("given twice", where=model, remedy="name each model once")


class _Tables:
    """The tables of each pair, from the sums and intervals of all."""

    def __init__(
        self,
        tokens: LabelledTokens,
        names: Sequence[str],
        sums: Sums,
        intervals: Mapping[str, GapIntervals],
        cluster: str,
        num_bytes: Mapping[tuple[str, str], int],
    ) -> None:
        self._names, self._sums, self._intervals, self._cluster, self._num_bytes = names, sums, intervals, cluster, num_bytes
        self._vocab_size = tokens.vocab_size
        self._extra = Classes(tokens.max_count, tokens.seq_len).extra

    def pair(self, model: int) -> dict[str, pl.DataFrame]:
        """The tables of the reference and model number `model` (from 1), by name."""
        rows = {"gap": self._gap(model)}
        whole = self._whole(rows["gap"][0])
        every = {name: self._of_table(name, model) for name in self._sums.rows if name not in ("slices", "first")}
        firsts = self._of_table("by_count", model, "first_by_count")
        for place, row in enumerate(every["by_count"]):
            row |= {f"nll_first_{side}": firsts[place][f"nll_{side}"] if row["repeated"] else None for side in ("reference", "model")}
        for name in ("by_count", "by_distance", "by_match", "by_position"):
            rows[name] = [row for row in every[name] if row["tokens"]]
        last = max(row["high"] for row in rows["by_count"])
        rows["by_threshold"] = [row for row in every["by_threshold"] if row["threshold"] in self._extra or row["threshold"] <= last]
        for row in rows["by_threshold"]:
            row["gap_share_clipped"] = clipped_share(whole.gap, row["gap_share"])
            self._judge(row, whole, whole.describe(row["gap_share"], _bounds(row, "ci")))
        for name in ("by_partition", *({"by_overlap"} & every.keys())):
            rows[name] = every[name]
            for row in every[name]:
                self._judge(row, whole, whole.describe())
        if "by_overlap" in rows:
            plain = {row["slice"]: row for row in rows["gap"][: len(self._sums.rows["slices"])]}
            for row in rows["by_overlap"]:
                own = plain.get(row["slice"], row)  # a token in none of them is not divided
                row |= {"plain_share_of_tokens": own["share_of_tokens"], "plain_share": own["gap_share"]}
        return {name: schemas.frame_of(f"gap/{name}", of_table) for name, of_table in rows.items()}

    def _of_table(self, name: str, model: int, made_of: str | None = None) -> list[Row]:
        """The rows of a table, over all sources, or, without intervals, the same rows of other sums."""
        rows, sums = self._sums.rows[name], self._sums.tables[made_of or name]
        whole = self._sums.tables["slices"].totals[:, :1]
        found = self._figures(rows.keys, sums.totals, whole, model, is_divided=name == "by_overlap")
        for place, row in enumerate(found):
            row |= {} if made_of else self._interval(name, model, place)
        return found

    def _figures(
        self, keys: Mapping[str, Sequence[Any]], totals: np.ndarray, whole: np.ndarray, model: int, *, is_divided: bool = False
    ) -> list[Row]:
        """Rows of sums (1 + v, K), tokens first, and of `whole`, the sums of all tokens."""
        figures = gap_figures(totals[0], totals[1], totals[1 + model], whole[0], whole[1 + model] - whole[1])
        columns = {"tokens": totals[0].tolist() if is_divided else totals[0].astype(np.int64).tolist()}
        columns |= {name: [number_or_none(value) for value in values.tolist()] for name, values in figures.items()}
        columns = {**{name: list(values) for name, values in keys.items()}, **columns}
        pair = {"reference": self._names[0], "model": self._names[model]}
        rows = [{**pair, **dict(zip(columns, values, strict=True))} for values in zip(*columns.values(), strict=True)]
        return [{**row, "enrichment": enrichment(row["gap_share"], row["share_of_tokens"])} for row in rows]

    def _interval(self, name: str, model: int, row: int) -> Row:
        """The intervals of a row, and the clusters that they are made of."""
        sums = self._sums.resampled_sums if name == "by_source" else self._sums.tables[name]
        found = self._intervals[name]
        bounds = [*found.delta_nll[:, model - 1, row], *found.share[:, model - 1, row]]
        numbers = {"clusters": int(sums.clusters[row]), "effective_clusters": float(sums.effective[row])}
        return {**dict(zip(_BOUNDS, map(number_or_none, bounds), strict=True)), **numbers}

    def _gap(self, model: int) -> list[Row]:
        """The rows of one pair with intervals, clipped shares and notes: all sources, then source by source."""
        found: list[Row] = []
        for number, source in enumerate(["ALL", *self._sums.sources]):
            found += self._of_source(number, source, model, found[0] if found else None)
        return found

    def _of_source(self, number: int, source: str, model: int, overall: Row | None) -> list[Row]:
        """The slices of one source, which is `number` of `Sums.by_source`; `overall`: the row of all tokens of all sources, if another."""
        names, of_control = (self._sums.rows[name].keys["slice"] for name in ("slices", "first"))
        totals = self._sums.by_source[:, number]
        found = self._figures({"slice": [*names, *of_control]}, totals, totals[:, :1], model)
        first = self._sums.resampled.index(number) * len(found) if number in self._sums.resampled else None
        for place, row in enumerate(found):
            row |= self._no_interval() if first is None else self._interval("by_source", model, first + place)
        rows, controls = found[: len(names)], {row["slice"]: row for row in found[len(names) :]}
        by_slice = {row["slice"]: row for row in rows}
        whole, hits = self._whole(rows[0], overall), by_slice["ar_hit"]
        of_split, of_others = whole.describe(hits["gap_share"], _bounds(hits, "ci")), whole.describe()
        clipped = _clipped_shares(by_slice)
        for name, row in by_slice.items():
            row |= {"source": source, "cluster": self._cluster, "gap_share_clipped": clipped[name], **dict.fromkeys(_CONTROL)}
            row |= _bits_per_byte(row, self._num_bytes.get((source, name)))
            if row["gap_share"] is None:
                row |= {"ci_low": None, "ci_high": None}
            if name in controls and controls[name]["gap_share"] is not None:
                row |= dict(zip(_CONTROL, (controls[name][of] for of in ("gap_share", "ci_low", "ci_high")), strict=True))
            self._judge(row, whole, of_split if name in [slice_.name for slice_ in SPLIT] else of_others)
        return rows

    @staticmethod
    def _no_interval() -> Row:
        return dict.fromkeys([*_BOUNDS, "clusters", "effective_clusters"])

    def _whole(self, row: Row, overall: Row | None = None) -> WholeGap:
        """What shares are judged by, from the row of all tokens of their source; `overall`: that of all sources."""
        notes = [note for of in (overall or row, row) for note in like_uniform(of["nll_reference"], of["nll_model"], self._vocab_size)]
        effective = math.inf if row["effective_clusters"] is None else row["effective_clusters"]
        return WholeGap(row["delta_nll"], _bounds(row, "delta_ci"), list(dict.fromkeys(notes)), effective, self._cluster)

    @staticmethod
    def _judge(row: Row, whole: WholeGap, notes: Sequence[str]) -> None:
        """Adds to a row, whose intervals are there, `note`, which begins with `notes` on the gap, and `void`."""
        of_tokens = row["share_of_tokens"] if row.get("slice") != "all" else None
        effective = math.inf if row["effective_clusters"] is None else row["effective_clusters"]
        why = whole.why_void(share_of_tokens=of_tokens, effective=effective) if row["tokens"] else [EMPTY_SLICE]
        small = [SMALL_SOURCE] if row["tokens"] and row["clusters"] is None else []
        row["note"] = "; ".join([*notes, *(note for note in why if note not in notes), *small])
        row["void"] = row["gap_share"] is None or bool(why)


def _clipped_shares(by_slice: Mapping[str, Row]) -> dict[str, float | None]:
    """The clipped shares of the slices of one source."""
    overall = by_slice["all"]["delta_nll"]
    clipped = {name: clipped_share(overall, row["gap_share"]) for name, row in by_slice.items()}
    hits, other = clipped["ar_hit"], by_slice["other"]["gap_share"]
    # The share that is not the hits' goes to the other tokens, so that the two clipped shares add up to the gap.
    return {**clipped, "all": by_slice["all"]["gap_share"], "other": other if other is None or hits is None else 1.0 - hits}


def _bounds(row: Row, name: str) -> tuple[float, float] | None:
    """An interval among the columns of a row; None if there is none."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return None if low is None or high is None else (low, high)


def _bytes_by_slice(tokens: LabelledTokens) -> dict[tuple[str, str], int]:
    """Bytes of text by source and slice, if the labels' manifest has them."""
    found: dict[tuple[str, str], int] = {}
    for source, whole, hits in tokens.manifest.get("num_bytes") or ():
        found |= {(source, "all"): whole, (source, "ar_hit"): hits, (source, "other"): whole - hits}
    return found


def _bits_per_byte(row: Row, num_bytes: int | None) -> Row:
    """The bytes of a row's tokens and the bits per byte: NLLs summed over them, in bits, over the bytes; None where these are not known."""
    bits: dict[str, float | None] = {}
    for side in ("reference", "model"):
        nll = row[f"nll_{side}"]
        bits[f"bpb_{side}"] = nll * row["tokens"] / math.log(2) / num_bytes if num_bytes and nll is not None else None
    return {"bytes": num_bytes, **bits}
