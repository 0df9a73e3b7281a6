"""Tables of multi-query associative recall: one row per query, one row per sequence, and the comparison of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit.display.notebook import Shown
from recallkit.errors import UserError
from recallkit.measure.classes import log2_bucket
from recallkit.measure.intervals import number_or_none
from recallkit.recall.accuracy import mean_bounds, mean_difference_bounds, share_bounds, share_difference_bounds
from recallkit.storage import artifacts, db, schemas
from recallkit.storage.journal import read_part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import duckdb
    import numpy as np
    import polars as pl

    from recallkit.mqar.sequences import MqarAnswers

_SUMS = ("ar_tokens", "ar_right", "ar_nats", "filler_tokens", "filler_right", "filler_nats")
"""Columns of queries/mqar/sum_samples.sql that are summed over sequences."""

_SHARES = {"accuracy": ("ar_right", "ar_tokens"), "filler_accuracy": ("filler_right", "filler_tokens")}
_MEANS = {"ar_nll": ("ar_nats", "ar_tokens"), "filler_nll": ("filler_nats", "filler_tokens")}
"""Each quantity with an interval: (numerator, denominator) among those sums."""


@dataclass(frozen=True, slots=True)
class MqarFiles:
    """The files of one model and one number of pairs: one row per query, one row per sequence."""

    queries: Path
    fillers: Path


# ------------------------------------------------------------------------------------------------------------ the files


def write_part(path: Path, samples: Sequence[int], places: np.ndarray, answers: MqarAnswers) -> None:
    """Writes a model's answers to some sequences, `places` (n, pairs) as in `MqarSequences`, one row per sequence."""
    import numpy as np
    import pyarrow as pa

    sizes = np.arange(len(places) + 1, dtype=np.int32) * places.shape[1]
    of_queries = {"place": places.astype(np.int32), "nll": answers.nll, "rank": answers.rank, "right": answers.right}
    lists = {name: pa.ListArray.from_arrays(pa.array(sizes), pa.array(values.ravel())) for name, values in of_queries.items()}
    fillers = {name: pa.array(getattr(answers, name)) for name in ("filler_tokens", "filler_right", "filler_nll")}
    table = pa.table({"sample": pa.array(samples, pa.int32()), **lists, **fillers})
    artifacts.write_parquet(path, [table], table.schema, {"kind": "mqar part"})


def join_parts(parts: Sequence[Path], pairs: int, files: MqarFiles, manifest: dict[str, Any]) -> None:
    """Joins all parts into the two tables, each written atomically, the queries last. Raises UserError for a damaged part."""
    import polars as pl

    rows = pl.concat([pl.DataFrame(read_part(part)) for part in parts]).with_columns(pairs=pl.lit(pairs, pl.Int32))
    pair = pl.int_ranges(pl.lit(0, pl.Int32), pl.lit(pairs, pl.Int32), dtype=pl.Int32)
    asked = rows.with_columns(pair=pair).explode("pair", "place", "nll", "rank", "right")
    asked = asked.with_columns(distance=pl.col("place") - 2 * pl.col("pair"))
    for path, table, kind in ((files.fillers, rows, "mqar fillers"), (files.queries, asked, "mqar queries")):
        schema = schemas.arrow_schema(kind)
        artifacts.write_parquet(path, [table.select(schema.names).to_arrow().cast(schema)], schema, {**manifest, "kind": kind})


# ------------------------------------------------------------------------------------------------------- models compared


@dataclass(frozen=True, slots=True)
class MqarTables(Shown):
    """Models compared on MQAR, the first as the reference. Accuracies are fractions, NLLs nats per token, ppl exp of them.

    mqar: model x pairs. `accuracy`, `ar_nll`, `ar_ppl` of the queried values, `filler_*` of the filler in the tail (null if there is
    none); NAME_low and NAME_high: 95 % intervals, of which sequences are the units (recall.accuracy); NAME_difference with its
    interval: to the reference on the same sequences, null for the reference. Of a single sequence NLLs have no interval. The
    interval of a perplexity is exp of its NLL's.
    by_distance: model x pairs x bucket (`low`..`high` ids from the pair's key to the query's, both included).
    """

    mqar: pl.DataFrame
    by_distance: pl.DataFrame


