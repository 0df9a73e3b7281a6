"""Throughput of whole models with random weights: scoring, reading prompts, generating; and the protocols of Based (arXiv 2402.18668)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from recallkit import registry
from recallkit.bench.results import Results, make_row
from recallkit.bench.timing import MOST_CALLS, OUT_OF_MEMORY, Timing, describe_machine, problem_of, time_call
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.models import presets, zoo
from recallkit.models.generation import generate
from recallkit.models.language_model import LanguageModel
from recallkit.models.native_model import NativeModel
from recallkit.storage import artifacts
from recallkit.storage.result import Result
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from recallkit.bench.results import Row

START = 2
"""Ids before generation, which has no prefill (6.2): as few as a model of any kind continues."""
BMM, LARGEST_ON_CPU = "torch.bmm", 256


@dataclass(frozen=True, slots=True)
class Workload:
    """What each model does: every task at every size."""

    size: str = zoo.SHIPPED_SIZE
    """One of `zoo.SIZES`; presets have their own."""
    prompts: tuple[int, ...] = (1024,)
    """Ids of the texts that are scored, and read as prompts; none: those of Table 1."""
    prompt_rows: int = 2
    """Rows of such a text."""
    batches: tuple[int, ...] = (8,)
    """Rows that generate together; matrices that are multiplied together."""
    new: int = 32
    """Ids that each row generates."""
    repeats: int = 3
    """Samples of each time."""
    tasks: tuple[str, ...] = ("scoring", "prefill", "generation")
    models: tuple[str, ...] = tuple(zoo.ARCHITECTURES)
    tiles: tuple[int, ...] = ()
    """Sides of the matrices."""

    def cases(self, label: str) -> list[tuple[str, dict[str, int]]]:
        """Tasks of one model with their sizes, rising: rows b, ids n or new ids."""
        prompts = self.prompts or ((16_384,) if label.endswith("360m") else (4096,))
        texts = [{"b": self.prompt_rows, "n": n} for n in prompts]
        sizes = {
            "scoring": texts,
            "prefill": texts,
            "generation": [{"b": b, "new": self.new} for b in self.batches],
            "gemm": [{"b": b, "n": n} for b in self.batches for n in self.tiles],
        }
        return [(task, size) for task in self.tasks for size in sizes[task]]

    def label(self, name: str) -> str:
        """A model's name in the results: an architecture of the zoo has its size behind it."""
        return f"{name} {self.size}" if name in zoo.ARCHITECTURES else name


_ON_GPU = Workload("360m", (4096,), batches=(128,), new=128)
_OF_BASED = Workload(
    batches=(128,),
    repeats=20,
    tasks=("prefill", "generation"),
    models=tuple(f"{name}-{size}" for size in ("1.3b", "360m") for name in ("transformer++", "based", "mamba")),
)
"""The rows of Table 1 with rates. 6.2 and Figure 4 have 2 rows of prompts, 128 that generate, averages of 20 repetitions."""
PROTOCOLS = {
    # Its caption: prompts of 4,096 ids, 16,384 for 360M parameters, 2,048 new ones; the same speed-up of 24 is elsewhere that of 1,024.
    "table-1": replace(_OF_BASED, prompts=(), new=2048),
    # Its caption has 2 rows and 1,024 new ids. The values on the axes are in no text: these include 6.2's 4,096 and 128.
    "figure-4": replace(_OF_BASED, prompts=tuple(1 << k for k in range(10, 16)), batches=tuple(1 << k for k in range(10)), new=1024),
    # Left: its caption has 512 matrices; the sides, bfloat16 and 100 calls are those of gemm_micro.py, published with the authors' code.
    "figure-1": Workload(
        batches=(512,),
        repeats=100,
        tasks=("gemm",),
        models=(BMM,),
        tiles=(1, 4, 8, 16, 24, 32, 48, 64, 128, 256, 512, 1024, 2048, 4096),
    ),
}


def choose_work(device: torch.device, names: Sequence[str], paper: str | None = None, **given: Any) -> Workload:
    """The fields of `Workload` that are given (not None), the others as in the paper or else as is usual on the device.

    `names` are architectures of the zoo and presets; `models` and `presets` mean all of a kind. Raises UserError for unknown ones.
    """
    work = PROTOCOLS[paper] if paper else _ON_GPU if device.type == "cuda" else Workload()
    chosen: dict[str, Any] = {
        name: tuple(sorted(set(value))) if isinstance(value, list) else value for name, value in given.items() if value
    }
    if names and work.tiles:
        raise UserError("it multiplies matrices", where=f"--paper {paper}", remedy="name no model")
    if names:
        every = (*zoo.ARCHITECTURES, *presets.PRESETS)
        known = {"models": tuple(zoo.ARCHITECTURES), "presets": tuple(presets.PRESETS)} | {name: (name,) for name in every}
        wanted = set(chain.from_iterable(registry.look_up(known, name, "model") for name in names))
        chosen["models"] = tuple(name for name in every if name in wanted)
    if device.type != "cuda":
        chosen["tiles"] = tuple(tile for tile in work.tiles if tile <= LARGEST_ON_CPU)
    work = replace(work, **chosen)
    registry.look_up(zoo.SIZES, work.size, "size")
    return work


