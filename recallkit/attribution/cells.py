"""Millions of labelled tokens and their NLLs reduced to cells: small sums from which every table of the gap is made.

One pass in batches of a row group, each read, reduced by one query and dropped. A batch is always summed in the order of
its rows by one thread, and batches are added in order: the sums are the same bits on every run and for any number of
threads.
"""

from __future__ import annotations

import os
import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recallkit import db
from recallkit.attribution.aligned import LabelledTokens, RowReader, Scores, batch_ranges
from recallkit.attribution.buckets import count_class, log2_bucket, position_bucket
from recallkit.config import MAX_COUNT
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pyarrow as pa

NUM_POSITION_BUCKETS = 32
_MAX_WORKERS = 4
_LABELS = ("sequence", "position", "source", "repeated", "distance", "train_count", "ar_hit")


@dataclass(frozen=True, slots=True)
class SequenceSums:
    """Sums of each sequence, what the bootstrap resamples: n sequences, m models, s sources, c classes of counts.

    The last axis of `tokens` and `gaps` is the slice: 0 other tokens, 1 AR hits. Gaps are NLL sums in nats, model minus
    reference. The classes are of repeated tokens only.
    """

    sequences: np.ndarray  # (n,) int64
    sources: list[str]  # s names
    tokens: np.ndarray  # (n, s, 2)
    gaps: np.ndarray  # (n, m, s, 2)
    class_tokens: np.ndarray  # (n, c)
    class_gaps: np.ndarray  # (n, m, c)


@dataclass(frozen=True, slots=True)
class Cells:
    """All cells: `totals` as queries/gap/total_cells.sql gives them, and the sums of each sequence."""

    totals: pa.Table
    by_sequence: SequenceSums


def extra_thresholds(tokens: LabelledTokens) -> list[int]:
    """Thresholds to cut training counts at besides the powers of two: the paper's, and the one the AR hits are made with."""
    return [MAX_COUNT, tokens.max_count]


def collect_cells(tokens: LabelledTokens, scores: Sequence[Scores]) -> Cells:
    """The cells of `tokens` under all `scores` (the reference first), read row-aligned, a row group of each at a time.

    Raises UserError where a column misses values or NLLs are not finite numbers.
    """
    import pyarrow as pa

    ranges = batch_ranges(tokens.path)
    num_workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, _MAX_WORKERS, len(ranges))
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()

    def reduce_batch(rows: tuple[int, int]) -> tuple[pa.Table, SequenceSums]:
        try:
            worker = idle.get_nowait()
        except queue.Empty:
            worker = _Worker(tokens, scores)
        try:
            return worker.reduce(*rows)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(num_workers) as pool:
        batches = list(pool.map(reduce_batch, ranges))
    totals = idle.get().total_cells(pa.concat_tables([batch[0] for batch in batches]))
    return Cells(totals, _join_sums([batch[1] for batch in batches]))


