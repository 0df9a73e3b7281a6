"""Work done by several processes of this machine; one that dies is replaced.

Each process gets a few items at a time and tells of every item that is whole on disk, so that nothing but the items in
hand is lost with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.errors import UserError
from recallkit.parallel.job import Done, WorkerSlot, make_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.context import SpawnContext

    from recallkit.parallel.job import Job, Runner

_MOST_DEATHS = 3
"""In a row, without an item done between: the next process would die as well."""


def work_in_processes(job: Job, items: Sequence[Any], num_workers: int) -> Iterator[Done]:
    """Does items in `num_workers` processes.

    Raises UserError what a process raised, and where processes keep dying.
    """
    tasks = deque(make_tasks(job, items, num_workers))
    context = multiprocessing.get_context("spawn")
    workers = [_Worker(context, job, place, num_workers) for place in range(min(num_workers, len(tasks)))]
    deaths = 0
    try:
        for worker in workers:
            worker.give(tasks)
        while busy := [worker for worker in workers if worker.waiting_for]:
            ready = wait([worker.connection for worker in busy])
            for worker in (w for w in busy if w.connection in ready):
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    deaths += 1
                    _check_deaths(deaths, job, worker)
                    tasks.appendleft(worker.waiting_for)
                    worker.start(context, job, num_workers)
                    worker.give(tasks)
                    continue
                if isinstance(message, UserError | OSError):
                    raise message
                if isinstance(message, str):
                    raise RuntimeError(  # noqa: TRY004 - it is the message that is text
                        f"a {job.doing} process failed:\n{message}"
                    )
                if message.is_whole:
                    deaths = 0
                    worker.waiting_for = worker.waiting_for[1:]
                    if not worker.waiting_for:
                        worker.give(tasks)
                yield message
    finally:
        for worker in workers:
            worker.stop()


def _check_deaths(deaths: int, job: Job, worker: _Worker) -> None:
    status = worker.status()
    if deaths >= _MOST_DEATHS:
        remedy = f"memory may be short: {job.remedy}" if status == "SIGKILL" else "try it with one worker, which says why"
        raise UserError(f"{job.doing} processes keep dying ({status})", where=job.where, remedy=remedy)
    console.note(f"a {job.doing} process died ({status}), another one goes on with its work", level="warning")


class _Worker:
    """A process, and the items that it is at."""

    def __init__(self, context: SpawnContext, job: Job, place: int, num_workers: int) -> None:
        self.place = place
        self.waiting_for: list[Any] = []
        self.start(context, job, num_workers)

    def start(self, context: SpawnContext, job: Job, num_workers: int) -> None:
        """Starts the process, or another one in its place."""
        self.connection, theirs = context.Pipe()
        self.process: Any = context.Process(target=_serve, args=(job, self.place, num_workers, theirs), daemon=True)
        with _interrupts_held():  # and so they are in the process, from its first moment on
            self.process.start()
        theirs.close()
        self.waiting_for = []

    def give(self, tasks: deque[list[Any]]) -> None:
        """Hands over the next task, if there is one."""
        if tasks:
            self.waiting_for = tasks.popleft()
            with contextlib.suppress(OSError):  # it died: the next look at its connection tells so
                self.connection.send(self.waiting_for)

    def status(self) -> str:
        """How a process that died did so."""
        self.process.join(5)
        code = self.process.exitcode
        return signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"

    def stop(self) -> None:
        """Ends the process, whatever it is at: its finished items are on disk."""
        self.connection.close()
        self.process.kill()  # SIGTERM is its parent's to hear
        self.process.join()


_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Interrupts wait until the block ends: none is lost, and a process that is started in it gets none."""
    resource_tracker.ensure_running()  # else it is started in the block, and lets them through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _die_with_parent() -> None:
    """Asks Linux to end this process when its parent is gone, however it went: items on disk are whole, a card is free again."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def _serve(job: Job, place: int, num_workers: int, connection: Connection) -> None:
    """What a process does: takes tasks until there are no more. Ctrl-C and SIGTERM, sent to all, are its parent's to hear."""
    _die_with_parent()
    for number in _INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone
        _take_tasks(job, place, num_workers, connection)


def _take_tasks(job: Job, place: int, num_workers: int, connection: Connection) -> None:
    runner: Runner | None = None
    while True:
        try:
            items = connection.recv()
        except (EOFError, OSError):
            return
        try:
            runner = runner or job.open(WorkerSlot(place, max(1, num_cores() // num_workers)))
            for done in runner.run(items):
                connection.send(done)
        except (BrokenPipeError, ConnectionResetError):
            raise
        except (UserError, OSError) as error:
            connection.send(error)
        except Exception:  # noqa: BLE001 - whatever it was, the parent tells it
            connection.send(traceback.format_exc())


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
