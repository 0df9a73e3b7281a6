"""Exact counts of training bigrams in bounded memory: ranges of shards, chunks counted into sorted
runs, runs merged.

Neighbouring shards of the text form a shard range. Shard ranges are independent: any number of
processes and machines count them in any order, each into one run, and the bigrams that cross from
one range into the next are found from their first and last ids. Within a range, chunks of ids are
counted in memory, and each becomes a sorted run on disk; runs of similar size are merged in pairs,
so that even a long range has only a few. After every run the position in the text is committed, and
a killed count resumes there. Totals do not depend on where the text was divided into shard ranges
and chunks.

Of the n-grams of 13 and 50 ids a sample of hashes is kept in the same way (`hash_kernels`), by
which text that is sliced later is recognised as a copy; and a sample of documents, by which it is
recognised as of the same kind (`unseen`).
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from recallkit.counting.sorted_runs import HASHES, RunFiles, SavedRun, kind_of
from recallkit.counting.unseen import SampledDocument, unseen_elsewhere, with_documents
from recallkit.ragged import run_starts
from recallkit.storage import artifacts
from recallkit.text.records import Boundary, Position, join_documents
from recallkit.text.sequences import group_ids, sequence_groups

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence
    from pathlib import Path

    from recallkit.counting.bigram_kernels import BigramRun
    from recallkit.counting.hash_kernels import HashRun
    from recallkit.counting.sorted_runs import Run
    from recallkit.storage.journal import Journal
    from recallkit.text.records import EncodedDocuments

CHUNK_TOKENS = 1 << 26
"""Tokens counted in memory at a time: 128 MB of uint16 ids and about twice that of work space,
shared by all processes."""

SECONDS_PER_CHUNK = 120.0
"""A slow stream commits after this time, so that a kill costs at most two minutes of work."""

_IDS_AT_ONCE = 1 << 22
"""Ids whose occurrences NumPy counts at a time, for which it copies them as 64-bit numbers."""

SHARD_RANGE_BYTES = 1 << 26
"""Neighbouring shards are counted together up to this size on disk, some seconds of work."""

MAX_SHARD_RANGES = 256
"""Large texts get larger ranges, because each keeps a run on disk until all are merged: 0.3 bytes
per token at 300B tokens."""


@dataclass(frozen=True, slots=True)
class Counting:
    """How ids become counts: all that determines the table, apart from the text.

    `only` (sorted bigram keys) restricts the table to these bigrams. `num_hashes`: hashes kept of
    the n-grams of each size in HASHES, 0 for none.
    """

    end_token_id: int
    vocab_size: int
    boundary: Boundary
    only: np.ndarray | None = None
    num_hashes: int = 0

    def kinds(self) -> tuple[str, ...]:
        """The kinds of runs that chunks are counted into."""
        return ("bigrams", *(HASHES if self.num_hashes else ()))

    def length(self, kind: str) -> int:
        """Length in ids of an n-gram of a kind."""
        return HASHES.get(kind, 2)

    @property
    def overlap(self) -> int:
        """Ids of the text before it that a part must know to count the n-grams that end in it."""
        return max(map(self.length, self.kinds())) - 1 if self.boundary == "pack" else 0


def plan_shard_ranges(sizes: Sequence[int | None]) -> list[range]:
    """Groups shards (sizes in bytes) into ranges by their sizes alone; a shard of unknown size is a
    range by itself."""
    shard_ranges: list[range] = []
    wanted, room = max(SHARD_RANGE_BYTES, sum(filter(None, sizes)) // MAX_SHARD_RANGES), 0
    for shard, size in enumerate(sizes):
        if shard_ranges and size is not None and size <= room:
            shard_ranges[-1] = range(shard_ranges[-1].start, shard + 1)
            room -= size
        else:
            shard_ranges.append(range(shard, shard + 1))
            room = 0 if size is None else wanted - size
    return shard_ranges


# ------------------------------------------------------------------------------------ a shard range


@dataclass(frozen=True, slots=True)
class CountingState:
    """Where counting a range resumes: the next record, the tokens so far, the first and the last
    ids (packed text only), the sample."""

    position: Position = Position()
    num_tokens: int = 0
    num_documents: int = 0
    head: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()
    sample: tuple[SampledDocument, ...] = ()

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> CountingState:
        """The inverse of `_to_json`."""
        return cls(**{**saved, **_tuples(saved), "position": Position(**saved["position"])})


@dataclass(frozen=True, slots=True)
class CountedShardRange:
    """The result of counting a range: its runs (kind -> run, in the folder of the parts), its
    totals, its first and last ids.

    `limit` is the number of tokens after which counting was to stop, if any; skipped records are
    those of `StreamReport`.
    """

    runs: dict[str, SavedRun]
    num_tokens: int
    num_documents: int
    head: tuple[int, ...]
    tail: tuple[int, ...]
    sample: tuple[SampledDocument, ...] = ()
    limit: int | None = None
    num_skipped: int = 0
    first_skipped: tuple[str, ...] = ()

    def fits(self, limit: int | None) -> bool:
        """Whether counting with this limit would give the same result."""
        was_cut = self.limit is not None and self.num_tokens >= self.limit
        return self.limit == limit if was_cut else limit is None or self.num_tokens <= limit

    def save(self, path: Path) -> None:
        """Writes the result, which marks the range as done."""
        artifacts.write_json(path, _to_json(self))

    @classmethod
    def load(cls, path: Path) -> CountedShardRange | None:
        """The result of a range that is done; None if it or one of its runs is missing or
        truncated."""
        if not path.is_file():
            return None
        saved = artifacts.read_json(path)
        runs = {kind: SavedRun(**run) for kind, run in saved["runs"].items()}
        if not all(RunFiles(path.parent, kind).is_whole(run) for kind, run in runs.items()):
            return None
        return cls(
            **{
                **saved,
                **_tuples(saved),
                "first_skipped": tuple(saved["first_skipped"]),
                "runs": runs,
            }
        )


def _to_json(counted: CountingState | CountedShardRange) -> dict[str, Any]:
    """Its fields as a JSON object; the sample, 200,000 numbers, as one string in it, which takes a
    hundredth of the time."""
    return {**asdict(replace(counted, sample=())), "sample": json.dumps(counted.sample)}


def _tuples(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What was saved as lists, and the sample."""
    ends = {name: tuple(saved[name]) for name in ("head", "tail")}
    return {
        **ends,
        "sample": tuple(SampledDocument(*document) for document in json.loads(saved["sample"])),
    }


