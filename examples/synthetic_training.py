"""What examples that train on synthetic tasks need beside `recallkit.training.loop`: sweeps of runs, tables and figures.

A run is determined by its job, a dataclass of all choices including the seed. A finished run is a file of its own, named by
a digest of its job, so that an interrupted sweep resumes where it was, and results of other choices are not reused.
It needs torch, numpy and what recallkit's models need; only drawing needs altair.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from recallkit.errors import UserError
from recallkit.storage.artifacts import replacing
from recallkit.training.loop import Examples, Recipe, machine, made_model, train

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recallkit.models.language_model import LanguageModel

__all__ = ["Examples", "Recipe", "Task", "best", "chosen", "made_model", "parser_of", "perform", "print_table", "run_example"]

INTERRUPTED = 130
"""Exit status after Ctrl-C, by convention of shells."""


# ------------------------------------------------------------------------------------------------------------- one run


def perform(model: LanguageModel, training: Examples, test: Examples, recipe: Recipe, device: torch.device) -> dict[str, Any]:
    """Trains a new model, and returns the outcome: parameters, accuracy, loss, steps, seconds, curve, machine."""
    model.to(device)
    begun, curve = time.monotonic(), []
    try:
        for step, (measured,) in train(model, [training.to(device)], [test.to(device)], recipe):
            curve.append([step, round(measured.accuracy, 4), round(measured.loss_nats, 4)])
            show_progress(f"{step:,} of {recipe.num_steps:,} steps, accuracy {measured.accuracy:.3f}, loss {measured.loss_nats:.3f}")
    finally:
        show_progress("")
    step, accuracy, loss = curve[-1]
    return {
        "parameters": model.num_parameters(),
        "accuracy": accuracy,
        "loss_nats": loss,
        "steps": step,
        "seconds": round(time.monotonic() - begun, 1),
        "curve": curve,
        "machine": machine(device),
    }


def show_progress(line: str) -> None:
    """Shows the progress of a run on the last line of a terminal; nothing where stderr is a file."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


# -------------------------------------------------------------------------------------------------------------- a sweep


