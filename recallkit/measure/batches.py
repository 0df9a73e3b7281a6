"""Labels and NLLs of the same tokens, some hundred sequences at a time, as a table that the queries of `queries/measure/` are asked of.

Row i of the labels and of every score file is the same token, so that they are put side by side without a join on keys. Each batch is
summed by one thread in the order of its rows, and batches are taken in order: sums are the same to the bit on any number of threads.
"""

from __future__ import annotations

import os
import queue
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from recallkit import arrow
from recallkit.errors import UserError
from recallkit.measure.labelled import SCORE_AGAIN, SLICE_AGAIN, LabelledTokens, RowReader, Scores, batch_ranges
from recallkit.parallel.ahead import map_ahead
from recallkit.slicing.definitions import members
from recallkit.slicing.words import needed_columns
from recallkit.storage import db

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import duckdb
    import pyarrow as pa

    from recallkit.slicing.definitions import Slice

CLUSTERS = ("document", "sequence", "source")
"""What can be a cluster, a piece of text that intervals resample: columns of `tokens.parquet`.

Tokens of a document move together, whatever sequence they are in: resampled by sequences, intervals are far too narrow (docs/intervals.md).
"""

_MAX_WORKERS = 4
_ALWAYS = ("position", "document", "source", "repeated", "first_distance", "train_count")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Batch:
    """n consecutive tokens.

    rows: their labels; `cluster`; `source`, its number in `sources`; `slices`, in which bit i is set of a token in requested slice i;
    `nll_0`, `nll_1` ... in the order of the score files; and `first_0`, `first_1` ..., the NLLs of the first occurrence of its bigram in
    its sequence, where nothing can be recalled: its own of a token that repeats nothing. A first occurrence counts even where it is in the
    training text itself.
    """

    rows: pa.Table
    sources: Sequence[str]
    database: duckdb.DuckDBPyConnection

    def of(self, rows: pa.Table) -> Batch:
        """The batch with these rows in place of its own."""
        return replace(self, rows=rows)

    def ask(self, query: str, **parameters: float) -> pa.Table:
        """What `queries/QUERY.sql` (such as "measure/sum_by_count") finds in `tokens`, these rows; sums are in the order of rows."""
        self.database.register("tokens", self.rows)
        found: pa.Table = self.database.sql(db.query(query), params=parameters).to_arrow_table()
        return found


def map_batches(
    reduce: Callable[[Batch], Made],
    tokens: LabelledTokens,
    scores: Sequence[Scores] = (),
    columns: Sequence[str] = (),
    *,
    slices: Sequence[Slice] = (),
    cluster: str = "document",
    clean: bool = False,
) -> Iterator[Made]:
    """What `reduce` makes of each batch, in order; batches are read and reduced on several threads.

    `columns`: labels that a query needs besides `repeated`, `train_count`, `position` and `first_distance`. `slices`: requested ones.
    `cluster`: one of CLUSTERS; a cluster is a number, of sources their number in the batch.
    `clean`: without tokens that are known to be in the training text.

    Raises UserError if a file is damaged, a label that must be there is missing, or an NLL is not a finite number.
    """
    tokens.check_copies_known(slices, clean=clean)
    ranges = batch_ranges(tokens.path)
    num_workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, _MAX_WORKERS, len(ranges))
    idle: queue.SimpleQueue[_Reader] = queue.SimpleQueue()

    def read_and_reduce(rows: tuple[int, int]) -> Made:
        try:
            reader = idle.get_nowait()
        except queue.Empty:
            reader = _Reader(tokens, scores, columns, slices, cluster, clean=clean)
        try:
            return reduce(reader.read(*rows))
        finally:
            idle.put(reader)

    return map_ahead(read_and_reduce, ranges, num_workers)


