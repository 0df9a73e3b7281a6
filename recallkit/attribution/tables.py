"""The gap between models and a reference, split over AR hits, other tokens and further slices: the main question of recallkit.

Reads labels and scores row-aligned, reduces them to sums in one pass (collect.py), and makes every table from the sums:
the tables are consistent with each other because none reads the tokens again.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

from recallkit.attribution.aligned import LabelledTokens, open_scores, open_tokens
from recallkit.attribution.bootstrap import MIN_CLUSTERS, number_or_none
from recallkit.attribution.breakdowns import FIRST, FIRST_BY_COUNT, Rows, breakdowns, cuts_of, extra_thresholds, slice_breakdown
from recallkit.attribution.collect import Collected, Totals, collect_sums
from recallkit.attribution.intervals import GapIntervals, gap_intervals
from recallkit.attribution.shares import ALL_TOKENS, FEW_CLUSTERS, clipped_share, describe_gap, enrichment, is_void, like_uniform
from recallkit.config import MAX_RESAMPLED_SOURCES
from recallkit.display.notebook import Shown
from recallkit.errors import UserError
from recallkit.slicing.definitions import SPLIT, Slice
from recallkit.storage import db, schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import duckdb
    import polars as pl

EMPTY_SLICE = "no tokens in this slice"
SMALL_SOURCE = f"not one of the {MAX_RESAMPLED_SOURCES} largest sources: no interval"


_SLICES = "slices"
_CONTROL = ("control_share", "control_ci_low", "control_ci_high")


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
    else is resampled) that have tokens of the row, `effective_clusters` their effective number (`bootstrap.effective_number`).
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
    (`bootstrap.expanded_interval`) over clusters, one of CLUSTERS (`num_resamples` resamples drawn from `seed`, the same for every
    model and slice), for all sources together and for each of the MAX_RESAMPLED_SOURCES largest by tokens. The result
    is bit-identical for the same files and arguments.

    Raises UserError if a file is not as expected, scores are of other sequences, or models repeat.
    """
    import polars as pl

    labelled = open_tokens(tokens)
    scores = [open_scores(path, labelled) for path in (reference, *models)]
    names = names or [score.model for score in scores]
    _check_models(names[1:])
    found = collect_sums(labelled, scores, slices, cluster, clean=clean)
    resampled = {name: sums for name, sums in found.clusters.items() if name != FIRST}
    intervals = gap_intervals(resampled, _SLICES, num_resamples, seed)
    with db.connect(threads=1) as database:
        made = _Tables(database, labelled, names, slices, found, intervals, cluster, num_bytes={} if clean else _bytes_by_slice(labelled))
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
        database: duckdb.DuckDBPyConnection,
        tokens: LabelledTokens,
        names: Sequence[str],
        slices: Sequence[Slice],
        found: Collected,
        intervals: Mapping[str, GapIntervals],
        cluster: str,
        num_bytes: dict[tuple[str, str], int],
    ) -> None:
        self._database, self._names, self._found, self._intervals, self._cluster = database, names, found, intervals, cluster
        self._breakdowns, self._slices = breakdowns(cuts_of(tokens), slices), slice_breakdown(slices).tables
        self._vocab_size = (tokens.manifest.get("tokenizer") or {}).get("vocab_size")
        self._sources = ["ALL", *found.sources]
        resampled = {name: place for place, name in enumerate(["ALL", *found.resampled])}
        self._places = [resampled.get(source) for source in self._sources]
        self._num_bytes = num_bytes
        self._extra = extra_thresholds(tokens)

    def pair(self, model: int) -> dict[str, pl.DataFrame]:
        """The tables of the reference and model number `model` (from 1), by name."""
        import polars as pl

        frames = {"gap": self._gap(model)}
        overall = frames["gap"].row(0, named=True)
        for name, breakdown in self._breakdowns.items():
            first = 0
            for table, rows in breakdown.tables.items():
                frame = self._attribute(rows, self._found.totals[name], model, first)
                is_resampled = name in self._intervals
                added = [self._interval_columns(name, model, 0, first + row) for row in range(len(frame))] if is_resampled else []
                frames[table] = _with_columns(frame, added) if added else frame
                first += len(frame)
        frames["by_count"] = _with_first(frames["by_count"], frames.pop(FIRST_BY_COUNT))
        frames["by_threshold"] = self._thresholds(frames["by_threshold"], overall)
        frames["by_partition"] = self._partition(frames["by_partition"], overall)
        if "by_overlap" in frames:
            frames["by_overlap"] = self._overlap(frames["by_overlap"], frames["gap"], overall)
        for table in ("gap", "by_threshold", "by_partition", *({"by_overlap"} & frames.keys())):
            void = [is_void(row) for row in frames[table].iter_rows(named=True)]
            frames[table] = frames[table].with_columns(void=pl.Series(void, dtype=pl.Boolean))
        for table in ("by_count", "by_distance", "by_match", "by_position"):
            frames[table] = frames[table].filter(pl.col("tokens") > 0)
        return {table: frame.select(schemas.LAYOUTS[f"gap/{table}"].keys()) for table, frame in frames.items()}

    def _attribute(self, rows: Rows, totals: Totals, model: int, first: int = 0) -> pl.DataFrame:
        """The rows of one table for each source of `totals`, from row `first` of its breakdown on."""
        import numpy as np
        import pyarrow as pa

        num_rows = rows.unions.shape[1]
        taken = slice(first, first + num_rows)
        whole = self._found.totals[_SLICES]
        sources = len(totals.tokens)
        columns = {
            "source": np.repeat(np.array(self._sources[:sources], object), num_rows),
            **{name: pa.array(list(values) * sources) for name, values in rows.keys.items()},
            "tokens": totals.tokens[:, taken].ravel().astype(np.float64 if rows.is_divided else np.int64),
            "sum_reference": totals.nlls[0, :, taken].ravel(),
            "sum_model": totals.nlls[model, :, taken].ravel(),
            "whole_tokens": np.repeat(whole.tokens[:sources, 0], num_rows),
            "whole_gap": np.repeat((whole.nlls[model] - whole.nlls[0])[:sources, 0], num_rows),
        }
        self._database.register("sums", pa.table(columns))
        pair = {"reference": self._names[0], "model": self._names[model]}
        frame: pl.DataFrame = self._database.sql(db.query("gap/attribute"), params=pair).pl()
        return frame

    def _interval_columns(self, name: str, model: int, place: int | None, row: int) -> dict[str, Any]:
        """The intervals of a row, and the clusters that they are made of; nulls if the source was not resampled."""
        names = ("delta_ci_low", "delta_ci_high", "ci_low", "ci_high")
        if place is None:
            return dict.fromkeys([*names, "clusters", "effective_clusters"])
        found = self._intervals[name]
        bounds = [*found.delta_nll[:, model - 1, place, row], *found.share[:, model - 1, place, row]]
        numbers = {"clusters": int(found.clusters[place, row]), "effective_clusters": float(found.effective[place, row])}
        return {**dict(zip(names, map(number_or_none, bounds), strict=True)), **numbers}

    def _gap(self, model: int) -> pl.DataFrame:
        """The rows of one pair with intervals, clipped shares and notes, source by source."""
        names = list(self._slices["gap"].keys["slice"])
        gap = _with_bytes(self._attribute(self._slices["gap"], self._found.totals[_SLICES], model), self._num_bytes)
        rows, added = list(gap.iter_rows(named=True)), []
        controls = self._controls(model, len(names))
        for number, place in enumerate(self._places):
            by_slice = dict(zip(names, rows[number * len(names) : (number + 1) * len(names)], strict=True))
            intervals = [self._interval_columns(_SLICES, model, place, row) for row in range(len(names))]
            notes = _slice_notes(by_slice, dict(zip(names, intervals, strict=True)), self._like_uniform(rows[0], by_slice["all"]))
            clipped = _clipped_shares(by_slice)
            for (name, row), columns in zip(by_slice.items(), intervals, strict=True):
                columns = columns if row["gap_share"] is not None else {**columns, "ci_low": None, "ci_high": None}
                columns = {"cluster": self._cluster, **columns}
                control = controls[number].get(name, dict.fromkeys(_CONTROL))
                shares = {"gap_share_clipped": clipped[name], "enrichment": enrichment(row["gap_share"], row["share_of_tokens"])}
                added.append({**columns, **shares, **control, "note": self._note(row, columns, intervals[0], notes[name])})
        return _with_columns(gap, added)

    def _controls(self, model: int, first: int) -> list[dict[str, dict[str, float | None]]]:
        """For each source, the first-occurrence control of the slices that have one; `first`: its first row in the breakdown."""
        names = list(self._slices["control"].keys["slice"])
        shares = self._attribute(self._slices["control"], self._found.totals[_SLICES], model, first)["gap_share"].to_list()
        found = []
        for number, place in enumerate(self._places):
            of_source = {}
            for row, (name, share) in enumerate(zip(names, shares[number * len(names) :], strict=False)):
                bounds = self._interval_columns(_SLICES, model, place, first + row)
                ends = (None, None) if share is None else (bounds["ci_low"], bounds["ci_high"])
                of_source[name] = dict(zip(_CONTROL, (share, *ends), strict=True))
            found.append(of_source)
        return found

    def _like_uniform(self, *rows: Mapping[str, Any]) -> list[str]:
        """Notes on models that predict no better than a uniform guess in any of these rows of all tokens."""
        return list(dict.fromkeys(note for row in rows for note in like_uniform(row["nll_reference"], row["nll_model"], self._vocab_size)))

    def _thresholds(self, sweep: pl.DataFrame, overall: Mapping[str, Any]) -> pl.DataFrame:
        """The thresholds of one pair, up to the first power of two that no count exceeds, with clipped shares and notes."""
        import polars as pl

        sweep = sweep.filter(pl.col("threshold").is_in(self._extra) | (pl.col("threshold") <= self._last_power()))
        gap_bounds, uniform = _bounds(overall, "delta_ci"), self._like_uniform(overall)
        added = []
        for row in sweep.iter_rows(named=True):
            notes = describe_gap(overall["delta_nll"], row["gap_share"], gap_bounds, uniform, _bounds(row, "ci"))
            clipped = clipped_share(overall["delta_nll"], row["gap_share"])
            shares = {"gap_share_clipped": clipped, "enrichment": enrichment(row["gap_share"], row["share_of_tokens"])}
            added.append({**shares, "note": self._note(row, row, overall, notes)})
        return _with_columns(sweep, added)

    def _partition(self, classes: pl.DataFrame, overall: Mapping[str, Any]) -> pl.DataFrame:
        """The classes of one pair with enrichments and notes."""
        notes = describe_gap(overall["delta_nll"], None, _bounds(overall, "delta_ci"), self._like_uniform(overall))
        added = [
            {"enrichment": enrichment(row["gap_share"], row["share_of_tokens"]), "note": self._note(row, row, overall, notes)}
            for row in classes.iter_rows(named=True)
        ]
        return _with_columns(classes, added)

    def _overlap(self, divided: pl.DataFrame, gap: pl.DataFrame, overall: Mapping[str, Any]) -> pl.DataFrame:
        """The slices of one pair, among which tokens are divided, with enrichments, notes, and each slice's plain shares."""
        plain = {row["slice"]: row for row in gap.head(len(self._slices["gap"].keys["slice"])).iter_rows(named=True)}
        notes = describe_gap(overall["delta_nll"], None, _bounds(overall, "delta_ci"), self._like_uniform(overall))
        added = []
        for row in divided.iter_rows(named=True):
            own = plain.get(row["slice"], row)  # a token in none of them is not divided
            shares = {"plain_share_of_tokens": own["share_of_tokens"], "plain_share": own["gap_share"]}
            note = self._note(row, row, overall, notes)
            added.append({**shares, "enrichment": enrichment(row["gap_share"], row["share_of_tokens"]), "note": note})
        return _with_columns(divided, added)

    def _last_power(self) -> int:
        by_count = self._breakdowns["counts"].tables["by_count"]
        tokens = self._found.totals["counts"].tokens[0, : by_count.unions.shape[1]]
        return max(int(high) for high, held in zip(by_count.keys["high"], tokens, strict=True) if held)

    def _note(self, row: Mapping[str, Any], columns: Mapping[str, Any], whole: Mapping[str, Any], notes: Sequence[str]) -> str:
        """`notes` on the gap and those on one row, whose intervals are among `columns`; `whole`: the intervals of all tokens."""
        if row["tokens"] == 0:
            return "; ".join([*notes, EMPTY_SLICE])
        if row["share_of_tokens"] == 1 and row.get("slice") != "all":
            notes = [*notes, ALL_TOKENS]
        if columns["clusters"] is None:
            return "; ".join([*notes, SMALL_SOURCE])
        few = min(columns["effective_clusters"], whole["effective_clusters"]) < MIN_CLUSTERS
        return "; ".join([*notes, FEW_CLUSTERS.format(self._cluster)] if few else notes)


