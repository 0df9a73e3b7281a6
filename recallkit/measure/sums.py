"""Tokens and NLLs added up by cluster and class, batch by batch, to the sums of the rows of
tables."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from recallkit.config import MAX_RESAMPLED_SOURCES
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.measure.labelled import RowReader, TokenQuery, answers, batch_ranges, batches
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
"""What is added up of each model: NLLs in nats, probabilities exp(-NLL), and both at first
occurrences."""
_ROWS_AT_ONCE = 1 << 17
_CLUSTERS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class TableSums:
    """The sums of the K rows of a table: of tokens, and of each of VALUES of model i, `nll_i` and
    so on.

    Of slices also `repeats`, the tokens that complete a bigram which is in the context already.
    """

    keys: pl.DataFrame
    spread: Spread
    by_group: Mapping[str, np.ndarray]

    def __getitem__(self, column: str) -> Sum:
        """The sum of `tokens`, `repeats` or one of the values."""
        return Sum(self.by_group[column], self.spread)

    def gap(self, model: int, value: str = "nll") -> Sum:
        """How much more of a value model number `model` (from 1) has than the reference, number
        0."""
        return self[f"{value}_{model}"] - self[f"{value}_0"]

    def gain(self, model: int) -> Sum:
        """The recall gain: the tokens' probabilities less those at the first occurrences of their
        bigrams."""
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
    """The clusters of a text, and the groups in which they are resampled, from 0 on."""

    def __init__(self, tokens: LabelledTokens, cluster: str) -> None:
        self._names = _sources_of(tokens) if cluster == "source" else None
        if self._names is None:
            last = RowReader(tokens.path, [cluster]).read(tokens.num_rows - 1, tokens.num_rows)
            self._groups = group_numbers(last[cluster][0].as_py() + 1)
        else:
            self._groups = group_numbers(len(self._names))
        self.number = int(self._groups.max()) + 1
        """Of the groups."""

    def restrict(self, present: pl.Series) -> np.ndarray:
        """Leaves the groups of these clusters, which have tokens; returns the numbers that they
        had."""
        present_groups = np.unique(self._groups[self.numbers(present)])
        renumbered = np.zeros(self.number, np.int64)
        renumbered[present_groups] = np.arange(len(present_groups))
        self._groups, self.number = renumbered[self._groups], len(present_groups)
        return present_groups

    def numbers(self, clusters: pl.Series) -> np.ndarray:
        """The number of each cluster, int64 (n,); sources are numbered as they first occur."""
        if self._names is not None:
            clusters = clusters.replace_strict(
                self._names, range(len(self._names)), return_dtype=pl.Int64
            )
        numbers: np.ndarray = clusters.to_numpy().astype(np.int64)
        return numbers

    def groups(self, numbers: np.ndarray) -> np.ndarray:
        """The group of each of n clusters by number, (n,)."""
        groups: np.ndarray = self._groups[numbers]
        return groups


def _sources_of(tokens: LabelledTokens) -> pl.Series:
    """The sources of all tokens, in the order of the text."""
    reader = RowReader(tokens.path, ["source"])
    parts = (
        pl.Series(reader.read(start, stop)["source"]) for start, stop in batch_ranges(tokens.path)
    )
    return pl.concat([part.unique(maintain_order=True).cast(pl.String) for part in parts]).unique(
        maintain_order=True
    )


class Tally:
    """A query's answer, added up part by part to the sums of tables' rows: memory does not grow
    with clusters.

    Of each group of clusters and class it has the sums, of each row the sums of powers of the
    clusters' sizes.
    """

    def __init__(
        self, tables: Mapping[str, Rows], clusters: Clusters, columns: Sequence[str] = ()
    ) -> None:
        """`columns`: further ones of the answer that are added up."""
        self._tables, self._clusters, self._columns = tables, clusters, columns
        self._by = [
            *dict.fromkeys(itertools.chain.from_iterable(rows.by for rows in tables.values()))
        ]
        self._classes = pl.DataFrame()
        self._sums: dict[str, np.ndarray] = {}
        self._sizes: list[tuple[np.ndarray, ...]] = []
        self._powers = {name: np.zeros((4, len(rows))) for name, rows in tables.items()}

    def add(self, answer: pl.DataFrame, *, is_in_order: bool = False) -> None:
        """Adds rows per cluster and class, with tokens, values and the further columns.

        `is_in_order`: later parts have the last cluster of this one, and those behind it.
        """
        class_ = self._numbers(answer.select(self._by))
        cluster = self._clusters.numbers(answer["cluster"])
        shape = (self._clusters.number, self._classes.height)
        place = self._clusters.groups(cluster) * shape[1] + class_
        for name in answer.columns:
            if name in ("tokens", *self._columns) or name.rpartition("_")[0] in VALUES:
                values = answer[name].cast(pl.Float64).to_numpy()
                sums = np.zeros(shape)
                if name in self._sums:
                    sums[:, : self._sums[name].shape[1]] = self._sums[name]
                sums += np.bincount(place, values, sums.size).reshape(shape)
                self._sums[name] = sums
        sizes = (cluster, class_, answer["tokens"].to_numpy())
        self._sizes.append(tuple(part.astype(np.int32) for part in sizes))
        if is_in_order and len(cluster):
            self._settle(int(cluster.max()))

    def sums(self, groups: np.ndarray | slice = slice(None)) -> dict[str, TableSums]:
        """The sums of the tables' rows, over the groups with these numbers."""
        self._settle(None)
        tables = {}
        for name, rows in self._tables.items():
            parts = rows.parts(self._classes)
            by_group = {column: sums[groups] @ parts for column, sums in self._sums.items()}
            tables[name] = TableSums(rows.keys, Spread.of_powers([*self._powers[name]]), by_group)
        return tables

    def _settle(self, below: int | None) -> None:
        """Adds up the powers of sizes of the clusters `below` a number, of which no more comes, or
        of all."""
        from scipy import sparse  # type: ignore[import-untyped]

        cluster, class_, tokens = (np.concatenate(part) for part in zip(*self._sizes, strict=True))
        is_over = np.full(len(cluster), fill_value=True) if below is None else cluster < below
        self._sizes = [(cluster[~is_over], class_[~is_over], tokens[~is_over])]
        cluster, class_, tokens = cluster[is_over], class_[is_over], tokens[is_over]
        first, stop = (
            int(cluster.min(initial=0 if below is None else below)),
            int(cluster.max(initial=-1)) + 1,
        )
        shape = (max(0, stop - first), self._classes.height)
        sizes = sparse.csr_matrix((tokens.astype(np.float64), (cluster - first, class_)), shape)
        for name, rows in self._tables.items():
            parts = sparse.csr_matrix(rows.parts(self._classes))
            for start in range(0, shape[0], _CLUSTERS_AT_ONCE):
                # (clusters, K), most of them 0
                of_rows = sizes[start : start + _CLUSTERS_AT_ONCE] @ parts
                powers = (of_rows > 0, of_rows, of_rows.power(2), of_rows.power(4))
                self._powers[name] += [np.asarray(power.sum(axis=0)).ravel() for power in powers]

    def _numbers(self, labels: pl.DataFrame) -> np.ndarray:
        """The number of each row's class, (n,); new classes are behind those that are known."""
        distinct = labels.unique(maintain_order=True)
        classes = pl.concat([self._classes, distinct]) if self._classes.height else distinct
        self._classes = classes.unique(maintain_order=True)
        numbered = self._classes.with_row_index("class")
        joined = labels.join(
            numbered, on=self._by, how="left", nulls_equal=True, maintain_order="left"
        )
        numbers: np.ndarray = joined["class"].to_numpy()
        return numbers


