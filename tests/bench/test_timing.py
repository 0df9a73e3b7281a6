"""Times: samples in turn, medians and ranges of one call; what fails is a row."""

from __future__ import annotations

import pytest
import torch

from recallkit.bench import timing
from recallkit.bench.timing import compare

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
    assert (times["fast"].median, times["slow"].median) == pytest.approx((0.001, 0.2))
    # Two calls that are not timed, then three samples of 50 ms or of one call.
    assert (len(fast.calls), len(slow.calls)) == (2 + 3 * 50, 2 + 3)
    times = compare({"compiles": clock.takes(9.0, 0.1, 0.1, 0.3, 0.2)}, CPU, repeats=3)["compiles"]
    assert (times.fastest, times.median, times.slowest) == pytest.approx((0.1, 0.2, 0.3))


def test_what_fails_at_once_or_later_says_why_and_loses_no_other_row(clock):
    def fails(error: Exception, after: int = 0):
        calls = []

        def call(i: int) -> None:
            calls.append(i)
            clock.now += 1.0
            if len(calls) > after:
                raise error

        return call

    full = RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried")
    calls = {
        "missing": fails(ModuleNotFoundError("no module")),
        "broken": fails(ValueError("it does not fit\nand more")),
        "large": fails(torch.OutOfMemoryError()),
        "later": fails(full, after=3),
        "good": clock.takes(1.0),
    }
    times = compare(calls, CPU, repeats=3)
    assert list(times) == list(calls)
    assert [found.problem for found in times.values()] == [
        "not installed",
        "failed: it does not fit",
        "out of memory",
        "out of memory",
        None,
    ]
    assert times["good"].median == 1.0
