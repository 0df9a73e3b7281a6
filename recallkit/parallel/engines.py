"""The engines that run a job: this process, several processes on this machine, or a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from recallkit.parallel.job import Done, Job


def work(job: Job, items: Sequence[Any], *, engine: str = "local", workers: int = 1, address: str | None = None) -> Generator[Done]:
    """Runs items with the chosen engine: `local` in this process or in several, `ray` on the cluster at `address`.

    Raises UserError for what a worker raised, and if workers keep dying.
    """
    if engine == "ray":
        from recallkit.parallel.ray_cluster import work_on_cluster

        return work_on_cluster(job, items, workers, address)
    if workers > 1:
        from recallkit.parallel.processes import work_in_processes

        return work_in_processes(job, items, workers)
    return work_here(job, items)


def work_here(job: Job, items: Sequence[Any]) -> Generator[Done]:
    """Runs items in this process."""
    if items:
        yield from job.open().run(items)