def sweep(jobs: Sequence[Any], folder: Path, work: Callable[[Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """The outcome of every job, a dataclass each: those in `folder` are read, the others are trained and saved.

    Raises SystemExit on Ctrl-C: finished runs are kept, the current one starts again next time.
    """
    outcomes: list[dict[str, Any]] = []
    try:
        for number, job in enumerate(jobs, 1):
            path = folder / file_name(job)
            if not path.exists():
                outcome = {**dataclasses.asdict(job), **work(job)}
                write_json(path, outcome)
                said = f"accuracy {outcome['accuracy']:.3f}, loss {outcome['loss_nats']:.3f}, {outcome['seconds']:.0f} s"
                print(f"[{number}/{len(jobs)}] {slug(job)}: {said}", file=sys.stderr, flush=True)
            outcomes.append(json.loads(path.read_text()))
    except KeyboardInterrupt:
        print(f"\nstopped: {len(outcomes)} of {len(jobs)} runs are finished in {folder}; the same command resumes", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    return outcomes


def file_name(job: Any) -> str:
    """The file of a job's outcome, whose name depends on all choices."""
    chosen = json.dumps(dataclasses.asdict(job), sort_keys=True)
    return f"{slug(job).replace(chr(32), chr(95))}-{hashlib.blake2b(chosen.encode(), digest_size=6).hexdigest()}.json"


def slug(job: Any) -> str:
    """A readable name of a job: the values of its `NAMED` fields."""
    return "-".join(f"{getattr(job, name):g}" if isinstance(getattr(job, name), float) else f"{getattr(job, name)}" for name in job.NAMED)


def write_json(path: Path, value: Any) -> None:
    """Writes a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n")


def write_results(path: Path, task: str, runs: list[dict[str, Any]]) -> None:
    """The outcomes of a sweep in one file, without their curves: a line per run."""
    short = [json.dumps({name: value for name, value in run.items() if name != "curve"}) for run in runs]
    lines = ",\n  ".join(short)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(f'{{"task": "{task}", "torch": "{torch.__version__}", "runs": [\n  {lines}\n]}}\n')


def read_results(path: Path, task: str) -> list[dict[str, Any]]:
    """The runs of a file that `write_results` wrote. Raises UserError for any other file."""
    try:
        read = json.loads(path.read_text())
        runs: list[dict[str, Any]] = read["runs"]
        found = read["task"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"not the results of such a training ({error})", where=path, remedy="name a results.json") from error
    if found != task:
        raise UserError(f"results of {found}, not of {task}", where=path, remedy="give it to the other example")
    return runs


def best(runs: list[dict[str, Any]], *by: str) -> list[dict[str, Any]]:
    """For each value of `by`, the run with the highest accuracy (among equals, the lowest loss)."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in runs:
        key = tuple(run[name] for name in by)
        if key not in groups or (run["accuracy"], -run["loss_nats"]) > (groups[key]["accuracy"], -groups[key]["loss_nats"]):
            groups[key] = run
    return list(groups.values())


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in plain text, the first column left-aligned, for machines without rich."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    print(f"\n{title}\n")
    for row in (headers, ["-" * width for width in widths], *rows):
        first, *rest = row
        print("  ".join([first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]).rstrip())


def draw(make: Callable[[list[dict[str, Any]]], list[Any]], runs: list[dict[str, Any]], folder: Path, results: Path) -> None:
    """Writes the figures of the runs as SVG and PNG, or says how to draw them on a machine with altair."""
    try:
        for name in ("altair", "vl_convert"):
            importlib.import_module(name)
    except ModuleNotFoundError as missing:
        print(f"no pictures: {missing.name} is not installed here. Where it is installed: --draw {results.name}", file=sys.stderr)
        return
    from recallkit.display.figure_files import save_figures

    for path in save_figures(make(runs), folder):
        print(path, file=sys.stderr)


# ----------------------------------------------------------------------------------------------------- the command line


class Task(NamedTuple):
    """What distinguishes one example script from another."""

    name: str
    jobs_of: Callable[[argparse.Namespace], list[Any]]
    work: Callable[[Any, torch.device], dict[str, Any]]
    show: Callable[[list[dict[str, Any]]], None]
    figures_of: Callable[[list[dict[str, Any]]], list[Any]]


def parser_of(doc: str | None, out: str) -> argparse.ArgumentParser:
    """The options that such an example has. Defaults follow from --full, or are small."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the paper's sizes, for a machine with a GPU")
    parser.add_argument("--device", help="cuda where there is a GPU, else cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads: small models gain nothing from more")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rates", type=float, nargs="+")
    parser.add_argument("--batch", type=int, help="sequences a step")
    parser.add_argument("--steps", type=int, help="steps of a run that does not end early")
    parser.add_argument("--examples", type=int, help="training sequences")
    parser.add_argument("--test-examples", type=int, help="sequences for measuring accuracy")
    parser.add_argument("--measured-every", type=int, help="steps between two measurements")
    parser.add_argument("--stop-above", type=float, default=0.99, help="accuracy at which a run ends early")
    parser.add_argument("--out", type=Path, default=Path(out), help="folder of runs, results.json and pictures")
    parser.add_argument("--draw", type=Path, metavar="RESULTS.json", help="train nothing: table and pictures of these results")
    return parser


def chosen(args: argparse.Namespace, preset: dict[str, Any]) -> dict[str, Any]:
    """The preset, overridden by the command line."""
    return {name: value if getattr(args, name) is None else getattr(args, name) for name, value in preset.items()}


def run_example(parser: argparse.ArgumentParser, task: Task) -> None:
    """Trains what the command line asks for, or reads its results; prints the table and draws.

    Errors are one line with exit status 1, as in `recallkit`.
    """
    args = parser.parse_args()
    try:
        results = args.draw or args.out / "results.json"
        if not args.draw:
            device = device_of(args)
            write_results(results, task.name, sweep(task.jobs_of(args), args.out / "runs", lambda job: task.work(job, device)))
        runs = read_results(results, task.name)
        task.show(runs)
        draw(task.figures_of, runs, args.out, results)
    except UserError as error:
        raise SystemExit(str(error)) from error


def device_of(args: argparse.Namespace) -> torch.device:
    """Sets the number of CPU threads, and returns the requested device. Raises UserError where there is no such device."""
    torch.set_num_threads(max(1, args.threads))
    try:
        device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(str(error).splitlines()[0], where=f"--device {args.device}", remedy="choose cpu or cuda") from error
    return device
