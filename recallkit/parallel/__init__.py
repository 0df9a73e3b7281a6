"""Jobs run by one process, by several processes, or by a Ray cluster; and work on a thread beside
the caller's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from recallkit.parallel.job import Done, Job

Item = TypeVar("Item")


def work(
    job: Job,
    items: Sequence[Any],
    *,
    engine: str = "local",
    workers: int = 1,
    address: str | None = None,
) -> Generator[Done]:
    """Runs items with the chosen engine: `local` in this process or in several, `ray` on the
    cluster at `address`.

    Raises UserError for what a worker raised, and if workers keep dying.
    """
    if engine == "ray":
        from recallkit.parallel.ray_cluster import work_on_cluster

        yield from work_on_cluster(job, items, workers, address)
    elif workers > 1:
        from recallkit.parallel.processes import work_in_processes

        yield from work_in_processes(job, items, workers)
    elif items:
        yield from job.open().run(items)


def ahead(items: Iterator[Item]) -> Generator[Item]:
    """The items in order, none of which is None; while one is used, another thread makes the next.
    Raises what `items` raises."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = pool.submit(next, items, None)
            yield item
