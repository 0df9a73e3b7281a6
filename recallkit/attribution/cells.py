"""Millions of labelled tokens and their NLLs reduced to cells: small sums from which every table of the gap is made.

One pass in batches of one row group, each read, reduced by one query and dropped. Each batch is summed in row order by one
thread, and batches are added in order: the sums are bit-identical on every run and for any number of threads.
"""

from __future__ import annotations

import os
import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recallkit.attribution.aligned import LabelledTokens, RowReader, Scores, batch_ranges
from recallkit.attribution.buckets import LARGEST_COUNT, count_class, log2_bucket, match_bucket, position_bucket
from recallkit.attribution.slice_sums import SliceSums, Sums, add_up, join_sums, sum_cells, sum_rows, sum_slices
from recallkit.config import MAX_COUNT, MAX_RESAMPLED_SOURCES
from recallkit.errors import UserError
from recallkit.slicing.definitions import NEW_TOKEN, PARTITION, members, partition_codes
from recallkit.slicing.new_tokens import new_tokens
from recallkit.storage import db

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pyarrow as pa

    from recallkit.slicing.definitions import Slice

NUM_POSITION_BUCKETS = 32
LARGEST_THRESHOLD = (1 << 63) - 1
"""Training counts are 64-bit integers: no threshold need be larger."""
_MAX_WORKERS = 4
_SLICE_AGAIN = "slice again with --force"
_LABELS = ("sequence", "position", "source", "repeated", "distance", "match_length", "train_count", "ar_hit")
_IDS = ("prev_token", "token")
"""Columns that the partition needs besides _LABELS."""
_PLACES = ("position_bucket", "distance_bucket", "match_bucket")


@dataclass(frozen=True, slots=True)
class SequenceSums:
    """Sums of each sequence, which the bootstrap resamples: n sequences, m models, s sources, c classes of counts.

    The last axis of `tokens` and `gaps` is the slice: 0 other tokens, 1 AR hits. Gaps are NLL sums in nats, model minus
    reference. The classes contain repeated tokens only. `given` are the sums of the requested slices, `partition` those of the
    classes of PARTITION, whose single source is all of them. Beyond MAX_RESAMPLED_SOURCES sources, the smaller ones share
    one last index, which has no name in `sources`.
    """

    sources: list[str]  # names of the s sources, or of all but the last
    tokens: np.ndarray  # (n, s, 2)
    gaps: np.ndarray  # (n, m, s, 2)
    class_tokens: np.ndarray  # (n, c)
    class_gaps: np.ndarray  # (n, m, c)
    given: SliceSums | None
    partition: SliceSums


@dataclass(frozen=True, slots=True)
class _BatchSums:
    """The contribution of one batch to SequenceSums."""

    sources: list[str]  # names, indexed by code
    standard: Sums  # of gaps, by AR hit
    classes: Sums  # of gaps of repeated tokens, by count class
    given: Sums | None  # of NLLs
    partition: Sums  # of NLLs


@dataclass(frozen=True, slots=True)
class Cells:
    """All cells: `totals` as returned by queries/gap/total_cells.sql, and the sums of each sequence.

    `sources` contains all of them, in the order of `by_sequence.given`.
    """

    totals: pa.Table
    by_sequence: SequenceSums
    sources: list[str]


def extra_thresholds(tokens: LabelledTokens) -> list[int]:
    """Thresholds at which training counts are cut besides the powers of two: the paper's, and the one that defines AR hits."""
    return [MAX_COUNT, min(tokens.max_count, LARGEST_THRESHOLD)]


