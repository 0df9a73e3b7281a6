"""One operation at one size, compared with its peers: times, rates, fractions of the device's ceiling, targets."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from recallkit.bench.results import Row
from recallkit.bench.timing import Ceilings, Timing, compare, num_copies, problem_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

COPY, MATRIX, MICROSECONDS = "of the copy rate", "of the matrix rate", "microseconds"


@dataclass(frozen=True, slots=True)
class Setting:
    """The device and the precision of operations; `quick`: one small size of each."""

    device: torch.device
    dtype: torch.dtype
    quick: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU, so that kernels and GPU libraries run."""
        return self.device.type == "cuda"

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, device=self.device).to(dtype or self.dtype)

    def sizes(self, on_gpu: list[Any], on_cpu: list[Any]) -> list[Any]:
        """Those for the device; only the first with `quick`."""
        chosen = on_gpu if self.on_gpu else on_cpu
        return chosen[:1] if self.quick else chosen


@dataclass(frozen=True, slots=True)
class Case:
    """One operation at one size: its inputs, its implementations (ours first), and the least work."""

    operation: str
    size: dict[str, int]
    make: Callable[[], tuple[Tensor, ...]]
    runs: dict[str, Callable[..., Any]]
    num_bytes: float
    """Least bytes read and written."""
    flops: float = 0.0
    """Arithmetic operations that every implementation needs; 0 where memory traffic is the bound."""
    graph: bool = False
    """Whether it is so short that it is timed in a CUDA graph."""
    targets: dict[str, float] = field(default_factory=dict)
    """On a GPU: least speed relative to a peer by name, least fraction of `COPY` or `MATRIX`, most `MICROSECONDS`."""


def measure_case(case: Case, setting: Setting, ceilings: Ceilings, repeats: int) -> tuple[list[Row], list[str]]:
    """A row for each implementation, ours first, and a line for each target on a GPU."""
    try:
        first = case.make()
        num_bytes = sum(tensor.nbytes for tensor in first)
        copies = [first, *(case.make() for _ in range(num_copies(num_bytes, setting.device) - 1))]
    except (MemoryError, RuntimeError) as error:  # inputs that do not fit must not lose what was measured
        times = dict.fromkeys(case.runs, Timing(problem=problem_of(error)))
    else:
        calls = {name: partial(_call, run, copies) for name, run in case.runs.items()}
        with torch.inference_mode():
            times = compare(calls, setting.device, repeats=repeats, graph=case.graph)
    ours = next(iter(times.values())).median
    work, most, unit = case.num_bytes, ceilings.copy, "B/s"
    if case.flops / ceilings.matrix > case.num_bytes / ceilings.copy:
        work, most, unit = case.flops, ceilings.matrix, "FLOP/s"
    rows = []
    for name, timing in times.items():
        known = timing.problem is None
        rows.append(
            Row(
                case.operation,
                case.size,
                name,
                timing.median,
                timing.fastest,
                timing.slowest,
                rate=work / timing.median if known else None,
                unit=unit,
                share=work / timing.median / most if known else None,
                ratio=timing.median / ours if known and math.isfinite(ours) else None,
                problem=timing.problem,
            )
        )
    return rows, _verdicts(case, rows) if setting.on_gpu else []


def _call(run: Callable[..., Any], copies: list[tuple[Tensor, ...]], i: int) -> Any:
    return run(*copies[i % len(copies)])


def _verdicts(case: Case, rows: list[Row]) -> list[str]:
    by_name = {row.implementation: row for row in rows}
    ours, lines = rows[0], []
    for name, wanted in case.targets.items():
        if name == MICROSECONDS:
            what, reached, met = f"at most {wanted:g} {name}", 1e6 * ours.seconds, 1e6 * ours.seconds <= wanted
        elif name in (COPY, MATRIX):
            reached = ours.share if ours.share is not None else math.nan
            what, met = f"{100 * wanted:.0f} % {name}", reached >= wanted
        else:
            ratio = by_name[name].ratio if name in by_name else None
            reached = math.nan if ratio is None else ratio
            what, met = f"{wanted:g} times as fast as {name}", reached >= wanted
        verdict = "not measured" if math.isnan(reached) else f"{'met' if met else 'MISSED'} ({reached:.3g})"
        lines.append(f"{case.operation} {ours.size_text}: {what}: {verdict}")
    return lines
