"""Tokens and NLLs added up by cluster and class, batch by batch, to the sums of the rows of tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from recallkit.config import MAX_RESAMPLED_SOURCES
from recallkit.errors import UserError
from recallkit.measure.labelled import Question, RowReader, answers, batches
from recallkit.measure.ratio import Spread, Sum, group_numbers
from recallkit.measure.rows import (
    NUM_POSITION_BUCKETS,
    OTHER_SOURCES,
    count_cuts,
    count_rows,
    place_rows,
    slice_rows,
    source_rows,
)
from recallkit.slicing.definitions import STANDARD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.measure.labelled import LabelledTokens, Scores
    from recallkit.measure.rows import Rows
    from recallkit.slicing.definitions import Slice

VALUES = ("nll", "first_nll", "p", "first_p")
"""What is added up of each model: NLLs in nats, probabilities exp(-NLL), and both at first occurrences."""
_ROWS_AT_ONCE = 1 << 17


@dataclass(frozen=True, slots=True)
class TableSums:
    """The sums of the K rows of a table: of tokens, and of each of VALUES of model i, `nll_i` and so on.

    Of slices also `repeats`, the tokens that complete a bigram which is in the context already.
    """

    keys: pl.DataFrame
    spread: Spread
    by_group: Mapping[str, np.ndarray]

    def __getitem__(self, column: str) -> Sum:
        """The sum of `tokens`, `repeats` or one of the values."""
        return Sum(self.by_group[column], self.spread)

    def gap(self, model: int, value: str = "nll") -> Sum:
        """How much more of a value model number `model` (from 1) has than the reference, number 0."""
        return self[f"{value}_{model}"] - self[f"{value}_0"]

    def gain(self, model: int) -> Sum:
        """The recall gain: the tokens' probabilities less those at the first occurrences of their bigrams."""
        return self[f"p_{model}"] - self[f"first_p_{model}"]

    def take(self, rows: np.ndarray) -> TableSums:
        """Rows by number, which may repeat."""
        by_group = {name: sums[:, rows] for name, sums in self.by_group.items()}
        return TableSums(self.keys[rows], self.spread.at(rows), by_group)

    def slice(self, *names: str) -> TableSums:
        """The rows of some slices."""
        places = self.keys["slice"].to_list()
        return self.take(np.array([places.index(name) for name in names]))


class Clusters:
    """The clusters of a text, and the groups in which they are resampled: those that have tokens, from 0 on."""

    def __init__(self, tokens: LabelledTokens, cluster: str, present: pl.Series) -> None:
        """`present`: the clusters of all tokens that are compared."""
        self._names = present.unique(maintain_order=True) if cluster == "source" else None
        if self._names is None:
            last = RowReader(tokens.path, [cluster]).read(tokens.num_rows - 1, tokens.num_rows)
            groups = group_numbers(last[cluster][0].as_py() + 1)
        else:
            groups = group_numbers(len(self._names))
        has_tokens = np.zeros(groups.max() + 1, bool)
        has_tokens[groups[self.numbers(present)]] = True
        self._groups = (np.cumsum(has_tokens) - 1)[groups]
        self.number = int(has_tokens.sum())
        """Of the groups."""

    def numbers(self, clusters: pl.Series) -> np.ndarray:
        """The number of each cluster, int64 (n,); sources are numbered as they first occur."""
        if self._names is not None:
            clusters = clusters.replace_strict(self._names, range(len(self._names)), return_dtype=pl.Int64)
        numbers: np.ndarray = clusters.to_numpy().astype(np.int64)
        return numbers

    def groups(self, numbers: np.ndarray) -> np.ndarray:
        """The group of each of n clusters by number, (n,)."""
        groups: np.ndarray = self._groups[numbers]
        return groups


def sum_rows(rows: Rows, answer: pl.DataFrame, clusters: Clusters, columns: Sequence[str] = ()) -> TableSums:
    """The sums of a table's rows, from a query's answer: rows per cluster and class, with tokens, values and further `columns`."""
    from scipy import sparse  # type: ignore[import-untyped]

    classes, class_ = _classes(answer.select(rows.by))
    parts = rows.parts(classes)
    cluster = clusters.numbers(answer["cluster"])
    shape = (clusters.number, classes.height)
    place = np.ravel_multi_index((clusters.groups(cluster), class_), shape)
    by_group = {}
    for name in answer.columns:
        if name in ("tokens", *columns) or name.rpartition("_")[0] in VALUES:
            values = answer[name].cast(pl.Float64).to_numpy()
            by_group[name] = np.bincount(place, values, shape[0] * shape[1]).reshape(shape) @ parts
    tokens = answer["tokens"].cast(pl.Float64).to_numpy()
    sizes = sparse.csr_matrix((tokens, (cluster.astype(np.int32), class_.astype(np.int32))))
    sizes = sizes @ sparse.csr_matrix(parts)  # (clusters, K), most of them 0
    powers = [np.asarray(power.sum(axis=0)).ravel() for power in (sizes > 0, sizes, sizes.power(2), sizes.power(4))]
    return TableSums(rows.keys, Spread.of_powers(powers), by_group)


