"""Whole models with random weights, of the zoo at a given size or the papers' presets: scoring, reading a prompt, generating.

The last two are the columns of Based's table 1 (arXiv 2402.18668).
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from recallkit import registry
from recallkit.display.cells import abbreviate
from recallkit.display.tables import Table
from recallkit.errors import UserError
from recallkit.models import presets, zoo
from recallkit.models.generation import generate
from recallkit.models.language_model import LanguageModel
from recallkit.models.native_model import NativeModel
from recallkit.quiet_transformers import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import polars as pl

PROMPT_OF_GENERATION = 16
"""Ids that are read before generating: few, so that the time is spent in the steps."""
BENCHMARKS = ("scoring", "prefill", "generation")


@dataclass(frozen=True, slots=True)
class Workload:
    """What each model does."""

    size: str = zoo.SHIPPED_SIZE
    """One of `zoo.SIZES`; presets have their own."""
    prompt: int = 1024
    """Ids of the prompt, read at once by one row."""
    batch: int = 8
    """Rows that generate together, and that are scored together."""
    new: int = 32
    """Ids that each row generates."""
    repeats: int = 3
    """Samples of each time."""
    paper: bool = False
    """Whether prompts and new ids are as long as in Based's table 1."""

    def of(self, name: str) -> Workload:
        """That of one model: in the paper prompts have 16,384 ids for models of 360M parameters, else 4,096, and 2,048 ids are new."""
        return replace(self, prompt=16_384 if self.label(name).endswith("360m") else 4096, new=2048) if self.paper else self

    def label(self, name: str) -> str:
        """A model's name in the results: a preset's own, or an architecture of the zoo with its size."""
        return name if name in presets.PRESETS else f"{name} {self.size}"


def choose_work(device: torch.device, *, quick: bool = False, paper: bool = False, **given: Any) -> Workload:
    """The fields of `Workload` that are given (not None), the others as is usual on the device.

    On a GPU those are models of 360M parameters and prompts of 4,096 ids, on CPU about two minutes of work.
    Raises UserError for an unknown size, and where `paper` and a length are given.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    if paper and (quick or not chosen.keys().isdisjoint(("prompt", "new"))):
        raise UserError("it sets the lengths of prompts and of new tokens", where="--paper", remedy="leave out --prompt, --new and --quick")
    usual = Workload("360m", 4096, 128, 128) if device.type == "cuda" else Workload()
    if quick:
        usual = Workload(prompt=256, new=8, repeats=1)
    work = replace(usual, paper=paper, **chosen)
    registry.look_up(zoo.SIZES, work.size, "size")
    return work


def choose_models(names: Sequence[str]) -> tuple[str, ...]:
    """Architectures of the zoo and presets by name, in the order of their tables; all architectures if none is named.

    `models` and `presets` mean all of a kind. Raises UserError for a name that is none of these.
    """
    every = (*zoo.ARCHITECTURES, *presets.PRESETS)
    known = {"models": tuple(zoo.ARCHITECTURES), "presets": tuple(presets.PRESETS)} | {name: (name,) for name in every}
    wanted = set(chain.from_iterable(registry.look_up(known, name, "model") for name in names or ["models"]))
    return tuple(name for name in every if name in wanted)


# --------------------------------------------------------------------------------------------------------------- timing

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


def time_call(call: Callable[[int], Any], device: torch.device, *, repeats: int) -> Timing:
    """The time of a call, whose argument counts those of a sample, in `repeats` samples.

    The first two calls, which may compile, are in no sample. What fails or takes too much memory has a `problem`.
    """
    try:
        call(0)
        length = round(SAMPLE_SECONDS[device.type] / max(_seconds(call, 1, device), 1e-7))
        length = max(1, min(MOST_CALLS, length))
        samples = [_seconds(call, length, device) / length for _ in range(repeats)]
    except Exception as error:  # noqa: BLE001  a library's error is reported in its row; the others are still measured
        return Timing(problem=problem_of(error))
    return Timing(statistics.median(samples), min(samples), max(samples))


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


# -------------------------------------------------------------------------------------------------------------- results


@dataclass(frozen=True, slots=True)
class Row:
    """One task of one model."""

    benchmark: str
    """One of `BENCHMARKS`."""
    size: dict[str, int]
    """Rows b, ids n or new ids."""
    model: str
    timing: Timing
    num_tokens: int = 0
    """Of one call."""

    @property
    def size_text(self) -> str:
        """`b=16 n=4,096`."""
        return " ".join(f"{name}={value:,}" for name, value in self.size.items())

    @property
    def rate(self) -> float | None:
        """Tokens per millisecond; None where nothing was measured."""
        return None if self.timing.problem else self.num_tokens / self.timing.median / 1e3

    def to_json(self) -> dict[str, Any]:
        """With null where nothing was measured; seconds are of one call, the median, the fastest and the slowest."""
        timing = self.timing
        seconds = {"seconds": timing.median, "fastest": timing.fastest, "slowest": timing.slowest}
        measured = {name: None if timing.problem else value for name, value in seconds.items()}
        named = {"benchmark": self.benchmark, "size": self.size, "model": self.model}
        return {**named, **measured, "rate": self.rate, "problem": timing.problem, "unit": "tokens/ms"}


@dataclass(frozen=True, slots=True)
class Results:
    """All rows, and the machine."""

    machine: dict[str, Any]
    rows: list[Row]

    def to_json(self) -> dict[str, Any]:
        """`machine`, `rows`."""
        return {"machine": self.machine, "rows": [row.to_json() for row in self.rows]}

    def frame(self) -> pl.DataFrame:
        """The measurements, a row each: the content of bench.parquet."""
        import polars as pl

        texts, numbers = ("benchmark", "size", "model", "unit", "problem"), ("seconds", "fastest", "slowest", "rate")
        schema = {**dict.fromkeys(texts, pl.String), **dict.fromkeys(numbers, pl.Float64)}
        return pl.DataFrame([{**row.to_json(), "size": row.size_text} for row in self.rows], schema=schema)

    def failure_line(self) -> str | None:
        """Which measurements failed for another reason than memory; None if none did."""
        failed = dict.fromkeys(f"{row.model}, {row.benchmark}" for row in self.rows if (row.timing.problem or "").startswith("failed"))
        return f"failed: {'; '.join(failed)}; the reason is given with each" if failed else None

    def write(self, folder: Path) -> list[Path]:
        """Writes bench.json and bench.parquet into a folder that `make_folder` made."""
        from recallkit.storage import artifacts

        table = self.frame().to_arrow()
        with artifacts.adding_members(folder, _FILES) as new:
            text = json.dumps(self.to_json(), indent=2, sort_keys=True, ensure_ascii=False)
            (new / _FILES[0]).write_text(text + "\n", encoding="utf-8")
            artifacts.write_parquet(new / _FILES[1], [table], table.schema, {"kind": "bench", "machine": self.machine})
        return [folder / name for name in _FILES]

    def answer(self) -> str:
        """Tokens per second of the fastest model in each task."""
        ran = sorted((row for row in self.rows if row.rate is not None), key=lambda row: row.rate or 0)
        fastest = {row.benchmark: f"{row.benchmark} {abbreviate(1000 * (row.rate or 0))} ({row.model})" for row in ran}
        return f"At most, in tokens/s: {', '.join(fastest.values())}." if fastest else "No model could be timed."

    def table(self) -> Table:
        """Tokens per millisecond of each model in each task, or why there are none; the workload below."""
        found: dict[str, dict[str, str]] = {}
        for row in self.rows:
            found.setdefault(row.model, {})[row.benchmark] = row.timing.problem or f"{row.rate:.3g}"
        machine = self.machine
        return Table(
            f"{machine['name']}, {machine['dtype']}, torch {machine['torch']}; random weights",
            ["model, tokens/ms", *BENCHMARKS],
            [[model, *(rates.get(name, "") for name in BENCHMARKS)] for model, rates in found.items()],
            caption="; ".join(dict.fromkeys(f"{row.benchmark}: {row.size_text}" for row in self.rows)),
        )


_FILES = ("bench.json", "bench.parquet")
"""The files of `Results.write`."""


def make_folder(folder: Path) -> None:
    """Creates the folder of `Results.write`, before anything is measured. Raises UserError or OSError where it could not be written."""
    from recallkit.storage import artifacts

    for name in _FILES:
        artifacts.check_replaceable(folder / name)
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError("it is not writable", where=folder, remedy="give another folder with -o")


# ------------------------------------------------------------------------------------------------------------ measuring


def describe_machine(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Device, precision and versions."""
    try:
        from triton import __version__ as triton
    except ImportError:
        triton = None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, threads: {torch.get_num_threads()}"
    versions = {"torch": torch.__version__, "triton": triton}
    return {"device": device.type, "name": name, "dtype": str(dtype).removeprefix("torch."), **versions}


