"""All measurements of a run: ceilings of the device, operations and their peers, models."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from recallkit import registry
from recallkit.bench.cases import OPERATIONS
from recallkit.bench.models import Workload, measure_models, paper_workload
from recallkit.bench.operations import Setting, measure_case
from recallkit.bench.results import Results, describe_machine
from recallkit.bench.timing import measure_ceilings
from recallkit.display.chart_theme import SVG_HEAD
from recallkit.errors import UserError
from recallkit.models import presets, zoo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure; empty tuples for none of a kind."""

    operations: tuple[str, ...] = tuple(OPERATIONS)
    models: tuple[str, ...] = tuple(zoo.ARCHITECTURES)
    work: Workload = field(default_factory=Workload)
    repeats: int = 5
    quick: bool = False
    paper: bool = False
    """Whether models have the prompts and new ids of Based's table 1, see `paper_workload`."""


def chosen_options(
    device: torch.device, names: Sequence[str] = (), *, quick: bool = False, paper: bool = False, **given: Any
) -> BenchOptions:
    """The given options, with defaults for the device; `given` are `repeats` and fields of `Workload`, None where not given.

    On a GPU those are models of 360M parameters and prompts of 4,096 ids, on CPU about two minutes of work; `paper` sets the lengths of
    Based's table 1. `names` as in `split_names`. Raises UserError for unknown names, and where `paper` and a length are given.
    """
    usual = BenchOptions(work=Workload("360m", 4096, 128, 128), repeats=9) if device.type == "cuda" else BenchOptions()
    if quick:
        usual = replace(usual, work=Workload(prompt=256, new=8, repeats=1), repeats=1, quick=True)
    chosen = {name: value for name, value in given.items() if value is not None}
    if paper and (quick or not chosen.keys().isdisjoint(("prompt", "new"))):
        raise UserError("it sets the lengths of prompts and of new tokens", where="--paper", remedy="leave out --prompt, --new and --quick")
    repeats = chosen.pop("repeats", usual.repeats)
    operations, models = split_names(names)
    return replace(usual, operations=operations, models=models, repeats=repeats, paper=paper, work=replace(usual.work, **chosen))


def usual_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU, float32 on CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def split_names(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of operations and of models, separately: architectures of the zoo and presets. Where none is given, all but presets.

    `operations`, `models` and `presets` mean all of a kind. Raises UserError for a name that is none of these.
    """
    groups = {"operations": tuple(OPERATIONS), "models": tuple(zoo.ARCHITECTURES)}
    models = (*zoo.ARCHITECTURES, *presets.PRESETS)
    known = groups | {"presets": tuple(presets.PRESETS)} | {name: (name,) for name in (*OPERATIONS, *models)}
    wanted = set(chain.from_iterable(registry.look_up(known, name, "operation or model") for name in names or groups))
    return tuple(n for n in OPERATIONS if n in wanted), tuple(n for n in models if n in wanted)


def bench(options: BenchOptions, device: torch.device, dtype: torch.dtype, tell: Callable[[int], Any] = lambda _: None) -> Results:
    """Measures everything; `tell` is called with the numbers of operations (each size counts) and models that are done."""
    registry.look_up(zoo.SIZES, options.work.size, "size")
    ceilings = measure_ceilings(device, dtype)
    facts = {"copy_b_s": ceilings.copy, "matrix_flop_s": ceilings.matrix}
    results = Results({**describe_machine(device, dtype), **facts})
    setting = Setting(device, dtype, options.quick)
    done = 0
    for case in chain.from_iterable(OPERATIONS[name](setting) for name in options.operations):
        rows, verdicts = measure_case(case, setting, ceilings, options.repeats)
        results.rows.extend(rows)
        results.verdicts.extend(verdicts)
        tell(done := done + 1)
    for name in options.models:
        work = paper_workload(name, options.work) if options.paper else options.work
        results.rows.extend(measure_models([name], work, device, dtype))
        tell(done := done + 1)
    return results


def num_steps(options: BenchOptions, device: torch.device, dtype: torch.dtype) -> int:
    """The total in the last call of `tell`."""
    setting = Setting(device, dtype, options.quick)
    return sum(1 for name in options.operations for _ in OPERATIONS[name](setting)) + len(options.models)


_FILES = {"bench.json": b'{\n  "machine"', "bench.parquet": b"PAR1", "bench.svg": SVG_HEAD}
"""The files of `write_results`, and how each begins."""


def make_folder(folder: Path) -> None:
    """Creates the folder of `write_results`, before anything is measured. Raises UserError where its files could not be written."""
    from recallkit.storage import artifacts

    another = "give another folder with -o"
    if folder.exists() and not folder.is_dir():
        raise UserError("it is a file, not a folder", where=folder, remedy=another)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder cannot be made ({error.strerror})", where=folder, remedy=another) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError("it is not writable", where=folder, remedy=another)
    for name, beginning in _FILES.items():
        artifacts.check_replaceable(folder / name, beginning)


def measured_rows(results: Results) -> pa.Table:
    """The measurements as a table, a row each: the content of bench.parquet."""
    import pyarrow as pa

    rows = [{**row.to_json(), "size": row.size_text} for row in results.rows]
    texts, numbers = ("benchmark", "size", "implementation", "unit", "problem"), ("seconds", "fastest", "slowest", "rate", "share", "ratio")
    schema = pa.schema([*((name, pa.string()) for name in texts), *((name, pa.float64()) for name in numbers)])
    return pa.Table.from_pylist(rows, schema=schema)


def write_results(results: Results, folder: Path) -> list[Path]:
    """bench.json and bench.parquet, and a picture, bench.svg, where a size was varied -> the files.

    `folder` must exist: see `make_folder`.
    """
    from recallkit.bench.plot import draw
    from recallkit.storage import artifacts

    files = [folder / "bench.json", folder / "bench.parquet"]
    with artifacts.replacing(files[0]) as temporary:
        temporary.write_text(artifacts.json_text(results.to_json()), encoding="utf-8")
    table = measured_rows(results)
    artifacts.write_parquet(files[1], [table], table.schema, {"kind": "bench", "machine": results.machine})
    return [*files, folder / "bench.svg"] if draw(results, folder / "bench.svg") else files
