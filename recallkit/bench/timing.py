"""Times several calls in turn, so that other load on the machine affects them equally. On a GPU times are between two events."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from recallkit.quiet_transformers import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Call = Callable[[int], Any]
    """Does the work once; its argument counts the calls of a sample."""

SAMPLE_SECONDS = {"cpu": 0.05, "cuda": 0.02}
"""Least duration of a sample, which has as many calls as that takes."""
MOST_CALLS = 256
OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call: the median, the fastest and the slowest sample; or why there are none."""

    median: float = float("nan")
    fastest: float = float("nan")
    slowest: float = float("nan")
    problem: str | None = None


def compare(calls: Mapping[str, Call], device: torch.device, *, repeats: int) -> dict[str, Timing]:
    """The time of each call by name: `repeats` samples, in turn. A call that fails or takes too much memory has a `problem`.

    The first two calls of each, which may compile, are in no sample.
    """
    lengths: dict[str, int] = {}
    samples: dict[str, list[float]] = {}
    problems: dict[str, str] = {}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            if name in problems:
                continue
            try:
                if turn == 0:
                    call(0)
                    once = _seconds(call, 1, device)
                    lengths[name] = max(1, min(MOST_CALLS, round(SAMPLE_SECONDS[device.type] / max(once, 1e-7))))
                else:
                    samples.setdefault(name, []).append(_seconds(call, lengths[name], device) / lengths[name])
            except Exception as error:  # noqa: BLE001  a library's error is reported in its row; the others are still measured
                problems[name] = problem_of(error)
    return {name: _timing(samples.get(name, []), problems.get(name)) for name in calls}


def _timing(samples: list[float], problem: str | None) -> Timing:
    return Timing(problem=problem) if problem else Timing(statistics.median(samples), min(samples), max(samples))


def problem_of(error: Exception) -> str:
    """Why something was not measured, in a few words."""
    line = first_line(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in line:
        return OUT_OF_MEMORY
    return "not installed" if isinstance(error, ImportError) else f"failed: {line[:120]}"


def _seconds(call: Call, number: int, device: torch.device) -> float:
    """Of so many calls together."""
    if device.type == "cpu":
        begun = time.perf_counter()
        for i in range(number):
            call(i)
        return time.perf_counter() - begun
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    start.record()
    for i in range(number):
        call(i)
    end.record()
    torch.cuda.synchronize(device)
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / 1e3
