"""A counting job, and the one who does it: opens the tokenizer once, then reads, tokenises and counts shard range after shard range."""

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
from recallkit.text.open_text import OpenText, TextOptions
from recallkit.text.records import Position

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from recallkit.storage.journal import Parts
    from recallkit.text.readers import Shard

_SECONDS_BETWEEN_WORDS = 0.5
_MOST_THREADS = 16
"""That share one chunk: memory is as fast as it is."""


class ShardRange(NamedTuple):
    """An item of work: neighbouring shards, and the tokens after which counting them ends, if any."""

    number: int
    first: int
    stop: int
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class CountingJob:
    """Everything that a process needs to count shard ranges of a text; it can be pickled."""

    text: TextOptions
    shards: Sequence[Shard]
    digests: Sequence[str]
    """Of the shards when counting began."""
    tokenizer_digest: str
    parts: Parts
    counting: Counting
    chunk_tokens: int
    opened: OpenText | None = None
    """The text as it is open in this process; others open it themselves (`for_others`)."""

    doing: ClassVar[str] = "counting"
    remedy: ClassVar[str] = "give fewer --workers"
    prefers_gpu: ClassVar[bool] = False
    max_items_per_task: ClassVar[int] = 1

    def for_others(self) -> CountingJob:
        """The job as it is sent to other processes."""
        return replace(self, opened=None)

    @property
    def where(self) -> str:
        """The sources."""
        return ", ".join(self.text.sources)

    def open(self, slot: WorkerSlot | None = None) -> Counter:
        """Opens the tokenizer. See `Job.open`."""
        return Counter(self, slot)


class Counter:
    """An opened text with all that a job asks for. Raises UserError where the tokenizer is no longer that of the job."""

    def __init__(self, job: CountingJob, slot: WorkerSlot | None) -> None:
        self.job = job
        self.num_threads = min(num_cores(), _MOST_THREADS)
        if slot is not None:
            self.num_threads = slot.num_threads
            os.environ["RAYON_NUM_THREADS"] = str(slot.num_threads)  # tokenizers ask for it when they first encode
        self.opened = job.opened or OpenText(job.text, shards=job.shards)
        if self.opened.tokenizer.digest != job.tokenizer_digest:
            raise UserError("changed while the text was counted", where=job.text.tokenizer, remedy="count again with --force")

    def run(self, items: Sequence[ShardRange]) -> Iterator[Done]:
        """Counts shard ranges; tells of tokens as they are counted, and of each shard range as soon as its part is whole."""
        for shard_range in items:
            yield from self._count(shard_range)

    def _count(self, shard_range: ShardRange) -> Iterator[Done]:
        path = self.job.parts.path(shard_range.number)
        with _journal_when_free(path, shard_range) as journal:
            found = CountedShardRange.load(path)  # by another one, while this one waited
            if found is None or not found.fits(shard_range.limit):
                with self.opened.unchanged(journal, range(shard_range.first, shard_range.stop), self.job.digests):
                    counted = yield from self._count_into(journal, shard_range)
                counted.save(path)
            journal.finish()
        yield Done(0)

    def _count_into(self, journal: Journal, shard_range: ShardRange) -> Generator[Done, None, CountedShardRange]:
        """Counts a shard range, a word every while; what was counted before is told first."""
        state = bigrams.counting_state(journal)
        words = bigrams.count_shard_range(
            self.opened.encoded(state.position if state else Position(shard_range.first), shard_range.stop),
            journal,
            self.job.counting,
            limit_tokens=shard_range.limit,
            chunk_tokens=self.job.chunk_tokens,
            num_threads=self.num_threads,
        )
        told, told_at = state.num_tokens if state else 0, time.monotonic()
        while True:
            try:
                num_tokens = next(words)
            except StopIteration as end:
                counted: CountedShardRange = end.value
                yield Done(counted.num_tokens - told, is_whole=False)
                report = self.opened.corpus.report
                return replace(counted, num_skipped=report.num_skipped, first_skipped=tuple(report.first_skipped))
            if time.monotonic() - told_at > _SECONDS_BETWEEN_WORDS:
                yield Done(num_tokens - told, is_whole=False)
                told, told_at = num_tokens, time.monotonic()


def _journal_when_free(path: Path, shard_range: ShardRange) -> Journal:
    """The journal of a shard range; where another process is at the same one (a task that was given out twice), waits for it."""
    return Journal(path, {"limit": shard_range.limit}, force=True, patient=True)
