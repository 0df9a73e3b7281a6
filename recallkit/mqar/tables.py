"""Tables of multi-query associative recall: one row per query, one row per sequence, and the
comparison of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from recallkit.display.notebook import Shown
from recallkit.recall.accuracy import compare_means, compare_shares
from recallkit.storage import artifacts, db, schemas
from recallkit.storage.journal import read_part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.mqar.sequences import MqarAnswers

_FIGURES = {
    "accuracy": (compare_shares, "ar_right", "ar_tokens"),
    "filler_accuracy": (compare_shares, "filler_right", "filler_tokens"),
    "ar_nll": (compare_means, "ar_nats", "ar_tokens"),
    "filler_nll": (compare_means, "filler_nats", "filler_tokens"),
}
"""Each figure with an interval: of which kind, and the columns of queries/mqar/sum_samples.sql
whose totals it is the ratio of."""


@dataclass(frozen=True, slots=True)
class MqarFiles:
    """The files of one model and one number of pairs: one row per query, one row per sequence."""

    queries: Path
    fillers: Path


_OF_QUERIES = ("place", "distance", "nll", "rank", "right", "choices")


def write_part(path: Path, samples: Sequence[int], answers: MqarAnswers) -> None:
    """Writes a model's answers to some sequences, one row per sequence."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(answers.questions)]).astype(np.int32))
    lists = {name: pa.ListArray.from_arrays(offsets, pa.array(getattr(answers, name))) for name in _OF_QUERIES}
    fillers = {name: pa.array(getattr(answers, name)) for name in ("filler_tokens", "filler_right", "filler_nll")}
    table = pa.table({"sample": pa.array(samples, pa.int32()), **lists, **fillers})
    artifacts.write_parquet(path, [table], table.schema, {"kind": "mqar part"})


def join_parts(
    parts: Sequence[Path],
    pairs: int,
    files: MqarFiles,
    manifest: dict[str, Any],
) -> None:
    """Joins all parts into the two tables, each written atomically, the queries last. Raises
    UserError for a damaged part."""
    rows = pl.concat([pl.DataFrame(read_part(part)) for part in parts]).with_columns(
        pairs=pl.lit(pairs, pl.Int32),
    )
    asked = rows.explode(*_OF_QUERIES)
    for path, table, kind in (
        (files.fillers, rows, "mqar fillers"),
        (files.queries, asked, "mqar queries"),
    ):
        schema = schemas.arrow_schema(kind)
        artifacts.write_parquet(
            path,
            [table.select(schema.names).to_arrow().cast(schema)],
            schema,
            {**manifest, "kind": kind},
        )


@dataclass(frozen=True, slots=True, repr=False)
class MqarTables(Shown):
    """Models compared on MQAR or another synthetic task, the first as the reference.

    Accuracies are fractions, NLLs nats per token, ppl exp of them.

    mqar: model x pairs. `accuracy`, `ar_nll`, `ar_ppl` of the answers, `filler_*` of the filler
    (null if there is none), `guess` the accuracy of a guess among the values before each question;
    NAME_low and NAME_high: 95 % intervals, of which sequences are the units (recall.accuracy);
    NAME_difference with its interval: to the reference on the same sequences, null for the
    reference. Of a single sequence NLLs have no interval. The interval of a perplexity is exp of
    its NLL's. by_distance: model x pairs x bucket (`low`..`high` ids from where an answer stood to
    where it is asked for, both included).
    """

    mqar: pl.DataFrame
    by_distance: pl.DataFrame


def compare_mqar(files: Mapping[tuple[str, int], MqarFiles]) -> MqarTables:
    """Compares models by their tables of the same sequences, given by (model, pairs), models in the
    order of the comparison."""
    models = list(dict.fromkeys(model for model, _ in files))
    with db.connect(threads=1) as connection:
        for name in ("queries", "fillers"):
            read = {key: schemas.read_frame(getattr(of, name)) for key, of in files.items()}
            connection.register(
                name,
                pl.concat(frame.with_columns(model=pl.lit(model)) for (model, _), frame in read.items()).to_arrow(),
            )
        samples = db.frame(connection, "mqar/sum_samples")
        connection.register("samples", samples.to_arrow())
        summary, by_distance = (db.frame(connection, f"mqar/{query}") for query in ("summarise_samples", "bucket_distances"))
    facts = [_facts(model, pairs, models[0], of.queries) for (model, pairs), of in files.items()]
    of_pairs = samples.partition_by("pairs", as_dict=True, maintain_order=True)
    intervals = [row for (pairs,), some in of_pairs.items() for row in sample_intervals(some, models, pairs)]
    mqar = summary
    for rows in (facts, intervals):
        mqar = mqar.join(
            pl.DataFrame(rows, infer_schema_length=None),
            on=["model", "pairs"],
            validate="1:1",
        )
    order = pl.col("model").cast(pl.Enum(models))
    frames = mqar.select(list(schemas.LAYOUTS["mqar/mqar"])), by_distance
    return MqarTables(*(frame.sort(order, maintain_order=True) for frame in frames))


def _facts(model: str, pairs: int, reference: str, queries: Path) -> dict[str, Any]:
    """The columns of a model's row that come from the manifest of its queries."""
    manifest = artifacts.read_manifest(queries)
    kept = {name: manifest[name] for name in ("task", "length", "power", "seed")}
    return {
        "model": model,
        "pairs": pairs,
        "reference": reference,
        **kept,
        "tokenizer": manifest["tokenizer"]["name"],
    }


def sample_intervals(
    samples: pl.DataFrame,
    models: Sequence[str],
    pairs: Any,
) -> list[dict[str, Any]]:
    """Intervals and differences for one number of `pairs`, one row per model; `samples` as
    queries/mqar/sum_samples.sql makes them."""
    of_models = [samples.filter(model=model).sort("sample") for model in models]
    rows: list[dict[str, Any]] = [{"model": model, "pairs": pairs} for model in models]
    for name, (compare, *columns) in _FIGURES.items():
        above, below = (np.column_stack([of[column].to_numpy().astype(np.float64) for of in of_models]) for column in columns)
        found = compare(above, below)
        for model, row in enumerate(rows):
            row |= {f"{name}_{end}": value for end, value in found.row(model).items() if not end.endswith("error")}
    return rows
