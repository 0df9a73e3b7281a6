"""The gap between models and a reference, split over AR hits, other tokens and further slices: the main question of recallkit.

Reads labels and scores row-aligned, reduces them to cells in one pass (cells.py), and makes every table from the cells:
the tables are consistent with each other because none reads the tokens again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from recallkit.attribution.aligned import LabelledTokens, open_scores, open_tokens
from recallkit.attribution.buckets import count_thresholds
from recallkit.attribution.cells import LARGEST_THRESHOLD, NUM_POSITION_BUCKETS, collect_cells, extra_thresholds
from recallkit.attribution.intervals import GapIntervals, gap_intervals
from recallkit.attribution.shares import clipped_share, describe_gap
from recallkit.config import MAX_RESAMPLED_SOURCES
from recallkit.errors import UserError
from recallkit.slicing.definitions import PARTITION, STANDARD, Slice
from recallkit.storage import db

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import duckdb
    import numpy as np
    import polars as pl
    import pyarrow as pa

    from recallkit.attribution.slice_sums import SliceSums

EMPTY_SLICE = "no tokens in this slice"
ONE_SEQUENCE = "tokens of one sequence only: no interval"
SMALL_SOURCE = f"not one of the {MAX_RESAMPLED_SOURCES} largest sources: no interval"

_GAP_COLUMNS = (
    *("reference", "model", "source", "slice", "tokens", "share_of_tokens"),
    *("nll_reference", "nll_model", "ppl_reference", "ppl_model", "bytes", "bpb_reference", "bpb_model"),
    *("delta_nll", "delta_ci_low", "delta_ci_high"),
    *("gap_share", "gap_share_clipped", "ci_low", "ci_high", "note"),
)
_PARTITION_COLUMNS = (
    *("reference", "model", "slice", "tokens", "share_of_tokens", "nll_reference", "nll_model", "ppl_reference", "ppl_model"),
    *("delta_nll", "gap_share", "ci_low", "ci_high"),
)
_NOT_BY_THRESHOLD = ("slice", "bytes", "bpb_reference", "bpb_model", "delta_ci_low", "delta_ci_high")
_THRESHOLD_COLUMNS = tuple("threshold" if name == "source" else name for name in _GAP_COLUMNS if name not in _NOT_BY_THRESHOLD)


@dataclass(frozen=True, slots=True)
class GapTables:
    """The gap of each model to the reference. NLLs and differences are in nats per token, shares are fractions.

    gap: model x source (ALL first) x slice (all, ar_hit, other, then the requested ones); `share_of_tokens` and `gap_share`
    are within the same source.
    `bytes` of text in the slice's tokens, and `bpb_*` = bits of NLL per byte, if the slices have them (null otherwise).
    by_count, by_distance, by_match, by_position: model x bucket (`low`..`high`, both included); their shares are of all tokens.
    by_match: by `match_length` of tokens.parquet; bucket 0 is the tokens that are not repeated, which by_distance omits.
    by_threshold: model x largest training count of an AR hit; shares of all tokens.
    by_partition: model x class of `slicing.definitions.PARTITION`, whose tokens and shares add up to all; None if read back
    from a folder that is older than this table.
    """

    gap: pl.DataFrame
    by_count: pl.DataFrame
    by_distance: pl.DataFrame
    by_match: pl.DataFrame
    by_position: pl.DataFrame
    by_threshold: pl.DataFrame
    by_partition: pl.DataFrame | None = None


def attribute_gap(
    tokens: Path, reference: Path, models: Sequence[Path], *, slices: Sequence[Slice] = (), num_resamples: int = 2000, seed: int = 0
) -> GapTables:
    """Splits the gap between each of `models` and `reference` (score files) over the tokens of `tokens` (labels).

    The slices are AR hits and other tokens, further `slices`, and the classes of PARTITION.

    A slice's NLL is the mean over its tokens; its share of the gap is the summed difference in it over the summed
    difference in all tokens (Zoology section 3.1, appendix C.1). Intervals are 95 % percentile bootstrap intervals over
    sequences (`num_resamples` resamples drawn from `seed`, the same for every model and slice), for all sources together
    and for each of the MAX_RESAMPLED_SOURCES largest by tokens. The result is bit-identical for the same files and
    arguments.

    Raises UserError if a file is not as expected, scores are of other sequences, or models repeat.
    """
    labelled = open_tokens(tokens)
    scores = [open_scores(path, labelled) for path in (reference, *models)]
    names = [score.model for score in scores]
    _check_models(names[1:])
    cells = collect_cells(labelled, scores, slices)
    intervals = gap_intervals(cells.by_sequence, num_resamples, seed)
    places = {name: place for place, name in enumerate(["ALL", *cells.by_sequence.sources])}
    num_bytes = _bytes_by_slice(labelled)
    thresholds = _thresholds(labelled, cells.by_sequence.class_tokens.shape[1] - 1)

    pairs = []
    with db.connect(threads=1) as database:
        _register_classes(database, labelled, thresholds)
        for index, model in enumerate(names[1:]):
            database.register("totals", _pair(cells.totals, index + 1))
            frames = _query_pair(database, labelled, names[0], model)
            pair = {"reference": names[0], "model": model}
            if cells.by_sequence.given is not None:
                given = _query_slices(database, pair, index + 1, cells.sources, slices, cells.by_sequence.given)
                frames["gap"] = _interleave(frames["gap"], given, len(slices))
            classes = _query_slices(database, pair, index + 1, [""], PARTITION, cells.by_sequence.partition)
            order = [*(slice_.name for slice_ in STANDARD), *(slice_.name for slice_ in slices)]
            frames["gap"] = _annotate_gap(_with_bytes(frames["gap"], num_bytes), intervals, index, places, order)
            frames["by_partition"] = _annotate_partition(classes, intervals, index)
            frames["by_threshold"] = _annotate_thresholds(frames["by_threshold"], frames["gap"], intervals, index, thresholds)
            pairs.append(frames)
    return _stack(pairs)


def _check_models(models: Sequence[str]) -> None:
    if not models:
        raise UserError("no model to compare with the reference", remedy="name two models: the reference first")
    for model in models:
        if models.count(model) > 1:
            raise UserError("given twice", where=model, remedy="name each model once")


def _thresholds(tokens: LabelledTokens, largest_class: int) -> dict[int, int]:
    """Threshold -> last count class within it: 0, powers of two up to the first that no count exceeds, and the extra ones."""
    extra = extra_thresholds(tokens)
    every = count_thresholds(extra)
    last_power = 1 << (every[largest_class] - 1).bit_length() if every[largest_class] else 0
    return {threshold: index for index, threshold in enumerate(every) if threshold <= last_power or threshold in extra}


def _register_classes(database: duckdb.DuckDBPyConnection, tokens: LabelledTokens, thresholds: dict[int, int]) -> None:
    """The tables `count_classes` and `thresholds`, in which the queries look up classes of training counts."""
    import pyarrow as pa

    every = count_thresholds(extra_thresholds(tokens))
    bounds = [1 << (threshold - 1).bit_length() if threshold else 0 for threshold in every]
    low = [bound // 2 + 1 if bound else 0 for bound in bounds]
    high = [min(bound, LARGEST_THRESHOLD) for bound in bounds]
    database.register("count_classes", pa.table({"count_class": list(range(len(every))), "threshold": every, "low": low, "high": high}))
    database.register("thresholds", pa.table({"threshold": list(thresholds), "count_class": list(thresholds.values())}))


def _pair(totals: pa.Table, index: int) -> pa.Table:
    """The cells with the NLL sums of the reference and of model `index` (from 1) only."""
    keys = [name for name in totals.column_names if not name.startswith("nll_")]
    return totals.select([*keys, "nll_0", f"nll_{index}"]).rename_columns([*keys, "nll_reference", "nll_model"])


def _query_pair(database: duckdb.DuckDBPyConnection, tokens: LabelledTokens, reference: str, model: str) -> dict[str, pl.DataFrame]:
    """The six tables of one pair, by name, without the columns that the intervals add; `totals` is registered."""
    pair = {"reference": reference, "model": model}
    positions = {"seq_len": tokens.seq_len, "num_buckets": NUM_POSITION_BUCKETS}
    return {
        "gap": database.sql(db.query("gap/attribute_gap"), params=pair).pl(),
        "by_count": database.sql(db.query("gap/bucket_counts"), params=pair).pl(),
        "by_distance": database.sql(db.query("gap/bucket_distances"), params=pair).pl(),
        "by_match": database.sql(db.query("gap/bucket_matches"), params=pair).pl(),
        "by_position": database.sql(db.query("gap/bucket_positions"), params=pair | positions).pl(),
        "by_threshold": database.sql(db.query("gap/sweep_thresholds"), params=pair).pl(),
    }


def _query_slices(
    database: duckdb.DuckDBPyConnection, pair: dict[str, str], model: int, sources: Sequence[str], slices: Sequence[Slice], sums: SliceSums
) -> pl.DataFrame:
    """The rows of one pair for `slices`, `ALL` first, then by source; `totals` is registered."""
    import numpy as np
    import pyarrow as pa

    columns = {
        "source": np.repeat(np.array(sources, object), len(slices)),
        "slice_order": np.tile(np.arange(len(slices)), len(sources)),
        "slice": np.tile(np.array([slice_.name for slice_ in slices], object), len(sources)),
        "tokens": sums.source_tokens.ravel(),
        "nll_reference": sums.source_nlls[0].ravel(),
        "nll_model": sums.source_nlls[model].ravel(),
    }
    database.register("slice_sums", pa.table(columns))
    rows: pl.DataFrame = database.sql(db.query("gap/attribute_slices"), params=pair).pl()
    return rows


def _interleave(gap: pl.DataFrame, given: pl.DataFrame, num_given: int) -> pl.DataFrame:
    """The rows of both tables, which have the same sources in the same order: for each source, those of STANDARD first."""
    import polars as pl

    parts = [frame.with_row_index("source_order") for frame in (gap, given)]
    sizes = (len(STANDARD), num_given)
    numbered = [frame.with_columns(pl.col("source_order") // size) for frame, size in zip(parts, sizes, strict=True)]
    return pl.concat(numbered).sort("source_order", maintain_order=True).drop("source_order")


def _annotate_partition(classes: pl.DataFrame, intervals: GapIntervals, model: int) -> pl.DataFrame:
    """Adds the intervals of the shares to the classes of one pair."""
    found = [_bounds(intervals.partition_share, model, place) for place in range(len(classes))]
    shares = zip(found, classes["gap_share"], strict=True)
    added = [_interval_columns("ci", None if share is None else bounds) for bounds, share in shares]
    return _with_columns(classes, added).select(_PARTITION_COLUMNS)


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


def _annotate_gap(gap: pl.DataFrame, intervals: GapIntervals, model: int, places: dict[str, int], order: Sequence[str]) -> pl.DataFrame:
    """Adds intervals, clipped shares and notes to the rows of one pair, source by source, slices in `order`."""
    added = []
    rows = list(gap.iter_rows(named=True))
    for start in range(0, len(rows), len(order)):
        by_slice = {row["slice"]: row for row in rows[start : start + len(order)]}
        place = places.get(by_slice["all"]["source"])
        overall, hits_share = by_slice["all"]["delta_nll"], by_slice["ar_hit"]["gap_share"]
        bounds = _bounds(intervals.delta_nll, model, place, 0)
        notes = dict.fromkeys(order, describe_gap(overall, None, bounds))
        notes |= dict.fromkeys([slice_.name for slice_ in STANDARD], describe_gap(overall, hits_share, bounds))
        hits_clipped = clipped_share(overall, hits_share)
        for column, name in enumerate(order):
            share = by_slice[name]["gap_share"]
            # The share that is not the hits' goes to the other tokens, so that the two clipped shares add up to the gap.
            other_clipped = share if share is None or hits_clipped is None else 1.0 - hits_clipped
            standard = {"all": share, "ar_hit": hits_clipped, "other": other_clipped}
            clipped = standard[name] if name in standard else clipped_share(overall, share)
            share_bounds = None if share is None else _bounds(intervals.share, model, place, column)
            num_sequences = None if place is None else intervals.num_sequences[place, column]
            added.append(
                {
                    **_interval_columns("delta_ci", _bounds(intervals.delta_nll, model, place, column)),
                    **_interval_columns("ci", share_bounds),
                    "gap_share_clipped": clipped,
                    "note": _note(by_slice[name]["tokens"], num_sequences, notes[name]),
                }
            )
    return _with_columns(gap, added).select(_GAP_COLUMNS)


def _annotate_thresholds(
    sweep: pl.DataFrame, gap: pl.DataFrame, intervals: GapIntervals, model: int, thresholds: dict[int, int]
) -> pl.DataFrame:
    """Adds intervals, clipped shares and notes to the thresholds of one pair; `gap` is the pair's own table."""
    overall = gap.row(0, named=True)
    gap_bounds = None if overall["delta_ci_low"] is None else (overall["delta_ci_low"], overall["delta_ci_high"])
    added = []
    for row in sweep.iter_rows(named=True):
        place = min(thresholds[row["threshold"]], intervals.class_num_sequences.size - 1)
        share = row["gap_share"]
        added.append(
            {
                **_interval_columns("ci", _bounds(intervals.class_share, model, place) if share is not None else None),
                "gap_share_clipped": clipped_share(overall["delta_nll"], share),
                "note": _note(row["tokens"], intervals.class_num_sequences[place], describe_gap(overall["delta_nll"], share, gap_bounds)),
            }
        )
    return _with_columns(sweep, added).select(_THRESHOLD_COLUMNS)


