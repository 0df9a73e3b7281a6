"""Tables of recall evaluations: one row per prompt, and the comparison of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit.display.notebook import Shown
from recallkit.errors import UserError
from recallkit.measure.classes import log2_bucket
from recallkit.measure.intervals import number_or_none
from recallkit.recall.accuracy import accuracy_intervals
from recallkit.recall.prompts import word_f1
from recallkit.storage import db, schemas
from recallkit.storage.artifacts import read_manifest, write_parquet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import duckdb
    import polars as pl

_BUCKETED = {"by_distance": "answer_distance", "by_occurrences": "occurrences", "by_length": "prompt_tokens"}


def write_documents(path: Path, documents: Sequence[Mapping[str, Any]], manifest: dict[str, Any]) -> dict[str, Any]:
    """Writes a documents table atomically; returns its manifest."""
    import pyarrow as pa

    schema = schemas.arrow_schema("recall documents")
    return write_parquet(path, [pa.Table.from_pylist([dict(document) for document in documents], schema=schema)], schema, manifest)


@dataclass(frozen=True, slots=True)
class RecallTables(Shown):
    """Models compared on recall evaluations, the first as the reference. Accuracies are fractions.

    recall: model x task, with standard errors and 95 % intervals, of which documents are the units (recall.accuracy), and the paired
    difference to the reference; `f1` is the mean word overlap of generation and value (`word_f1`); `dropped` rows had an empty value;
    `comparable`: whether figures on these rows are published; further columns count reasons why an answer is wrong (see
    queries/recall/summarise_documents.sql). by_*: model x task x bucket (`low`..`high`, both included) of the
    tokens between the answer and the prompt's end, of its occurrences in the prompt, of the prompt's length in tokens.
    """

    recall: pl.DataFrame
    by_distance: pl.DataFrame
    by_occurrences: pl.DataFrame
    by_length: pl.DataFrame


def compare_recall(files: Mapping[tuple[str, str], Path]) -> RecallTables:
    """Compares models by their documents tables, given by (model, task), models in the order of the comparison.

    Raises UserError if two models were evaluated on different prompts in one task.
    """
    import polars as pl

    models = list(dict.fromkeys(model for model, _ in files))
    tasks = list(dict.fromkeys(task for _, task in files))
    manifests = {pair: read_manifest(path) for pair, path in files.items()}
    documents = {
        (model, task): schemas.read_frame(path, "recall documents", exact=True).drop("prompt_text").with_columns(model=pl.lit(model))
        for (model, task), path in files.items()
    }
    for pair, table in documents.items():
        if not 0 < len(table) == manifests[pair].get("num_rows", len(table)):
            raise UserError(f"damaged ({len(table):,} rows)", where=files[pair], remedy="make it again with --force")
    with db.connect(threads=1) as connection:
        every = pl.concat(documents.values())
        connection.register("documents", every.to_arrow())
        summary = db.frame(connection, "recall/summarise_documents")
        buckets = {name: _bucket(connection, every, column) for name, column in _BUCKETED.items()}
    rows = [row for task in tasks for row in _intervals(task, models, documents, manifests)]
    order = {"task": tasks, "model": models}
    recall = summary.join(pl.DataFrame(rows, infer_schema_length=None), on=["model", "task"], validate="1:1")
    first = ["reference", "model", "task", "version", "prompt", "cut"]
    recall = recall.select(*first, pl.exclude(first))
    return RecallTables(_sorted(recall, order), *(_sorted(frame, order) for frame in buckets.values()))


def _bucket(connection: duckdb.DuckDBPyConnection, documents: pl.DataFrame, column: str) -> pl.DataFrame:
    import polars as pl

    buckets = pl.Series("bucket", log2_bucket(documents[column].fill_null(0).to_numpy()))
    bucketed = documents.with_columns(pl.when(pl.col(column).is_not_null()).then(buckets).alias("bucket"))
    connection.register("bucketed", bucketed.to_arrow())
    return db.frame(connection, "recall/bucket_documents")


def _intervals(
    task: str,
    models: Sequence[str],
    documents: Mapping[tuple[str, str], pl.DataFrame],
    manifests: Mapping[tuple[str, str], Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The columns that the query of one task cannot compute, one row per model."""
    import numpy as np

    asked = documents[models[0], task]["row", "doc_id", "value"]
    for model in models[1:]:
        if not documents[model, task]["row", "doc_id", "value"].equals(asked):
            raise UserError(f"{model} and {models[0]} had different prompts", where=task, remedy="evaluate them again with --force")
    contains = np.column_stack([documents[model, task]["contains"].to_numpy() for model in models])
    found = accuracy_intervals(contains, asked["doc_id"].to_list())
    means = contains.mean(axis=0)
    overlaps = [np.mean([word_f1(*pair) for pair in documents[model, task]["generation", "value"].iter_rows()]) for model in models]
    return [
        {
            "reference": models[0],
            "model": model,
            "task": task,
            **{name: manifests[model, task]["options"][name] for name in ("version", "prompt", "cut")},
            "tokenizer": manifests[model, task]["tokenizer"]["name"],
            "dropped": manifests[model, task]["num_dropped"],
            "comparable": manifests[model, task]["comparable"],
            "f1": float(overlaps[place]),
            "standard_error": number_or_none(found.standard_error[place]),
            "ci_low": number_or_none(found.bounds[0, place]),
            "ci_high": number_or_none(found.bounds[1, place]),
            "difference": float(means[place] - means[0]),
            "difference_error": number_or_none(found.difference_error[place]),
            "difference_low": number_or_none(found.difference_bounds[0, place]),
            "difference_high": number_or_none(found.difference_bounds[1, place]),
        }
        for place, model in enumerate(models)
    ]


def _sorted(frame: pl.DataFrame, order: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """Sorted by task, then model, as they were named; buckets remain ascending."""
    import polars as pl

    places = [pl.col(name).replace_strict({value: place for place, value in enumerate(of)}).alias(f"_{name}") for name, of in order.items()]
    lows = ["low"] if "low" in frame.columns else []
    return frame.with_columns(places).sort("_task", "_model", *lows).drop("_task", "_model")
