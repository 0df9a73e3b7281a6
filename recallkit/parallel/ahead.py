"""Work on threads beside the caller's: the next items are made while one is used."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

Item = TypeVar("Item")


def ahead(items: Iterator[Item]) -> Generator[Item]:
    """The items in order, none of which is None; while one is used, another thread makes the next. Raises what `items` raises."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = pool.submit(next, items, None)
            yield item
