"""Tables of multi-query associative recall: one row per query, one row per sequence, and the
comparison of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from recallkit.display.notebook import NotebookResult
from recallkit.recall.accuracy import compare_means, compare_shares
from recallkit.storage import db, parquet_files, records, schemas
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


class MqarFiles(NamedTuple):
    """The files of one model and one number of pairs: one row per query, one row per sequence."""

    queries: Path
    fillers: Path


_OF_QUERIES = ("place", "distance", "nll", "rank", "right", "choices")
_OF_FILLERS = ("filler_tokens", "filler_right", "filler_nll")


def write_part(path: Path, samples: Sequence[int], answers: MqarAnswers) -> None:
    """Writes a model's answers to some sequences, one row per sequence."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(answers.questions)]).astype(np.int32))
    columns: dict[str, Any] = {"sample": pa.array(samples, pa.int32())}
    for name in _OF_QUERIES:
        columns[name] = pa.ListArray.from_arrays(offsets, pa.array(getattr(answers, name)))
    for name in _OF_FILLERS:
        columns[name] = pa.array(getattr(answers, name))
    table = pa.table(columns)
    parquet_files.write_parquet(path, [table], table.schema, {"kind": "mqar part"})


def join_parts(
    parts: Sequence[Path],
    pairs: int,
    files: MqarFiles,
    manifest: dict[str, Any],
) -> None:
    """Joins all parts into the two tables, each written atomically, the queries last. Raises
    UserError for a damaged part."""
    frames = [pl.DataFrame(read_part(part)) for part in parts]
    sequences = pl.concat(frames).with_columns(pairs=pl.lit(pairs, pl.Int32))
    _write(files.fillers, sequences, "mqar fillers", manifest)
    _write(files.queries, sequences.explode(*_OF_QUERIES), "mqar queries", manifest)


def _write(path: Path, frame: pl.DataFrame, kind: str, manifest: dict[str, Any]) -> None:
    schema = schemas.arrow_schema(kind)
    table = frame.select(schema.names).to_arrow().cast(schema)
    parquet_files.write_parquet(path, [table], schema, {**manifest, "kind": kind})


@dataclass(frozen=True, slots=True, repr=False)
class MqarTables(NotebookResult):
    """Models compared on MQAR or another synthetic task, the first as the reference.

    Accuracies are fractions, NLLs nats per token, ppl exp of them.

    mqar: model x pairs. `accuracy`, `ar_nll`, `ar_ppl` of the answers, `filler_*` of the filler
    (null if there is none), `guess` the accuracy of a guess among the values before each question;
    NAME_low and NAME_high: 95 % intervals, of which sequences are the units (recall.accuracy);
    NAME_difference with its interval: to the reference on the same sequences, null for the
    reference. Of a single sequence NLLs have no interval. The interval of a perplexity is exp of
    its NLL's.
    by_distance: model x pairs x bucket (`low`..`high` ids from where an answer stood to where it is
    asked for, both included).
    """

    mqar: pl.DataFrame
    by_distance: pl.DataFrame


def compare_mqar(files: Mapping[tuple[str, int], MqarFiles]) -> MqarTables:
    """Compares models by their tables of the same sequences, given by (model, pairs), models in the
    order of the comparison."""
    models = list(dict.fromkeys(model for model, _ in files))
    facts = [_facts(*pair, models[0], tables.queries) for pair, tables in files.items()]
    with db.connect(threads=1) as connection:
        for name in MqarFiles._fields:
            frames = []
            for (model, _), tables in files.items():
                frame = schemas.read_frame(getattr(tables, name))
                frames.append(frame.with_columns(model=pl.lit(model)))
            connection.register(name, pl.concat(frames).to_arrow())
        samples = db.frame(connection, "mqar/sum_samples")
        connection.register("samples", samples.to_arrow())
        mqar = db.frame(connection, "mqar/summarise_samples")
        by_distance = db.frame(connection, "mqar/bucket_distances")
    intervals = []
    for (pairs,), part in samples.partition_by("pairs", as_dict=True, maintain_order=True).items():
        intervals += sample_intervals(part, models, pairs)
    for rows in (facts, intervals):
        frame = pl.DataFrame(rows, infer_schema_length=None)
        mqar = mqar.join(frame, on=["model", "pairs"], validate="1:1")
    mqar = mqar.select(list(schemas.LAYOUTS["mqar/mqar"]))
    order = pl.col("model").cast(pl.Enum(models))
    return MqarTables(
        mqar.sort(order, maintain_order=True),
        by_distance.sort(order, maintain_order=True),
    )


def _facts(model: str, pairs: int, reference: str, queries: Path) -> dict[str, Any]:
    """The columns of a model's row that come from the manifest of its queries."""
    manifest = parquet_files.read_manifest(queries, records.MqarQueries)
    facts = {name: manifest[name] for name in ("task", "length", "power", "seed")}
    facts["tokenizer"] = manifest["tokenizer"]["name"]
    return {"model": model, "pairs": pairs, "reference": reference, **facts}


def sample_intervals(
    samples: pl.DataFrame,
    models: Sequence[str],
    pairs: Any,
) -> list[dict[str, Any]]:
    """Intervals and differences for one number of `pairs`, one row per model; `samples` as
    queries/mqar/sum_samples.sql makes them."""
    frames = [samples.filter(model=model).sort("sample") for model in models]

    def totals(column: str) -> np.ndarray:
        return np.column_stack([frame[column].to_numpy().astype(np.float64) for frame in frames])

    rows: list[dict[str, Any]] = [{"model": model, "pairs": pairs} for model in models]
    for name, (compare, above, below) in _FIGURES.items():
        compared = compare(totals(above), totals(below))
        for place, row in enumerate(rows):
            for end, value in compared.row(place).items():
                if not end.endswith("error"):
                    row[f"{name}_{end}"] = value
    return rows
