"""Scoring by the machines of a Ray cluster: actors hold the model, tasks are runs of parts, a lost actor is replaced.

The slice directory must lie on storage that all machines share: parts are written there, whole or not at all, and
joined by the one who asked.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Any

from recallkit import console
from recallkit.errors import UserError
from recallkit.workers.job import Scorer
from recallkit.workers.processes import make_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recallkit.workers.job import ScoringJob

_MOST_DEATHS = 3
"""In a row, without a task done between."""


class _Actor:
    """Holds a model; made into a Ray actor."""

    def __init__(self, job: ScoringJob, num_threads: int) -> None:
        self.job = job
        self.num_threads = num_threads
        self.scorer: Scorer | None = None

    def score(self, numbers: Sequence[int]) -> list[int] | UserError:
        """Predicted tokens of each part, all of them whole on disk; an error of the user's as it is."""
        import torch

        if not torch.cuda.is_available():
            torch.set_num_threads(self.num_threads)
        try:
            self.scorer = self.scorer or Scorer(self.job)
            return list(self.scorer.run(numbers))
        except UserError as error:
            return error


def score_on_cluster(job: ScoringJob, numbers: Sequence[int], num_workers: int, address: str | None = None) -> Iterator[int]:
    """Scores parts with `num_workers` actors; gives the predicted tokens of each part that is done.

    `address` is that of a running cluster (`auto`, `ray://host:10001`); without it Ray starts one on this machine.
    Raises UserError without Ray or the cluster, for what an actor raised, and where actors keep dying.
    """
    ray = _connect(address)
    try:
        yield from _Schedule(ray, job, numbers, num_workers).run()
    finally:
        ray.shutdown()


def _connect(address: str | None) -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray announces a change of its own to every user
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed", where="--engine ray", remedy='pip install "recallkit[ray]"') from None
    try:
        _knock(address)
        ray.init(address=address, include_dashboard=False if address is None else None, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"no Ray cluster answers ({first_line})", where=address or "--engine ray", remedy="check --address") from error
    return ray


def _knock(address: str | None) -> None:
    """Whether somebody answers at HOST:PORT: Ray itself would try for minutes. Raises OSError where nobody does."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


class _Schedule:
    """Tasks handed to actors as these become free."""

    def __init__(self, ray: Any, job: ScoringJob, numbers: Sequence[int], num_workers: int) -> None:
        self.ray = ray
        self.job = job
        self.tasks = deque(make_tasks(numbers, num_workers))
        self.num_workers = min(num_workers, len(self.tasks))
        self.running: dict[Any, tuple[Any, list[int]]] = {}
        on_cards = job.request.device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1
        self.threads = max(1, int(ray.cluster_resources().get("CPU", 1)) // num_workers)
        needs = {"num_gpus": 1} if on_cards else {"num_cpus": self.threads}
        self.actor_class = ray.remote(**needs)(_Actor)

    def run(self) -> Iterator[int]:
        """See `score_on_cluster`."""
        deaths = 0
        for _ in range(self.num_workers):
            self._give(self._new_actor())
        while self.running:
            [finished], _ = self.ray.wait(list(self.running), num_returns=1)
            actor, numbers = self.running.pop(finished)
            try:
                answer = self.ray.get(finished)
            except self.ray.exceptions.RayActorError as error:
                deaths += 1
                if deaths >= _MOST_DEATHS:
                    raise UserError(
                        "scoring actors keep dying", where=self.job.request.spec, remedy="see Ray's logs; memory may be short"
                    ) from error
                console.note("a scoring actor died, another one goes on with its work")
                self.tasks.appendleft(numbers)
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
            numbers = self.tasks.popleft()
            self.running[actor.score.remote(numbers)] = (actor, numbers)
