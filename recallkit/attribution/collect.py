"""Millions of labelled tokens and their NLLs reduced to small sums, from which every table of the gap and every interval is made.

One pass in batches of one row group, each read, summed and dropped. Each batch is summed in row order by one thread, and
batches are added in order: the sums are bit-identical on every run and for any number of threads.
"""

from __future__ import annotations

import os
import queue
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from recallkit.attribution.aligned import LabelledTokens, RowReader, Scores, batch_ranges
from recallkit.attribution.breakdowns import (
    AR_HIT,
    FIRST,
    NOT_REPEATED,
    NUM_POSITION_BUCKETS,
    NUM_TOKEN_CODES,
    OVERLAP,
    breakdowns,
    cuts_of,
    extra_thresholds,
    slice_breakdown,
)
from recallkit.attribution.buckets import LARGEST_COUNT, count_class, log2_bucket, match_bucket, position_bucket
from recallkit.attribution.clusters import ClusterSizes, Groups
from recallkit.attribution.sums import Codes, GroupSums, Runs, Sums, gaps_of, join_sums, recode, renumber, values_of
from recallkit.config import MAX_RESAMPLED_SOURCES, MAX_SOURCES
from recallkit.errors import UserError
from recallkit.parallel.ahead import map_ahead
from recallkit.slicing.definitions import context_kinds, members
from recallkit.slicing.words import needed_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import pyarrow as pa

    from recallkit.slicing.definitions import Slice

_MAX_WORKERS = 4
_SLICE_AGAIN = "slice again with --force"
_LABELS = (
    *("sequence", "position", "document", "source", "prev_token", "token"),
    *("repeated", "context_class", "distance", "first_distance", "match_length", "train_count"),
)
_IN_TRAINING = "in_training"
_SLICES, _GIVEN = "slices", "given"


