"""What benchmarks share: options, methods in turn with seconds and memory, one table of rates and
ratios, rows of the page."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import torch

ROOT = Path(__file__).parents[2]
NUM_THREADS = 2
"""Of each method that is measured in a process of its own."""
MODELS = {"--batches": [1, 8], "--device": "cpu", "--dtype": "float32", "--threads": 1}
"""Options of benchmarks that load models beside transformers or lm-eval."""

_PROGRAM = """
import importlib, json, sys
sys.path.insert(0, {root!r})
print(json.dumps(getattr(importlib.import_module({module!r}), {name!r})(*json.loads(sys.argv[1]))))
"""


def parse(
    doc: str | None, options: Mapping[str, Any], **choices: Iterable[str]
) -> argparse.Namespace:
    """The command line: options, whose type is that of their default, a list's that of its first
    item.

    A name without dashes stands for any number of words. `choices`: what an option's words can be.
    """
    from recallkit.config import parse_amount

    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in options.items():
        if isinstance(default, bool):
            parser.add_argument(name, action="store_true")
            continue
        is_list = isinstance(default, list)
        example = default[0] if is_list and default else default
        kind = parse_amount if isinstance(example, int) else str
        number = {"nargs": "+" if name.startswith("-") else "*"} if is_list else {}
        help_text = ", ".join(choices.get(name.strip("-"), [f"default: {default}"]))
        parser.add_argument(name, type=kind, default=default, help=help_text, **number)
    args = parser.parse_args()
    for name, allowed in choices.items():
        words = getattr(args, name)
        if unknown := {*(words if isinstance(words, list) else [words])} - {*allowed}:
            parser.error(f"{name}: not {', '.join(unknown)}, but of {', '.join(allowed)}")
    return args


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the time of a benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def machine(threads: int = NUM_THREADS) -> str:
    """The processor, its cores and how busy they are."""
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads, load before "
        f"{os.getloadavg()[0]:.1f}"
    )


def shards() -> list[str]:
    """The training shards of real text, of which $RECALLKIT_TEST_DATA names the folder."""
    folder = Path(os.environ["RECALLKIT_TEST_DATA"]) / "corpus"
    return [str(path) for path in sorted(folder.glob("train-0*.jsonl.zst"))]


def tokenizer_file() -> str:
    """GPT-2's tokenizer there."""
    return str(Path(os.environ["RECALLKIT_TEST_DATA"]) / "tokenizers" / "gpt2.json")


# ------------------------------------------------------------------------------------------------------------ measuring


class Run(NamedTuple):
    """One run of a method."""

    seconds: float
    megabytes: float = math.nan
    """At the peak, beyond what the process had before; NaN if it is not measured."""
    answers: Sequence[Any] = ()
    """What is the same for all methods, if they compute the same."""


def memory_kb(field: str) -> int:
    """This process's memory: VmRSS now, VmHWM at its peak. (getrusage's peak would carry the
    parent's over.)"""
    return int(Path("/proc/self/status").read_text().partition(f"{field}:")[2].split()[0])


def timed(
    call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter
) -> tuple[Run, Any]:
    """A run of a call, without answers; and its result."""
    # the system's record of the peak starts again here
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_kb("VmRSS")
    begin = clock()
    result = call()
    seconds = clock() - begin
    return Run(seconds, (memory_kb("VmHWM") - before) / 1000), result


def clock_of(device: str, threads: int = 1) -> Callable[[], float]:
    """The processor's seconds on one thread, which other work on the machine changes less; else
    those of the wall."""
    return time.process_time if device == "cpu" and threads == 1 else time.perf_counter


def apart(function: Callable[..., Any], *arguments: Any) -> Run:
    """The run that a function of a benchmark returns, in a fresh process."""
    module = f"tests.benchmarks.{Path(inspect.getfile(function)).stem}"
    program = _PROGRAM.format(root=str(ROOT), module=module, name=function.__name__)
    command = [sys.executable, "-c", program, json.dumps(arguments, default=str)]
    variables = ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(variables, str(NUM_THREADS))}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return Run(*json.loads(done.stdout.splitlines()[-1]))


