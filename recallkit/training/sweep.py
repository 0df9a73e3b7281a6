"""A sweep: every run that is not done yet is trained, in one process or several, and the tables of
all are written.

A run's outcome is a file of its own, so that a sweep can be stopped at any time.
"""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from recallkit import events
from recallkit.config import VERSION
from recallkit.declarations import parameters_of
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.models.devices import choose_device, describe_device
from recallkit.options import SweepOptions
from recallkit.parallel import work
from recallkit.parallel.job import Done
from recallkit.storage import artifacts
from recallkit.storage.given_files import check_regular
from recallkit.storage.records import RunOutcome, check_record
from recallkit.storage.result import Question, folder_of
from recallkit.storage.timings import Timings
from recallkit.synthetic.tasks import NOT_ASKED, make_examples
from recallkit.training.loop import BYTES_PER_ELEMENT, Recipe, Trainer, batches, made_model, measure
from recallkit.training.runs import runs_of
from recallkit.training.tables import TradeoffTables, make_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from recallkit.parallel.job import WorkerSlot
    from recallkit.synthetic.tasks import Examples
    from recallkit.training.runs import Run, Task

STOP_ABOVE = 0.99
"""A run ends at this mean accuracy of the tests, as in Zoology's code."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep and where it is written: `out`/runs has a file per run, `out`/sweeps/NAME its tables.

    It is the job of `recallkit.parallel` whose items are indices of `runs`, each on a GPU of its
    own if there is one.
    """

    preset: str
    task: str
    runs: Sequence[Run]
    out: Path
    device: str = "auto"
    choices: Mapping[str, Any] = field(default_factory=dict)
    """The options that differ from the preset, for the command that makes it again."""

    doing: ClassVar[str] = "training"
    where: ClassVar[str] = "train"
    remedy: ClassVar[str] = "give fewer --workers or a smaller --batch"
    max_items_per_task: ClassVar[int] = 1

    @property
    def folder(self) -> Path:
        """Of the tables: each sweep has its own."""
        return folder_of(self.out / "sweeps", [self.preset], self._identity())

    def _identity(self) -> dict[str, Any]:
        """What determines the tables."""
        return {"preset": self.preset, "runs": [run.identity() for run in self.runs]}

    def train(self, *, workers: int = 1, force: bool = False) -> TradeoffTables:
        """Trains what is missing and writes the tables. Raises UserError for what a user can
        correct."""
        question = Question("tradeoff", TradeoffTables, self.folder, self._identity())
        question.result.check_replaceable()
        if force:
            paths = [self._file(run) for run in self.runs]
            artifacts.check_addable(
                self.out / "runs" / artifacts.MANIFEST,
                [path.name for path in paths],
                "a run",
            )
            for path in paths:
                path.unlink(missing_ok=True)
        timings = Timings()
        if missing := [place for place, run in enumerate(self.runs) if self.outcome(run) is None]:
            choose_device(self.device)
            for run in {(str(run.config), run.task): run for run in (self.runs[place] for place in missing)}.values():
                _check_questions(
                    made_model(run.seed, run.config).prefix,
                    run.task,
                )  # what does not fit is said before hours of work
            total, left = (sum(self.runs[place].steps for place in places) for places in (range(len(self.runs)), missing))
            done = total - left
            if done:
                events.note(
                    f"{len(self.runs) - len(missing)} of {len(self.runs)} runs are done: resumes",
                )
            working = work(self, missing, workers=workers)
            showing = progress(
                f"training {len(missing)} of {len(self.runs)} runs",
                total=total,
                unit="steps",
            )
            with (
                timings.stage("training", resumed=done > 0) as stage,
                showing as show,
                contextlib.closing(working),
            ):
                show(done)
                for part in working:
                    done += part.num_tokens
                    show(done)
                stage.amounts["steps"] = left
        else:
            events.note(
                f"all {len(self.runs)} runs are in {self.out / 'runs'}: reused (--force makes them again)",
            )
        outcomes = [(run, self.outcome(run) or {}) for run in self.runs]
        tables, machines = (
            make_tables(outcomes),
            sorted({str(outcome["machine"]) for _, outcome in outcomes}),
        )
        question.write(
            tables,
            {"task": self.task, "choices": dict(self.choices), "machines": machines},
            timings,
        )
        return tables

    @property
    def prefers_gpu(self) -> bool:
        """Whether a GPU would be used."""
        return self.device != "cpu"

    def open(self, slot: WorkerSlot | None = None) -> Sweep:
        """Chooses a GPU by turns."""
        if slot is not None and self.device in ("auto", "cuda") and torch.cuda.is_available():
            return replace(self, device=f"cuda:{slot.place % torch.cuda.device_count()}")
        return self

    def run(self, items: Sequence[int]) -> Iterator[Done]:
        """Trains runs one after the other; reports steps at each measurement, and a run as whole
        when its file is on disk."""
        for item in items:
            with _one_thread():
                for steps in self.train_run(self.runs[item]):
                    yield Done(steps, is_whole=False)
            yield Done(0)

    def train_run(self, run: Run) -> Iterator[int]:
        """Trains a model and writes its outcome, whole or not at all; yields the steps done since
        the last time, in all `run.steps`.

        A batch is of one set of examples; each epoch reads them in another order.
        """
        device, begun, done = choose_device(self.device), time.monotonic(), 0
        # Zoology's E.2; cosine decay and clipping are of its code.
        recipe = Recipe(run.learning_rate, 0.0, warm_up=0.1, betas=(0.9, 0.98), batch=run.batch)
        model = made_model(run.seed, run.config).to(device)
        training, test = examples_of(run.task)
        trainer, curve = Trainer(model, recipe), []
        read = batches([len(some.ids) for some in training], run.batch, run.seed)
        for step, (part, rows) in zip(range(1, run.steps + 1), read, strict=False):
            trainer.step(
                training[part].ids[rows],
                training[part].targets[rows],
                recipe.share(step - 1, run.steps),
            )
            if step < run.steps and step % run.measured_every:
                continue
            measured = [measure(model, some) for some in test]
            accuracy, loss_nats = (sum(of_each) / len(measured) for of_each in list(zip(*measured, strict=True))[:2])
            curve.append([step, round(accuracy, 4), round(loss_nats, 4)])
            yield step - done
            done = step
            if accuracy > STOP_ABOVE:
                break
        outcome = {
            "recallkit_version": VERSION,
            **run.identity(),
            "parameters": model.num_parameters(),
            "state_bytes": BYTES_PER_ELEMENT * model.state_size(max(part.length for part in run.task.test)),
            "accuracy": accuracy,
            "loss_nats": loss_nats,
            "by_distance": [by_distance(each.right, some) for each, some in zip(measured, test, strict=True)],
            "num_steps": done,
            "curve": curve,
            "machine": describe_device(device),
            "seconds": round(time.monotonic() - begun, 1),
        }
        with artifacts.adding(self._file(run), "a run") as path:
            artifacts.write_json(path, outcome)
        yield run.steps - done

    def _file(self, run: Run) -> Path:
        return self.out / "runs" / f"{run.digest}.json"

    def outcome(self, run: Run) -> dict[str, Any] | None:
        """The outcome of a run; None if it is to be made. Raises UserError for a damaged file."""
        path = self._file(run)
        check_regular(path)
        try:
            if not path.exists():
                return None
            outcome = artifacts.read_json(path)
            check_record(outcome, path, RunOutcome)
            return outcome
        except UserError as error:
            problem = "damaged, or not the outcome of this run"
            raise UserError(
                problem,
                where=path,
                remedy="move it away: the same command makes it again",
            ) from error


