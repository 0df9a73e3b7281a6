"""Items made on another thread: in order, one ahead, with the errors of what makes them."""

from __future__ import annotations

import threading

import pytest

from recallkit.parallel import ahead


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
