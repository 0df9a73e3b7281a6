"""Times: samples in turn, medians and ranges of one call, what fails is a row."""

from __future__ import annotations

import pytest
import torch

from recallkit.bench import timing
from recallkit.bench.timing import compare, measure_ceilings, num_copies

CPU = torch.device("cpu")


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def takes(self, *seconds: float):
        """A call that takes so long: the first time, the second, ..., and ever after the last of them."""
        calls = []

        def call(i: int) -> None:
            self.now += seconds[min(len(calls), len(seconds) - 1)]
            calls.append(i)

        call.calls = calls
        return call


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    return clock


def test_a_sample_is_long_enough_and_a_time_is_that_of_one_call(clock):
    fast, slow = clock.takes(0.001), clock.takes(0.2)
    times = compare({"fast": fast, "slow": slow}, CPU, repeats=3)
    assert times["fast"].median == pytest.approx(0.001)
    assert times["slow"].median == pytest.approx(0.2)
    # Two calls that are not timed, then three samples of 50 ms or of one call.
    assert len(fast.calls) == 2 + 3 * 50
    assert len(slow.calls) == 2 + 3


def test_the_first_calls_are_not_timed_and_the_range_is_that_of_the_samples(clock):
    times = compare({"compiles": clock.takes(9.0, 0.1, 0.1, 0.3, 0.2)}, CPU, repeats=3)["compiles"]
    assert (times.fastest, times.median, times.slowest) == pytest.approx((0.1, 0.2, 0.3))


def test_samples_are_taken_in_turn(clock):
    order = []
    one, other = clock.takes(1.0), clock.takes(1.0)
    compare({"one": lambda i: (order.append("one"), one(i)), "other": lambda i: (order.append("other"), other(i))}, CPU, repeats=2)
    assert order[4:] == ["one", "other", "one", "other"]


def test_what_fails_says_so_and_keeps_its_place(clock):
    def missing(i: int) -> None:
        raise ModuleNotFoundError("no module")

    def broken(i: int) -> None:
        raise ValueError("it does not fit\nand more")

    def large(i: int) -> None:
        raise torch.OutOfMemoryError

    times = compare({"missing": missing, "broken": broken, "large": large, "good": clock.takes(1.0)}, CPU, repeats=1)
    assert [times[name].problem for name in times] == ["not installed", "failed: it does not fit", "out of memory", None]
    assert list(times) == ["missing", "broken", "large", "good"]


def test_what_fails_while_it_is_timed_loses_no_other_row(clock):
    calls = []

    def full(i: int) -> None:
        calls.append(i)
        clock.now += 1.0
        if len(calls) > 3:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried")

    times = compare({"full": full, "good": clock.takes(1.0)}, CPU, repeats=3)
    assert times["full"].problem == "out of memory"
    assert (len(calls), times["good"].median, times["good"].problem) == (4, 1.0, None)


def test_a_copy_moves_twice_its_bytes_and_a_product_takes_two_operations_a_term(monkeypatch):
    monkeypatch.setattr(timing, "compare", lambda calls, device, repeats: {name: timing.Timing(2.0, 2.0, 2.0) for name in calls})
    found = measure_ceilings(CPU, torch.float32)
    assert found.copy == 2 * (1 << 25) / 2.0
    assert found.matrix == 2 * 1024**3 / 2.0


def test_on_cpu_one_copy_of_the_inputs_is_enough():
    assert num_copies(1, CPU) == 1