def in_turn(
    names: Iterable[str], repeats: int, measure: Callable[[str], Any]
) -> dict[str, list[Any]]:
    """Measurements by name, `repeats` of all in turn, so that a machine's slow moments meet all."""
    measurements: dict[str, list[Any]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, rows in measurements.items():
            rows.append(measure(name))
    return measurements


def compare(
    title: str,
    methods: Sequence[str],
    measure: Callable[[str], Run],
    *,
    repeats: int,
    work: float = 1.0,
    unit: str = "s",
    stage: str = "",
    targets: Mapping[str, float] | None = None,
    may_differ: bool = False,
) -> None:
    """Prints a table of methods in turn, ours first, and the row of `stage` beside the fastest
    other.

    Ratios are those within a round, above 1 ours is faster. Rates are `work` in a second; with the
    unit s seconds are printed. `targets`: the least ratio by method. Raises AssertionError for
    answers that are not ours unless they `may_differ`; the table then says how many are the same.
    """
    runs = in_turn(methods, repeats, measure)
    ours, *others = methods
    expected = runs[ours][0].answers
    print(f"\n{title}\n")
    print(markdown(["method", unit, "range", "MB", "ours/its", "range", "same"], is_header=True))
    ratios, figures = {}, {}
    for name, rows in runs.items():
        pairs = zip(runs[ours], rows, strict=True)
        ratios[name] = [its.seconds / mine.seconds for mine, its in pairs]
        seconds = [run.seconds for run in rows]
        rates = seconds if unit == "s" else [work / taken for taken in seconds]
        figures[name] = statistics.median(rates)
        same = sum(a == b for a, b in zip(expected, rows[0].answers, strict=True))
        if not may_differ:
            assert all(run.answers == expected for run in rows), f"{name} has other results"
        megabytes = statistics.median(run.megabytes for run in rows)
        memory = "–" if math.isnan(megabytes) else f"{megabytes:,.0f}"
        cells = [name, spread(rates), memory, spread(ratios[name]), f"{same} of {len(expected)}"]
        print(markdown(cells), flush=True)
    best = min(others, key=lambda name: statistics.median(ratios[name]))
    if stage:
        ratio = statistics.median(ratios[best])
        print_stage(
            stage,
            best,
            figures[ours],
            figures[best],
            unit,
            target=(targets or {}).get(best),
            ratio=ratio,
        )


def compare_calls(
    title: str,
    calls: Mapping[str, Callable[[], Any]],
    *,
    clock: Callable[[], float] = time.perf_counter,
    **options: Any,
) -> None:
    """`compare` of calls in this process, whose results, if any, are lists of answers.

    A call runs twice in a round, and the second run is timed: the first begins with whatever memory
    another left behind.
    """

    def measure(name: str) -> Run:
        answers = calls[name]()
        run, _ = timed(calls[name], clock)
        return Run(run.seconds, answers=() if answers is None else answers)

    compare(title, list(calls), measure, **options)


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


def time_call(
    call: Callable[[int], Any], device: torch.device, *, repeats: int, most_calls: int = MOST_CALLS
) -> Timing:
    """The time of a call, whose argument counts those of a sample, in `repeats` samples of at most
    `most_calls`.

    The first two calls, which may compile, are in no sample. What fails or takes too much memory
    has a `problem`.
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


def spread(values: Sequence[float]) -> str:
    """Median and range, in two cells."""
    figures = statistics.median(values), min(values), max(values)
    middle, low, high = (f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" for value in figures)
    return f"{middle} | {low} - {high}"


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
    """Prints a row of that table: rates or, where `unit` is s, seconds. Above a ratio of 1, or a
    median of rounds, ours is faster."""
    speedup = ratio or (theirs / ours if unit == "s" else ours / theirs)
    met = "–" if target is None else f"{target:.2g}: {'met' if speedup >= target else '**missed**'}"
    rates = [
        f"{item:,.3f}" if item < 10 else f"{item:,.1f}" if item < 100 else f"{item:,.0f}"
        for item in (ours, theirs)
    ]
    print(
        f"{STAGE}| {stage} | {rates[0]} {unit} | {peer}: {rates[1]} {unit} | {speedup:.3g} | "
        f"{met} |"
    )