def run(work: Workload, device: torch.device, dtype: torch.dtype, folder: Path | None = None, *, force: bool = False) -> Results:
    """Measures; with a folder writes bench.parquet and its list bench.json, resumes after each measurement, and reuses what is complete."""
    import polars as pl

    found = Results(describe_machine(device, dtype), [])
    if folder is None:
        found.rows.extend(_measure_all(work, device, dtype, []))
        return found
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(work).items()}
    result = Result(folder / "bench.parquet", "bench", {"machine": found.machine, **given}, force=force)
    if result.reused() is not None:
        return Results(found.machine, pl.read_parquet(result.path, glob=False).to_dicts())
    with result.journal() as journal:
        found.rows.extend(journal.state.get("rows", []))
        journal.note_resumed(len(found.rows), "measurements")
        timings = Timings(device.type)
        with timings.stage("measuring", resumed=journal.resumed):
            for number, row in enumerate(_measure_all(work, device, dtype, list(found.rows))):
                if number >= len(found.rows):
                    found.rows.append(row)
                    journal.commit({"rows": found.rows})
        with result.writing(result.stamp(), timings) as new:
            table = found.frame().to_arrow()
            artifacts.write_parquet(new / result.path.name, [table], table.schema, result.stamp())
        journal.finish()
    return found


def _measure_all(work: Workload, device: torch.device, dtype: torch.dtype, done: Sequence[Row]) -> Iterator[Row]:
    """The rows of all models in turn; the first of them are `done`."""
    kept, total = iter(done), sum(len(work.cases(work.label(name))) for name in work.models)
    with progress("measuring", total=total, unit="measurements") as advance:
        for number, row in enumerate(chain.from_iterable(measure(name, work, device, dtype, kept) for name in work.models), 1):
            yield row
            advance(number)


def measure(name: str, work: Workload, device: torch.device, dtype: torch.dtype, kept: Iterator[Row]) -> Iterator[Row]:
    """A row of each task and size of one model, first those `kept`. What does not fit in memory is the last of its task."""
    label, model = work.label(name), None
    full: set[str] = set()
    for task, size in work.cases(label):
        if task in full:
            continue
        if (row := next(kept, None)) is None:
            try:
                model = model or (None if task == "gemm" else build(name, work, device, dtype))
                # Of products one at a time, as gemm_micro.py has it: what a launch takes counts.
                most = 1 if task == "gemm" else MOST_CALLS
                timing = time_call(_call(task, size, model, device, dtype), device, repeats=work.repeats, most_calls=most)
            except (MemoryError, RuntimeError) as error:
                if (problem := problem_of(error)) != OUT_OF_MEMORY:
                    raise
                timing = Timing(problem=problem)
            row = make_row(task, label, size, timing, work.repeats)
        if row["problem"] == OUT_OF_MEMORY:
            full.add(task)
        yield row


def build(name: str, work: Workload, device: torch.device, dtype: torch.dtype) -> NativeModel:
    """The preset, or the zoo's architecture at this size, with weights as initialised for training. Raises UserError for unknown names."""
    context = max(max(size.get("n", 0), START + size.get("new", 0)) for _, size in work.cases(work.label(name)))
    config = presets.preset(name, context) if name in presets.PRESETS else zoo.architecture(name, work.size, context)
    with torch.device(device):
        model = LanguageModel(config)
    return NativeModel(model.to(dtype).eval().requires_grad_(False), work.label(name), device)


def _call(task: str, size: dict[str, int], model: Any, device: torch.device, dtype: torch.dtype) -> Callable[[int], Any]:
    """The work of a measurement."""
    rows = size["b"]
    if task == "gemm":
        left, right = (torch.randn(rows, size["n"], size["n"], device=device, dtype=dtype) for _ in range(2))
        return lambda _: torch.bmm(left, right)
    ids = np.random.default_rng(0).integers(0, model.vocab_size, (rows, size.get("n", START - 1) + 1), dtype=np.uint32)
    if task == "scoring":
        return lambda _: model.score(ids.ravel(), np.arange(rows + 1) * ids.shape[1])
    if task == "generation":
        nothing = [np.empty(0, np.uint32)] * rows
        return lambda _: generate(model, list(ids), nothing, size["new"], lambda number, made: False)
    prompt = torch.tensor(ids[:, 1:].astype(np.int64), device=device)

    def prefill(_: int) -> None:
        with torch.inference_mode():
            model.forward(prompt, carry=True)

    return prefill