def build(name: str, work: Workload, device: torch.device, dtype: torch.dtype) -> NativeModel:
    """The preset, or the zoo's architecture at this size, with weights as initialised for training. Raises UserError for unknown names."""
    context = max(work.prompt, PROMPT_OF_GENERATION + work.new)
    config = presets.preset(name, context) if name in presets.PRESETS else zoo.architecture(name, work.size, context)
    with torch.device(device):
        model = LanguageModel(config)
    return NativeModel(model.to(dtype).eval().requires_grad_(False), work.label(name), device)


def measure(name: str, work: Workload, device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    """Three rows: tokens per millisecond of `score`, of `forward` with a carried state, and of `generate`; one if it does not fit."""
    work = work.of(name)
    label = work.label(name)
    try:
        model = build(name, work, device, dtype)
        for benchmark, size, num_tokens, call in _tasks(model, work):
            yield Row(benchmark, size, label, time_call(call, device, repeats=work.repeats), num_tokens)
    except (MemoryError, RuntimeError) as error:  # a model may not fit in memory where the following ones do
        if (problem := problem_of(error)) != OUT_OF_MEMORY:
            raise
        yield Row("scoring", {"b": work.batch}, label, Timing(problem=problem))


def _tasks(model: NativeModel, work: Workload) -> Iterator[tuple[str, dict[str, int], int, Callable[[int], Any]]]:
    """Name, size, tokens and work of each measurement."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, model.vocab_size, (work.batch, work.prompt + 1), dtype=np.uint32)
    length = min(work.prompt, max(128, work.prompt // work.batch))
    texts = np.ascontiguousarray(ids[:, : length + 1])
    offsets = np.arange(work.batch + 1) * (length + 1)
    yield "scoring", {"b": work.batch, "n": length}, work.batch * length, lambda _: model.score(texts.ravel(), offsets)

    prompt = torch.tensor(ids[:1, : work.prompt].astype(np.int64), device=model.device)

    def prefill(_: int) -> None:
        with torch.inference_mode():
            model.forward(prompt, carry=True)

    yield "prefill", {"b": 1, "n": work.prompt}, work.prompt, prefill

    prompts = list(ids[:, :PROMPT_OF_GENERATION])
    nothing = [np.empty(0, np.uint32)] * work.batch

    def step_on(_: int) -> None:
        generate(model, prompts, nothing, work.new, lambda number, made: False)

    yield "generation", {"b": work.batch, "new": work.new}, work.batch * work.new, step_on
