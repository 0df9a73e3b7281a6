"""The counting job and its worker: opens the tokenizer once, then reads, tokenises and counts one
range of shards after another."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from recallkit.counting import bigrams
from recallkit.counting.bigrams import CountedShardRange, Counting
from recallkit.errors import UserError
from recallkit.parallel.job import Done, WorkerSlot
from recallkit.parallel.processes import num_cores
from recallkit.storage.journal import Journal
from recallkit.text.open_text import OpenText
from recallkit.text.records import Position

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from recallkit.options import TextOptions
    from recallkit.storage.journal import Parts
    from recallkit.text.readers import Shard

_SECONDS_BETWEEN_REPORTS = 0.5
_MOST_THREADS = 16
"""Threads that share one chunk: beyond that, memory bandwidth is the limit."""


class ShardRange(NamedTuple):
    """An item of work: shards `first` to `stop` (excluded), counted up to `limit` tokens if a limit
    is given."""

    number: int
    first: int
    stop: int
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class CountingJob:
    """Everything that a process needs to count ranges of shards; it can be pickled."""

    text: TextOptions
    shards: Sequence[Shard]
    digests: Sequence[str]
    """Digests of the shards, taken when counting began."""
    tokenizer_digest: str
    parts: Parts
    counting: Counting
    chunk_tokens: int
    opened: OpenText | None = None
    """The text, opened in this process; others open it themselves (`for_others`)."""

    doing: ClassVar[str] = "counting"
    remedy: ClassVar[str] = "give fewer --workers"
    prefers_gpu: ClassVar[bool] = False
    max_items_per_task: ClassVar[int] = 1

    def for_others(self) -> CountingJob:
        """The job as it is sent to other processes."""
        # texts are in the shards
        return replace(
            self,
            opened=None,
            text=replace(self.text, sources=self.text.source_names, texts=None),
        )

    @property
    def where(self) -> str:
        """The sources."""
        return ", ".join(self.text.source_names)

    def open(self, slot: WorkerSlot | None = None) -> Counter:
        """Opens the tokenizer. See `Job.open`."""
        return Counter(self, slot)


class Counter:
    """An opened text and its job.

    Raises UserError if the tokenizer has changed since the job was made.
    """

    def __init__(self, job: CountingJob, slot: WorkerSlot | None) -> None:
        self.job = job
        self.num_threads = min(num_cores(), _MOST_THREADS)
        if slot is not None:
            self.num_threads = slot.num_threads
            # `tokenizers` reads it when it first encodes
            os.environ["RAYON_NUM_THREADS"] = str(
                slot.num_threads,
            )
        self.opened = job.opened or OpenText(job.text, shards=job.shards)
        if self.opened.tokenizer.digest != job.tokenizer_digest:
            raise UserError(
                "changed while the text was counted",
                where=job.text.tokenizer,
                remedy="count again with --force",
            )

        self.counters = bigrams.Counters(
            job.counting,
            chunk_tokens=job.chunk_tokens,
            num_threads=self.num_threads,
        )

    def run(self, items: Sequence[ShardRange]) -> Iterator[Done]:
        """Counts ranges of shards; reports tokens while it counts, and each range as soon as its
        result is on disk."""
        for shard_range in items:
            yield from self._count(shard_range)

    def _count(self, shard_range: ShardRange) -> Iterator[Done]:
        path = self.job.parts.path(shard_range.number)
        # The same range may have been given out twice: then this waits while the other process
        # counts it.
        with Journal(path, {"limit": shard_range.limit}, force=True, patient=True) as journal:
            # Another process may have counted it while this one waited.
            done = CountedShardRange.load(path)
            if done is None or not done.fits(shard_range.limit):
                shards = range(shard_range.first, shard_range.stop)
                with self.opened.unchanged(journal, shards, self.job.digests):
                    counted = yield from self._count_into(journal, shard_range)
                counted.save(path)
            journal.finish()
        yield Done(0)

    def _count_into(
        self,
        journal: Journal,
        shard_range: ShardRange,
    ) -> Generator[Done, None, CountedShardRange]:
        """Counts a range of shards and reports twice a second; tokens that an earlier run had
        counted are not reported again."""
        state = bigrams.counting_state(journal)
        start = state.position if state else Position(shard_range.first)
        reports = bigrams.count_shard_range(
            self.opened.encoded(start, shard_range.stop),
            journal,
            self.counters,
            limit_tokens=shard_range.limit,
        )
        reported, read, reported_at = state.num_tokens if state else 0, 0, time.monotonic()
        while True:
            try:
                num_tokens = next(reports)
            except StopIteration as end:
                counted: CountedShardRange = end.value
                size = self.opened.corpus.num_bytes(shard_range.first, shard_range.stop) or 0
                yield Done(counted.num_tokens - reported, is_whole=False, num_bytes=size - read)
                report = self.opened.corpus.report
                return replace(
                    counted,
                    num_skipped=report.num_skipped,
                    first_skipped=tuple(report.first_skipped),
                )
            if time.monotonic() - reported_at > _SECONDS_BETWEEN_REPORTS:
                so_far = self.opened.bytes_read(shard_range.first) or 0
                yield Done(num_tokens - reported, is_whole=False, num_bytes=so_far - read)
                reported, read, reported_at = num_tokens, so_far, time.monotonic()
