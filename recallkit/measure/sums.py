"""Tokens and NLLs added up by cluster and class, batch by batch, to the sums of the rows of tables.

A row's sums are kept by group of clusters, which intervals resample, and it is counted how many clusters it has and how unequal they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from recallkit.config import MAX_RESAMPLED_SOURCES
from recallkit.errors import UserError
from recallkit.measure.classes import Classes, Rows, SliceClasses
from recallkit.measure.intervals import MOST_GROUPS, NUM_RESAMPLES, group_numbers, ratio_of_squares, resample_totals
from recallkit.measure.labelled import Question, RowReader, answers, batches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from recallkit.measure.labelled import LabelledTokens, Scores
    from recallkit.slicing.definitions import Slice

ALL, OTHER_SOURCES = "ALL", "other sources"
"""The row of all sources, and that of those beyond the MAX_RESAMPLED_SOURCES largest."""


@dataclass(frozen=True, slots=True)
class RowSums:
    """Sums of the K rows of a table by g groups of clusters, and the clusters that have tokens of each row.

    Groups are clusters, or, of more than MOST_GROUPS, sets of them drawn at random.
    """

    tokens: np.ndarray  # (g, K)
    nlls: np.ndarray  # (v, g, K), nats, in the order of the score files
    clusters: np.ndarray  # (K,) their number
    effective: np.ndarray  # (K,) their effective number: intervals.effective_number
    freedom: np.ndarray  # (K,) degrees of freedom of a variance between them: intervals.freedom_of

    @classmethod
    def joined(cls, parts: Sequence[RowSums]) -> RowSums:
        """The rows of several tables, one after the other."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts], axis=-1) for field in fields(cls)))

    def at(self, rows: np.ndarray) -> RowSums:
        """These rows alone."""
        return RowSums(*(getattr(self, field.name)[..., rows] for field in fields(self)))

    def of_groups(self, held: np.ndarray) -> RowSums:
        """The sums of these groups alone, bool (g,), which have all tokens."""
        return replace(self, tokens=self.tokens[held], nlls=self.nlls[:, held])

    def gaps(self, model: int) -> np.ndarray:
        """The gap of a model to the first one, summed by group, (g, K) nats; `model` counts from 0 without the first."""
        found: np.ndarray = self.nlls[1 + model] - self.nlls[0]
        return found

    @property
    def by_group(self) -> np.ndarray:
        """Tokens and NLLs, (1 + v, g, K)."""
        return np.concatenate([self.tokens[None], self.nlls])

    @property
    def totals(self) -> np.ndarray:
        """Tokens and NLLs of all groups together, (1 + v, K)."""
        found: np.ndarray = self.by_group.sum(axis=1)
        return found