def counting_state(journal: Journal) -> CountingState | None:
    """The position of the journal's last commit; None if there is none, or if one of its runs is
    missing or truncated."""
    saved = journal.state.get("stream")
    if not saved:
        return None
    for kind, runs in journal.state["runs"].items():
        files = RunFiles(journal.folder, kind)
        if not all(files.is_whole(SavedRun(**run)) for run in runs):
            return None
    return CountingState.from_json(saved)


def count_shard_range(
    batches: Iterable[EncodedDocuments],
    journal: Journal,
    counters: Counters,
    *,
    limit_tokens: int | None = None,
) -> Generator[int, None, CountedShardRange]:
    """Counts a range of shards and commits runs to `journal`, from its last commit on.

    `batches` must begin at the position of `counting_state(journal)`. `limit_tokens` stops after
    exactly that many ids, end tokens included. Yields the tokens so far after every batch; returns
    the counted range, whose runs are in the folder of `journal.target`.
    """
    return (yield from _ShardRangeCounter(journal, counters, limit_tokens).run(batches))


class Counters:
    """Counts one shard range after another, `chunk_tokens` tokens at a time, which `num_threads`
    threads share."""

    def __init__(
        self,
        counting: Counting,
        *,
        chunk_tokens: int = CHUNK_TOKENS,
        num_threads: int = 2,
    ) -> None:
        from recallkit.counting.hash_kernels import HashSampler

        self.counting, self.chunk_tokens, self.num_threads = counting, chunk_tokens, num_threads
        self._samplers = {}
        for kind in counting.kinds():
            if kind in HASHES:
                self._samplers[kind] = HashSampler(HASHES[kind], counting.num_hashes)

    def restart(self) -> None:
        """Forgets what was learnt from the range before."""
        for sampler in self._samplers.values():
            sampler.restart()

    def count(self, kind: str, ids: np.ndarray, segment_starts: np.ndarray) -> Run:
        """The run of a kind that a chunk makes."""
        from recallkit.counting.bigram_kernels import count_bigrams

        if kind in HASHES:
            return self._samplers[kind].count(ids, segment_starts)
        return keep_only(
            count_bigrams(ids, segment_starts, num_threads=self.num_threads),
            self.counting.only,
        )


