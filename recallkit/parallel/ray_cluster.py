"""Jobs run by the machines of a Ray cluster: one actor per worker, several items per task; a lost
actor is replaced.

Inputs and outputs must be on storage that all machines share: items are written there atomically,
and joined by the calling process.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.errors import UserError
from recallkit.parallel.job import WorkerSlot, make_tasks

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from recallkit.parallel.job import Done, Job, Runner

_MOST_DEATHS = 3
"""Of actors that work on one task: the next would die as well."""


class _Actor:
    """An opened job; Ray makes an actor of this class."""

    def __init__(self, job: Job, num_threads: int) -> None:
        self.job = job
        self.slot = WorkerSlot(0, num_threads)
        self.runner: Runner | None = None

    def work(self, items: Sequence[Any]) -> list[Done] | UserError:
        """The reports on the items, all of them completely on disk; a UserError is returned, not
        raised."""
        try:
            self.runner = self.runner or self.job.open(self.slot)
            return list(self.runner.run(items))
        except UserError as error:
            return error


def work_on_cluster(
    job: Job, items: Sequence[Any], num_workers: int, address: str | None = None
) -> Generator[Done]:
    """Runs items on `num_workers` actors.

    `address` is that of a running cluster (`auto`, `ray://host:10001`); if it is None, Ray starts a
    cluster on this machine. Raises UserError if Ray is not installed or the cluster not reached,
    for what an actor raised, and if actors keep dying.
    """
    ray = _connect(address)
    try:
        yield from _reports(ray, job, items, num_workers)
    finally:
        ray.shutdown()


def _connect(address: str | None) -> Any:
    # otherwise Ray prints a FutureWarning about its own defaults
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # otherwise a cluster that is started here reports to Ray's makers
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError(
            "Ray is not installed", where="--engine ray", remedy=config.installing("ray")
        ) from None
    try:
        _knock(address)
        ray.init(
            address=address,
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError) as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"cannot reach a Ray cluster ({first_line})",
            where=address or "--engine ray",
            remedy="check --address",
        ) from error
    return ray


def _knock(address: str | None) -> None:
    """Tries to connect to HOST:PORT first, because Ray itself would retry for minutes. Raises
    OSError if nothing listens there."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _reports(ray: Any, job: Job, items: Sequence[Any], num_workers: int) -> Generator[Done]:
    """Tasks given to actors as these become free. Ray replaces an actor that died, and gives its
    task again."""
    from ray.util import ActorPool

    tasks, resources = make_tasks(job, items, num_workers), ray.cluster_resources()
    threads = max(1, int(resources.get("CPU", 1)) // num_workers)
    needs = (
        {"num_gpus": 1}
        if job.prefers_gpu and resources.get("GPU", 0) >= 1
        else {"num_cpus": threads}
    )
    actor = ray.remote(**needs, max_restarts=-1, max_task_retries=_MOST_DEATHS - 1)(_Actor)
    pool = ActorPool([actor.remote(job, threads) for _ in range(min(num_workers, len(tasks)))])
    try:
        for answer in pool.map_unordered(lambda actor, task: actor.work.remote(task), tasks):
            if isinstance(answer, UserError):
                raise answer
            yield from answer
    except ray.exceptions.RayActorError as error:
        remedy = "see Ray's logs; it may be out of memory"
        raise UserError(f"{job.doing} actors keep dying", where=job.where, remedy=remedy) from error
