"""Exact bigram counts of a chunk of token ids, as sorted runs that merge: the step that reads every training token.

Bigrams are counted by radix. The first id selects a partition (32 neighbouring ids for a vocabulary of 50,257), and the bigram
is written there as 4 bytes: its cell in the table of counters of that partition. One such table, small enough for a core's cache,
then counts one partition after the other. Partitions are in key order, so their concatenation is sorted. Example: with a shift
of 5 and a stride of 50,288 cells, the bigram (70, 9) goes to partition 70 >> 5 = 2 as cell (70 & 31) * 50,288 + 9.

Ids beyond half a million, and chunks small beside their vocabulary, are counted by sorting 64-bit keys instead.
"""

from __future__ import annotations

from bisect import insort
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recallkit.jit import frozen, njit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_LINE = 16
"""32-bit words in a cache line: bigrams are buffered, and tables cleared, one line at a time."""

_WORD_CELLS = 8 * _LINE
"""Cells covered by one 64-bit word of touched marks: one byte per line."""

_MAX_PARTITIONS = 2048
"""Partitions, if the vocabulary allows: each thread buffers one line per partition, 128 KiB, within a core's L2 cache."""

_MAX_CELLS = 1 << 24
"""Cells in a partition's table: 64 MiB per thread, reached at a vocabulary of 2^19."""

_MAX_CELLS_PER_TOKEN = 8192
"""Cells in all tables together, per token of the chunk: beyond it, searching the tables for touched cells takes longer than sorting."""

_REPEATED = np.uint32(1 << 31)
"""Marks a packed cell that is followed by its count; a cell seen once has none, so that packing never needs more room."""

_SORTED_TOKENS = 1 << 23
"""Tokens sorted at once on the sorting path: 64 MiB of keys per thread."""


class BigramRun(NamedTuple):
    """Distinct bigrams and their counts, both uint64 (m,): `keys` is first << 32 | second, strictly increasing."""

    keys: np.ndarray
    counts: np.ndarray


