"""The protocol that lets work run in one process, in several, or on the machines of a Ray cluster.

A job is divided into independent items. An item is done when its output is completely on disk, so
that the death of a process costs only the items it was working on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Done(NamedTuple):
    """Tokens processed and bytes of files read since the last report, and whether an item is now
    completely on disk."""

    num_tokens: int
    is_whole: bool = True
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """A worker's index among those of its machine, from 0, and its share of the CPU threads."""

    place: int
    num_threads: int


class Runner(Protocol):
    """An opened job: the model is loaded, the tokenizer checked."""

    def run(self, items: Sequence[Any]) -> Iterator[Done]:
        """Runs items one after the other; reports each as soon as it is on disk, and progress in
        between if an item takes long."""


class Job(Protocol):
    """Work that can be pickled and sent to other processes.

    `doing` is its name in messages ("scoring"), `where` what error messages name as their place,
    `remedy` the advice if memory runs out. `prefers_gpu` asks for a GPU if there is one; at most
    `max_items_per_task` items are sent to a worker at once.
    """

    @property
    def doing(self) -> str: ...  # noqa: D102 (see the class)

    @property
    def where(self) -> str: ...  # noqa: D102

    @property
    def remedy(self) -> str: ...  # noqa: D102

    @property
    def prefers_gpu(self) -> bool: ...  # noqa: D102

    @property
    def max_items_per_task(self) -> int: ...  # noqa: D102

    def open(self, slot: WorkerSlot | None = None) -> Runner:
        """Prepares the job, with the whole machine to itself unless a slot is given. Raises
        UserError if it cannot be prepared."""


def make_tasks(job: Job, items: Sequence[Any], num_workers: int) -> list[list[Any]]:
    """Groups neighbouring items into tasks, at least four per worker if possible: small enough to
    lose one, large enough to overlap I/O."""
    size = max(1, min(job.max_items_per_task, len(items) // (4 * num_workers)))
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
