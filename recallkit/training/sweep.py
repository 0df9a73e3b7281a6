"""The runs of a sweep as a job, in one process or several: each run's outcome is a file of its own,
so that a sweep can be stopped at any time."""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from recallkit.config import VERSION
from recallkit.errors import UserError
from recallkit.models.devices import choose_device, describe_device
from recallkit.parallel.job import Done
from recallkit.storage import artifacts
from recallkit.storage.given_files import check_regular
from recallkit.storage.records import RunOutcome, check_record
from recallkit.synthetic.tasks import NOT_ASKED, make_examples
from recallkit.training.loop import BYTES_PER_ELEMENT, Recipe, Trainer, batches, measure, new_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from recallkit.parallel.job import WorkerSlot
    from recallkit.synthetic.tasks import Examples
    from recallkit.training.loop import Measured
    from recallkit.training.runs import Run, Task

STOP_ABOVE = 0.99
"""A run ends at this mean accuracy of the tests, as in Zoology's code."""


@dataclass(frozen=True, slots=True)
class SweepJob:
    """The job of `recallkit.parallel` whose items are indices of `runs`, each on a GPU of its own
    if there is one. `folder` has a file per run."""

    runs: Sequence[Run]
    folder: Path
    device: str = "auto"

    doing: ClassVar[str] = "training"
    where: ClassVar[str] = "train"
    remedy: ClassVar[str] = "give fewer --workers or a smaller --batch"
    max_items_per_task: ClassVar[int] = 1

    @property
    def prefers_gpu(self) -> bool:
        """Whether a GPU would be used."""
        return self.device != "cpu"

    def open(self, slot: WorkerSlot | None = None) -> SweepJob:
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
        device, begin, done = choose_device(self.device), time.monotonic(), 0
        # Zoology's E.2; cosine decay and clipping are of its code.
        recipe = Recipe(run.learning_rate, 0.0, warm_up=0.1, betas=(0.9, 0.98), batch=run.batch)
        model = new_model(run.seed, run.config).to(device)
        training, test = examples_of(run.task)
        trainer, curve = Trainer(model, recipe), []
        turns = batches([len(examples.ids) for examples in training], run.batch, run.seed)
        for step, (place, rows) in zip(range(1, run.steps + 1), turns, strict=False):
            examples, share = training[place], recipe.share(step - 1, run.steps)
            trainer.step(examples.ids[rows], examples.targets[rows], share)
            if step < run.steps and step % run.measured_every:
                continue
            results = [measure(model, examples) for examples in test]
            accuracy = sum(result.accuracy for result in results) / len(results)
            loss_nats = sum(result.loss_nats for result in results) / len(results)
            curve.append([step, round(accuracy, 4), round(loss_nats, 4)])
            yield step - done
            done = step
            if accuracy > STOP_ABOVE:
                break
        longest = max(part.length for part in run.task.test)
        outcome = {
            "recallkit_version": VERSION,
            **run.identity(),
            "parameters": model.num_parameters(),
            "state_bytes": BYTES_PER_ELEMENT * model.state_size(longest),
            "accuracy": accuracy,
            "loss_nats": loss_nats,
            "by_distance": list(map(by_distance, results, test)),
            "num_steps": done,
            "curve": curve,
            "machine": describe_device(device),
            "seconds": round(time.monotonic() - begin, 1),
        }
        with artifacts.adding(self.path(run), "a run") as path:
            artifacts.write_json(path, outcome)
        yield run.steps - done

    def path(self, run: Run) -> Path:
        """The file of a run's outcome."""
        return self.folder / f"{run.digest}.json"

    def outcome(self, run: Run) -> dict[str, Any] | None:
        """The outcome of a run; None if it is to be made. Raises UserError for a damaged file."""
        path = self.path(run)
        check_regular(path)
        try:
            if not path.exists():
                return None
            outcome = artifacts.read_json(path)
            check_record(outcome, path, RunOutcome)
            return outcome
        except UserError as error:
            problem = "damaged, or not the outcome of this run"
            remedy = "move it away: the same command makes it again"
            raise UserError(problem, where=path, remedy=remedy) from error

    def discard(self) -> None:
        """Removes the files of all runs. Raises UserError where one of another program is in the
        way."""
        paths = [self.path(run) for run in self.runs]
        names = [path.name for path in paths]
        artifacts.check_addable(self.folder / artifacts.MANIFEST, names, "a run")
        for path in paths:
            path.unlink(missing_ok=True)

    def check(self, places: Sequence[int]) -> None:
        """Makes a model of each size, so that what does not fit is said before hours of work."""
        choose_device(self.device)
        runs = {(str(run.config), run.task): run for run in map(self.runs.__getitem__, places)}
        for run in runs.values():
            _check_questions(new_model(run.seed, run.config).prefix, run.task)


@functools.lru_cache(maxsize=1)
def examples_of(task: Task) -> tuple[list[Examples], list[Examples]]:
    """Training and test examples, made once for a task, each set with draws of its own. Raises
    UserError for what does not fit."""
    sets: list[Examples] = []
    parts = (*task.training, *task.test)
    for place, part in enumerate(parts):
        again = sum(other[:2] == part[:2] for other in parts[:place])
        # A seed for each shape, and where it comes again, as in a test on what was trained; torch
        # takes its lowest 32 bits.
        seed = ((part.length << 16) + part.pairs + 0x9E3779B1 * (2 * task.seed + again)) % (1 << 32)
        sizes = {"num": part.examples, "length": part.length, "pairs": part.pairs}
        options = {"vocab": task.vocab, "seed": seed, **dict(task.options)}
        sets.append(make_examples(task.name, **sizes, **options))
    return sets[: len(task.training)], sets[len(task.training) :]


def _check_questions(prefix: int, task: Task) -> None:
    """Raises UserError where a question is in a prefix, of which a model has seen what follows
    it."""
    if not prefix:
        return
    training, test = examples_of(task)
    questions = [(examples.targets != NOT_ASKED).nonzero()[:, 1] for examples in training + test]
    first = 1 + min(int(places.min()) for places in questions)
    if prefix > first:
        problem = f"a question is at id {first:,} of the prefix"
        problem = f"{problem}, where the model has seen what follows"
        remedy = f"give prefix={first} or less to --mixer-options"
        raise UserError(problem, where=f"prefix {prefix:,}", remedy=remedy)


def by_distance(result: Measured, test: Examples) -> list[tuple[int, int, int]]:
    """Of each bucket its largest distance, a power of two, the number of questions, and how many
    are right.

    Distances are those of `mqar`: the ids from where an answer stands to where it is to be given,
    behind its question.
    """
    distances = 1 + test.distances[test.targets != NOT_ASKED]
    powers = torch.frexp(distances - 0.5).exponent  # 1, 2, 3, 4, 5 -> 0, 1, 2, 2, 3
    numbers = torch.bincount(powers).tolist()
    right = torch.bincount(powers, result.right.double()).tolist()
    buckets = enumerate(zip(numbers, right, strict=True))
    return [(1 << power, number, int(known)) for power, (number, known) in buckets if number]


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
