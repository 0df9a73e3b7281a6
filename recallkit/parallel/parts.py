"""The parts of an unfinished result, made by one process, by several, by a Ray cluster, or by the
jobs of an array.

Which parts there are, and what is in each, depends on the result alone, so that it has the same
bytes in all of these ways.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from recallkit.display.progress import progress
from recallkit.parallel import work
from recallkit.parallel.job import Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.storage.journal import PartsJournal
    from recallkit.storage.timings import Timings

Share = tuple[int, int]
"""(k, n): of a result's parts every n-th, the k-th of each n, for one of n jobs that share its
folder; none of them joins the parts."""

JOINED: dict[str, Any] = {"parts_done": None, "num_parts": None, "joined": True}
"""How far the shares of a complete result are."""


class Workers(Protocol):
    """How many processes share the work, and where: see `options.WorkerOptions`."""

    @property
    def workers(self) -> int: ...  # noqa: D102 (see the class)

    @property
    def engine(self) -> str: ...  # noqa: D102

    @property
    def address(self) -> str | None: ...  # noqa: D102


class PartsJob(Job, Protocol):
    """A job whose items are the `numbers` of parts. Progress counts `total` of a `unit`,
    `amount_done` is how many of them are on disk."""

    @property
    def numbers(self) -> Sequence[int]: ...  # noqa: D102 (see the class)

    @property
    def unit(self) -> str: ...  # noqa: D102

    @property
    def total(self) -> int: ...  # noqa: D102

    def amount_done(self) -> int: ...  # noqa: D102


def make_parts(
    job: PartsJob,
    journal: PartsJournal,
    workers: Workers,
    timings: Timings,
    share: Share | None = None,
) -> dict[str, Any]:
    """Makes the parts of a job, or of a share of it, that do not exist yet; returns how far all
    shares are together.

    Raises UserError for what a worker raised, and if workers keep dying.
    """
    there, (place, shares) = journal.parts.done(), share or (1, 1)
    missing = [number for number in job.numbers[place - 1 :: shares] if number not in there]
    before = done = job.amount_done()
    if missing:
        journal.note_resumed(done, job.unit)
    telling = progress(
        f"{job.doing} {job.where}", total=job.total, unit=job.unit, saved=job.amount_done
    )
    with timings.stage(job.doing, item=job.where, resumed=done > 0) as stage:
        working = work(
            job, missing, engine=workers.engine, workers=workers.workers, address=workers.address
        )
        with telling as show, contextlib.closing(working):
            show(done)
            for part in working:
                done += part.num_tokens
                show(done)
        stage.amounts[job.unit] = job.amount_done() - before
    return {
        "parts_done": len(journal.parts.done().intersection(job.numbers)),
        "num_parts": len(job.numbers),
        "joined": False,
    }
