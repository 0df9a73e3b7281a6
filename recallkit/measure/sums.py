"""Tokens and NLLs added up by cluster and class, batch by batch, to the sums of the rows of tables.

A row's sums are kept by group of clusters, which intervals resample, and it is counted how many clusters it has and how unequal they are;
neither grows with the text.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from recallkit.config import MAX_RESAMPLED_SOURCES, MAX_SOURCES
from recallkit.errors import UserError
from recallkit.measure.batches import map_batches
from recallkit.measure.classes import NOT_REPEATED, NUM_STANDARD, Classes, Rows, by_overlap, by_slice, first_of_slices
from recallkit.measure.intervals import MOST_GROUPS, group_numbers, ratio_of_squares
from recallkit.measure.labelled import SLICE_AGAIN, RowReader

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa

    from recallkit.measure.batches import Batch
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

    def at(self, rows: np.ndarray) -> RowSums:
        """These rows alone."""
        return RowSums(*(getattr(self, field.name)[..., rows] for field in fields(self)))

    def of_groups(self, held: np.ndarray) -> RowSums:
        """The sums of these groups alone, bool (g,), which have all tokens."""
        return replace(self, tokens=self.tokens[held], nlls=self.nlls[:, held])


@dataclass(frozen=True, slots=True)
class Entries:
    """Sums of e pairs of a cluster and a class; most pairs do not occur."""

    cluster: np.ndarray  # (e,)
    source: np.ndarray  # (e,)
    code: np.ndarray  # (e,) the class
    sums: np.ndarray  # (e, 1 + v) tokens, and their NLLs in nats

    @classmethod
    def of(cls, found: pa.Table, code: np.ndarray, rows: np.ndarray | slice = slice(None), values: str = "nll") -> Entries:
        """Rows of a query's result (columns cluster, tokens, nll_0 ..., and source if it has one), of these classes.

        `values`: "first" for the NLLs of first occurrences.
        """
        columns = [name for name in found.column_names if name == "tokens" or name.startswith(f"{values}_")]
        source = found["source"].to_numpy() if "source" in found.column_names else np.zeros(len(found), np.int32)
        sums = np.column_stack([found[name].to_numpy() for name in columns]).astype(np.float64)
        return cls(found["cluster"].to_numpy()[rows], source[rows], code, sums[rows])

    @classmethod
    def joined(cls, parts: Sequence[Entries]) -> Entries:
        """The entries of all parts, one after the other."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def at(self, entries: np.ndarray) -> Entries:
        """These entries, by their numbers or as bool (e,)."""
        return Entries(*(getattr(self, field.name)[entries] for field in fields(self)))

    def recoded(self, code: np.ndarray) -> Entries:
        """The same sums by the coarser class `code[c]` of each class c, added up."""
        if not len(self.code):
            return self
        keys = self.cluster.astype(np.int64), self.source.astype(np.int64), code[self.code]
        shape = [int(key.max()) + 1 for key in keys]
        unique, place = np.unique(np.ravel_multi_index(keys, shape), return_inverse=True)
        sums = np.stack([np.bincount(place, column, len(unique)) for column in self.sums.T], axis=1)
        cluster, source, coarser = np.unravel_index(unique, shape)
        return Entries(cluster, source, coarser, sums)


class Groups:
    """The groups in which the clusters of a text are resampled: as many clusters as its last token tells; of sources it is not known."""

    def __init__(self, tokens: LabelledTokens, cluster: str) -> None:
        self._path, self.in_order = tokens.path, cluster != "source"
        self._groups = np.arange(0)
        self.number = MOST_GROUPS
        self.sources: dict[str, int] = {}
        """The number of each source, in the order in which they occur."""
        if self.in_order:
            last = RowReader(tokens.path, [cluster], remedy=SLICE_AGAIN).read(tokens.num_rows - 1, tokens.num_rows)
            self._groups = group_numbers(last[cluster][0].as_py() + 1)
            self.number = int(self._groups.max()) + 1

    def number_sources(self, names: Sequence[str], source: np.ndarray) -> np.ndarray:
        """The number in the text of each of the sources of a batch (n,), whose own are `source` (e,); new ones as they first occur."""
        for number in np.unique(source).tolist():
            self.sources.setdefault(names[number], len(self.sources))
        return np.array([self.sources.get(name, 0) for name in names])  # 0: of no entry

    def in_text(self, names: Sequence[str], entries: Entries) -> Entries:
        """A batch's entries with the numbers of sources in the text in place of those in the batch."""
        if self.in_order:
            return entries
        return replace(entries, cluster=self.number_sources(names, entries.cluster)[entries.cluster])

    def of(self, cluster: np.ndarray) -> np.ndarray:
        """The group of each of n clusters (n,). Raises UserError for a cluster that cannot be."""
        if not self.in_order:
            found: np.ndarray = cluster % MOST_GROUPS
            return found
        if cluster.size and not 0 <= cluster.min() <= cluster.max() < len(self._groups):
            raise UserError("damaged (documents or sequences are not in order)", where=self._path, remedy=SLICE_AGAIN)
        of_groups: np.ndarray = self._groups[cluster]
        return of_groups