def collect_cells(tokens: LabelledTokens, scores: Sequence[Scores], slices: Sequence[Slice] = ()) -> Cells:
    """The cells of `tokens` under all `scores` (the reference first), read row-aligned, one row group of each at a time.

    `slices` are summed in addition to AR hits, other tokens, and the classes of PARTITION.

    Raises UserError if a file is damaged, a column has missing values or NLLs are not finite numbers.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ranges = batch_ranges(tokens.path)
    num_workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, _MAX_WORKERS, len(ranges))
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()

    def reduce_batch(rows: tuple[int, int]) -> tuple[pa.Table, _BatchSums]:
        try:
            worker = idle.get_nowait()
        except queue.Empty:
            worker = _Worker(tokens, scores, slices)
        try:
            return worker.reduce(*rows)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(num_workers) as pool:
        batches = list(pool.map(reduce_batch, ranges))
    totals = idle.get().total_cells(pa.concat_tables([batch[0] for batch in batches]))
    num_classes = pc.max(totals["count_class"]).as_py() + 1
    by_sequence, sources = _join_sums([batch[1] for batch in batches], num_classes, len(slices))
    return Cells(totals, by_sequence, sources)


class _Worker:
    """The file handles and the database of one thread: neither is shared."""

    def __init__(self, tokens: LabelledTokens, scores: Sequence[Scores], slices: Sequence[Slice]) -> None:
        self._tokens = tokens
        self._scores = scores
        self._slices = slices
        needed = [column for slice_ in slices for column in slice_.columns if column != NEW_TOKEN]
        self._columns = tuple(dict.fromkeys([*_LABELS, *_IDS, *needed]))
        self._labels = RowReader(tokens.path, self._columns, remedy=_SLICE_AGAIN, checks_values=False)
        again = "score the model again with --force"
        self._nlls = [RowReader(score.path, ["nll"], remedy=again, checks_values=False) for score in scores]
        self._database = db.connect(threads=1)

    def reduce(self, start: int, stop: int) -> tuple[pa.Table, _BatchSums]:
        """The cells of rows [start, stop), summed over sequences, and the sums of each sequence."""
        import pyarrow as pa

        labels, nlls = self._read(start, stop)
        source = labels["source"].chunk(0)
        label, place = self._codes(labels)
        aligned = {"sequence": labels["sequence"], "label": label, "place": place}
        self._database.register("aligned", pa.table({**aligned, **{f"nll_{index}": nll for index, nll in enumerate(nlls)}}))
        cells = self._database.sql(db.query("gap/aggregate_cells")).to_arrow_table()
        self._database.unregister("aligned")
        named = pa.DictionaryArray.from_arrays(cells["source"].combine_chunks(), source.dictionary)
        named_cells = cells.set_column(cells.schema.get_field_index("source"), "source", named)
        totals = self.total_cells(named_cells)
        _require_finite(totals, self._scores)
        sums = self._sum_slices(labels, [_values(nll) for nll in nlls], start)
        return totals, _sum_sequences(cells, source.dictionary.to_pylist(), *sums)

    def _sum_slices(self, labels: pa.Table, nlls: Sequence[np.ndarray], start: int) -> tuple[Sums | None, Sums]:
        """The sums of the requested slices and of the partition."""
        import numpy as np
        import pyarrow as pa

        max_count, num_slices = self._tokens.max_count, len(self._slices)
        sequence, source, new = _values(labels["sequence"]), _codes_of(labels), self._new_tokens(labels, start)
        classes = partition_codes(_values(labels["repeated"]), new, _values(labels["train_count"]) <= max_count)
        partition = sum_rows(classes, sequence, np.zeros_like(classes), nlls, len(PARTITION))
        if not num_slices:
            return None, partition
        found = []
        for place, mask in enumerate(members(self._slices, labels.append_column(NEW_TOKEN, [pa.array(new)]), max_count)):
            rows = np.flatnonzero(mask)
            found.append(sum_rows(np.full(len(rows), place), sequence[rows], source[rows], [nll[rows] for nll in nlls], num_slices))
        return join_sums(found), partition

    def _new_tokens(self, labels: pa.Table, start: int) -> np.ndarray:
        """Which rows, from `start` on, have a token that is new in its context; a batch may begin within a sequence."""
        import pyarrow as pa

        inside = labels["position"][0].as_py() - 1
        if inside > start:
            raise UserError("damaged (sequences do not begin at position 1)", where=self._tokens.path, remedy=_SLICE_AGAIN)
        names = ("sequence", "prev_token", "token", "repeated")
        if inside:
            labels = pa.concat_tables([self._labels.read(start - inside, start).select(names), labels.select(names)])
        return new_tokens(*(_values(labels[name]) for name in names))[inside:]

    def total_cells(self, cells: pa.Table) -> pa.Table:
        """Cells summed over sequences and batches."""
        self._database.register("cells", cells)
        totals = self._database.sql(db.query("gap/total_cells")).to_arrow_table()
        self._database.unregister("cells")
        return totals

    def _read(self, start: int, stop: int) -> tuple[pa.Table, list[pa.ChunkedArray]]:
        """The labels of rows [start, stop), `source` as one array of codes, and the NLLs under each model, without a copy."""
        import pyarrow as pa

        labels = self._labels.read(start, stop).unify_dictionaries()
        for name in self._columns:
            if name != "distance" and labels[name].null_count:
                raise UserError(f"column {name} misses values", where=self._tokens.path, remedy=_SLICE_AGAIN)
        source = _one_array(labels["source"])
        source = source if pa.types.is_dictionary(source.type) else source.dictionary_encode()
        nlls = []
        for score, reader in zip(self._scores, self._nlls, strict=True):
            nll = reader.read(start, stop)["nll"]
            if nll.null_count:
                raise _not_finite(score)
            nlls.append(nll)
        return labels.set_column(labels.schema.get_field_index("source"), "source", source), nlls

    def _codes(self, labels: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """The two codes of each token that aggregate_cells groups by and decodes again, both uint32 (n,)."""
        import numpy as np

        seq_len = self._tokens.seq_len
        repeated, ar_hit = _values(labels["repeated"]), _values(labels["ar_hit"])
        classes = count_class(self._values_within(labels, "train_count", 0, LARGEST_COUNT), extra_thresholds(self._tokens))
        positions = position_bucket(self._values_within(labels, "position", 1, seq_len), seq_len, NUM_POSITION_BUCKETS)
        matches = match_bucket(self._values_within(labels, "match_length", 0, seq_len))
        distances = log2_bucket(_values(labels["distance"].fill_null(0)))
        # Fields are combined as bytes as far as they fit, which is faster.
        label = _codes_of(labels).astype(np.uint32) << 8
        label |= repeated.view(np.uint8) << 7 | ar_hit.view(np.uint8) << 6 | classes
        place = positions.astype(np.uint32) << 13
        place |= distances.astype(np.uint32) << 7
        place |= matches << 1 | ar_hit.view(np.uint8)
        return label, place

    def _values_within(self, labels: pa.Table, name: str, low: int, high: int) -> np.ndarray:
        """A column's values. Raises UserError if one is outside low..high: damage that leaves the file readable."""
        values = _values(labels[name])
        if values.size and (values.min() < low or values.max() > high):
            raise UserError(f"damaged (column {name} is not within {low}..{high})", where=self._tokens.path, remedy=_SLICE_AGAIN)
        return values


