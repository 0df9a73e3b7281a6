"""Exact counts of the n-grams of order 3 to 5 of a chunk of token ids, as sorted runs that merge: longer contexts than a bigram.

An n-gram is its ids side by side, the first highest, in one 64-bit word if the chunk's ids fit and in two otherwise: nothing is
hashed away, and keys sort as their ids do. The first id, and for frequent first ids also the second, selects a partition, so
that partitions have about a size that fits a core's cache. A partition is counted in place: a small table of hints removes most
n-grams seen before, a radix sort of the rest skips bits in which no keys differ, and equal neighbours are joined. Partitions are
in key order, so their concatenation is sorted.

Kernels take the number of words in a key as the length of a tuple, a constant to the compiler: one source serves both cases.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recallkit.counting.bigram_kernels import _blocks, _checked, _place, _run
from recallkit.jit import frozen, njit

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_ORDER = 3
"""For bigrams `recallkit.counting.bigram_kernels` is faster."""

MAX_ORDER = 5

_WORD_BITS = 64

_LINE = 8
"""64-bit words in a cache line: n-grams are buffered one line at a time."""

_PARTITION_TOKENS = 1 << 13
"""Target size of a partition in n-grams: with the work space of sorting it fits into a core's L2 cache."""

_MAX_PARTITIONS = 1024
"""Target number of partitions; uneven ids lead to up to four times as many. Each thread buffers one line per partition."""

_MAX_ROUTES = 1 << 18
"""Entries of the table from ids to partitions, 1 MiB; in larger vocabularies neighbouring ids share an entry."""

_BINS = 256
"""Bins of second ids among which a frequent first id is divided."""

_SAMPLE = 1 << 20
"""Ids sampled to plan partitions: a poor estimate costs only time."""

_HINT_BITS = 13
"""Width of the table of hints: 2^13 entries of 4 bytes fit into L1 cache."""

