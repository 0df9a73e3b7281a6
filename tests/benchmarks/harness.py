"""What benchmarks share: methods in turn, each in a fresh process; seconds and extra memory; medians, ratios and targets."""

from __future__ import annotations

import argparse
import inspect
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch

ROOT = Path(__file__).parents[2]
NUM_THREADS = 2
"""Of each method that is measured apart."""

_PROGRAM = """
import importlib, json, sys
sys.path.insert(0, {root!r})
print(json.dumps(getattr(importlib.import_module({module!r}), {name!r})(*json.loads(sys.argv[1]))))
"""


def parser_of(doc: str | None, *, repeats: int, runs: str = "of each method") -> argparse.ArgumentParser:
    """A command line with the number of repeats."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=repeats, help=f"{runs} ({repeats})")
    return parser


def add_models(parser: argparse.ArgumentParser, models: Sequence[str], known: Iterable[str]) -> None:
    """Options of benchmarks that load models beside transformers or lm-eval."""
    parser.add_argument("--models", nargs="+", choices=sorted(known), default=models)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)


def machine(threads: int = NUM_THREADS) -> str:
    """The processor, its cores and how busy they are."""
    return f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads, load before {os.getloadavg()[0]:.1f}"


def shards() -> list[str]:
    """The training shards of real text, of which $RECALLKIT_TEST_DATA names the folder."""
    return [str(path) for path in sorted((Path(os.environ["RECALLKIT_TEST_DATA"]) / "corpus").glob("train-0*.jsonl.zst"))]


def tokenizer_file() -> str:
    """GPT-2's tokenizer there."""
    return str(Path(os.environ["RECALLKIT_TEST_DATA"]) / "tokenizers" / "gpt2.json")


# ------------------------------------------------------------------------------------------------------------ measuring


def memory_kb(field: str) -> int:
    """This process's memory: VmRSS now, VmHWM at its peak. (getrusage's peak would carry the parent's over.)"""
    return int(Path("/proc/self/status").read_text().partition(f"{field}:")[2].split()[0])


def forget_peak() -> int:
    """The memory held now, in kB; the system's record of the peak starts again here."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_kb("VmRSS")


def timed(run: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Seconds, and MB at the peak beyond what was held before; and the result."""
    before = forget_peak()
    begin = time.perf_counter()
    result = run()
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "extra_mb": (memory_kb("VmHWM") - before) / 1000}, result


def apart(
    function: Callable[..., Any],
    *arguments: Any,
    python: str = sys.executable,
    cores: Sequence[int] = (),
    **environment: str,
) -> Any:
    """What a function of a benchmark returns (as JSON) in a fresh process, with further environment, on these cores."""
    module = f"tests.benchmarks.{Path(inspect.getfile(function)).stem}"
    program = _PROGRAM.format(root=str(ROOT), module=module, name=function.__name__)
    pinned = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
    args = json.dumps([str(item) if isinstance(item, Path) else item for item in arguments])
    threads = dict.fromkeys(("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), str(NUM_THREADS))
    command, settings = (
        [*pinned, python, "-c", program, args],
        {**os.environ, **threads, **environment},
    )
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=settings).stdout.splitlines()[-1])


def in_turn(names: Iterable[str], repeats: int, measure: Callable[[str], Any]) -> dict[str, list[Any]]:
    """Measurements by name, `repeats` of each: all in turn, so that a machine's slow moments meet all."""
    measurements: dict[str, list[Any]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, rows in measurements.items():
            rows.append(measure(name))
    return measurements


SAMPLE_SECONDS = {"cpu": 0.05, "cuda": 0.02}
"""Least duration of a sample, which has as many calls as that takes."""
MOST_CALLS = 256
OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Timing:
    """Seconds of one call in each sample; or why there are none, and the figures are NaN."""

    samples: tuple[float, ...] = ()
    problem: str | None = None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.samples) if self.samples else math.nan

    @property
    def median(self) -> float:
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
    import torch

    line = next(iter(str(error).splitlines()), "")
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in line:
        return OUT_OF_MEMORY
    return "not installed" if isinstance(error, ImportError) else f"failed: {line[:120]}"


def _seconds(call: Callable[[int], Any], number: int, device: torch.device) -> float:
    """Of so many calls together."""
    import torch

    synchronize = partial(torch.cuda.synchronize, device) if device.type == "cuda" else int
    synchronize()
    begin = time.perf_counter()
    for i in range(number):
        call(i)
    synchronize()
    return time.perf_counter() - begin


def describe_machine(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Device, precision and versions."""
    import torch

    from recallkit.doctor.facts import installed
    from recallkit.models.devices import describe_device

    versions = {"torch": torch.__version__, "triton": installed("triton")}
    return {
        "device": device.type,
        "name": describe_device(device),
        "dtype": str(dtype).removeprefix("torch."),
        **versions,
    }


# ------------------------------------------------------------------------------------------------------------ reporting


def markdown(cells: Sequence[str], *, is_header: bool = False) -> str:
    """A row of a Markdown table, or its header."""
    row = f"| {' | '.join(cells)} |"
    return f"{row}\n|{'---|' * len(cells)}" if is_header else row


def median(rows: Iterable[Mapping[str, Any]], field: str) -> float:
    return float(statistics.median(row[field] for row in rows))


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.2f} | {min(values):.2f} - {max(values):.2f}"


STAGE = "stage: "
"""How lines begin that are rows of docs/benchmarks.md's first table."""


def print_stage(
    stage: str,
    peer: str,
    ours: float,
    theirs: float,
    unit: str,
    *,
    target: float | None = None,
    ratio: float | None = None,
) -> None:
    """Prints a row of that table: rates or, where `unit` is s, seconds. Above a ratio of 1, or a median of rounds, ours is faster."""
    speedup = ratio or (theirs / ours if unit == "s" else ours / theirs)
    met = "–" if target is None else f"{target:.2g}: {'met' if speedup >= target else '**missed**'}"
    rates = [f"{item:,.3f}" if item < 10 else f"{item:,.1f}" if item < 100 else f"{item:,.0f}" for item in (ours, theirs)]
    print(f"{STAGE}| {stage} | {rates[0]} {unit} | {peer}: {rates[1]} {unit} | {speedup:.3g} | {met} |")


def print_duels(peer: str, unit: str) -> None:
    """The head of a Markdown table whose rows are `duel`s."""
    print(f"| model | batch | recallkit, {unit} | {peer}, {unit} | ratio | range | same |\n| --- | --- | --- | --- | --- | --- | --- |")


def duel(name: str, batch: int, sides: Sequence[Callable[[], tuple[float, list[Any]]]], repeats: int) -> tuple[float, float, float]:
    """Prints a row: rates of two sides in turn, ours first, their ratio within a round, and how many answers are the same.

    Returns the rates and the ratio, all medians.

    A side gives its rate and its answers; the first run of each is not counted.
    """
    answers = [side()[1] for side in sides]
    rounds = [[side()[0] for side in sides] for _ in range(repeats)]
    ours, theirs = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    shown = ".2f" if max(ours, theirs) < 100 else ",.0f"
    same = sum(a == b for a, b in zip(*answers, strict=True))
    ratios = [mine / other for mine, other in rounds]
    print(
        f"| {name} | {batch} | {ours:{shown}} | {theirs:{shown}} | {spread(ratios)} | {same} of {len(answers[0])} |",
        flush=True,
    )
    return ours, theirs, statistics.median(ratios)
