"""Tokens and NLLs added up by cluster and class, batch by batch, to the sums of the rows of tables.

A row's sums are kept by group of clusters, which intervals resample, and it is counted how many clusters it has and how unequal they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from recallkit import arrow
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


class Adding:
    """Sums over a stream of entries: tokens and NLLs of a cluster and one of k classes; most pairs do not occur.

    `values`: "nll", or "first" for the NLLs of first occurrences.
    """

    def __init__(self, num_classes: int, clusters: Clusters, values: str = "nll") -> None:
        self._clusters, self._values = clusters, values
        self._shape = clusters.number, num_classes
        self._sums: np.ndarray | float = 0.0  # (1 + v, g, k)
        self._sizes: list[np.ndarray] = []

    def add(self, found: pa.Table, code: np.ndarray) -> None:
        """Adds rows of a query's result (columns cluster, tokens, and NLLs), of the classes `code`."""
        cluster, sums = self._clusters.of(found), _columns(found, self._values)
        self._sums += _summed(sums, self._clusters.group(cluster), code, self._shape)
        self._sizes.append(np.stack([cluster, code, sums[0].astype(np.int64)]))

    def rows(self, unions: np.ndarray) -> RowSums:
        """The sums of K rows, each of which contains classes as `unions` (k, K) tells."""
        from scipy import sparse  # type: ignore[import-untyped]

        cluster, code, tokens = np.concatenate(self._sizes, axis=1)
        by_cluster = sparse.csr_matrix((tokens, (cluster, code)), (int(cluster.max(initial=0)) + 1, len(unions))) @ sparse.csr_matrix(
            unions * 1.0
        )
        powers = by_cluster > 0, by_cluster, by_cluster.power(2), by_cluster.power(4)
        number, sizes, squares, fourths = (np.asarray(power.sum(axis=0)).ravel() for power in powers)
        tokens, *nlls = self._sums @ unions
        freedom = ratio_of_squares(squares, fourths) - 1
        return RowSums(tokens, np.stack(nlls), number.astype(np.int64), ratio_of_squares(sizes, squares), freedom)


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
    """The sums of a text under v models: of the tables' rows over all sources, and of slices by source.

    `tables`: by name "slices" (the slices of every comparison, then the requested ones), "first" (the control of ar_hit and repeated: sums
    of first occurrences), and, if they are asked for, the `by_*` tables and "first_by_count"; `rows` are their keys.
    `by_source`: (1 + v, 1 + t, K + 2) tokens and NLLs of slices and the control, of all sources, then of each of `sources`, which are
    sorted. `resampled`: which of these, all (0) and the MAX_RESAMPLED_SOURCES largest, have K + 2 rows each in `resampled_sums`.
    `row_of_cluster` (n,): the place of each cluster's group among the g of every table, by its number.
    """

    rows: Mapping[str, Rows]
    tables: Mapping[str, RowSums]
    sources: Sequence[str]
    by_source: np.ndarray
    resampled: Sequence[int]
    resampled_sums: RowSums
    row_of_cluster: np.ndarray


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
    import pyarrow as pa

    classes, clusters = Classes(tokens.max_count, tokens.seq_len), Clusters(tokens, cluster)
    counts, first_counts = (Adding(classes.num_counts, clusters, values) for values in ("nll", "first"))
    places = {column: Adding(2 * len(ends), clusters) for column, ends in classes.places.items()}
    questions, columns, of_slices = [Question("sum_by_slice", {})], [], []
    if every_table:
        questions += [Question("sum_by_count", classes.of_counts), Question("sum_by_place", classes.of_places)]
        columns = ["context_class", "train_count", "distance", "match_length"]
    for by_slice, *by_class in answers(questions, batches(tokens, scores, columns, slices=slices, cluster=cluster, clean=clean)):
        of_slices.append(by_slice)
        for by_count, by_place in [by_class] if every_table else []:
            counts.add(by_count, classes.number_counts(by_count))
            first_counts.add(by_count, classes.number_counts(by_count))
            for column, adding in places.items():
                own = by_place.filter(by_place[column].is_valid())
                adding.add(own, classes.number_places(own, column))
    found = pa.concat_tables(of_slices)
    if not len(found):
        raise UserError("every token is in the training text", where=tokens.path, remedy="slice other text, or leave out --clean")
    rows, tables = {}, {}
    if every_table:
        made_of = dict.fromkeys(("by_count", "by_threshold", "by_partition"), counts)
        made_of |= dict(zip(("by_distance", "by_match", "by_position"), places.values(), strict=True))
        rows = {name: getattr(classes, name)() for name in made_of}
        tables = {name: adding.rows(rows[name].unions) for name, adding in made_of.items()}
        tables["first_by_count"] = first_counts.rows(rows["by_count"].unions)
    return _with_slices(found, slices, clusters, rows, tables)


def _with_slices(found: pa.Table, slices: Sequence[Slice], clusters: Clusters, rows: dict[str, Rows], tables: dict[str, RowSums]) -> Sums:
    """The sums of slices, of all sources together and of each, beside those of other tables; `found`: all of `sum_by_slice`."""
    classes = SliceClasses(found, slices)
    by_slice, first, by_overlap = classes.by_slice(), classes.first(), classes.by_overlap()
    num_classes = len(by_slice.unions)

    def add(values: str, entries: np.ndarray) -> Adding:
        adding = Adding(num_classes, clusters, values)
        adding.add(found.filter(arrow.array(entries)), classes.code[entries])
        return adding

    every, of_slices = np.ones(len(found), bool), [("nll", by_slice.unions), ("first", first.unions)]
    whole = [add(values, every).rows(unions) for values, unions in of_slices]
    rows = {"slices": by_slice, "first": first, **rows}
    tables |= {"slices": whole[0], "first": whole[1]}
    if len(slices) > 1:
        rows["by_overlap"], tables["by_overlap"] = by_overlap, add("nll", every).rows(by_overlap.unions)

    names, source = np.unique(found["source"].to_numpy(), return_inverse=True)
    shape = len(names), num_classes
    totals = [_summed(_columns(found, values), source, classes.code, shape) @ unions for values, unions in of_slices]
    by_source = np.concatenate(totals, axis=-1)
    largest = np.sort(np.argsort(-by_source[0, :, 0], kind="stable")[:MAX_RESAMPLED_SOURCES])
    for place in largest:
        whole += [add(values, source == place).rows(unions) for values, unions in of_slices]

    held = tables["slices"].tokens[:, 0] > 0  # a document may have no token
    by_source = np.concatenate([RowSums.joined(whole[:2]).totals[:, None], by_source], axis=1)
    tables = {name: of.of_groups(held) for name, of in tables.items()}
    resampled_sums = RowSums.joined(whole).of_groups(held)
    return Sums(rows, tables, names.tolist(), by_source, [0, *(1 + largest).tolist()], resampled_sums, clusters.rows(held))