def _bounds(intervals: np.ndarray, *place: int | None) -> tuple[float, float] | None:
    """Low and high at index `place` of `intervals` (2, ...), or None if there is no interval or no such index."""
    if None in place:
        return None
    low, high = (float(bounds[place]) for bounds in intervals)
    return None if low != low or high != high else (low, high)


def _interval_columns(name: str, bounds: tuple[float, float] | None) -> dict[str, float | None]:
    low, high = (None, None) if bounds is None else bounds
    return {f"{name}_low": low, f"{name}_high": high}


def _note(tokens: int, num_sequences: int | None, notes: list[str]) -> str:
    """`notes` on the gap and those on one slice; `num_sequences` is None if they were not resampled."""
    if tokens == 0:
        return "; ".join([*notes, EMPTY_SLICE])
    if num_sequences is None:
        return "; ".join([*notes, SMALL_SOURCE])
    return "; ".join([*notes, ONE_SEQUENCE] if num_sequences < 2 else notes)


def _with_columns(frame: pl.DataFrame, added: list[dict[str, Any]]) -> pl.DataFrame:
    """`frame` with a column for each key of `added`, its rows in the same order; every number is float64, also if all are null."""
    import polars as pl

    schema = {name: pl.String if name == "note" else pl.Float64 for name in added[0]}
    return pl.concat([frame, pl.DataFrame(added, schema=schema)], how="horizontal")


def _stack(pairs: Sequence[dict[str, pl.DataFrame]]) -> GapTables:
    import polars as pl

    return GapTables(**{field.name: pl.concat([pair[field.name] for pair in pairs]) for field in fields(GapTables)})
