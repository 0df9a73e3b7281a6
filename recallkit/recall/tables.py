"""Tables of recall evaluations: one row per prompt, and the comparison of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recallkit.display.notebook import NotebookResult
from recallkit.recall.accuracy import by_document, compare_means, compare_shares
from recallkit.recall.prompts import has_any, word_f1
from recallkit.storage import db, records, schemas
from recallkit.storage.parquet_files import read_manifest, write_parquet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from recallkit.recall.evaluation import Recall

_BUCKETED = {
    "by_distance": "answer_distance",
    "by_occurrences": "occurrences",
    "by_length": "prompt_tokens",
}


def document_row(document: Mapping[str, Any], recall: Recall) -> dict[str, Any]:
    """A row of the documents table, without the fields that are the same for all rows."""
    nlls, answers, places = recall.answer_nll, document["answers"], recall.places
    is_right = has_any(recall.generation, document["right"])
    return {
        "row": document["row"],
        "doc_id": document["doc_id"],
        "key": document["key"] or None,
        "value": document["value"],
        "length": document["length"],
        "depth": document["depth"],
        "prompt_tokens": recall.prompt_tokens,
        "tokens_cut": recall.num_cut,
        "truncated": recall.num_cut > 0,
        "answer_cut": places.answer_cut,
        "generation": recall.generation,
        "contains": is_right,
        "contains_any": is_right or has_any(recall.generation, answers) if answers else None,
        "answer_nll": sum(nlls) / len(nlls) if nlls else None,
        "answer_tokens": len(nlls) if nlls else None,
        "answer_distance": places.distance,
        "occurrences": places.occurrences,
        "prompt_text": document["prompt"],
        "characters_cut": places.characters_cut,
    }


def write_documents(
    path: Path,
    documents: Sequence[Mapping[str, Any]],
    manifest: dict[str, Any],
) -> dict[str, Any]:
    """Writes a documents table atomically; returns its manifest."""
    import pyarrow as pa

    schema = schemas.arrow_schema("recall documents")
    table = pa.Table.from_pylist(list(map(dict, documents)), schema=schema)
    return write_parquet(path, [table], schema, manifest)


@dataclass(frozen=True, slots=True, repr=False)
class RecallTables(NotebookResult):
    """Models compared on recall evaluations, the first as the reference. Accuracies are fractions.

    recall: model x task, with standard errors and 95 % intervals, of which documents are the units
    (recall.accuracy), and the paired difference to the reference; `answer_nats`, nats per answer,
    likewise (null for a model without likelihoods); `disagree`: whether one of these two
    differences is significant (its interval excludes 0) and the other is not, or is of the opposite
    kind; `f1` is the mean word overlap of generation and value (`word_f1`); `dropped` rows had an
    empty value; `comparable`: whether figures on these rows are published; further columns count
    reasons why an answer is wrong (see queries/recall/summarise_documents.sql). by_distance,
    by_occurrences, by_length: model x task x bucket (`low`..`high`, both included) of the tokens
    between the answer and the prompt's end, of its occurrences in the prompt, of the prompt's
    length in tokens. by_depth: model x task x length x depth of needles in a haystack (`length` in
    ids, `depth` the share of the context that precedes the needle), which are in no bucket; empty
    without such tasks.
    """

    recall: pl.DataFrame
    by_distance: pl.DataFrame
    by_occurrences: pl.DataFrame
    by_length: pl.DataFrame
    by_depth: pl.DataFrame


def compare_recall(files: Mapping[tuple[str, str], Path]) -> RecallTables:
    """Compares models by their documents tables of the same rows, given by (model, task), models in
    the order of the comparison."""
    models = list(dict.fromkeys(model for model, _ in files))
    tasks = list(dict.fromkeys(task for _, task in files))
    documents, manifests = {}, {}
    for (model, task), path in files.items():
        frame = schemas.read_frame(path).drop("prompt_text")
        documents[model, task] = frame.with_columns(model=pl.lit(model))
        manifests[model, task] = read_manifest(path, records.RecallDocuments)
    with db.connect(threads=1) as connection:
        connection.register("documents", pl.concat(documents.values()).to_arrow())
        summary = db.frame(connection, "recall/summarise_documents")
        buckets = db.frame(connection, "recall/bucket_documents")
        by_depth = db.frame(connection, "recall/average_by_depth")
    rows: list[dict[str, Any]] = []
    for task in tasks:
        rows += _rows_of(task, models, documents, manifests)
    compared = pl.DataFrame(rows, infer_schema_length=None)
    joined = summary.join(compared, on=["model", "task"], validate="1:1")
    recall = schemas.frame_of("recall/recall", joined.to_dicts())
    order = [pl.col("task").cast(pl.Enum(tasks)), pl.col("model").cast(pl.Enum(models))]
    bucketed = {}
    for name, column in _BUCKETED.items():
        frame = buckets.filter(bucketed=column).drop("bucketed")
        bucketed[name] = frame.sort(*order, "low")
    by_depth = by_depth.sort(*order, "length", "depth")
    return RecallTables(recall.sort(order), **bucketed, by_depth=by_depth)


def _rows_of(
    task: str,
    models: Sequence[str],
    documents: Mapping[tuple[str, str], pl.DataFrame],
    manifests: Mapping[tuple[str, str], Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """The columns that the query of one task cannot compute, one row per model."""
    frames = [documents[model, task] for model in models]
    names = frames[0]["doc_id"].to_list()

    def sums(column: pl.Expr) -> tuple[np.ndarray, np.ndarray]:
        """Of a column of each model, by document, and how many rows that has."""
        return by_document(
            np.column_stack([frame.select(column).to_series().to_numpy() for frame in frames]),
            names,
        )

    nats = pl.col("answer_nll") * pl.col("answer_tokens")
    shares = compare_shares(*sums(pl.col("contains")))
    means = compare_means(sums(nats.fill_null(0.0))[0], sums(nats.is_not_null())[0])
    for place, (model, frame) in enumerate(zip(models, frames, strict=True)):
        manifest, right, loss = manifests[model, task], shares.row(place), means.row(place)
        overlaps = [word_f1(*pair) for pair in frame["generation", "value"].iter_rows()]
        row = {
            "reference": models[0],
            "model": model,
            "task": task,
            "tokenizer": manifest["tokenizer"]["name"],
            "dropped": manifest["num_dropped"],
            "comparable": manifest["comparable"],
            "f1": float(np.mean(overlaps)),
            "standard_error": right["error"],
            "ci_low": right["low"],
            "ci_high": right["high"],
            "disagree": _disagree(direction(right), direction(loss)),
        }
        row |= {name: manifest["options"][name] for name in ("version", "prompt", "cut")}
        row |= {name: value for name, value in right.items() if name.startswith("difference")}
        for name, value in loss.items():
            row[f"answer_nats_{name}"] = value
        yield row


def _disagree(accuracy: int | None, loss: int | None) -> bool | None:
    """Whether two directions tell different things: a higher accuracy goes with a lower loss."""
    return None if accuracy is None or loss is None else accuracy != -loss


def direction(compared: Mapping[str, float | None]) -> int | None:
    """Whether a model's figure is larger than the reference's (1), smaller (-1), or neither by its
    95 % interval (0); None without one."""
    low, high = compared["difference_low"], compared["difference_high"]
    return None if low is None or high is None else (low > 0) - (high < 0)