def _slice_notes(
    by_slice: Mapping[str, Mapping[str, Any]], intervals: Mapping[str, Mapping[str, Any]], uniform: Sequence[str]
) -> dict[str, list[str]]:
    """What to know of the gap of one source, by slice; `intervals`: columns by slice; `uniform`: see `describe_gap`."""
    overall, hits_share = by_slice["all"]["delta_nll"], by_slice["ar_hit"]["gap_share"]
    bounds = _bounds(intervals["all"], "delta_ci")
    notes = dict.fromkeys(by_slice, describe_gap(overall, None, bounds, uniform))
    of_split = describe_gap(overall, hits_share, bounds, uniform, _bounds(intervals["ar_hit"], "ci"))
    return notes | dict.fromkeys([slice_.name for slice_ in SPLIT], of_split)


def _clipped_shares(by_slice: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """The clipped shares of the slices of one source."""
    overall = by_slice["all"]["delta_nll"]
    clipped = {name: clipped_share(overall, row["gap_share"]) for name, row in by_slice.items()}
    hits, other = clipped["ar_hit"], by_slice["other"]["gap_share"]
    # The share that is not the hits' goes to the other tokens, so that the two clipped shares add up to the gap.
    return {**clipped, "all": by_slice["all"]["gap_share"], "other": other if other is None or hits is None else 1.0 - hits}


def _bounds(columns: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """An interval among the columns of a row; None if there is none."""
    low, high = columns[f"{name}_low"], columns[f"{name}_high"]
    return None if low is None or high is None else (low, high)


def _bytes_by_slice(tokens: LabelledTokens) -> dict[tuple[str, str], int]:
    """Bytes of text by source and slice, if the labels' manifest has them."""
    found: dict[tuple[str, str], int] = {}
    for source, whole, hits in tokens.manifest.get("num_bytes") or ():
        found |= {(source, "all"): whole, (source, "ar_hit"): hits, (source, "other"): whole - hits}
    return found


def _with_bytes(gap: pl.DataFrame, num_bytes: dict[tuple[str, str], int]) -> pl.DataFrame:
    """Adds the bytes of each slice and the bits per byte: NLLs summed over its tokens, in bits, over its bytes."""
    import polars as pl

    of_slices = [num_bytes.get(key) for key in zip(gap["source"], gap["slice"], strict=True)]
    gap = gap.with_columns(pl.Series("bytes", of_slices, pl.Int64))
    some_bytes = pl.when(pl.col("bytes") > 0).then(pl.col("bytes"))
    bits = {f"bpb_{name}": pl.col(f"nll_{name}") * pl.col("tokens") / math.log(2) / some_bytes for name in ("reference", "model")}
    return gap.with_columns(**bits)


def _with_first(by_count: pl.DataFrame, first: pl.DataFrame) -> pl.DataFrame:
    """Adds the NLLs of `first`, the first occurrences of the bigrams of repeated tokens, to the buckets of these; others have null."""
    added = {f"nll_{side}": f"nll_first_{side}" for side in ("reference", "model")}
    return by_count.join(first.select("repeated", "low", *added).rename(added), on=["repeated", "low"], how="left", maintain_order="left")


def _with_columns(frame: pl.DataFrame, added: list[dict[str, Any]]) -> pl.DataFrame:
    """`frame` with a column for each key of `added`, its rows in the same order; every number is float64, also if all are null."""
    import polars as pl

    types = {"cluster": pl.String, "note": pl.String, "clusters": pl.Int64}
    schema = {name: types.get(name, pl.Float64) for name in added[0]}
    return pl.concat([frame, pl.DataFrame(added, schema=schema)], how="horizontal")