@dataclass(frozen=True, slots=True)
class ClusterSums:
    """Sums of the K rows of a breakdown by g groups of clusters, s sources and m models.

    Gaps are summed NLLs in nats, model minus reference. Clusters, and the effective number of them, are those that have tokens of the
    row, of all sources (first) and of each. Groups are clusters, or, of more than MOST_GROUPS, sets of them drawn at random.
    """

    tokens: np.ndarray  # (g, s, K)
    gaps: np.ndarray  # (g, m, s, K)
    clusters: np.ndarray  # (1 + s, K), or (1, K) if not by source
    effective: np.ndarray  # the same shape
    freedom: np.ndarray  # the same shape: degrees of freedom of a variance between them (`bootstrap.freedom_of`)


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums of the K rows of a breakdown over all tokens, of t sources: NLLs in nats, the reference first."""

    tokens: np.ndarray  # (t, K)
    nlls: np.ndarray  # (1 + m, t, K)


@dataclass(frozen=True, slots=True)
class Collected:
    """Everything of one pass, by the name of the breakdown: `slices` by source, the others (see `breakdowns`) of all together.

    `totals["slices"]` has the row of all sources first, then `sources`, sorted: the MAX_SOURCES largest by tokens, and last one of all
    others together, by a name that no source has. `clusters["slices"]` has those of `resampled`:
    beyond MAX_RESAMPLED_SOURCES sources, the smaller ones share one last index, which has no name there.
    """

    sources: list[str]
    resampled: list[str]
    totals: dict[str, Totals]
    clusters: dict[str, ClusterSums]


def collect_sums(
    tokens: LabelledTokens, scores: Sequence[Scores], slices: Sequence[Slice] = (), cluster: str = "document", *, clean: bool = False
) -> Collected:
    """The sums of `tokens` under all `scores` (the reference first), read row-aligned, one row group of each at a time.

    `slices` are summed in addition to AR hits, other tokens, and the breakdowns of every comparison. `cluster`: one of CLUSTERS.
    `clean`: without tokens known to be in the training text, and without sources of which none are left.

    Raises UserError if a file is damaged, a column has missing values, NLLs are not finite numbers, or no token is left.
    """
    tokens.check_copies_known(slices, clean=clean)
    ranges = batch_ranges(tokens.path)
    num_workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, _MAX_WORKERS, len(ranges))
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()

    def reduce_batch(rows: tuple[int, int]) -> tuple[list[str], dict[str, Sums]]:
        try:
            worker = idle.get_nowait()
        except queue.Empty:
            worker = _Worker(tokens, scores, slices, cluster, clean=clean)
        try:
            return worker.reduce(*rows)
        finally:
            idle.put(worker)

    collector = _Collector(tokens, slices, len(scores), groups_of(tokens, cluster))
    for sources, sums in map_ahead(reduce_batch, ranges, num_workers):
        collector.add(sources, sums)
    return collector.finish()


def groups_of(tokens: LabelledTokens, cluster: str) -> Groups:
    """The groups of the clusters of a text: as many clusters as its last token tells."""
    if cluster == "source":
        return Groups(None, tokens.path)
    last = RowReader(tokens.path, [cluster], remedy=_SLICE_AGAIN).read(tokens.num_rows - 1, tokens.num_rows)
    return Groups(last[cluster][0].as_py() + 1, tokens.path)


class _Worker:
    """The file handles of one thread: they are not shared."""

    def __init__(self, tokens: LabelledTokens, scores: Sequence[Scores], slices: Sequence[Slice], cluster: str, *, clean: bool) -> None:
        self._tokens, self._scores, self._slices, self._cluster, self._clean = tokens, scores, slices, cluster, clean
        of_words = needed_columns(slices)
        needed = [column for slice_ in slices for column in slice_.columns if column not in of_words]
        self._columns = tuple(dict.fromkeys([*_LABELS, *needed, *([_IN_TRAINING] if clean else [])]))
        self._labels = RowReader(tokens.path, self._columns, remedy=_SLICE_AGAIN, checks_values=False)
        self._words = tokens.words(of_words)
        again = "score the model again with --force"
        self._nlls = [RowReader(score.path, ["nll"], remedy=again, checks_values=False) for score in scores]
        self._cuts = cuts_of(tokens)
        self._breakdowns = breakdowns(self._cuts, slices)

    def reduce(self, start: int, stop: int) -> tuple[list[str], dict[str, Sums]]:
        """The names of the sources in rows [start, stop), and the sums of each breakdown, whose sources are indices of names."""
        labels, values = self._read(start, stop)
        source = labels["source"].chunk(0)
        cluster = source.indices.to_numpy() if self._cluster == "source" else _values(labels[self._cluster])
        codes = self._codes(labels, start)
        if self._clean:  # here, because whether a token is new depends on the tokens that are left out, too
            is_kept = _values(labels[_IN_TRAINING]) == 0
            codes = {name: part.among(is_kept) for name, part in codes.items()}
        runs = Runs(cluster, source.indices.to_numpy())
        sums = {name: runs.sum_codes(part, values) for name, part in codes.items()}
        if OVERLAP in self._breakdowns:
            sums[OVERLAP] = self._divide(codes[_GIVEN], codes["positions"], runs, values)
        for score, nll in zip(self._scores, sums["counts"].values.T[1:], strict=True):
            if not np.isfinite(nll).all():  # a sum is finite only if every NLL in it is
                raise _not_finite(score)
        token_codes, ahead = self._cuts.token_codes, NUM_TOKEN_CODES + len(self._slices) - AR_HIT
        in_slices = [recode(sums["counts"], token_codes, NUM_TOKEN_CODES), *([sums.pop(_GIVEN)] if _GIVEN in sums else [])]
        if (first := self._sum_first(labels, codes["counts"], runs, values, start)) is not None:
            sums[FIRST] = first
            in_slices.append(recode(first, token_codes + ahead, ahead + NUM_TOKEN_CODES))  # the last two codes of `slice_breakdown`
        sums[_SLICES] = join_sums(in_slices)
        return source.dictionary.to_pylist(), sums

    def _read(self, start: int, stop: int) -> tuple[pa.Table, np.ndarray]:
        """The labels of rows [start, stop), `source` as one array of codes, and what is added up of them (see `values_of`)."""
        import pyarrow as pa

        labels = self._labels.read(start, stop).unify_dictionaries()
        for name in self._columns:
            if name not in ("distance", "first_distance") and labels[name].null_count:
                raise UserError(f"column {name} misses values", where=self._tokens.path, remedy=_SLICE_AGAIN)
        source = _one_array(labels["source"])
        source = source if pa.types.is_dictionary(source.type) else source.dictionary_encode()
        return labels.set_column(labels.schema.get_field_index("source"), "source", source), self._read_values(start, stop)

    def _read_values(self, start: int, stop: int) -> np.ndarray:
        nlls = []
        for score, reader in zip(self._scores, self._nlls, strict=True):
            nll = reader.read(start, stop)["nll"]
            if nll.null_count:
                raise _not_finite(score)
            nlls.append(_values(nll))
        return values_of(nlls)

    def _codes(self, labels: pa.Table, start: int) -> dict[str, Codes]:
        """The code of each token in each breakdown, and in the requested slices, those that it is in."""
        import pyarrow as pa

        cuts, seq_len, max_count = self._cuts, self._tokens.seq_len, self._tokens.max_count
        repeated, counts = _values(labels["repeated"]), self._values_within(labels, "train_count", 0, LARGEST_COUNT)
        positions = position_bucket(self._values_within(labels, "position", 1, seq_len), seq_len, NUM_POSITION_BUCKETS)
        matches = match_bucket(self._values_within(labels, "match_length", 0, seq_len))
        distances = log2_bucket(self._values_within(labels, "distance", 0, seq_len))
        new, ar_hit = _values(labels["context_class"].cast(pa.string())) == "new", (repeated & (counts <= max_count)).view(np.uint8)
        codes = {
            "counts": cuts.of_counts(context_kinds(repeated, new), count_class(counts, extra_thresholds(self._tokens))),
            "places": cuts.of_places(ar_hit, distances, matches),
            "positions": cuts.of_positions(ar_hit, positions),
        }
        found = {name: Codes(code, self._breakdowns[name].num_codes) for name, code in codes.items()}
        return {**found, **({_GIVEN: self._given_codes(labels, start)} if self._slices else {})}

    def _divide(self, given: Codes, every: Codes, runs: Runs, values: np.ndarray) -> Sums:
        """`values` of the rows that `every` has, each row's divided equally among the slices of `given` that contain it.

        Of rows in none of them the last code has the values.
        """
        own = np.arange(len(values)) if given.rows is None else given.rows
        times = np.bincount(own, minlength=len(values))
        in_none = times == 0
        alone = np.flatnonzero(in_none) if every.rows is None else every.rows[in_none[every.rows]]
        rows = np.concatenate([own, alone])
        code = np.concatenate([given.code - NUM_TOKEN_CODES, np.full(len(alone), len(self._slices))])
        order = np.argsort(rows, kind="stable")
        return runs.sum_codes(Codes(code[order], len(self._slices) + 1, rows[order]), values / np.maximum(times, 1)[:, None])

    def _given_codes(self, labels: pa.Table, start: int) -> Codes:
        """The number of each requested slice, after the codes of AR hits and other tokens, for each row in it."""
        if self._words is not None:
            words = self._words.read(start, start + len(labels))
            for name in words.column_names:
                labels = labels.append_column(name, words[name])
        masks = members(self._slices, labels, self._tokens.max_count)
        rows = [np.flatnonzero(mask) for mask in masks]
        codes = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
        order = np.argsort(np.concatenate(rows), kind="stable")
        return Codes(codes[order] + NUM_TOKEN_CODES, NUM_TOKEN_CODES + len(rows), np.concatenate(rows)[order])

    def _sum_first(self, labels: pa.Table, counts: Codes, runs: Runs, values: np.ndarray, start: int) -> Sums | None:
        """The NLLs at the first occurrence of each repeated token's bigram, added up in the run of the token; None if none is repeated.

        The codes are those of training counts, as in `counts`. A first occurrence counts even where it is in the training text itself.
        """
        is_repeated = (self._cuts.token_codes != NOT_REPEATED)[counts.code]
        code, rows = counts.code[is_repeated], np.flatnonzero(is_repeated) if counts.rows is None else counts.rows[is_repeated]
        if not rows.size:
            return None
        back, inside = self._values_within(labels, "first_distance", 0, self._tokens.seq_len)[rows], int(labels["position"][0].as_py()) - 1
        if inside > start or (back >= _values(labels["position"])[rows]).any():
            raise UserError("damaged (a distance leads out of its sequence)", where=self._tokens.path, remedy=_SLICE_AGAIN)
        if inside:  # a batch may begin within a sequence
            values = np.concatenate([self._read_values(start - inside, start), values])
        return runs.sum_codes(Codes(code, counts.num_codes, rows), values, inside + rows - back)

    def _values_within(self, labels: pa.Table, name: str, low: int, high: int) -> np.ndarray:
        """A column's values. Raises UserError if one is outside low..high: damage that leaves the file readable."""
        column = labels[name]
        values = _values(column.fill_null(0) if column.null_count else column)  # of a token that is not repeated, no distance
        if values.size and (values.min() < low or values.max() > high):
            raise UserError(f"damaged (column {name} is not within {low}..{high})", where=self._tokens.path, remedy=_SLICE_AGAIN)
        return values