class BigramCounter:
    """Counts chunks one after the other and keeps its buffers between them: 4 bytes per token of the largest chunk.

    Not for use by several callers at once. `num_threads` threads share every chunk; the result does not depend on their number.
    """

    def __init__(self, *, num_threads: int = 2) -> None:
        self.num_threads = num_threads
        self._cells = np.empty(0, np.uint32)
        self._tables: list[_Table] = []

    def count(self, ids: np.ndarray, segment_starts: np.ndarray) -> BigramRun:
        """The distinct bigrams of a chunk with their counts.

        `ids` is (n,) uint16 or uint32, n < 2^32. `segment_starts` is (s,) int64, ascending from 0 to at most n: positions
        whose id is not the second of a bigram, such as the first of every document (an empty document repeats one).
        Both may be memory-mapped. Beside the kept buffers a chunk takes 16 bytes per distinct bigram (the result), on the
        sorting path up to twice that.
        """
        ids, segment_starts = frozen(ids), frozen(segment_starts)
        if ids.size < 2:
            return BigramRun(np.empty(0, np.uint64), np.empty(0, np.uint64))
        with ThreadPoolExecutor(self.num_threads) as pool:
            vocab = int(max(pool.map(np.max, np.array_split(ids, min(self.num_threads, ids.size))))) + 1
            layout = _Layout.of(vocab)
            if layout is None or vocab**2 > _MAX_CELLS_PER_TOKEN * ids.size:
                return _count_by_sorting(ids, segment_starts, pool)
            return self._count_by_radix(ids, segment_starts, layout, pool)

    def _count_by_radix(self, ids: np.ndarray, segment_starts: np.ndarray, layout: _Layout, pool: ThreadPoolExecutor) -> BigramRun:
        """Four steps, each on all threads: size the partitions, scatter bigrams into them, count each in a table, unpack the rows."""
        threads = range(self.num_threads)
        edges = _split_evenly(ids.size, segment_starts, self.num_threads)
        tallies = np.zeros((self.num_threads, layout.num_partitions), np.int64)
        _run(pool, lambda thread: _tally(ids, edges[thread], layout.shift, tallies[thread]), threads)

        begins, ends, num_cells = _place(tallies, _LINE)
        cells = self._room(num_cells)
        _run(pool, lambda thread: _scatter(ids, edges[thread], layout.shift, layout.stride, begins[thread].copy(), cells), threads)

        num_words, num_rows = np.zeros((2, layout.num_partitions), np.int64)
        blocks = iter(_blocks(tallies.sum(axis=0), self.num_threads))
        tables = self._zeroed_tables(layout.stride << layout.shift)

        def count_blocks(table: _Table) -> None:
            for first, last in blocks:
                _count_partitions(first, last, begins, ends, cells, table.counters, table.touched, num_words, num_rows)

        _run(pool, count_blocks, tables)

        row_ends = np.cumsum(num_rows)
        run = BigramRun(np.empty(row_ends[-1], np.uint64), np.empty(row_ends[-1], np.uint64))

        def unpack(block: tuple[int, int]) -> None:
            first, last = block
            _unpack(first, last, begins[0], num_words, row_ends - num_rows, layout.shift, layout.stride, cells, run.keys, run.counts)

        _run(pool, unpack, _blocks(num_rows, self.num_threads))
        return run

    def _room(self, num_cells: int) -> np.ndarray:
        """The buffer of packed bigrams, at least `num_cells`; a larger one replaces the present one, which is freed first."""
        if self._cells.size < num_cells:
            self._cells = np.empty(0, np.uint32)
            self._cells = np.empty(num_cells, np.uint32)
        return self._cells

    def _zeroed_tables(self, num_cells: int) -> list[_Table]:
        """One table of `num_cells` cells per thread. Counting clears the cells it touched, so that kept tables are all zero."""
        num_words = -(-num_cells // _WORD_CELLS)
        if not self._tables or self._tables[0].touched.size < num_words:
            sizes = ((num_words * _WORD_CELLS, np.uint32), (num_words, np.uint64))
            self._tables = [_Table(*(np.zeros(size, dtype) for size, dtype in sizes)) for _ in range(self.num_threads)]
        return [_Table(table.counters[: num_words * _WORD_CELLS], table.touched[:num_words]) for table in self._tables]


class _Table(NamedTuple):
    """Counters of one partition's cells (uint32) and `touched` (uint64), one byte per line of counters: 1 if any is not zero."""

    counters: np.ndarray
    touched: np.ndarray


class _Layout(NamedTuple):
    """How bigrams are packed: `2**shift` first ids per partition, `stride` cells for the second ids of each."""

    shift: int
    stride: int
    num_partitions: int

    @classmethod
    def of(cls, vocab: int) -> _Layout | None:
        """The layout for ids below `vocab`; None if partitions would be too many or their tables too large."""
        # An odd number of lines: with a power of two, a frequent second id would map to the same cache set for every first id.
        stride = (-(-vocab // _LINE) | 1) * _LINE
        shift = max(0, (vocab - 1) // _MAX_PARTITIONS).bit_length()
        while shift and stride << shift > _MAX_CELLS:
            shift -= 1
        num_partitions = ((vocab - 1) >> shift) + 1
        return cls(shift, stride, num_partitions) if num_partitions <= 8 * _MAX_PARTITIONS else None


def _run(pool: ThreadPoolExecutor, task: Callable[[Any], object], items: Iterable[Any]) -> None:
    """Runs the task on every item, and raises what a task raised."""
    for _ in pool.map(task, items):
        pass


def _split_evenly(num_ids: int, segment_starts: np.ndarray, num_shares: int) -> list[np.ndarray]:
    """A thread's positions as edges, int64: the second ids of its bigrams are strictly between neighbouring edges.

    Example: 10 ids, segments from 0 and 4, one share: edges [-1, 0, 4, 10], so bigrams end at positions 1 to 3 and 5 to 9.
    """
    bounds = [num_ids * share // num_shares for share in range(num_shares + 1)]
    cuts = np.searchsorted(segment_starts, bounds)
    return [np.concatenate([[bounds[i] - 1], segment_starts[cuts[i] : cuts[i + 1]], [bounds[i + 1]]]) for i in range(num_shares)]


def _place(tallies: np.ndarray, line: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Where each thread writes each partition: begins and ends, both shaped like tallies (thread, partition), and the total room.

    Partitions are consecutive, and within each its threads. Every part begins at a multiple of `line`: whole lines are written.
    """
    rooms = (tallies + line - 1) // line * line
    begins = np.zeros_like(tallies)
    begins.T.flat[1:] = np.cumsum(rooms.T)[:-1]
    return begins, begins + tallies, int(rooms.sum())


def _blocks(weights: np.ndarray, num_threads: int) -> list[tuple[int, int]]:
    """Ranges of partitions of similar weight, eight per thread, so that threads that finish early take the next."""
    reached = np.cumsum(weights)
    targets = np.linspace(0, int(reached[-1]), 8 * num_threads + 1)[1:-1]
    bounds = np.unique([0, *np.searchsorted(reached, targets).tolist(), weights.size]).tolist()
    return list(pairwise(bounds))


@njit(cache=True, nogil=True)
def _tally(ids: np.ndarray, edges: np.ndarray, shift: int, tally: np.ndarray) -> None:
    """Adds to `tally` the number of bigrams of each partition."""
    for span in range(edges.size - 1):
        for i in range(edges[span] + 1, edges[span + 1]):
            tally[ids[i - 1] >> shift] += 1


@njit(cache=True, nogil=True)
def _scatter(ids: np.ndarray, edges: np.ndarray, shift: int, stride: int, cursors: np.ndarray, cells: np.ndarray) -> None:
    """Writes every bigram's cell to its partition, at `cursors`, which advance.

    Cells are buffered per partition and written as whole cache lines: single 4-byte writes to 1571 distant places would miss
    the TLB and the cache nearly every time.
    """
    lines = np.empty((cursors.size, _LINE), np.uint32)
    row_mask = (1 << shift) - 1
    for span in range(edges.size - 1):
        for i in range(edges[span] + 1, edges[span + 1]):
            previous = np.int64(ids[i - 1])
            partition = previous >> shift
            cursor = cursors[partition]
            slot = cursor & (_LINE - 1)
            lines[partition, slot] = (previous & row_mask) * stride + np.int64(ids[i])
            cursors[partition] = cursor + 1
            if slot == _LINE - 1:
                for k in range(_LINE):
                    cells[cursor - (_LINE - 1) + k] = lines[partition, k]
    for line in range(cursors.size):
        num_left = cursors[line] & (_LINE - 1)
        for k in range(num_left):
            cells[cursors[line] - num_left + k] = lines[line, k]


@njit(cache=True, nogil=True)
def _count_partitions(
    first: int,
    last: int,
    begins: np.ndarray,
    ends: np.ndarray,
    cells: np.ndarray,
    counters: np.ndarray,
    touched: np.ndarray,
    num_words: np.ndarray,
    num_rows: np.ndarray,
) -> None:
    """Counts partitions [first, last), packs each in place into its distinct cells with their counts, clears the table.

    Touched marks avoid most of the search, because a partition fills only a few per cent of its table.
    """
    marks = touched.view(np.uint8)
    for partition in range(first, last):
        for thread in range(begins.shape[0]):
            for j in range(begins[thread, partition], ends[thread, partition]):
                cell = cells[j]
                counters[cell] += np.uint32(1)
                marks[cell // np.uint32(_LINE)] = 1
        out = begins[0, partition]
        for word in range(touched.size):
            if touched[word] == 0:
                continue
            touched[word] = 0
            for cell in range(word * _WORD_CELLS, (word + 1) * _WORD_CELLS):
                count = counters[cell]
                if count == 0:
                    continue
                counters[cell] = 0
                num_rows[partition] += 1
                cells[out] = cell
                if count > 1:
                    cells[out] |= _REPEATED
                    out += 1
                    cells[out] = count
                out += 1
        num_words[partition] = out - begins[0, partition]


@njit(cache=True, nogil=True)
def _unpack(
    first: int,
    last: int,
    begins: np.ndarray,
    num_words: np.ndarray,
    row_begins: np.ndarray,
    shift: int,
    stride: int,
    cells: np.ndarray,
    keys: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Writes the packed partitions [first, last) as rows of keys and counts."""
    for partition in range(first, last):
        previous = partition << shift
        base = 0
        row = row_begins[partition]
        j = begins[partition]
        end = j + num_words[partition]
        while j < end:
            cell = np.int64(cells[j] & ~_REPEATED)
            while cell >= base + stride:
                base += stride
                previous += 1
            keys[row] = (previous << 32) | (cell - base)
            counts[row] = 1
            if cells[j] & _REPEATED:
                j += 1
                counts[row] = cells[j]
            j += 1
            row += 1


def _count_by_sorting(ids: np.ndarray, segment_starts: np.ndarray, pool: ThreadPoolExecutor) -> BigramRun:
    """Sorts keys piece by piece and merges the pieces' runs."""
    bounds = [*range(1, ids.size, _SORTED_TOKENS), ids.size]
    runs = pool.map(lambda piece: _sorted_run(ids, segment_starts, *piece), pairwise(bounds))
    return merge_runs(list(runs))


def _sorted_run(ids: np.ndarray, segment_starts: np.ndarray, first: int, last: int) -> BigramRun:
    """The bigrams whose second id is at positions [first, last)."""
    keys = ids[first - 1 : last - 1].astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= ids[first:last]
    starts = segment_starts[slice(*np.searchsorted(segment_starts, [first, last]))]
    if starts.size:
        keys = np.delete(keys, starts - first)
    keys.sort()
    changes = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    begins = np.concatenate([np.zeros(min(1, keys.size), np.int64), changes])
    return BigramRun(keys[begins], np.diff(begins, append=keys.size).astype(np.uint64))


def merge_runs(runs: Sequence[BigramRun]) -> BigramRun:
    """Merges any number of runs in memory, always the two smallest."""
    waiting = sorted(runs, key=lambda run: run.keys.size, reverse=True)
    while len(waiting) > 1:
        a, b = waiting.pop(), waiting.pop()
        keys, counts = np.empty((2, a.keys.size + b.keys.size), np.uint64)
        num_rows = merge_two(a, b, keys, counts)
        # A view, not a copy: pages that were never written to take no memory.
        insort(waiting, BigramRun(keys[:num_rows], counts[:num_rows]), key=lambda run: -run.keys.size)
    return waiting[0] if waiting else BigramRun(np.empty(0, np.uint64), np.empty(0, np.uint64))


def merge_two(a: BigramRun, b: BigramRun, out_keys: np.ndarray, out_counts: np.ndarray) -> int:
    """Merges two runs into the outputs, adding the counts of equal keys, and returns the number of rows written.

    Reads and writes each array once, front to back, so that memory-mapped runs of any size need only a few pages at a time. The
    outputs are uint64 of at least `len(a.keys) + len(b.keys)` rows and share no memory with the runs; rows beyond those
    written are undefined.
    """
    a_keys, a_counts, b_keys, b_counts = (frozen(array) for array in (*a, *b))
    return int(_merge(a_keys, a_counts, b_keys, b_counts, out_keys.view(np.ndarray), out_counts.view(np.ndarray)))


@njit(cache=True, nogil=True)
def _merge(
    a_keys: np.ndarray, a_counts: np.ndarray, b_keys: np.ndarray, b_counts: np.ndarray, out_keys: np.ndarray, out_counts: np.ndarray
) -> int:
    """The number of rows written. Free of branches on the keys, because which run comes next cannot be predicted."""
    i = j = row = 0
    while i < a_keys.size and j < b_keys.size:
        from_a = a_keys[i] <= b_keys[j]
        from_b = b_keys[j] <= a_keys[i]
        out_keys[row] = a_keys[i] if from_a else b_keys[j]
        out_counts[row] = a_counts[i] * np.uint64(from_a) + b_counts[j] * np.uint64(from_b)
        i += int(from_a)
        j += int(from_b)
        row += 1
    while i < a_keys.size:
        out_keys[row], out_counts[row] = a_keys[i], a_counts[i]
        i += 1
        row += 1
    while j < b_keys.size:
        out_keys[row], out_counts[row] = b_keys[j], b_counts[j]
        j += 1
        row += 1
    return row
