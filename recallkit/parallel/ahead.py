"""Work on threads beside the caller's: the next items are made while one is used."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(items: Iterator[Item]) -> Generator[Item]:
    """The items in order, none of which is None; while one is used, another thread makes the next. Raises what `items` raises."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = pool.submit(next, items, None)
            yield item


def map_ahead(make: Callable[[Item], Made], items: Iterable[Item], num_threads: int) -> Iterator[Made]:
    """What `make` makes of each item, in order, on `num_threads` threads; never more than `num_threads` are begun and not yet taken.

    The `map` of a pool makes all, so that results wait in memory for a caller who is slower.
    """
    remaining = iter(items)
    with ThreadPoolExecutor(num_threads) as pool:
        waiting = deque(pool.submit(make, item) for item in islice(remaining, num_threads))
        while waiting:
            made = waiting.popleft().result()
            waiting.extend(pool.submit(make, item) for item in islice(remaining, 1))
            yield made