class _Chunk:
    """Ids waiting to be counted, and where segments (documents, or the whole packed text) begin
    among them.

    In packed text `context`, the last ids before them, is in front, for the n-grams that it forms
    with them.
    """

    def __init__(self, context: Sequence[int], dtype: np.dtype[Any]) -> None:
        self.num_context = self.length = len(context)
        self._ids = [np.array(context, dtype)]
        self._starts = [np.zeros(1, np.int64)]

    def append(self, ids: np.ndarray, segment_starts: np.ndarray) -> None:
        """Adds ids; `segment_starts` are positions in `ids` that no n-gram extends across."""
        self._starts.append(segment_starts + self.length)
        self._ids.append(ids)
        self.length += len(ids)

    def joined(self) -> tuple[np.ndarray, np.ndarray]:
        """All ids, and where segments begin in them."""
        return np.concatenate(self._ids), np.unique(np.concatenate(self._starts))


class _Runs:
    """The sorted runs of one kind within a range, few because similar neighbours are merged."""

    def __init__(self, folder: Path, kind: str, saved: Sequence[dict[str, Any]]) -> None:
        self.files = RunFiles(folder, kind)
        self.runs = [SavedRun(**run) for run in saved]
        self.files.remove_others(self.runs)

    def add(self, counted: Run) -> None:
        """Writes a run, unless it is empty; the caller commits."""
        if len(counted[0]):
            self.runs.append(self.files.add(counted))

    def merge_similar(self) -> list[SavedRun]:
        """Merges the last two runs while they are of similar size; returns those replaced, to be
        removed after the next commit."""
        replaced = []
        while len(self.runs) > 1 and self.runs[-2].num_rows < 2 * self.runs[-1].num_rows:
            a, b = self.runs[-2:]
            self.runs[-2:] = [
                self.files.merge([self.files.load(a), self.files.load(b)], num_threads=1),
            ]
            replaced += [a, b]
        return replaced

    def finish(self, files: RunFiles, num_threads: int) -> SavedRun:
        """All runs as one, among `files`."""
        if len(self.runs) == 1:
            return files.link(self.runs[0], self.files)
        return files.merge([self.files.load(run) for run in self.runs], num_threads=num_threads)