def _classes(labels: pl.DataFrame) -> tuple[pl.DataFrame, np.ndarray]:
    """The distinct rows of `labels` (n rows), numbered in the column `class`, and the number of each row's, (n,).

    Part by part: polars needs more memory for all rows at once than the rows themselves take.
    """
    parts = list(labels.iter_slices(_ROWS_AT_ONCE))
    distinct = pl.concat([part.unique(maintain_order=True) for part in parts])
    classes = distinct.unique(maintain_order=True).with_row_index("class")
    numbers = [part.join(classes, on=labels.columns, how="left", nulls_equal=True, maintain_order="left")["class"] for part in parts]
    return classes, pl.concat(numbers).to_numpy()


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of a text under v models, by table.

    Tables: "slices" (those of every comparison, then the requested ones); and, if they are asked for, "by_source" (the
    same for ALL, then for each source) and the other tables of `rows`. documents: a row for each document that has
    tokens, with `tokens`, `ar_hits`, and the nats of each model over both, `nll_i` and `ar_nll_i`.
    """

    tables: Mapping[str, TableSums]
    clusters: Clusters
    documents: pl.DataFrame


def add_up(
    tokens: LabelledTokens,
    scores: Sequence[Scores],
    slices: Sequence[Slice] = (),
    cluster: str = "document",
    *,
    clean: bool = False,
    every_table: bool = True,
) -> Sums:
    """The sums of `tokens` under all `scores`: of the slices of every comparison and `slices`, and
    of all tables.

    `cluster`: one of CLUSTERS. `clean`: without tokens known to be in the training text. `every_table`: else slices alone; those by
    training count only where that is known.

    Raises UserError if a file is damaged, NLLs are not finite numbers, or no token is left.
    """
    questions, columns = [Question("sum_by_slice", {})], list[str]()
    by_answer: list[Mapping[str, Rows]] = []
    if every_table and tokens.has_counts:
        questions.append(Question("sum_by_count", count_cuts(tokens.max_count)))
        by_answer.append(count_rows(tokens.max_count))
    if every_table:
        places = {"buckets": NUM_POSITION_BUCKETS, "seq_len": tokens.seq_len}
        questions.append(Question("sum_by_place", places))
        by_answer.append(place_rows(tokens.seq_len))
        columns = ["context_class", "train_count", "distance", "match_length"]
    rows = batches(tokens, scores, columns, slices=(*STANDARD, *slices), cluster=cluster, clean=clean)
    by_slice, *by_class = answers(questions, rows)
    pa.default_memory_pool().release_unused()  # of the batches: their sums take as much
    if by_slice.is_empty():
        problem, remedy = "every token is in the training text", "slice other text, or leave out --clean"
        raise UserError(problem, where=tokens.path, remedy=remedy)
    clusters = Clusters(tokens, cluster, by_slice["cluster"])
    tables = {"slices": sum_rows(slice_rows(slices), by_slice, clusters, ["repeats"])}
    if every_table:
        sources, placed = _by_size(by_slice)
        tables["by_source"] = sum_rows(source_rows(slices, sources), placed, clusters, ["repeats"])
    for of_answer in reversed(by_answer):
        answer = by_class.pop()  # so that the one before is given back
        tables |= {name: sum_rows(of_table, answer, clusters) for name, of_table in of_answer.items()}
    return Sums(tables, clusters, _documents(by_slice))


def _by_size(by_slice: pl.DataFrame) -> tuple[list[str], pl.DataFrame]:
    """The MAX_RESAMPLED_SOURCES largest sources by tokens, sorted, all further ones as one; `place`: each row's, from 1."""
    sizes = by_slice.group_by("source").agg(pl.col("tokens").sum()).sort("tokens", "source", descending=[True, False])
    sources = sorted(sizes["source"][:MAX_RESAMPLED_SOURCES])
    if sizes.height > len(sources):
        sources.append(OTHER_SOURCES)
    places = {name: min(place, len(sources)) for place, name in enumerate(sources, 1)}
    place = pl.col("source").replace_strict(places, default=len(sources), return_dtype=pl.Int64)
    return sources, by_slice.with_columns(place=place)


def _documents(by_slice: pl.DataFrame) -> pl.DataFrame:
    """The sums of documents, in the order of their numbers."""
    names = [name for name in by_slice.columns if name.startswith("nll_")]
    is_hit = (pl.col("slices") & (1 << [slice_.name for slice_ in STANDARD].index("ar_hit"))) != 0
    of_hits = pl.col("tokens", *names).filter(is_hit).sum()
    sums = pl.col("tokens", *names).sum()
    documents = by_slice.group_by("document").agg(pl.col("source").first(), sums, of_hits.name.prefix("ar_"))
    return documents.rename({"ar_tokens": "ar_hits"}).sort("document")