class Adding:
    """The sums of K rows, each a union of k classes, over a stream of entries in the order of clusters."""

    def __init__(self, unions: np.ndarray, groups: Groups, num_nlls: int) -> None:
        """`unions`: (k, K) of 0 and 1."""
        from scipy import sparse  # type: ignore[import-untyped]

        self._unions, self._groups = sparse.csr_matrix(unions.astype(np.float64)), groups
        self._sums = np.zeros((1 + num_nlls, groups.number * len(unions)))
        self._powers = np.zeros((4, unions.shape[1]))  # sums over clusters of 1, of their tokens, and of the squares and fourth powers
        self._open: list[Entries] = []
        """Of the latest cluster, which may go on in the next batch; of sources, which come in any order, all."""

    def add(self, entries: Entries) -> None:
        """Adds a batch."""
        place = self._groups.of(entries.cluster) * self._unions.shape[0] + entries.code
        for total, column in zip(self._sums, entries.sums.T, strict=True):
            total += np.bincount(place, column, len(total))
        self._open.append(entries)
        if self._groups.in_order:
            entries = Entries.joined(self._open)
            is_last = entries.cluster == entries.cluster.max(initial=-1)
            self._close(entries.at(~is_last))
            self._open = [entries.at(is_last)]

    def finish(self) -> RowSums:
        """The sums of everything added."""
        if self._open:
            self._close(Entries.joined(self._open))
        sums = self._sums.reshape(len(self._sums), self._groups.number, -1) @ self._unions.toarray()
        number, tokens, squares, fourths = self._powers
        freedom = ratio_of_squares(squares, fourths) - 1
        return RowSums(sums[0], sums[1:], number.astype(np.int64), ratio_of_squares(tokens, squares), freedom)

    def _close(self, entries: Entries) -> None:
        """Counts clusters that are whole: all entries of them are here."""
        from scipy import sparse

        clusters, place = np.unique(entries.cluster, return_inverse=True)
        shape = (len(clusters), self._unions.shape[0])
        tokens = sparse.csr_matrix((entries.sums[:, 0], (place, entries.code)), shape) @ self._unions
        self._powers += np.stack([np.asarray(part.sum(axis=0)).ravel() for part in (tokens > 0, tokens, tokens.power(2), tokens.power(4))])


# ------------------------------------------------------------------------------------------------ the sums of a comparison


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of a text under v models: of the tables' rows over all sources, and of slices by source.

    `tables`: by name "slices" (the slices of every comparison, then the requested ones), "first" (the control of ar_hit and repeated: sums
    of first occurrences), and, if they are asked for, the `by_*` tables and "first_by_count"; `rows` are their keys.
    `sources`: sorted, the MAX_SOURCES largest by tokens, and last one of all others together; `by_source`: (1 + v, t, K + 2) tokens and
    NLLs of each, of slices and the control. `resampled` names the MAX_RESAMPLED_SOURCES largest; `resampled_sums` are theirs, K + 2 rows
    each.
    """

    rows: Mapping[str, Rows]
    tables: Mapping[str, RowSums]
    sources: Sequence[str]
    by_source: np.ndarray
    resampled: Sequence[str]
    resampled_sums: RowSums


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

    Raises UserError if a file is damaged, a column has missing values, NLLs are not finite numbers, or no token is left.
    """
    classes, groups = Classes(tokens.max_count, tokens.seq_len), Groups(tokens, cluster)
    rows = {"slices": by_slice(slices), "first": first_of_slices()}
    made_of: dict[str, tuple[str, ...]] = {}
    if every_table:
        made_of = _MADE_OF | ({"overlap": ("by_overlap",)} if len(slices) > 1 else {})
        rows |= {name: by_overlap(slices) if name == "by_overlap" else getattr(classes, name)() for of in made_of.values() for name in of}

    def reduce(batch: Batch) -> tuple[Sequence[str], dict[str, Entries]]:
        return batch.sources, _entries(batch, classes, len(slices), made_of)

    adding = {name: Adding(np.hstack([rows[table].unions for table in of]), groups, len(scores)) for name, of in made_of.items()}
    of_slices: list[Entries] = []
    columns = ("context_class", *(("distance", "match_length") if every_table else ()))
    for names, found in map_batches(reduce, tokens, scores, columns, slices=slices, cluster=cluster, clean=clean):
        of_text = groups.number_sources(names, found["slices"].source)
        of_slices.append(groups.in_text(names, replace(found["slices"], source=of_text[found["slices"].source])))
        for name, total in adding.items():
            total.add(groups.in_text(names, found[name]))
    if not groups.sources:
        raise UserError("every token is in the training text", where=tokens.path, remedy="slice other text, or leave out --clean")
    tables: dict[str, RowSums] = {}
    for name, of in made_of.items():
        together, first = adding[name].finish(), 0
        for table in of:
            tables[table] = together.at(np.arange(first, first + len(rows[table])))
            first += len(rows[table])
    return _by_source(rows, tables, Entries.joined(of_slices), groups)