class _ShardRangeCounter:
    """The state of `count_shard_range` between batches."""

    def __init__(self, journal: Journal, counters: Counters, limit: int | None) -> None:
        self.journal, self.counters, self.limit = journal, counters, limit
        self.counting = counting = counters.counting
        counters.restart()
        state = counting_state(journal)
        saved = {} if state is None else journal.state
        self.state = state or CountingState()
        runs = saved.get("runs", {})
        self.runs = {}
        for kind in counting.kinds():
            self.runs[kind] = _Runs(journal.folder, kind, runs.get(kind, []))
        unigrams = np.array(saved.get("unigrams", "").split(), np.uint64)
        more = np.zeros(max(0, counting.vocab_size - len(unigrams)), np.uint64)
        self.unigrams = np.concatenate([unigrams, more])
        self.chunk: _Chunk | None = None
        self.committed_at = time.monotonic()

    def run(self, batches: Iterable[EncodedDocuments]) -> Generator[int, None, CountedShardRange]:
        for encoded in batches:
            if self.limit is not None and self.state.num_tokens >= self.limit:
                break
            self._add(encoded)
            yield self.state.num_tokens
        self._commit()
        return self._finish()

    def _add(self, encoded: EncodedDocuments) -> None:
        ids, starts = join_documents(encoded, self.counting.end_token_id, self.counting.boundary)
        if self.limit is not None:
            ids = ids[: self.limit - self.state.num_tokens]
            starts = starts[starts < len(ids)]
        waiting = 0 if self.chunk is None else self.chunk.length - self.chunk.num_context
        is_full = waiting > 0 and waiting + len(ids) > self.counters.chunk_tokens
        if is_full or time.monotonic() - self.committed_at > SECONDS_PER_CHUNK:
            self._commit()
        if self.chunk is None:
            self.chunk = _Chunk(self.state.tail, ids.dtype)
        self.chunk.append(ids, starts if self.counting.boundary == "document" else starts[:0])
        last, overlap, state = encoded.positions[-1], self.counting.overlap, self.state
        end = ids[max(0, len(ids) - overlap) :].tolist()
        has_sample = self.counting.only is None
        self.state = CountingState(
            position=Position(last.shard, last.record + 1),
            num_tokens=state.num_tokens + len(ids),
            num_documents=state.num_documents + len(starts),
            head=(*state.head, *ids[:overlap].tolist())[:overlap],
            tail=last_ids((*state.tail, *end), overlap),
            sample=with_documents(state.sample, ids, starts) if has_sample else (),
        )

    def _count_unigrams(self, ids: np.ndarray) -> None:
        self.unigrams.resize(max(len(self.unigrams), int(ids.max()) + 1), refcheck=False)
        for first in range(0, len(ids), _IDS_AT_ONCE):
            part = ids[first : first + _IDS_AT_ONCE]
            counts = np.bincount(part, minlength=len(self.unigrams))
            self.unigrams += counts.astype(np.uint64)

    def _commit(self) -> None:
        """Turns the chunk into runs and commits the position in the text."""
        self.committed_at, chunk, self.chunk = time.monotonic(), self.chunk, None
        if chunk is None or chunk.length == chunk.num_context:
            return
        ids, starts = chunk.joined()
        self._count_unigrams(ids[chunk.num_context :])
        for kind, runs in self.runs.items():
            # Of the context as many ids as an n-gram of this kind begins in: the others were
            # counted with the chunk before.
            first = max(0, chunk.num_context - (self.counting.length(kind) - 1))
            segments = np.unique(np.maximum(starts - first, 0))
            runs.add(self.counters.count(kind, ids[first:], segments))
        replaced = {kind: runs.merge_similar() for kind, runs in self.runs.items()}
        self.journal.commit(
            {
                "stream": _to_json(self.state),
                "runs": {kind: list(map(asdict, runs.runs)) for kind, runs in self.runs.items()},
                "unigrams": " ".join(map(str, self.unigrams.tolist())),
            }
        )
        for kind, old in replaced.items():
            for run in old:
                self.runs[kind].files.remove(run)

    def _finish(self) -> CountedShardRange:
        """Merges the runs into one per kind, and writes the unigram counts as one more."""
        folder = self.journal.target.parent
        finished = {}
        for kind, runs in self.runs.items():
            files = RunFiles(folder, kind)
            finished[kind] = runs.finish(files, self.counters.num_threads)
        tokens = np.flatnonzero(self.unigrams).astype(np.uint64)
        files = RunFiles(folder, "tokens")
        finished["tokens"] = files.add(files.kind.make(tokens, self.unigrams[tokens]))
        state = self.state
        return CountedShardRange(
            finished,
            state.num_tokens,
            state.num_documents,
            state.head,
            state.tail,
            state.sample,
            self.limit,
        )


def last_ids(ids: tuple[int, ...], number: int) -> tuple[int, ...]:
    """The last `number` of `ids`, or all if they are fewer."""
    return ids[len(ids) - number :] if len(ids) > number else ids


def keep_only(counted: BigramRun, needed: np.ndarray | None) -> BigramRun:
    """The rows of a run of bigrams whose key is in `needed` (sorted); all of them if it is None."""
    if needed is None:
        return counted
    is_needed = np.zeros(len(counted.keys), bool)
    if len(needed):
        at = np.searchsorted(needed, counted.keys)
        is_needed = needed[np.minimum(at, len(needed) - 1)] == counted.keys
    return type(counted)(counted.keys[is_needed], counted.counts[is_needed])


# ----------------------------------------------------------------------------- all ranges of shards


@dataclass(frozen=True, slots=True)
class CountedStream:
    """A finished count: the sorted run of bigrams, the tokens that occur (uint32, sorted) with
    their counts (uint64), the totals.

    Runs may be memory-mapped. `hashes`: the sample of hashes of the n-grams of each size, of the
    `num_hashes` smallest, if they were kept;
    `unseen`: `unseen_elsewhere` in a sample of its documents, if it is known.
    """

    bigrams: BigramRun
    tokens: np.ndarray
    token_counts: np.ndarray
    num_tokens: int
    num_documents: int
    hashes: Mapping[int, HashRun] = field(default_factory=dict)
    num_hashes: int = 0
    unseen: Mapping[str, Any] | None = None


