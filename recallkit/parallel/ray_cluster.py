"""Jobs run by the machines of a Ray cluster: one actor per worker, several items per task; a lost actor is replaced.

Inputs and outputs must be on storage that all machines share: items are written there atomically, and joined by the calling
process.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.display import console
from recallkit.errors import UserError
from recallkit.parallel.job import WorkerSlot, make_tasks

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from recallkit.parallel.job import Done, Job, Runner

_MOST_DEATHS = 3
"""Deaths in a row, with no task finished in between."""


class _Actor:
    """An opened job; Ray makes an actor of this class."""

    def __init__(self, job: Job, num_threads: int) -> None:
        self.job = job
        self.slot = WorkerSlot(0, num_threads)
        self.runner: Runner | None = None

    def work(self, items: Sequence[Any]) -> list[Done] | UserError:
        """The reports on the items, all of them completely on disk; a UserError is returned, not raised."""
        try:
            self.runner = self.runner or self.job.open(self.slot)
            return list(self.runner.run(items))
        except UserError as error:
            return error


def work_on_cluster(job: Job, items: Sequence[Any], num_workers: int, address: str | None = None) -> Generator[Done]:
    """Runs items on `num_workers` actors.

    `address` is that of a running cluster (`auto`, `ray://host:10001`); if it is None, Ray starts a cluster on this machine.
    Raises UserError if Ray is not installed or the cluster not reached, for what an actor raised, and if actors keep dying.
    """
    ray = _connect(address)
    try:
        yield from _Schedule(ray, job, items, num_workers).run()
    finally:
        ray.shutdown()


def _connect(address: str | None) -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise Ray prints a FutureWarning about its own defaults
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed", where="--engine ray", remedy=config.installing("ray")) from None
    try:
        _knock(address)
        ray.init(address=address, include_dashboard=False if address is None else None, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"cannot reach a Ray cluster ({first_line})", where=address or "--engine ray", remedy="check --address") from error
    return ray


def _knock(address: str | None) -> None:
    """Tries to connect to HOST:PORT first, because Ray itself would retry for minutes. Raises OSError if nothing listens there."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


class _Schedule:
    """Tasks sent to actors as these become free."""

    def __init__(self, ray: Any, job: Job, items: Sequence[Any], num_workers: int) -> None:
        self.ray = ray
        self.job = job
        self.tasks = deque(make_tasks(job, items, num_workers))
        self.num_workers = min(num_workers, len(self.tasks))
        self.running: dict[Any, tuple[Any, list[Any]]] = {}
        on_gpus = job.prefers_gpu and ray.cluster_resources().get("GPU", 0) >= 1
        self.threads = max(1, int(ray.cluster_resources().get("CPU", 1)) // num_workers)
        needs = {"num_gpus": 1} if on_gpus else {"num_cpus": self.threads}
        self.actor_class = ray.remote(**needs)(_Actor)

    def run(self) -> Iterator[Done]:
        """See `work_on_cluster`."""
        deaths = 0
        for _ in range(self.num_workers):
            self._give(self._new_actor())
        while self.running:
            [finished], _ = self.ray.wait(list(self.running), num_returns=1)
            actor, items = self.running.pop(finished)
            try:
                answer = self.ray.get(finished)
            except self.ray.exceptions.RayActorError as error:
                deaths += 1
                if deaths >= _MOST_DEATHS:
                    remedy = "see Ray's logs; it may be out of memory"
                    raise UserError(f"{self.job.doing} actors keep dying", where=self.job.where, remedy=remedy) from error
                console.note(f"a {self.job.doing} actor died, another one takes over its work", level="warning")
                self.tasks.appendleft(items)
                self._give(self._new_actor())
                continue
            if isinstance(answer, UserError):
                raise answer
            deaths = 0
            self._give(actor)
            yield from answer

    def _new_actor(self) -> Any:
        return self.actor_class.remote(self.job, self.threads)

    def _give(self, actor: Any) -> None:
        if self.tasks:
            items = self.tasks.popleft()
            self.running[actor.work.remote(items)] = (actor, items)