_DIGIT_BITS = 11
"""Bits sorted by one pass of the radix sort: 2048 counters fit into L1 cache."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_OTHER = np.uint64(0xC2B2AE3D27D4EB4F)


class NgramRun(NamedTuple):
    """Distinct n-grams of one order and their counts, all uint64 (m,).

    `high` and `low` are the ids packed into 128 bits, the first id highest, `id_bits(order)` bits each, the same for all
    chunks and vocabularies. (high, low) strictly increases, in the order of the ids. Example, order 3 (32 bits per id): the
    trigram (1, 2, 3) is high = 1, low = 2 << 32 | 3.
    """

    high: np.ndarray
    low: np.ndarray
    counts: np.ndarray


def id_bits(order: int) -> int:
    """Bits per id in a key of this order: 32, 32 and 25 for orders 3, 4 and 5. Raises ValueError for another order."""
    if not MIN_ORDER <= order <= MAX_ORDER:
        raise ValueError(f"order is {order}, must be {MIN_ORDER} to {MAX_ORDER}")
    return min(32, 128 // order)


class NgramCounter:
    """Counts chunks one after the other and keeps its buffers between them: at most 40 bytes per token of the largest chunk.

    That bound is reached if nearly all keys have two words and share a partition; text takes 12 bytes per token (one word)
    or 20 (two). Not for use by several callers at once. `num_threads` threads share every chunk; the result does not depend
    on their number.
    """

    def __init__(self, order: int, *, num_threads: int = 2) -> None:
        """Raises ValueError unless `order` is 3 to 5 and `num_threads` at least 1."""
        self._key_bits = id_bits(order)
        if num_threads < 1:
            raise ValueError(f"num_threads is {num_threads}, must be at least 1")
        self.order = order
        self.num_threads = num_threads
        self._words = np.empty(0, np.uint64)
        self._counts = np.empty(0, np.uint32)

    def count(self, ids: np.ndarray, segment_starts: np.ndarray) -> NgramRun:
        """The distinct n-grams of a chunk with their counts.

        `ids` is (n,) uint16 or uint32, n < 2^32. `segment_starts` is (s,) int64, ascending from 0 to at most n: where
        segments (such as documents) begin; an empty one repeats a start. An n-gram counts if all its ids are in one
        segment. Both may be memory-mapped. Beside the buffers a chunk takes 24 bytes per distinct n-gram (the result).
        Raises ValueError for other shapes, dtypes and starts, and for ids wider than `id_bits(order)` bits.
        """
        ids, segment_starts = _checked(ids, segment_starts)
        if ids.size < self.order:
            return NgramRun(*(np.empty(0, np.uint64) for _ in NgramRun._fields))
        with ThreadPoolExecutor(self.num_threads) as pool:
            largest = int(max(pool.map(np.max, np.array_split(ids, min(self.num_threads, ids.size)))))
            if largest >> self._key_bits:
                raise ValueError(f"the largest id is {largest}, must fit {self._key_bits} bits in n-grams of order {self.order}")
            return self._count(_Chunk.of(ids, segment_starts, self.order, largest), pool)

    def _count(self, chunk: _Chunk, pool: ThreadPoolExecutor) -> NgramRun:
        """Four steps, each on all threads: size the partitions, scatter n-grams into them, count each in place, unpack the rows."""
        threads = range(self.num_threads)
        bounds = list(pairwise(chunk.ids.size * share // self.num_threads for share in range(self.num_threads + 1)))
        tallies = np.zeros((self.num_threads, chunk.num_partitions), np.int64)
        _run(pool, lambda thread: _tally(*chunk.text, *bounds[thread], *chunk.routing, tallies[thread]), threads)

        begins, ends, num_records = _place(tallies, _LINE // len(chunk.words))
        words, counts = self._room(num_records, len(chunk.words))
        _run(
            pool,
            lambda thread: _scatter(*chunk.text, *bounds[thread], *chunk.routing, chunk.bits, begins[thread].copy(), words, chunk.words),
            threads,
        )
        num_rows = np.zeros(chunk.num_partitions, np.int64)
        totals = tallies.sum(axis=0)
        blocks = iter(_blocks(totals, self.num_threads))

        def count_blocks(_: int) -> None:
            # Only pages that sorting writes to are backed by memory: those of the keys that the hints did not remove.
            spare, spare_counts = np.empty(int(totals.max()) * len(chunk.words), np.uint64), np.empty(int(totals.max()), np.uint32)
            hints = np.zeros(1 << _HINT_BITS, np.uint32)
            for first, last in blocks:
                _count_partitions(first, last, begins, ends, words, counts, spare, spare_counts, hints, num_rows, chunk.words)

        _run(pool, count_blocks, threads)
        row_ends = np.cumsum(num_rows)
        run = NgramRun(*(np.empty(row_ends[-1], np.uint64) for _ in NgramRun._fields))

        def unpack(block: tuple[int, int]) -> None:
            _unpack(
                *block, begins[0], row_ends - num_rows, num_rows, words, counts, self.order, chunk.bits, self._key_bits, *run, chunk.words
            )

        _run(pool, unpack, _blocks(num_rows, self.num_threads))
        return run

    def _room(self, num_records: int, num_words: int) -> tuple[np.ndarray, np.ndarray]:
        """Buffers for that many keys and counts; larger ones replace the present ones, which are freed first."""
        if self._words.size < num_records * num_words:
            self._words = np.empty(0, np.uint64)
            self._words = np.empty(num_records * num_words, np.uint64)
        if self._counts.size < num_records:
            self._counts = np.empty(0, np.uint32)
            self._counts = np.empty(num_records, np.uint32)
        return self._words, self._counts


class _Chunk(NamedTuple):
    """A chunk, how its n-grams are packed, and how they are divided into partitions.

    `bits` bits per id, at the upper end of one or two words (`words` is a tuple of that length). `routes[id >> shift]`,
    uint32, packs three numbers: the partition of n-grams that begin with the id (16 bits), the shift that turns the bin of the
    second id into an offset from that partition (8 bits), and the id's own bin as a second id (8 bits).
    """

    ids: np.ndarray
    segment_starts: np.ndarray
    order: int
    bits: int
    words: tuple[int, ...]
    routes: np.ndarray
    shift: int
    num_partitions: int

    @classmethod
    def of(cls, ids: np.ndarray, segment_starts: np.ndarray, order: int, largest: int) -> _Chunk:
        bits = max(1, largest.bit_length())
        words: tuple[int, ...] = (0,)
        if order * bits > _WORD_BITS:
            words = (0, 0)
            # With two words the last id must be entirely in the second.
            bits = max(bits, -(-_WORD_BITS // (order - 1)))
        shift = max(0, largest.bit_length() - _MAX_ROUTES.bit_length() + 1)
        sample = ids[:: -(-ids.size // _SAMPLE)] >> shift
        tally = np.bincount(sample, minlength=(largest >> shift) + 1)
        num_wanted = min(_MAX_PARTITIONS, -(-ids.size // _PARTITION_TOKENS))
        routes, num_partitions = _lay_out(tally, max(1, sample.size // num_wanted), 1 if shift else _BINS)
        return cls(ids, segment_starts, order, bits, words, routes, shift, num_partitions)

    @property
    def text(self) -> tuple[np.ndarray, np.ndarray, int]:
        return self.ids, self.segment_starts, self.order

    @property
    def routing(self) -> tuple[np.ndarray, int]:
        return self.routes, self.shift


@njit(cache=True, nogil=True)
def _lay_out(tally: np.ndarray, size: int, num_bins: int) -> tuple[np.ndarray, int]:
    """The routes of ids that occur `tally` times, for partitions of about `size`, and the number of partitions.

    Neighbouring rare ids share a partition, a frequent first id has 2, 4, ... `num_bins` of them. Bins ascend with the second
    id, so that partitions are in key order.
    """
    routes = np.empty(tally.size, np.uint32)
    total = tally.sum()
    partition = filled = reached = 0
    for i in range(tally.size):
        num_parts = 1
        while num_parts < num_bins and num_parts * size < tally[i]:
            num_parts *= 2
        if filled and (filled + tally[i] > size or num_parts > 1):
            partition += 1
            filled = 0
        down = 0
        while num_parts << down < num_bins:
            down += 1
        routes[i] = partition << 16 | down << 8 | min(num_bins - 1, reached * num_bins // total)
        partition += num_parts - 1
        filled += tally[i]
        reached += tally[i]
    return routes, partition + 1


@njit(cache=True, nogil=True, inline="always")
def _segments(segment_starts: np.ndarray, first: int, last: int) -> tuple[int, int]:
    """The range of segments that overlap the positions [first, last)."""
    begin, end = np.searchsorted(segment_starts, first), np.searchsorted(segment_starts, last)
    return max(0, int(begin) - 1), int(end)


@njit(cache=True, nogil=True, inline="always")
def _span(segment_starts: np.ndarray, i: int, num_ids: int, order: int, first: int, last: int) -> tuple[int, int]:
    """The positions of [first, last) at which n-grams of segment i begin."""
    end = segment_starts[i + 1] if i + 1 < segment_starts.size else num_ids
    return max(first, segment_starts[i]), min(last, end - order + 1)


@njit(cache=True, nogil=True)
def _tally(
    ids: np.ndarray, segment_starts: np.ndarray, order: int, first: int, last: int, routes: np.ndarray, shift: int, tally: np.ndarray
) -> None:
    """Adds to `tally`, for each partition, the number of its n-grams that begin at [first, last)."""
    for i in range(*_segments(segment_starts, first, last)):
        begin, end = _span(segment_starts, i, ids.size, order, first, last)
        if begin >= end:
            continue
        route = routes[ids[begin] >> shift]
        for j in range(begin, end):
            following = routes[ids[j + 1] >> shift]
            tally[(route >> 16) + ((following & 255) >> ((route >> 8) & 255))] += 1
            route = following


@njit(cache=True, nogil=True)
def _scatter(
    ids: np.ndarray,
    segment_starts: np.ndarray,
    order: int,
    first: int,
    last: int,
    routes: np.ndarray,
    shift: int,
    bits: int,
    cursors: np.ndarray,
    words: np.ndarray,
    shape: tuple[int, ...],
) -> None:
    """Writes every n-gram that begins at [first, last) to its partition, at `cursors`, which advance.

    Keys are buffered per partition and written as whole cache lines: single writes to a thousand distant places would miss the
    TLB and the cache nearly every time.
    """
    num_words = len(shape)
    line = _LINE // num_words
    lines = np.empty((cursors.size, _LINE), np.uint64)
    width, rest = np.uint64(bits), np.uint64(_WORD_BITS - bits)
    pad = np.uint64(_WORD_BITS * num_words - order * bits)
    for i in range(*_segments(segment_starts, first, last)):
        begin, end = _span(segment_starts, i, ids.size, order, first, last)
        if begin >= end:
            continue
        high = low = np.uint64(0)
        for j in range(begin, begin + order - 1):
            high = (high << width) | (low >> rest)
            low = (low << width) | (np.uint64(ids[j]) << pad)
        route = routes[ids[begin] >> shift]
        for j in range(begin, end):
            if num_words == 2:
                high = (high << width) | (low >> rest)
            low = (low << width) | (np.uint64(ids[j + order - 1]) << pad)
            following = routes[ids[j + 1] >> shift]
            partition = (route >> 16) + ((following & 255) >> ((route >> 8) & 255))
            route = following
            cursor = cursors[partition]
            slot = cursor & (line - 1)
            lines[partition, slot * num_words + num_words - 1] = low
            if num_words == 2:
                lines[partition, slot * 2] = high
            cursors[partition] = cursor + 1
            if slot == line - 1:
                for k in range(_LINE):
                    words[(cursor - slot) * num_words + k] = lines[partition, k]
    for partition in range(cursors.size):
        num_left = cursors[partition] & (line - 1)
        for k in range(num_left * num_words):
            words[(cursors[partition] - num_left) * num_words + k] = lines[partition, k]


@njit(cache=True, nogil=True)
def _count_partitions(
    first: int,
    last: int,
    begins: np.ndarray,
    ends: np.ndarray,
    words: np.ndarray,
    counts: np.ndarray,
    spare: np.ndarray,
    spare_counts: np.ndarray,
    hints: np.ndarray,
    num_rows: np.ndarray,
    shape: tuple[int, ...],
) -> None:
    """Counts partitions [first, last), each in place: its distinct keys, sorted, with their counts, from its beginning on."""
    num_words = len(shape)
    for partition in range(first, last):
        begin = begins[0, partition]
        keys, key_counts = words[begin * num_words :], counts[begin:]
        num_left = 0
        for thread in range(begins.shape[0]):
            num_left = _drop_repeated(
                begins[thread, partition] - begin, ends[thread, partition] - begin, keys, key_counts, num_left, hints, shape
            )
        num_rows[partition] = _sort_and_join(keys, key_counts, num_left, spare, spare_counts, shape)


@njit(cache=True, nogil=True)
def _drop_repeated(
    first: int, last: int, keys: np.ndarray, counts: np.ndarray, num_left: int, hints: np.ndarray, shape: tuple[int, ...]
) -> int:
    """Appends keys [first, last) to the `num_left` that remain so far, except those found among them by a hint, which are counted.

    A hint is the position at which a key with this hash was stored last. It may be wrong or of another partition, so the key
    there is compared. Hence hints are never cleared, and a collision only costs an entry that is merged later.
    """
    num_words = len(shape)
    down = np.uint64(_WORD_BITS - _HINT_BITS)
    for j in range(first, last):
        low = keys[j * num_words + num_words - 1]
        high = keys[j * num_words]
        mixed = low ^ (low >> np.uint64(32))
        if num_words == 2:
            mixed ^= high * _OTHER
        place = (mixed * _GOLDEN) >> down
        hint = np.int64(hints[place])
        if hint < num_left and keys[hint * num_words + num_words - 1] == low and keys[hint * num_words] == high:
            counts[hint] += np.uint32(1)
        else:
            hints[place] = num_left
            keys[num_left * num_words] = high
            keys[num_left * num_words + num_words - 1] = low
            counts[num_left] = 1
            num_left += 1
    return num_left


@njit(cache=True, nogil=True)
def _sort_and_join(
    keys: np.ndarray, counts: np.ndarray, num_keys: int, spare: np.ndarray, spare_counts: np.ndarray, shape: tuple[int, ...]
) -> int:
    """Sorts keys with their counts, lowest digit first, and joins equal keys in place. Returns the number of distinct keys."""
    num_words = len(shape)
    source, source_counts, target, target_counts = keys, counts, spare, spare_counts
    for word in range(num_words - 1, -1, -1):
        varying = np.uint64(0)
        for j in range(1, num_keys):
            varying |= keys[j * num_words + word] ^ keys[word]
        shift = np.uint64(0)
        while varying:
            while not varying & np.uint64(1):
                varying >>= np.uint64(1)
                shift += np.uint64(1)
            _sort_by_digit(source, source_counts, num_keys, word, shift, target, target_counts, shape)
            source, source_counts, target, target_counts = target, target_counts, source, source_counts
            varying >>= np.uint64(_DIGIT_BITS)
            shift += np.uint64(_DIGIT_BITS)
    row = -1
    for j in range(num_keys):
        high, low = source[j * num_words], source[j * num_words + num_words - 1]
        count = source_counts[j]
        if row >= 0 and keys[row * num_words] == high and keys[row * num_words + num_words - 1] == low:
            counts[row] += count
        else:
            row += 1
            keys[row * num_words], keys[row * num_words + num_words - 1], counts[row] = high, low, count
    return row + 1


@njit(cache=True, nogil=True)
def _sort_by_digit(
    source: np.ndarray,
    source_counts: np.ndarray,
    num_keys: int,
    word: int,
    shift: np.uint64,
    target: np.ndarray,
    target_counts: np.ndarray,
    shape: tuple[int, ...],
) -> None:
    """Moves keys and counts to the target in the order of one digit; keys that are equal in it keep their order."""
    num_words = len(shape)
    mask = np.uint64((1 << _DIGIT_BITS) - 1)
    places = np.zeros((1 << _DIGIT_BITS) + 1, np.int64)
    for j in range(num_keys):
        places[np.int64((source[j * num_words + word] >> shift) & mask) + 1] += 1
    for digit in range(1, places.size):
        places[digit] += places[digit - 1]
    for j in range(num_keys):
        value = np.int64((source[j * num_words + word] >> shift) & mask)
        place = places[value]
        places[value] = place + 1
        for k in range(num_words):
            target[place * num_words + k] = source[j * num_words + k]
        target_counts[place] = source_counts[j]


@njit(cache=True, nogil=True)
def _unpack(
    first: int,
    last: int,
    begins: np.ndarray,
    row_begins: np.ndarray,
    num_rows: np.ndarray,
    words: np.ndarray,
    counts: np.ndarray,
    order: int,
    bits: int,
    key_bits: int,
    out_high: np.ndarray,
    out_low: np.ndarray,
    out_counts: np.ndarray,
    shape: tuple[int, ...],
) -> None:
    """Writes the counted partitions [first, last) as rows, with ids moved from a spacing of `bits` to one of `key_bits`."""
    num_words = len(shape)
    width, rest = np.uint64(bits), np.uint64(_WORD_BITS - bits)
    out_width, out_rest = np.uint64(key_bits), np.uint64(_WORD_BITS - key_bits)
    for partition in range(first, last):
        for j in range(num_rows[partition]):
            record = begins[partition] + j
            upper, lower = words[record * num_words], words[record * num_words + num_words - 1]
            high = low = np.uint64(0)
            for _ in range(order):
                high = (high << out_width) | (low >> out_rest)
                low = (low << out_width) | (upper >> rest)
                upper <<= width
                if num_words == 2:
                    upper |= lower >> rest
                    lower <<= width
            row = row_begins[partition] + j
            out_high[row], out_low[row], out_counts[row] = high, low, counts[record]


def merge_two_ngrams(a: NgramRun, b: NgramRun, out_high: np.ndarray, out_low: np.ndarray, out_counts: np.ndarray) -> int:
    """Merges two runs of one order into the outputs, adding the counts of equal n-grams, and returns the number of rows written.

    Reads and writes each array once, front to back, so that memory-mapped runs of any size need only a few pages at a time. The
    outputs are uint64 of at least `len(a.counts) + len(b.counts)` rows and share no memory with the runs; rows beyond those
    written are undefined. Raises ValueError for other outputs.
    """
    needed = a.counts.size + b.counts.size
    outputs = (out_high, out_low, out_counts)
    for out in outputs:
        if out.dtype != np.uint64 or out.ndim != 1 or out.size < needed or not out.flags.c_contiguous:
            raise ValueError(f"the output is {out.dtype} {out.shape}, must be contiguous uint64 of at least {needed} rows")
    return int(_merge(*(frozen(column) for column in (*a, *b)), *(out.view(np.ndarray) for out in outputs)))


@njit(cache=True, nogil=True)
def _merge(
    a_high: np.ndarray,
    a_low: np.ndarray,
    a_counts: np.ndarray,
    b_high: np.ndarray,
    b_low: np.ndarray,
    b_counts: np.ndarray,
    out_high: np.ndarray,
    out_low: np.ndarray,
    out_counts: np.ndarray,
) -> int:
    """The number of rows written. Free of branches on the keys, because which run comes next cannot be predicted."""
    i = j = row = 0
    while i < a_counts.size and j < b_counts.size:
        same_high = a_high[i] == b_high[j]
        from_a = (a_high[i] < b_high[j]) | (same_high & (a_low[i] <= b_low[j]))
        from_b = (b_high[j] < a_high[i]) | (same_high & (b_low[j] <= a_low[i]))
        out_high[row] = a_high[i] if from_a else b_high[j]
        out_low[row] = a_low[i] if from_a else b_low[j]
        out_counts[row] = a_counts[i] * np.uint64(from_a) + b_counts[j] * np.uint64(from_b)
        i += int(from_a)
        j += int(from_b)
        row += 1
    while i < a_counts.size:
        out_high[row], out_low[row], out_counts[row] = a_high[i], a_low[i], a_counts[i]
        i += 1
        row += 1
    while j < b_counts.size:
        out_high[row], out_low[row], out_counts[row] = b_high[j], b_low[j], b_counts[j]
        j += 1
        row += 1
    return row


def pack_ngrams(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """`high` and `low`, uint64 (m,), of n-grams given as columns of ids, (m,) each, first ids first.

    Raises ValueError unless there are 3 to 5 columns of unsigned ids that fit `id_bits` bits.
    """
    bits = id_bits(len(columns))
    high, low = np.zeros((2, columns[0].size), np.uint64)
    for column in columns:
        if column.dtype.kind != "u" or (column.size and int(column.max()) >> bits):
            raise ValueError(f"ids are {column.dtype}, must be unsigned and fit {bits} bits in n-grams of order {len(columns)}")
        high = (high << np.uint64(bits)) | (low >> np.uint64(_WORD_BITS - bits))
        low = (low << np.uint64(bits)) | column.astype(np.uint64)
    return high, low


def unpack_ngrams(high: np.ndarray, low: np.ndarray, order: int) -> list[np.ndarray]:
    """The ids of packed n-grams as `order` columns, uint32 (m,), first ids first. Raises ValueError unless `order` is 3 to 5."""
    bits = id_bits(order)
    mask = np.uint64((1 << bits) - 1)
    columns = []
    for _ in range(order):
        columns.append((low & mask).astype(np.uint32))
        low = (low >> np.uint64(bits)) | (high << np.uint64(_WORD_BITS - bits))
        high = high >> np.uint64(bits)
    return columns[::-1]
