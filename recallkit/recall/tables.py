"""Tables of recall evaluations: one row per prompt, and the comparison of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recallkit.display.notebook import Shown
from recallkit.recall.accuracy import by_document, compare_means, compare_shares
from recallkit.recall.prompts import word_f1
from recallkit.storage import db, schemas
from recallkit.storage.artifacts import read_manifest, write_parquet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_BUCKETED = {"by_distance": "answer_distance", "by_occurrences": "occurrences", "by_length": "prompt_tokens"}


def write_documents(path: Path, documents: Sequence[Mapping[str, Any]], manifest: dict[str, Any]) -> dict[str, Any]:
    """Writes a documents table atomically; returns its manifest."""
    import pyarrow as pa

    schema = schemas.arrow_schema("recall documents")
    return write_parquet(path, [pa.Table.from_pylist([dict(document) for document in documents], schema=schema)], schema, manifest)


@dataclass(frozen=True, slots=True, repr=False)
class RecallTables(Shown):
    """Models compared on recall evaluations, the first as the reference. Accuracies are fractions.

    recall: model x task, with standard errors and 95 % intervals, of which documents are the units (recall.accuracy), and the paired
    difference to the reference; `answer_nats`, nats per answer, likewise (null for a model without likelihoods); `disagree`: whether one
    of these two differences is significant (its interval excludes 0) and the other is not, or is of the opposite kind; `f1` is the mean
    word overlap of generation and value (`word_f1`); `dropped` rows had an empty value; `comparable`: whether figures on these rows are
    published; further columns count reasons why an answer is wrong (see queries/recall/summarise_documents.sql). by_distance,
    by_occurrences, by_length: model x task x bucket (`low`..`high`, both included) of the tokens between the answer and the prompt's end,
    of its occurrences in the prompt, of the prompt's length in tokens. by_depth: model x task x length x depth of needles in a haystack
    (`length` in ids, `depth` the share of the context that precedes the needle), which are in no bucket; empty without such tasks.
    """

    recall: pl.DataFrame
    by_distance: pl.DataFrame
    by_occurrences: pl.DataFrame
    by_length: pl.DataFrame
    by_depth: pl.DataFrame


def compare_recall(files: Mapping[tuple[str, str], Path]) -> RecallTables:
    """Compares models by their documents tables of the same rows, given by (model, task), models in the order of the comparison."""
    models, tasks = (list(dict.fromkeys(pair[place] for pair in files)) for place in (0, 1))
    documents = {
        (model, task): schemas.read_frame(path).drop("prompt_text").with_columns(model=pl.lit(model))
        for (model, task), path in files.items()
    }
    with db.connect(threads=1) as connection:
        connection.register("documents", pl.concat(documents.values()).to_arrow())
        queries = ("summarise_documents", "bucket_documents", "average_by_depth")
        summary, buckets, by_depth = (db.frame(connection, f"recall/{query}") for query in queries)
    manifests = {pair: read_manifest(path) for pair, path in files.items()}
    rows = [row for task in tasks for row in _rows_of(task, models, documents, manifests)]
    joined = summary.join(pl.DataFrame(rows, infer_schema_length=None), on=["model", "task"], validate="1:1")
    recall = schemas.frame_of("recall/recall", joined.to_dicts())
    order = [pl.col("task").cast(pl.Enum(tasks)), pl.col("model").cast(pl.Enum(models))]
    of_bucket = {name: buckets.filter(bucketed=column).drop("bucketed").sort(*order, "low") for name, column in _BUCKETED.items()}
    return RecallTables(recall.sort(order), **of_bucket, by_depth=by_depth.sort(*order, "length", "depth"))


def _rows_of(
    task: str,
    models: Sequence[str],
    documents: Mapping[tuple[str, str], pl.DataFrame],
    manifests: Mapping[tuple[str, str], Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """The columns that the query of one task cannot compute, one row per model."""
    of_documents = documents[models[0], task]["doc_id"].to_list()
    contains = np.column_stack([documents[model, task]["contains"].to_numpy() for model in models])
    of_answers = [documents[model, task].select(pl.col("answer_nll") * pl.col("answer_tokens")).to_series() for model in models]
    totals, _ = by_document(np.column_stack([each.fill_null(0.0).to_numpy() for each in of_answers]), of_documents)
    answers, _ = by_document(np.column_stack([each.is_not_null().to_numpy() for each in of_answers]), of_documents)
    shares, means = compare_shares(*by_document(contains, of_documents)), compare_means(totals, answers)
    for place, model in enumerate(models):
        manifest, right, nats = manifests[model, task], shares.row(place), means.row(place)
        accuracy, loss = direction(right), direction(nats)
        overlaps = [word_f1(*pair) for pair in documents[model, task]["generation", "value"].iter_rows()]
        yield {
            "reference": models[0],
            "model": model,
            "task": task,
            **{name: manifest["options"][name] for name in ("version", "prompt", "cut")},
            "tokenizer": manifest["tokenizer"]["name"],
            "dropped": manifest["num_dropped"],
            "comparable": manifest["comparable"],
            "f1": float(np.mean(overlaps)),
            "standard_error": right["error"],
            "ci_low": right["low"],
            "ci_high": right["high"],
            **{name: right[name] for name in ("difference", "difference_error", "difference_low", "difference_high")},
            **{f"answer_nats_{name}": value for name, value in nats.items() if not name.endswith("error")},
            "disagree": None if accuracy is None or loss is None else accuracy != -loss,
        }


def direction(compared: Mapping[str, float | None]) -> int | None:
    """Whether a model's figure is larger than the reference's (1), smaller (-1), or neither by its 95 % interval (0); None without one."""
    low, high = compared["difference_low"], compared["difference_high"]
    return None if low is None or high is None else (low > 0) - (high < 0)
