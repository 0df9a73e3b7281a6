"""The time of a call on this machine, in samples that are long enough to be measured; and what the machine is."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from recallkit.models.devices import describe_device
from recallkit.quiet_transformers import first_line

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE_SECONDS = {"cpu": 0.05, "cuda": 0.02}
"""Least duration of a sample, which has as many calls as that takes."""
MOST_CALLS = 256
OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call in each sample; or why there are none, and the figures are NaN."""

    samples: tuple[float, ...] = ()
    problem: str | None = None

    @property
    def mean(self) -> float:
        """Of all samples."""
        return statistics.fmean(self.samples) if self.samples else math.nan

    @property
    def median(self) -> float:
        """Of all samples."""
        return statistics.median(self.samples) if self.samples else math.nan


def time_call(call: Callable[[int], Any], device: torch.device, *, repeats: int, most_calls: int = MOST_CALLS) -> Timing:
    """The time of a call, whose argument counts those of a sample, in `repeats` samples of at most `most_calls`.

    The first two calls, which may compile, are in no sample. What fails or takes too much memory has a `problem`.
    """
    try:
        call(0)
        length = round(SAMPLE_SECONDS[device.type] / max(_seconds(call, 1, device), 1e-7))
        length = max(1, min(most_calls, length))
        return Timing(tuple(_seconds(call, length, device) / length for _ in range(repeats)))
    except Exception as error:  # noqa: BLE001  a library's error is reported in its row; the others are still measured
        return Timing(problem=problem_of(error))


def problem_of(error: Exception) -> str:
    """Why something was not measured, in a few words."""
    line = first_line(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in line:
        return OUT_OF_MEMORY
    return "not installed" if isinstance(error, ImportError) else f"failed: {line[:120]}"


def _seconds(call: Callable[[int], Any], number: int, device: torch.device) -> float:
    """Of so many calls together."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begun = time.perf_counter()
    for i in range(number):
        call(i)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def describe_machine(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Device, precision and versions."""
    try:
        from triton import __version__ as triton
    except ImportError:
        triton = None
    versions = {"torch": torch.__version__, "triton": triton}
    return {"device": device.type, "name": describe_device(device), "dtype": str(dtype).removeprefix("torch."), **versions}
