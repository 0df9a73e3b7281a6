"""Jobs run by several processes on this machine; a process that dies is replaced.

Each process gets a few items at a time and reports every item that is completely on disk, so that
its death costs only the items it was working on.
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

from recallkit import config, events
from recallkit.display import console
from recallkit.errors import UserError
from recallkit.parallel.job import Done, WorkerSlot, make_tasks

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from multiprocessing.context import SpawnContext

    from recallkit.parallel.job import Job, Runner

_MOST_DEATHS = 3
"""Deaths in a row, with no item finished in between: the next process would die as well."""


def work_in_processes(job: Job, items: Sequence[Any], num_workers: int) -> Generator[Done]:
    """Runs items in `num_workers` processes.

    Raises UserError for what a process raised, and if processes keep dying.
    """
    tasks = deque(make_tasks(job, items, num_workers))
    context = multiprocessing.get_context("spawn")
    workers = [
        _Worker(context, job, place, num_workers) for place in range(min(num_workers, len(tasks)))
    ]
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
                if isinstance(message, str):  # a traceback
                    text = f"a {job.doing} process failed:\n{message}"
                    raise RuntimeError(text)  # noqa: TRY004
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
        remedy = (
            f"it may be out of memory: {job.remedy}"
            if status == "SIGKILL"
            else "run it with one worker to see the error"
        )
        raise UserError(
            f"{job.doing} processes keep dying ({status})", where=job.where, remedy=remedy
        )
    console.note(
        f"a {job.doing} process died ({status}), another one takes over its work", level="warning"
    )


class _Worker:
    """A process, and the items it is working on."""

    def __init__(self, context: SpawnContext, job: Job, place: int, num_workers: int) -> None:
        self.place = place
        self.waiting_for: list[Any] = []
        self.start(context, job, num_workers)

    def start(self, context: SpawnContext, job: Job, num_workers: int) -> None:
        """Starts the process, or its replacement."""
        self.connection, theirs = context.Pipe()
        self.process: Any = context.Process(
            target=_serve, args=(job, self.place, num_workers, theirs), daemon=True
        )
        with _interrupts_held():  # a child inherits the blocked signals from its first moment on
            self.process.start()
        theirs.close()
        self.waiting_for = []

    def give(self, tasks: deque[list[Any]]) -> None:
        """Hands over the next task, if there is one."""
        if tasks:
            self.waiting_for = tasks.popleft()
            # it died: the next read from its connection shows that
            with contextlib.suppress(OSError):
                self.connection.send(self.waiting_for)

    def status(self) -> str:
        """The signal or exit status that a process died with."""
        self.process.join(5)
        code = self.process.exitcode
        return (
            signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"
        )

    def stop(self) -> None:
        """Kills the process in whatever state: its finished items are on disk."""
        self.connection.close()
        self.process.kill()  # it ignores SIGTERM, which its parent handles
        self.process.join()


_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Defers interrupts until the block ends: none is lost, and a process started in it receives
    none."""
    # otherwise it would be started in the block and unblock the signals
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _die_with_parent() -> None:
    """Asks Linux to kill this process when its parent is gone for whatever reason: it writes
    nothing more, and its GPU is free again."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def _serve(job: Job, place: int, num_workers: int, connection: Connection) -> None:
    """Runs tasks until there are no more. Ctrl-C and SIGTERM reach all processes of the group; only
    the parent handles them."""
    _die_with_parent()
    config.start_program()
    events.open_streams()
    events.write_whole_lines()
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
        except Exception:  # noqa: BLE001 - the parent reports it, whatever it is
            connection.send(traceback.format_exc())


def num_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