def sum_rows(
    rows: Rows, answer: pl.DataFrame, clusters: Clusters, columns: Sequence[str] = ()
) -> TableSums:
    """The sums of a table's rows, from a query's answer: rows per cluster and class, with tokens,
    values and further `columns`."""
    tally = Tally({"": rows}, clusters, columns)
    for part in answer.iter_slices(_ROWS_AT_ONCE):
        tally.add(part)
    return tally.sums()[""]


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of a text under v models, by table.

    Tables: "slices" (those of every comparison, then the requested ones); and, if they are asked
    for, "by_source" (the same for ALL, then for each source) and the other tables of `rows`.
    documents: a row for each document that has tokens, with `tokens`, `ar_hits`, and the nats of
    each model over both, `nll_i` and `ar_nll_i`.
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

    `cluster`: one of CLUSTERS.
    `clean`: without tokens known to be in the training text. `every_table`: else slices alone;
    those by training count only where that is known.

    Raises UserError if a file is damaged, NLLs are not finite numbers, or no token is left.
    """
    queries, columns = [TokenQuery("sum_by_slice", {})], list[str]()
    clusters = Clusters(tokens, cluster)
    tallies = [Tally({"slices": slice_rows(slices)}, clusters, ["repeats"])]
    if every_table and tokens.has_counts:
        queries.append(TokenQuery("sum_by_count", count_cuts(tokens.max_count)))
        tallies.append(Tally(count_rows(tokens.max_count), clusters))
    if every_table:
        places = {"buckets": NUM_POSITION_BUCKETS, "seq_len": tokens.seq_len}
        queries.append(TokenQuery("sum_by_place", places))
        tallies.append(Tally(place_rows(tokens.seq_len), clusters))
        columns = ["context_class", "train_count", "distance", "match_length"]
    rows = batches(
        tokens, scores, columns, slices=(*STANDARD, *slices), cluster=cluster, clean=clean
    )
    parts = []
    with progress("adding up", total=tokens.num_rows) as show:
        for (_, stop), parts_of_tables in zip(
            batch_ranges(tokens.path), answers(queries, rows), strict=True
        ):
            parts.append(parts_of_tables[0])
            for tally, answer in zip(tallies, parts_of_tables, strict=True):
                tally.add(answer, is_in_order=cluster != "source")
            show(stop)
    by_slice = pl.concat(parts)
    parts.clear()
    pa.default_memory_pool().release_unused()  # of the batches: their sums take as much
    if by_slice.is_empty():
        problem, remedy = (
            "every token is in the training text",
            "slice other text, or leave out --clean",
        )
        raise UserError(problem, where=tokens.path, remedy=remedy)
    groups = clusters.restrict(by_slice["cluster"])
    tables = {name: table for tally in tallies for name, table in tally.sums(groups).items()}
    if every_table:
        sources, placed = _by_size(by_slice)
        tables["by_source"] = sum_rows(source_rows(slices, sources), placed, clusters, ["repeats"])
    return Sums(tables, clusters, _documents(by_slice))


def _by_size(by_slice: pl.DataFrame) -> tuple[list[str], pl.DataFrame]:
    """The MAX_RESAMPLED_SOURCES largest sources by tokens, sorted, all further ones as one;
    `place`: each row's, from 1."""
    sizes = (
        by_slice.group_by("source")
        .agg(pl.col("tokens").sum())
        .sort("tokens", "source", descending=[True, False])
    )
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
    documents = by_slice.group_by("document").agg(
        pl.col("source").first(), sums, of_hits.name.prefix("ar_")
    )
    return documents.rename({"ar_tokens": "ar_hits"}).sort("document")