def compare_mqar(files: Mapping[tuple[str, int], MqarFiles]) -> MqarTables:
    """Compares models by their tables, given by (model, pairs), models in the order of the comparison.

    Raises UserError if two models had queries at different places.
    """
    import polars as pl

    models = list(dict.fromkeys(model for model, _ in files))
    queries = _read_together({key: file.queries for key, file in files.items()}, "mqar queries")
    fillers = _read_together({key: file.fillers for key, file in files.items()}, "mqar fillers")
    _check_same_places(queries, models)
    with db.connect(threads=1) as connection:
        connection.register("queries", queries.to_arrow())
        connection.register("fillers", fillers.to_arrow())
        samples = db.frame(connection, "mqar/sum_samples")
        connection.register("samples", samples.to_arrow())
        summary = db.frame(connection, "mqar/summarise_samples")
        by_distance = _bucket(connection, queries)
    facts = [_facts(model, pairs, models[0], file.queries) for (model, pairs), file in files.items()]
    intervals = [
        row for (pairs,), of_pairs in samples.group_by("pairs", maintain_order=True) for row in sample_intervals(of_pairs, models, pairs)
    ]
    mqar = summary.join(pl.DataFrame(facts), on=["model", "pairs"], validate="1:1").join(
        pl.DataFrame(intervals, infer_schema_length=None), on=["model", "pairs"], validate="1:1"
    )
    return MqarTables(_sorted(mqar.select(list(schemas.LAYOUTS["mqar/mqar"])), models), _sorted(by_distance, models))


def _read_together(paths: Mapping[tuple[str, int], Path], layout: str) -> pl.DataFrame:
    import polars as pl

    frames: list[pl.DataFrame] = []
    for (model, pairs), path in paths.items():
        frame = schemas.read_frame(path, layout, exact=True)
        if not len(frame) or len(frame) % (pairs if "pair" in frame.columns else 1):
            raise UserError(f"damaged ({len(frame):,} rows)", where=path, remedy="make it again with --force")
        frames.append(frame.select(pl.lit(model).alias("model"), pl.all()))
    return pl.concat(frames)


def _check_same_places(queries: pl.DataFrame, models: Sequence[str]) -> None:
    shapes = queries.partition_by("model", as_dict=True)
    columns = ["pairs", "sample", "pair", "place"]
    asked = shapes[models[0],].select(columns)
    for model in models[1:]:
        if not shapes[model,].select(columns).equals(asked):
            raise UserError(f"{model} and {models[0]} had queries at different places", remedy="make them again with --force")


def _bucket(connection: duckdb.DuckDBPyConnection, queries: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    bucketed = queries.with_columns(pl.Series("bucket", log2_bucket(queries["distance"].to_numpy())))
    connection.register("bucketed", bucketed.to_arrow())
    return db.frame(connection, "mqar/bucket_distances")


def _facts(model: str, pairs: int, reference: str, queries: Path) -> dict[str, Any]:
    """The columns of a model's row that come from the manifest of its queries."""
    manifest = artifacts.read_manifest(queries)
    kept = {name: manifest[name] for name in ("length", "power", "seed")}
    return {"model": model, "pairs": pairs, "reference": reference, **kept, "tokenizer": manifest["tokenizer"]["name"]}


def sample_intervals(samples: pl.DataFrame, models: Sequence[str], pairs: Any) -> list[dict[str, Any]]:
    """Intervals and differences for one number of `pairs`, one row per model; `samples` as queries/mqar/sum_samples.sql makes them.

    Those of an accuracy are score intervals, those of an NLL t intervals.
    """
    by_model = samples.partition_by("model", as_dict=True)
    sums = {name: _by_sequence([by_model[model,] for model in models], name) for name in _SUMS}
    rows: list[dict[str, Any]] = [{"model": model, "pairs": pairs} for model in models]
    kinds = ((_SHARES, share_bounds, share_difference_bounds), (_MEANS, mean_bounds, mean_difference_bounds))
    for named, bounds, difference_bounds in kinds:
        for name, (above, below) in named.items():
            found = _ratio(sums[above], sums[below])
            _put(rows, name, None, bounds(sums[above], sums[below]))
            _put(rows, f"{name}_difference", found - found[0], difference_bounds(sums[above], sums[below]))
    return rows


def _by_sequence(of_models: Sequence[pl.DataFrame], name: str) -> np.ndarray:
    """A sum of every sequence (row) and model (column), float64."""
    import numpy as np

    return np.column_stack([frame.sort("sample")[name].to_numpy().astype(np.float64) for frame in of_models])


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """The ratio of two totals over sequences, by model; NaN if the denominator is 0."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        ratio: np.ndarray = above.sum(axis=0) / below.sum(axis=0)
    return ratio


def _put(rows: Sequence[dict[str, Any]], name: str, values: np.ndarray | None, bounds: np.ndarray) -> None:
    for place, row in enumerate(rows):
        if values is not None:
            row[name] = number_or_none(values[place])
        row[f"{name}_low"], row[f"{name}_high"] = number_or_none(bounds[0, place]), number_or_none(bounds[1, place])


def _sorted(frame: pl.DataFrame, models: Sequence[str]) -> pl.DataFrame:
    """Sorted by model as they were named, otherwise as the query sorted them."""
    import polars as pl

    places = pl.col("model").replace_strict({model: place for place, model in enumerate(models)})
    return frame.sort(places, maintain_order=True)