_MADE_OF = {
    "counts": ("by_count", "by_threshold", "by_partition"),
    "first_counts": ("first_by_count",),
    "distance": ("by_distance",),
    "match_length": ("by_match",),
    "position": ("by_position",),
}
"""Tables that are made of the same classes."""


def _entries(batch: Batch, classes: Classes, num_slices: int, wanted: Collection[str]) -> dict[str, Entries]:
    """The sums of a batch, by what they are classed by: "slices", and those of _MADE_OF (and "overlap") that are `wanted`.

    "slices" has the standard classes, then each requested slice, then the standard classes again with sums of first occurrences.
    """

    def ask(query: str) -> pa.Table:
        return batch.ask(f"measure/{query}", **classes.parameters(query))

    found = ask("sum_by_count")
    code = classes.of_counts(found)
    repeated = np.flatnonzero(classes.standard[code] != NOT_REPEATED)
    counts, first = Entries.of(found, code), Entries.of(found, code[repeated], repeated, "first")
    in_slices = [counts.recoded(classes.standard), first.recoded(NUM_STANDARD + num_slices + classes.standard)]
    entries = {"counts": counts, "first_counts": first} if "counts" in wanted else {}
    if "distance" in wanted:
        places = ask("sum_by_place")
        for column in ("distance", "match_length", "position"):
            taken, code = classes.of_places(places, column)
            entries[column] = Entries.of(places, code, taken)
    if num_slices:
        sets = ask("sum_by_slice")
        held = sets["slices"].to_numpy()[:, None] >> np.arange(num_slices) & 1  # (e, s)
        every = Entries.of(sets, np.zeros(len(sets), np.int64))
        of_set, code = np.nonzero(held)
        in_slices.append(replace(every.at(of_set), code=NUM_STANDARD + code))
        if "overlap" in wanted:
            times = held.sum(axis=1)
            divided = every.at(of_set)
            divided = replace(divided, code=code, sums=divided.sums / times[of_set, None])
            alone = every.at(times == 0)
            entries["overlap"] = Entries.joined([divided, replace(alone, code=np.full(len(alone.code), num_slices))])
    return {"slices": Entries.joined(in_slices), **entries}


def _by_source(rows: Mapping[str, Rows], tables: dict[str, RowSums], entries: Entries, groups: Groups) -> Sums:
    """The sums of slices, of all sources together, of every source, and, to be resampled, of each of the largest."""
    unions = _beside(rows["slices"].unions, rows["first"].unions)
    num_classes, num_nlls, num_rows = len(unions), entries.sums.shape[1] - 1, len(rows["slices"])
    every = Adding(unions, groups, num_nlls)
    every.add(entries)
    together = every.finish()
    tables |= {"slices": together.at(np.arange(num_rows)), "first": together.at(np.arange(num_rows, unions.shape[1]))}

    names = sorted(groups.sources)
    place_of = {name: place for place, name in enumerate(names)}
    source = np.array([place_of[name] for name in groups.sources])[entries.source]
    once = entries.code < NUM_STANDARD
    sizes = np.bincount(source[once], entries.sums[once, 0], len(names))
    if len(names) > MAX_SOURCES:
        kept, places = _largest(sizes, MAX_SOURCES)
        names, source, sizes = [*(names[place] for place in kept), _name_others(names)], places[source], np.append(sizes[kept], -1)
    code = source * num_classes + entries.code
    sums = np.stack([np.bincount(code, column, len(names) * num_classes) for column in entries.sums.T])
    by_source = sums.reshape(1 + num_nlls, len(names), num_classes) @ unions

    largest, places = _largest(sizes, MAX_RESAMPLED_SOURCES)
    num_places = int(places.max()) + 1  # beyond the largest, all others share the last
    apart = Adding(np.kron(np.eye(num_places, dtype=bool), unions), groups, num_nlls)
    apart.add(replace(entries, code=places[source] * num_classes + entries.code))
    held = together.tokens.sum(axis=1) > 0  # a document may have no token
    tables = {name: of.of_groups(held) for name, of in tables.items()}
    return Sums(rows, tables, names, by_source, [names[place] for place in largest], apart.finish().of_groups(held))


def _beside(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The unions of two tables of different classes, (k + k', K + K')."""
    nothing = np.zeros((len(left), right.shape[1]), bool), np.zeros((len(right), left.shape[1]), bool)
    return np.block([[left, nothing[0]], [nothing[1], right]])


def _largest(sizes: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the `most` largest sources, ascending, and the place of each source among them, one more for all others."""
    largest = np.sort(np.argsort(-sizes, kind="stable")[:most])
    places = np.full(sizes.size, largest.size)
    places[largest] = np.arange(largest.size)
    return largest, places


def _name_others(known: Collection[str]) -> str:
    """A name for the smaller of these sources together that none of the sources has."""
    name = f"{len(known) - MAX_SOURCES:,} smaller sources"
    while name in known:
        name += " together"
    return name