class _Collector:
    """The sums of all batches, in their order."""

    def __init__(self, tokens: LabelledTokens, slices: Sequence[Slice], num_scores: int, groups: Groups) -> None:
        self._path, self._groups = tokens.path, groups
        self._source_codes: dict[str, int] = {}
        self._slice_unions = slice_breakdown(slices).unions
        self._of_slices: list[Sums] = []
        self._unions = {name: breakdown.unions for name, breakdown in breakdowns(cuts_of(tokens), slices).items()}
        self._sums = {name: GroupSums(groups.number, 1, len(unions), num_scores) for name, unions in self._unions.items()}
        self._sizes = {name: ClusterSizes(unions, in_order=groups.in_order) for name, unions in self._unions.items()}

    def add(self, names: Sequence[str], sums: dict[str, Sums]) -> None:
        """Adds the sums of a batch, whose sources are indices of `names`."""
        for number in np.unique(sums[_SLICES].source).tolist():
            self._source_codes.setdefault(names[number], len(self._source_codes))
        sources = np.array([self._source_codes.get(name, 0) for name in names])  # 0: of no entry
        clusters = None if self._groups.in_order else sources
        self._of_slices.append(renumber(sums[_SLICES], cluster=clusters, source=sources))
        together = np.zeros(len(names), np.int64)
        for name, total in self._sums.items():
            if name not in sums:
                continue  # no token of the batch is repeated
            part = renumber(sums[name], cluster=clusters, source=together)
            self._sizes[name].add(part)
            total.add(self._groups.of(part))

    def finish(self) -> Collected:
        """The sums of everything added."""
        names = sorted(self._source_codes)
        if not names:
            raise UserError("every token is in the training text", where=self._path, remedy="slice other text, or leave out --clean")
        order = np.empty(len(names), np.int64)
        order[[self._source_codes[name] for name in names]] = np.arange(len(names))
        sums = renumber(join_sums(self._of_slices), source=order)
        self._of_slices.clear()
        once = sums.code < NUM_TOKEN_CODES
        sizes = np.bincount(sums.source[once], weights=sums.tokens[once], minlength=len(names))
        if len(names) > MAX_SOURCES:
            kept, places = _largest(sizes, MAX_SOURCES)
            names = [*(names[place] for place in kept), _name_others(self._source_codes)]
            sums, sizes = renumber(sums, source=places), np.append(sizes[kept], -1)
        largest, places = _largest(sizes, MAX_RESAMPLED_SOURCES)
        totals, slices = self._by_source(sums, places, len(names))
        held = np.flatnonzero(slices.tokens.any(axis=(1, 2)))  # a document may have no token
        of_rows = {name: total.rows(self._unions[name]) for name, total in self._sums.items()}
        clusters = {name: ClusterSums(tokens, gaps_of(nlls), *self._sizes[name].finish()) for name, (tokens, nlls) in of_rows.items()}
        clusters[_SLICES] = slices
        return Collected(
            sources=names,
            resampled=[names[place] for place in largest],
            totals={_SLICES: totals, **{name: Totals(tokens.sum(axis=0), nlls.sum(axis=1)) for name, (tokens, nlls) in of_rows.items()}},
            clusters={name: replace(part, tokens=part.tokens[held], gaps=part.gaps[held]) for name, part in clusters.items()},
        )

    def _by_source(self, sums: Sums, places: np.ndarray, num_sources: int) -> tuple[Totals, ClusterSums]:
        """Totals of every source, and sums by group of the largest; `places` (t,) are their indices."""
        num_places, (num_codes, _), num_nlls = int(places.max()) + 1, self._slice_unions.shape, sums.values.shape[1] - 1
        every = GroupSums(1, num_sources, num_codes, num_nlls)
        every.add(replace(sums, cluster=np.zeros_like(sums.cluster)))
        tokens, nlls = every.rows(self._slice_unions)
        totals = Totals(_with_all(tokens[0]), _with_all(nlls[:, 0]))
        placed = renumber(sums, source=places)
        groups = GroupSums(self._groups.number, num_places, num_codes, num_nlls)
        groups.add(self._groups.of(placed))
        tokens, nlls = groups.rows(self._slice_unions)
        by_cluster = placed.at(np.argsort(placed.cluster, kind="stable"))  # they are batch by batch, code by code
        sizes = [ClusterSizes(self._slice_unions, number) for number in (1, num_places)]
        for size, entries in zip(sizes, (replace(by_cluster, source=np.zeros_like(by_cluster.source)), by_cluster), strict=True):
            size.add(entries)
        numbers = (np.vstack(parts) for parts in zip(*(size.finish() for size in sizes), strict=True))
        return totals, ClusterSums(tokens, gaps_of(nlls), *numbers)


def _with_all(sums: np.ndarray) -> np.ndarray:
    """(..., t, K) sums by source, to (..., 1 + t, K): all sources first."""
    return np.concatenate([sums.sum(axis=-2, keepdims=True), sums], axis=-2)


def _largest(sizes: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the `most` largest sources, ascending, and the index of each source among them, one more for all others."""
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


def _values(column: pa.ChunkedArray) -> np.ndarray:
    """A column without nulls as an array; numbers in one chunk are not copied."""
    values: np.ndarray = _one_array(column).to_numpy(zero_copy_only=False)
    return values


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _not_finite(score: Scores) -> UserError:
    remedy = f"check the model's precision, then score it again with `recallkit score {score.model} --force`"
    return UserError("holds NLLs that are not finite numbers", where=score.path, remedy=remedy)
