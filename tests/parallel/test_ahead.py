"""Items made on another thread: in order, one ahead, with the errors of what makes them."""

from __future__ import annotations

import threading
import time

import pytest

from recallkit.parallel.ahead import ahead, map_ahead


def test_the_next_item_is_made_while_one_is_used():
    makers, made = set(), [threading.Event() for _ in range(4)]

    def items():
        for number, event in enumerate(made):
            makers.add(threading.current_thread())
            event.set()
            yield number

    for number in ahead(items()):
        assert number == 3 or made[number + 1].wait(10)
        assert not any(event.is_set() for event in made[number + 2 :])
    assert number == 3
    assert threading.current_thread() not in makers


def test_what_the_items_raise_is_raised_after_those_before_it():
    def items():
        yield from "ab"
        raise ValueError("no third")

    items_ahead = ahead(items())
    assert [next(items_ahead), next(items_ahead)] == ["a", "b"]
    with pytest.raises(ValueError, match="no third"):
        next(items_ahead)


def test_no_more_results_wait_than_there_are_threads():
    begun, taken = [], 0

    def make(number):
        begun.append(number)
        return -number

    for made in map_ahead(make, range(50), 3):
        assert made == -taken
        taken += 1
        time.sleep(0.002)  # a caller that is slower
        assert max(begun) < taken + 3
    assert taken == 50
    assert sorted(begun) == list(range(50))


def test_an_error_is_raised_in_its_place():
    made = map_ahead(lambda number: 6 // number, [3, 2, 0, 1], 2)
    assert [next(made), next(made)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(made)
