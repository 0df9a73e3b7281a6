"""Times several implementations in turn, so that other load on the machine affects them equally.

On a GPU times are between two events, and calls cycle through copies of their inputs that together exceed its cache; calls of a few
microseconds are recorded in a CUDA graph, so that the GPU is timed and not Python.
"""

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
    """Does the work once, on the copy of the inputs with this index."""

SAMPLE_SECONDS = {"cpu": 0.05, "cuda": 0.02}
"""Least duration of a sample, which has as many calls as that takes."""
MOST_CALLS = 256
MOST_COPIES = 16
OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call: the median, the fastest and the slowest sample; or why there are none."""

    median: float = float("nan")
    fastest: float = float("nan")
    slowest: float = float("nan")
    problem: str | None = None


def compare(calls: Mapping[str, Call], device: torch.device, *, repeats: int, graph: bool = False) -> dict[str, Timing]:
    """The time of each call by name: `repeats` samples, in turn. A call that fails or takes too much memory has a `problem`.

    `graph`: on a GPU, calls are recorded and replayed.
    """
    ready: dict[str, tuple[Callable[[], float], list[float]]] = {}
    found = {}
    for name, call in calls.items():
        try:
            ready[name] = _sampler(call, device, graph=graph), []
        except Exception as error:  # noqa: BLE001  a library's error is reported in its row; the others are still measured
            found[name] = Timing(problem=problem_of(error))
    for _ in range(repeats):
        for name, (sample, seconds) in ready.items():
            if name not in found:
                try:
                    seconds.append(sample())
                except Exception as error:  # noqa: BLE001  as above
                    found[name] = Timing(problem=problem_of(error))
    found |= {name: Timing(statistics.median(s), min(s), max(s)) for name, (_, s) in ready.items() if name not in found}
    return {name: found[name] for name in calls}


def problem_of(error: Exception) -> str:
    """Why something was not measured, in a few words."""
    line = first_line(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in line:
        return OUT_OF_MEMORY
    return "not installed" if isinstance(error, ImportError) else f"failed: {line[:120]}"


def _sampler(call: Call, device: torch.device, *, graph: bool) -> Callable[[], float]:
    """A function that times several calls and returns the seconds of one. The first calls, which may compile, are not timed."""
    call(0)
    once = _seconds(lambda: call(1), device)
    num_calls = max(1, min(MOST_CALLS, round(SAMPLE_SECONDS[device.type] / max(once, 1e-7))))

    def run() -> None:
        for i in range(num_calls):
            call(i)

    timed = _recorded(run) if graph and device.type == "cuda" else run
    return lambda: _seconds(timed, device) / num_calls


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cpu":
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    start.record()
    run()
    end.record()
    torch.cuda.synchronize(device)
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / 1e3


def _recorded(run: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def num_copies(inputs: int, device: torch.device) -> int:
    """How many copies of inputs of this size exceed a GPU's L2 cache three times; 1 on CPU."""
    if device.type == "cpu":
        return 1
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return min(MOST_COPIES, max(1, -(-3 * cache // max(inputs, 1))))


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured ceilings of the device: bytes per second of a copy (read and written), operations per second of a matrix product."""

    copy: float
    matrix: float


def measure_ceilings(device: torch.device, dtype: torch.dtype, *, repeats: int = 5) -> Ceilings:
    """A large copy, and a large square matrix product of normal numbers in `dtype`, measured now."""
    on_gpu = device.type == "cuda"
    elements, side = (1 << 30, 8192) if on_gpu else (1 << 25, 1024)
    source = torch.empty(elements // 4, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    calls: dict[str, Call] = {"copy": lambda _: target.copy_(source), "matrix": lambda _: left @ right}
    times = compare(calls, device, repeats=repeats)
    return Ceilings(2 * source.nbytes / times["copy"].median, 2 * side**3 / times["matrix"].median)
