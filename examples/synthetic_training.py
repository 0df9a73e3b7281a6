"""The common part of the examples that train on synthetic tasks: training, sweeps of runs, tables and figures.

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
import math
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from recallkit.errors import UserError
from recallkit.models.architecture import ArchitectureConfig
from recallkit.models.language_model import LanguageModel
from recallkit.storage.artifacts import replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from recallkit.models.architecture import LayerConfig

EMBEDDING_STD = 0.02
WEIGHT_DECAY = 0.1
WARM_UP_SHARE = 0.05
LONGEST_WARM_UP = 200
MEASURED_TOKENS = 1 << 16
"""Ids per batch when accuracy is measured."""
BYTES_PER_ELEMENT = 4
"""States are counted in float32, in which recurrences keep them even where products are in half precision."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, by convention of shells."""


# ------------------------------------------------------------------------------------------------------------- one run


class Examples(NamedTuple):
    """Sequences and questions about them: after a model has read up to and including a position, the answer is the next id."""

    ids: Tensor
    """(n, t) int64"""
    places: Tensor
    """(n, q) int64"""
    answers: Tensor
    """(n, q) int64"""

    def to(self, device: torch.device) -> Examples:
        """The same on a device."""
        return Examples(*(part.to(device) for part in self))

    def rows(self, chosen: Tensor | slice) -> Examples:
        """Some of the sequences."""
        return Examples(*(part[chosen] for part in self))


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained: AdamW, with linear warm-up and cosine decay to zero."""

    learning_rate: float
    num_steps: int
    batch: int
    seed: int
    stop_above: float
    """Accuracy on the test examples at which training ends early."""
    measured_every: int
    """Steps between two measurements of accuracy."""

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        warm_up = min(LONGEST_WARM_UP, max(1, round(WARM_UP_SHARE * self.num_steps)))
        return self.learning_rate * min((step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * step / self.num_steps))


class Measured(NamedTuple):
    """A model's results on examples: accuracy of its most likely answer, and mean NLL of the answers in nats."""

    accuracy: float
    loss_nats: float


def train(model: LanguageModel, training: Examples, test: Examples, recipe: Recipe) -> Iterator[tuple[int, Measured]]:
    """Trains to the end or to `stop_above`; returns the measurements with their steps, the last of them at the end.

    Examples are on the model's device. Each epoch reads them in another order, determined by the seed.
    """
    start(model)
    model.train()
    optimiser = torch.optim.AdamW(parameter_groups(model), lr=recipe.learning_rate, betas=(0.9, 0.98))
    for step, rows in zip(range(recipe.num_steps), batches(len(training.ids), recipe.batch, recipe.seed), strict=False):
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate(step)
        loss = answer_loss(model, training.rows(rows.to(training.ids.device)))
        extra = model.auxiliary_loss()
        (loss if extra is None else loss + extra).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        is_last = step + 1 == recipe.num_steps
        if is_last or (step + 1) % recipe.measured_every == 0:
            measured = measure(model, test)
            yield step + 1, measured
            if measured.accuracy > recipe.stop_above:
                return


def made_model(seed: int, vocab: int, width: int, layers: tuple[LayerConfig, ...], **options: Any) -> LanguageModel:
    """A model with random weights, the same for a seed. Raises UserError where its sizes are incompatible."""
    torch.manual_seed(seed)
    try:
        return LanguageModel(ArchitectureConfig(vocab, width, layers, **options))
    except ValueError as error:
        raise UserError(str(error), where=f"width {width}, layers of {layers[0].mixer}", remedy="choose other sizes") from error


@torch.no_grad()
def start(model: LanguageModel) -> None:
    """Small embeddings, since the head is tied to them."""
    nn.init.normal_(model.embedding.weight, std=EMBEDDING_STD)


def parameter_groups(model: LanguageModel) -> list[dict[str, Any]]:
    """Parameters with weight decay (matrices of linear layers) and without (everything else)."""
    matrices = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    chosen = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    return [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": rest, "weight_decay": 0.0}]


def batches(num_examples: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Row indices of batches, endlessly: every example once per epoch, except those that do not fill a batch."""
    if batch > num_examples:
        raise UserError(f"{batch:,} is more than {num_examples:,} examples", where="--batch", remedy="choose a smaller one")
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(num_examples, generator=generator)
        yield from order[: num_examples - num_examples % batch].split(batch)


def answer_loss(model: LanguageModel, some: Examples) -> Tensor:
    """Mean NLL of the answers in nats, a scalar."""
    return functional.cross_entropy(answer_logits(model, some).flatten(0, 1), some.answers.flatten())


def answer_logits(model: LanguageModel, some: Examples) -> Tensor:
    """(n, q, vocab) float32, at the questions' positions only: the head is most of a small model's work."""
    with torch.autocast("cuda", torch.bfloat16, enabled=some.ids.is_cuda):
        hidden = model.hidden(some.ids)
        asked = hidden.gather(1, some.places[..., None].expand(-1, -1, hidden.shape[-1]))
        return functional.linear(asked, model.head_weight).float()


@torch.no_grad()
def measure(model: LanguageModel, test: Examples) -> Measured:
    """Accuracy and loss on all of the test examples."""
    model.eval()
    right, nll = 0.0, 0.0
    size = max(1, MEASURED_TOKENS // test.ids.shape[1])
    for rows in torch.arange(len(test.ids), device=test.ids.device).split(size):
        some = test.rows(rows)
        logits = answer_logits(model, some)
        right += float((logits.argmax(-1) == some.answers).sum())
        nll += float(functional.cross_entropy(logits.flatten(0, 1), some.answers.flatten(), reduction="sum"))
    model.train()
    return Measured(right / test.answers.numel(), nll / test.answers.numel())


def perform(model: LanguageModel, training: Examples, test: Examples, recipe: Recipe, device: torch.device) -> dict[str, Any]:
    """Trains a new model, and returns the outcome: parameters, accuracy, loss, steps, seconds, curve, machine."""
    model.to(device)
    begun, curve = time.monotonic(), []
    try:
        for step, measured in train(model, training.to(device), test.to(device), recipe):
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


def machine(device: torch.device) -> str:
    """The GPU, or the processor and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor() or "CPU")
    return f"{name}, threads: {torch.get_num_threads()}"


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
    from recallkit.display.chart_theme import save_figures

    for path in save_figures(make(runs), folder):
        print(path, file=sys.stderr)


# ----------------------------------------------------------------------------------------------------- the command line


class Task(NamedTuple):
    """What distinguishes one example script from the other."""

    name: str
    jobs_of: Callable[[argparse.Namespace], list[Any]]
    work: Callable[[Any, torch.device], dict[str, Any]]
    show: Callable[[list[dict[str, Any]]], None]
    figures_of: Callable[[list[dict[str, Any]]], list[Any]]


def parser_of(doc: str | None, out: str) -> argparse.ArgumentParser:
    """The options of both examples. Defaults follow from --full, or are small."""
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