def resampled(tables: Sequence[RowSums], num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> list[np.ndarray]:
    """The totals of each table over resampled clusters, (1 + v, num_resamples, K), from the same resamples: tokens, then NLLs."""
    drawn = resample_totals([np.hstack(list(of.by_group)) for of in tables], num_resamples, seed)
    return [totals.reshape(num_resamples, *of.by_group.shape[::2]).swapaxes(0, 1) for of, totals in zip(tables, drawn, strict=True)]


class Clusters:
    """The clusters of a text by number, and the groups in which they are resampled."""

    def __init__(self, tokens: LabelledTokens, cluster: str) -> None:
        self._sources: dict[str, int] | None = None if cluster != "source" else {}
        if self._sources is None:  # as many as the last token tells; of sources it is not known
            last = RowReader(tokens.path, [cluster]).read(tokens.num_rows - 1, tokens.num_rows)
            self._groups = group_numbers(last[cluster][0].as_py() + 1)
        else:
            self._groups = np.arange(MOST_GROUPS)
        self.number = int(self._groups.max()) + 1
        """Of the groups."""

    def of(self, found: pa.Table) -> np.ndarray:
        """The number of the cluster of each row, int64 (e,); sources are numbered as they first occur."""
        if self._sources is None:
            numbers: np.ndarray = found["cluster"].to_numpy().astype(np.int64)
            return numbers
        names = found["cluster"].to_pylist()
        return np.array([self._sources.setdefault(name, len(self._sources)) for name in names], np.int64)

    def group(self, cluster: np.ndarray) -> np.ndarray:
        """The group of each of n clusters (n,)."""
        found: np.ndarray = self._groups[cluster % len(self._groups)]
        return found

    def rows(self, held: np.ndarray) -> np.ndarray:
        """The place of each cluster's group among those that are held, bool (g,); not of sources."""
        places: np.ndarray = (np.cumsum(held) - 1)[self._groups]
        return places


def row_sums(found: pa.Table, code: np.ndarray, unions: np.ndarray, clusters: Clusters, values: str = "nll") -> RowSums:
    """The sums of K rows, each of which contains classes as `unions` (k, K) tells.

    `found` (e rows): what queries found, with columns cluster, tokens and NLLs, of the classes `code` (e,). `values`: "nll", or "first" for
    the NLLs of first occurrences.
    """
    from scipy import sparse  # type: ignore[import-untyped]

    cluster, columns = clusters.of(found), _columns(found, values)
    tokens, *nlls = _summed(columns, clusters.group(cluster), code, (clusters.number, len(unions))) @ unions
    shape = int(cluster.max(initial=0)) + 1, len(unions)
    sizes = sparse.csr_matrix((columns[0], (cluster, code)), shape) @ sparse.csr_matrix(unions * 1.0)  # (clusters, K), most of them 0
    number, total, squares, fourths = (
        np.asarray(power.sum(axis=0)).ravel() for power in (sizes > 0, sizes, sizes.power(2), sizes.power(4))
    )
    effective, freedom = ratio_of_squares(total, squares), ratio_of_squares(squares, fourths) - 1
    return RowSums(tokens, np.stack(nlls), number.astype(np.int64), effective, freedom)


def _columns(found: pa.Table, values: str) -> np.ndarray:
    """Tokens and summed NLLs of each row of a query's result, float64 (1 + v, e)."""
    names = [name for name in found.column_names if name == "tokens" or name.startswith(f"{values}_")]
    return np.stack([found[name].to_numpy().astype(np.float64) for name in names])


def _summed(columns: np.ndarray, first: np.ndarray, second: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The columns (c, e) added up by the pair (first, second) of numbers of each entry: (c, *shape)."""
    place = np.ravel_multi_index((first, second), shape)
    return np.stack([np.bincount(place, column, math.prod(shape)).reshape(shape) for column in columns])


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of a text under v models, by table, and the keys of the tables' rows.

    Tables: "slices" (those of every comparison, then the requested ones) and "first" (the control of ar_hit and repeated: sums of first
    occurrences), over all sources; and, if they are asked for, "by_source" (the rows of both for ALL, then for each source), the other
    `by_*` tables and "first_by_count". `row_of_cluster` (n,): the place of each cluster's group among the g of every table, by its number.
    """

    rows: Mapping[str, Rows]
    tables: Mapping[str, RowSums]
    row_of_cluster: np.ndarray
    documents: Documents


@dataclass(frozen=True, slots=True)
class Documents:
    """Sums of each of the d documents that have tokens."""

    number: np.ndarray  # (d,) ascending, as in tokens.parquet
    source: np.ndarray  # (d,) its name
    sums: np.ndarray  # (1 + v, 2, d) tokens and NLLs, nats: of all tokens, then of AR hits

    @classmethod
    def of(cls, found: pa.Table) -> Documents:
        """`found`: by `sum_by_slice`."""
        number, first, place = np.unique(found["document"].to_numpy().astype(np.int64), return_index=True, return_inverse=True)
        sums = _summed(_columns(found, "nll"), found["ar_hit"].to_numpy().astype(np.int64), place, (2, len(number)))
        return cls(number, found["source"].to_numpy()[first], np.stack([sums.sum(axis=1), sums[:, 1]], axis=1))


def add_up(
    tokens: LabelledTokens,
    scores: Sequence[Scores],
    slices: Sequence[Slice] = (),
    cluster: str = "document",
    *,
    clean: bool = False,
    every_table: bool = True,
) -> Sums:
    """The sums of `tokens` under all `scores`: of the slices of every comparison and `slices`, and of the tables if `every_table`.

    `cluster`: one of CLUSTERS. `clean`: without tokens known to be in the training text, and without sources of which none are left.

    Raises UserError if a file is damaged, NLLs are not finite numbers, or no token is left.
    """
    classes, clusters = Classes(tokens.max_count, tokens.seq_len), Clusters(tokens, cluster)
    questions, columns = [Question("sum_by_slice", {})], list[str]()
    if every_table:
        questions += [Question("sum_by_count", classes.of_counts), Question("sum_by_place", classes.of_places)]
        columns = ["context_class", "train_count", "distance", "match_length"]
    by_slice, *by_class = answers(questions, batches(tokens, scores, columns, slices=slices, cluster=cluster, clean=clean))
    if not len(by_slice):
        raise UserError("every token is in the training text", where=tokens.path, remedy="slice other text, or leave out --clean")
    rows, tables = _of_slices(by_slice, slices, clusters, every_table=every_table)
    for by_count, by_place in [by_class] if every_table else []:
        code = classes.number_counts(by_count)
        for name in ("by_count", "by_threshold", "by_partition"):
            rows[name] = getattr(classes, name)()
            tables[name] = row_sums(by_count, code, rows[name].unions, clusters)
        tables["first_by_count"] = row_sums(by_count, code, rows["by_count"].unions, clusters, "first")
        for name, column in (("by_distance", "distance"), ("by_match", "match_length"), ("by_position", "position")):
            rows[name], found = getattr(classes, name)(), by_place.filter(by_place[column].is_valid())
            tables[name] = row_sums(found, classes.number_places(found, column), rows[name].unions, clusters)
    held = tables["slices"].tokens[:, 0] > 0  # a document may have no token
    return Sums(rows, {name: of.of_groups(held) for name, of in tables.items()}, clusters.rows(held), Documents.of(by_slice))


def _of_slices(
    found: pa.Table, slices: Sequence[Slice], clusters: Clusters, *, every_table: bool
) -> tuple[dict[str, Rows], dict[str, RowSums]]:
    """The rows and sums of "slices" and "first", and with `every_table` of "by_overlap" and "by_source"; `found`: by `sum_by_slice`."""
    import pyarrow as pa

    classes = SliceClasses(found, slices)
    rows = {"slices": classes.by_slice(), "first": classes.first()}

    def both(entries: np.ndarray) -> list[RowSums]:
        chosen, code = found.filter(pa.array(entries)), classes.code[entries]
        values = (("nll", rows["slices"]), ("first", rows["first"]))
        return [row_sums(chosen, code, of.unions, clusters, name) for name, of in values]

    every = np.ones(len(found), bool)
    tables = dict(zip(rows, both(every), strict=True))
    if every_table:
        names, source = by_size(found["source"].to_numpy(), found["tokens"].to_numpy())
        of_sources = [part for place in range(len(names)) for part in both(source == place)]
        keys = [*rows["slices"].keys["slice"], *rows["first"].keys["slice"]]
        named = {"source": [name for name in (ALL, *names) for _ in keys], "slice": keys * (1 + len(names))}
        tables["by_source"] = RowSums.joined([*tables.values(), *of_sources])
        rows["by_source"] = Rows(named, np.empty((0, len(named["slice"]))))
        if len(slices) > 1:
            rows["by_overlap"] = classes.by_overlap()
            tables["by_overlap"] = row_sums(found, classes.code, rows["by_overlap"].unions, clusters)
    return rows, tables


def by_size(source: np.ndarray, tokens: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The MAX_RESAMPLED_SOURCES largest sources of n entries by tokens, sorted, and all further ones as one; the place of each entry's."""
    names, place = np.unique(source, return_inverse=True)
    largest = np.sort(np.argsort(-np.bincount(place, tokens), kind="stable")[:MAX_RESAMPLED_SOURCES])
    places = np.full(len(names), len(largest))
    places[largest] = np.arange(len(largest))
    return [*names[largest].tolist(), *([OTHER_SOURCES] if len(largest) < len(names) else [])], places[place]