class _Reader:
    """The open files and the database of one thread: they are not shared."""

    def __init__(
        self,
        tokens: LabelledTokens,
        scores: Sequence[Scores],
        columns: Sequence[str],
        slices: Sequence[Slice],
        cluster: str,
        *,
        clean: bool,
    ) -> None:
        self._tokens, self._scores, self._slices, self._cluster, self._clean = tokens, scores, slices, cluster, clean
        of_words = needed_columns(slices)
        needed = [column for slice_ in slices for column in slice_.columns if column not in of_words]
        names = dict.fromkeys([*_ALWAYS, *columns, cluster, *needed, *(["in_training"] if clean else [])])
        self._labels = RowReader(tokens.path, list(names), remedy=SLICE_AGAIN)
        self._words = tokens.words(of_words)
        self._nlls = [RowReader(score.path, ["nll"], remedy=SCORE_AGAIN) for score in scores]
        self._database = db.connect(threads=1)

    def read(self, start: int, stop: int) -> Batch:
        """Rows [start, stop) of the text."""
        rows = self._labels.read(start, stop).unify_dictionaries()
        for name in rows.column_names:
            if rows[name].null_count and name not in ("distance", "first_distance"):
                raise UserError(f"column {name} misses values", where=self._tokens.path, remedy=SLICE_AGAIN)
        if rows["position"].to_numpy().min() < 1:
            problem = f"damaged (column position is not within 1..{self._tokens.seq_len})"
            raise UserError(problem, where=self._tokens.path, remedy=SLICE_AGAIN)
        inside = int(rows["position"][0].as_py()) - 1  # a batch of another tool's file may begin within a sequence
        back = rows["first_distance"].fill_null(0).to_numpy()
        if inside > start or (back >= rows["position"].to_numpy()).any():
            raise UserError("damaged (a distance leads out of its sequence)", where=self._tokens.path, remedy=SLICE_AGAIN)
        nlls = np.empty((len(self._nlls), inside + stop - start), np.float32)
        for score, reader, into in zip(self._scores, self._nlls, nlls, strict=True):
            into[:] = reader.read(start - inside, stop)["nll"].to_numpy()
            if not np.isfinite(into).all():
                remedy = f"check the model's precision, then score it again with `recallkit score {score.model} --force`"
                raise UserError("holds NLLs that are not finite numbers", where=score.path, remedy=remedy)
        rows, sources = _numbered(rows)
        rows = rows.append_column("cluster", rows[self._cluster])
        if self._slices:
            rows = rows.append_column("slices", arrow.array(self._contained(rows, sources, start, stop)))
        first = nlls[:, np.arange(inside, nlls.shape[1]) - back]
        for name, of_name in (("nll", nlls[:, inside:]), ("first", first)):
            for number, values in enumerate(of_name):
                rows = rows.append_column(f"{name}_{number}", arrow.array(values))
        if self._clean:  # after what is looked up in the tokens that are left out
            rows = rows.filter(arrow.array(rows["in_training"].to_numpy() == 0))
        return Batch(rows, sources, self._database)

    def _contained(self, rows: pa.Table, sources: Sequence[str], start: int, stop: int) -> np.ndarray:
        """Bit i is set of a token in requested slice i, int64 (n,)."""
        import pyarrow as pa

        names = pa.DictionaryArray.from_arrays(rows["source"].combine_chunks(), pa.array(sources))
        labels = rows.set_column(rows.schema.get_field_index("source"), "source", names)
        if self._words is not None:
            words = self._words.read(start, stop)
            for name in words.column_names:
                labels = labels.append_column(name, words[name])
        found = np.zeros(len(rows), np.int64)
        for number, mask in enumerate(members(self._slices, labels, self._tokens.max_count)):
            found |= mask.astype(np.int64) << number
        return found


def _numbered(rows: pa.Table) -> tuple[pa.Table, list[str]]:
    """The rows with the number of each one's source in place of its name, and the names."""
    import pyarrow as pa

    column = rows["source"] if pa.types.is_dictionary(rows["source"].type) else rows["source"].dictionary_encode()
    source = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    numbered = rows.set_column(rows.schema.get_field_index("source"), "source", source.indices.cast(pa.int32()))
    return numbered, source.dictionary.to_pylist()