def _codes_of(labels: pa.Table) -> np.ndarray:
    """The codes of `source`."""
    codes: np.ndarray = labels["source"].chunk(0).indices.to_numpy()
    return codes


def _values(column: pa.ChunkedArray) -> np.ndarray:
    """A column without nulls as an array; numbers in one chunk are not copied."""
    values: np.ndarray = _one_array(column).to_numpy(zero_copy_only=False)
    return values


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _require_finite(totals: pa.Table, scores: Sequence[Scores]) -> None:
    """A sum is finite only if every NLL in it is."""
    import numpy as np

    for index, score in enumerate(scores):
        if not np.isfinite(totals[f"nll_{index}"].to_numpy()).all():
            raise _not_finite(score)


def _sum_sequences(cells: pa.Table, sources: list[str], given: Sums | None, partition: Sums) -> _BatchSums:
    """The sums of each sequence from a batch's label cells; `cells.source` are codes of `sources`."""
    import numpy as np
    import pyarrow.compute as pc

    label_cells = cells.filter(pc.is_valid(cells["sequence"]))
    column = {name: label_cells[name].to_numpy() for name in label_cells.column_names if name not in _PLACES}
    num_models = sum(name.startswith("nll_") for name in column) - 1
    gaps = np.stack([column[f"nll_{index + 1}"] - column["nll_0"] for index in range(num_models)])
    everything, keep = np.zeros(len(label_cells), np.int64), column["repeated"]
    classes = Sums(*(part[..., keep] for part in (column["count_class"], column["sequence"], everything, column["tokens"], gaps)))
    return _BatchSums(
        sources=sources,
        standard=sum_cells(Sums(column["ar_hit"].astype(np.int64), column["sequence"], column["source"], column["tokens"], gaps)),
        classes=sum_cells(classes),
        given=given,
        partition=partition,
    )


def _join_sums(parts: Sequence[_BatchSums], num_classes: int, num_slices: int) -> tuple[SequenceSums, list[str]]:
    """One table of sums over all batches, adding up a sequence that two batches share; and the names of all sources.

    Beyond MAX_RESAMPLED_SOURCES the smaller ones share one index after the largest, so that sums over all are complete.
    """
    import numpy as np

    names = sorted({source for part in parts for source in part.sources})
    index = {name: i for i, name in enumerate(names)}
    codes = [np.array([index[name] for name in part.sources]) for part in parts]
    standard = join_sums([part.standard for part in parts], codes)
    classes, partition = (join_sums([getattr(part, kind) for part in parts]) for kind in ("classes", "partition"))
    given = join_sums([part.given for part in parts if part.given is not None], codes) if num_slices else None
    sequences = np.unique(standard.sequence)
    largest, places = _place_sources(standard.source, standard.tokens, len(names))
    tokens, gaps = add_up(standard, sequences, places, 2)
    class_tokens, class_gaps = add_up(classes, sequences, np.zeros(1, np.int64), num_classes)
    joined = SequenceSums(
        sources=[names[i] for i in largest],
        tokens=tokens,
        gaps=gaps,
        class_tokens=class_tokens[:, 0],
        class_gaps=class_gaps[:, :, 0],
        given=None if given is None else sum_slices(given, sequences, places, num_slices),
        partition=sum_slices(partition, sequences, np.zeros(1, np.int64), len(PARTITION)),
    )
    return joined, names


def _place_sources(source: np.ndarray, tokens: np.ndarray, num_sources: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest sources, sorted by name, and the index of each source among them, from entries of `tokens`."""
    import numpy as np

    sizes = np.bincount(source, weights=tokens, minlength=num_sources)
    largest = np.sort(np.argsort(-sizes, kind="stable")[:MAX_RESAMPLED_SOURCES])
    places = np.full(num_sources, largest.size)
    places[largest] = np.arange(largest.size)
    return largest, places


def _not_finite(score: Scores) -> UserError:
    remedy = f"check the model's precision, then score it again with `recallkit score {score.model} --force`"
    return UserError("holds NLLs that are not finite numbers", where=score.path, remedy=remedy)