def plan_sweep(
    preset: str,
    task: str,
    choices: SweepOptions,
    out: Path,
    device: str = "auto",
) -> Sweep:
    """The runs of a preset on a task with these choices. Raises UserError for names and sizes that
    there are not."""
    kept = {name: value for name, value in choices.not_usual().items() if name in parameters_of(SweepOptions)}
    return Sweep(preset, task, runs_of(preset, task, choices), out, device, kept)


@functools.lru_cache(maxsize=1)
def examples_of(task: Task) -> tuple[list[Examples], list[Examples]]:
    """Training and test examples, made once for a task, each set with draws of its own. Raises
    UserError for what does not fit."""
    made: list[Examples] = []
    parts = (*task.training, *task.test)
    for place, part in enumerate(parts):
        again = sum(other[:2] == part[:2] for other in parts[:place])
        # A seed for each shape, and where it comes again, as in a test on what was trained; torch
        # takes its lowest 32 bits.
        seed = ((part.length << 16) + part.pairs + 0x9E3779B1 * (2 * task.seed + again)) % (1 << 32)
        shape = {
            "num": part.examples,
            "length": part.length,
            "pairs": part.pairs,
            "vocab": task.vocab,
        }
        made.append(make_examples(task.name, **shape, seed=seed, **dict(task.options)))
    return made[: len(task.training)], made[len(task.training) :]


def _check_questions(prefix: int, task: Task) -> None:
    """Raises UserError where a question is in a prefix, of which a model has seen what follows
    it."""
    if not prefix:
        return
    first = 1 + min(int((some.targets != NOT_ASKED).nonzero()[:, 1].min()) for sets in examples_of(task) for some in sets)
    if prefix > first:
        problem = f"a question is at id {first:,} of the prefix, where the model has seen what follows"
        raise UserError(
            problem,
            where=f"prefix {prefix:,}",
            remedy=f"give prefix={first} or less to --mixer-options",
        )


def by_distance(right: torch.Tensor, test: Examples) -> list[tuple[int, int, int]]:
    """Of each bucket its largest distance, a power of two, the number of questions, and how many
    are right (q,), as `measure` says.

    Distances are those of `mqar`: the ids from where an answer stands to where it is to be given,
    behind its question.
    """
    distances = 1 + test.distances[test.targets != NOT_ASKED]
    powers = torch.frexp(distances - 0.5).exponent  # 1, 2, 3, 4, 5 -> 0, 1, 2, 2, 3
    asked, found = (torch.bincount(powers, weights).tolist() for weights in (None, right.double()))
    return [(1 << power, num, int(known)) for power, (num, known) in enumerate(zip(asked, found, strict=True)) if num]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One CPU thread: small models gain nothing from more, and sums in the last bit would depend on
    their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