def join_shard_ranges(
    shard_ranges: Sequence[CountedShardRange],
    folder: Path,
    counting: Counting,
    *,
    num_threads: int = 2,
) -> CountedStream:
    """The counts of the whole text: merges the runs of all shard ranges, whose files are in
    `folder`, by ranges of keys.

    In packed text some n-grams cross from one shard range into the next: they are found from the
    first and last ids of each.
    """
    from recallkit.counting.hash_kernels import smallest

    merged: dict[str, Any] = {}
    for kind in (*counting.kinds(), "tokens"):
        files = RunFiles(folder, kind)
        runs = [files.load(shard_range.runs[kind]) for shard_range in shard_ranges]
        if kind != "tokens" and counting.boundary == "pack":
            spanning = spanning_ngrams(shard_ranges, counting.length(kind))
            runs.append(_as_run(spanning, kind, counting))
        runs = [run for run in runs if len(run[0])]
        if kind in HASHES:
            merged[kind] = smallest(cast("list[HashRun]", runs), counting.num_hashes)
        elif len(runs) == 1:
            merged[kind] = runs[0]
        else:
            merged[kind] = files.load(files.merge(runs, num_threads=num_threads))
    sample = itertools.chain.from_iterable(shard_range.sample for shard_range in shard_ranges)
    return CountedStream(
        merged["bigrams"],
        merged["tokens"].keys.astype(np.uint32),
        np.asarray(merged["tokens"].counts),
        sum(shard_range.num_tokens for shard_range in shard_ranges),
        sum(shard_range.num_documents for shard_range in shard_ranges),
        hashes={HASHES[kind]: merged[kind] for kind in counting.kinds() if kind in HASHES},
        num_hashes=counting.num_hashes,
        unseen=unseen_elsewhere(sample, merged["bigrams"]),
    )


def spanning_ngrams(
    shard_ranges: Sequence[CountedShardRange],
    length: int,
) -> list[tuple[int, ...]]:
    """The n-grams of packed text that begin in one shard range and end in a later one, in the order
    of the text."""
    ngrams: list[tuple[int, ...]] = []
    tail: tuple[int, ...] = ()
    for shard_range in shard_ranges:
        ids = last_ids(tail, length - 1) + shard_range.head[: length - 1]
        ngrams += [ids[end - length : end] for end in range(length, len(ids) + 1)]
        # A range shorter than an n-gram keeps all of its ids in `tail`, so that the range before it
        # is still within reach.
        tail = last_ids(tail + shard_range.tail, length - 1)
    return ngrams


def _as_run(ngrams: Sequence[tuple[int, ...]], kind: str, counting: Counting) -> Any:
    """Counts a few n-grams."""
    from recallkit.counting.bigram_kernels import BigramRun
    from recallkit.counting.ngram_hash import ngram_hash

    if kind in HASHES:
        hashes = sorted({ngram_hash(ngram) for ngram in ngrams})
        return kind_of(kind).make(np.array(hashes, np.uint64))
    counted = Counter(ngrams)
    columns = np.array(sorted(counted), np.uint32).reshape(-1, counting.length(kind)).T
    counts = np.array([counted[tuple(row)] for row in columns.T.tolist()], np.uint64)
    keys = (columns[0].astype(np.uint64) << np.uint64(32)) | columns[1]
    return keep_only(BigramRun(keys, counts), counting.only)


def needed_bigrams(sequences: Path) -> np.ndarray:
    """The distinct bigrams of these sequences, which labelling looks up: sorted keys (uint64),
    first << 32 | second."""
    needed = np.empty(0, np.uint64)
    for group in sequence_groups(sequences):
        ids, offsets = group_ids(group)
        keys = (ids[:-1].astype(np.uint64) << np.uint64(32)) | ids[1:]
        is_inside = np.ones(len(keys), bool)
        is_inside[offsets[1:-1] - 1] = False  # from the last id of a sequence to the next one's
        ordered = np.sort(np.concatenate([needed, keys[is_inside]]))
        needed = ordered[run_starts(ordered)]
    return needed
