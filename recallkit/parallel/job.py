"""What work must give so that one process, several, or the machines of a Ray cluster can do it.

A job is cut into items that do not depend on each other; an item is done when what it makes is whole on disk, so that
nothing but the items in hand is lost with a process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Done(NamedTuple):
    """Tokens that were dealt with since the last word, and whether an item is whole on disk with them."""

    num_tokens: int
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """A worker's place among those of its machine, from 0, and its share of the processor's threads."""

    place: int
    num_threads: int


class Runner(Protocol):
    """A job that is opened: the model loaded, the tokenizer tried."""

    def run(self, items: Sequence[Any]) -> Iterator[Done]:
        """Does items one after the other; tells of each as soon as it is whole, and in between if that takes long."""


class Job(Protocol):
    """Work as it is sent to others: it can be pickled.

    `doing` is what messages call it ("scoring"), `where` what they name; `remedy` helps where memory is short;
    `prefers_gpu` asks for a card where there are some; `max_items_per_task` are handed over at once.
    """

    @property
    def doing(self) -> str: ...  # noqa: D102 (said above)

    @property
    def where(self) -> str: ...  # noqa: D102

    @property
    def remedy(self) -> str: ...  # noqa: D102

    @property
    def prefers_gpu(self) -> bool: ...  # noqa: D102

    @property
    def max_items_per_task(self) -> int: ...  # noqa: D102

    def open(self, slot: WorkerSlot | None = None) -> Runner:
        """Makes ready to work, alone in this process unless a slot is given. Raises UserError where that cannot be."""


def make_tasks(job: Job, items: Sequence[Any], num_workers: int) -> list[list[Any]]:
    """Cuts items into runs of neighbours, some for every worker: few enough to lose, enough to read and write beside."""
    size = max(1, min(job.max_items_per_task, len(items) // (4 * num_workers)))
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