class _Worker:
    """One thread's file handles and database: neither is shared."""

    def __init__(self, tokens: LabelledTokens, scores: Sequence[Scores]) -> None:
        self._tokens = tokens
        self._scores = scores
        self._labels = RowReader(tokens.path, _LABELS)
        self._nlls = [RowReader(score.path, ["nll"]) for score in scores]
        self._database = db.connect(threads=1)

    def reduce(self, start: int, stop: int) -> tuple[pa.Table, SequenceSums]:
        """The cells of rows [start, stop): added up over sequences, and each sequence's sums."""
        import pyarrow as pa

        aligned, sources = self._read(start, stop)
        self._database.register("aligned", aligned)
        cells = self._database.sql(db.query("gap/aggregate_cells")).to_arrow_table()
        self._database.unregister("aligned")
        named = pa.DictionaryArray.from_arrays(cells["source"].combine_chunks(), sources)
        named_cells = cells.set_column(cells.schema.get_field_index("source"), "source", named)
        totals = self.total_cells(named_cells)
        _require_finite(totals, self._scores)
        return totals, _sum_sequences(cells, sources.to_pylist())

    def total_cells(self, cells: pa.Table) -> pa.Table:
        """Cells added up over sequences and batches."""
        self._database.register("cells", cells)
        totals = self._database.sql(db.query("gap/total_cells")).to_arrow_table()
        self._database.unregister("cells")
        return totals

    def _read(self, start: int, stop: int) -> tuple[pa.Table, pa.Array]:
        """The columns that aggregate_cells reads, side by side without a copy, and the names behind the codes of `source`."""
        import pyarrow as pa

        labels = self._labels.read(start, stop).unify_dictionaries()
        for name in _LABELS:
            if name != "distance" and labels[name].null_count:
                raise UserError(
                    f"column {name} misses values", where=self._tokens.path, remedy="slice again with `recallkit slice --force`"
                )
        source = _one_array(labels["source"])
        source = source if pa.types.is_dictionary(source.type) else source.dictionary_encode()
        label, place = self._codes(labels, source.indices.to_numpy())
        columns = {"sequence": labels["sequence"], "label": label, "place": place}
        for index, (score, reader) in enumerate(zip(self._scores, self._nlls, strict=True)):
            nll = reader.read(start, stop)["nll"]
            if nll.null_count:
                raise _not_finite(score)
            columns[f"nll_{index}"] = nll
        return pa.table(columns), pa.array(_unambiguous(source.dictionary.to_pylist()))

    def _codes(self, labels: pa.Table, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The two codes of each token that aggregate_cells groups by and takes apart again, uint32 and uint16 (n,)."""
        import numpy as np

        repeated, ar_hit = (_one_array(labels[name]).to_numpy(zero_copy_only=False) for name in ("repeated", "ar_hit"))
        label = source.astype(np.uint32)
        for bits, part in ((1, repeated), (1, ar_hit), (6, count_class(_values(labels["train_count"]), extra_thresholds(self._tokens)))):
            label <<= bits
            label |= part
        place = position_bucket(_values(labels["position"]), self._tokens.seq_len, NUM_POSITION_BUCKETS).astype(np.uint16)
        for bits, part in ((6, log2_bucket(_values(labels["distance"].fill_null(0)))), (1, ar_hit)):
            place <<= bits
            place |= part
        return label, place


def _values(column: pa.ChunkedArray) -> np.ndarray:
    """A column without nulls as an array, a view where it lies in one piece."""
    values: np.ndarray = _one_array(column).to_numpy()
    return values


def _unambiguous(sources: list[str]) -> list[str]:
    """A source that calls itself ALL must not be taken for the row of all sources."""
    return ["ALL (source)" if source == "ALL" else source for source in sources]


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _require_finite(totals: pa.Table, scores: Sequence[Scores]) -> None:
    """A sum is a finite number only where every NLL in it is."""
    import numpy as np

    for index, score in enumerate(scores):
        if not np.isfinite(totals[f"nll_{index}"].to_numpy()).all():
            raise _not_finite(score)


def _sum_sequences(cells: pa.Table, sources: list[str]) -> SequenceSums:
    """Each sequence's sums of a batch's label cells; `cells.source` are codes of `sources`."""
    import numpy as np
    import pyarrow.compute as pc

    label_cells = cells.filter(pc.is_valid(cells["sequence"]))
    column = {name: label_cells[name].to_numpy() for name in label_cells.column_names if name not in ("position_bucket", "distance_bucket")}
    sequences, row = np.unique(column["sequence"], return_inverse=True)
    classes = column["count_class"].astype(np.int64)
    num_models = sum(name.startswith("nll_") for name in column) - 1
    gaps = [column[f"nll_{index + 1}"] - column["nll_0"] for index in range(num_models)]
    slices = column["source"].astype(np.int64) * 2 + column["ar_hit"]
    num_slices, num_classes = 2 * len(sources), int(classes.max()) + 1
    repeated = column["repeated"].astype(np.float64)

    def scatter(place: np.ndarray, width: int, values: np.ndarray) -> np.ndarray:
        return np.bincount(row * width + place, weights=values, minlength=sequences.size * width).reshape(sequences.size, width)

    return SequenceSums(
        sequences=sequences.astype(np.int64),
        sources=sources,
        tokens=scatter(slices, num_slices, column["tokens"]).reshape(-1, len(sources), 2),
        gaps=np.stack([scatter(slices, num_slices, gap) for gap in gaps], axis=1).reshape(-1, num_models, len(sources), 2),
        class_tokens=scatter(classes, num_classes, column["tokens"] * repeated),
        class_gaps=np.stack([scatter(classes, num_classes, gap * repeated) for gap in gaps], axis=1),
    )


def _join_sums(parts: Sequence[SequenceSums]) -> SequenceSums:
    """One table of sums over all batches: sources by name, a sequence that two batches share added up."""
    import numpy as np

    sources = sorted({source for part in parts for source in part.sources})
    sequences, row = np.unique(np.concatenate([part.sequences for part in parts]), return_inverse=True)
    num_models = parts[0].gaps.shape[1]
    num_classes = max(part.class_tokens.shape[1] for part in parts)
    joined = SequenceSums(
        sequences=sequences,
        sources=sources,
        tokens=np.zeros((sequences.size, len(sources), 2)),
        gaps=np.zeros((sequences.size, num_models, len(sources), 2)),
        class_tokens=np.zeros((sequences.size, num_classes)),
        class_gaps=np.zeros((sequences.size, num_models, num_classes)),
    )
    start = 0
    for part in parts:
        # The sequences of one part are distinct, so that each row is added to once by the assignments below.
        rows = row[start : start + part.sequences.size]
        start += part.sequences.size
        for local, source in enumerate(part.sources):
            place = sources.index(source)
            joined.tokens[rows, place] += part.tokens[:, local]
            joined.gaps[rows, :, place] += part.gaps[:, :, local]
        width = part.class_tokens.shape[1]
        joined.class_tokens[rows, :width] += part.class_tokens
        joined.class_gaps[rows, :, :width] += part.class_gaps
    return joined


def _not_finite(score: Scores) -> UserError:
    remedy = f"check the model's precision, then score it again with `recallkit score {score.model} --force`"
    return UserError("holds NLLs that are not finite numbers", where=score.path, remedy=remedy)
