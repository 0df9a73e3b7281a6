"""`train`: what decides a result and where it is; what is finished is reused, what was interrupted
resumed."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from recallkit import events
from recallkit.declarations import amount
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.models.devices import choose_device, describe_device, memory_errors
from recallkit.options import TextOptions
from recallkit.parallel import work
from recallkit.storage import schemas
from recallkit.storage.result import Question, folder_of
from recallkit.storage.timings import Timings
from recallkit.text.open_text import OpenText
from recallkit.training import recipes
from recallkit.training.processes import is_first, join_processes, leave_processes
from recallkit.training.runs import runs_of
from recallkit.training.sweep import SweepJob
from recallkit.training.tables import TradeoffTables, TrainingTables, make_tables
from recallkit.training.text import TextRun

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recallkit.options import SweepOptions, TextTrainingOptions
    from recallkit.training.runs import Run


def train_text(
    model: str,
    text: TextOptions,
    options: TextTrainingOptions,
    out: Path,
    *,
    device: str = "auto",
    force: bool = False,
) -> TrainingTables:
    """Trains the model of that name, or resumes; writes checkpoints `out`/checkpoint-STEP and the
    curve.

    Under torchrun every process calls it, and the first one writes. Raises UserError for what a
    user can correct.
    """
    trained = recipes.find(model, options)
    settings = {one.name: getattr(text, one.name) for one in fields(TextOptions) if one.init}
    settings |= {"boundary": "pack", "limit_tokens": options.tokens}
    opened = OpenText(TextOptions(**settings))
    config = replace(trained.config, vocab_size=opened.tokenizer.vocab_size)
    trained = trained._replace(config=config)
    torch_device = join_processes(choose_device(device))
    identity = {
        "model": trained.name,
        "config": json.loads(json.dumps(config.identity())),
        "recipe": {**asdict(trained.recipe), "betas": list(trained.recipe.betas)},
        "seed": options.seed,
        "seq_len": trained.seq_len,
        "text": opened.identity(),
    }
    question = Question("training", TrainingTables, out, identity, force)
    result, every = question.result, amount(options.checkpoint_every)
    finished = result.finished()
    if finished and every not in (None, finished["checkpoint_every"]):
        problem = "the run is finished, and was not asked for these"
        remedy = "leave it out, or train again with --force"
        raise UserError(problem, where=f"--checkpoint-every {every:,}", remedy=remedy)
    if result.reused() is None:
        timings, part = Timings(), result.journal().part
        with result.journal() if is_first() else contextlib.nullcontext() as journal:
            run = TextRun(trained, options, opened, out, torch_device, part, journal, force=force)
            with timings.stage("training", resumed=run.step > 0) as stage, memory_errors():
                stage.amounts["tokens"] = run.train()
            if journal is not None:
                facts = {
                    "checkpoint_every": every,
                    "names": opened.facts()["names"],
                    "parameters": run.trainer.model.num_parameters(),
                    "num_steps": run.num_steps,
                    "tokens": run.tokens(run.num_steps),
                    "machine": describe_device(torch_device),
                }
                curve = schemas.frame_of("training/training", run.curve)
                question.write(TrainingTables(curve), facts, timings)
                journal.finish()
    leave_processes()
    return TrainingTables(schemas.read_frame(result.path))


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep and where it is written: `out`/runs has a file per run, `out`/sweeps/NAME its
    tables."""

    preset: str
    task: str
    runs: Sequence[Run]
    out: Path
    device: str = "auto"

    @property
    def job(self) -> SweepJob:
        """Its runs."""
        return SweepJob(self.runs, self.out / "runs", self.device)

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
        job, timings = self.job, Timings()
        if force:
            job.discard()
        missing = [place for place, run in enumerate(self.runs) if job.outcome(run) is None]
        if missing:
            job.check(missing)
            self._train(missing, workers, timings)
        else:
            events.note(
                f"all {len(self.runs)} runs are in {job.folder}: reused (--force makes them again)",
            )
        outcomes = [(run, job.outcome(run) or {}) for run in self.runs]
        machines = sorted({str(outcome["machine"]) for _, outcome in outcomes})
        tables = make_tables(outcomes)
        facts = {"task": self.task, "machines": machines}
        question.write(tables, facts, timings)
        return tables

    def _train(self, missing: Sequence[int], workers: int, timings: Timings) -> None:
        """Trains the runs at these places."""
        number, total = len(self.runs), sum(run.steps for run in self.runs)
        left = sum(self.runs[place].steps for place in missing)
        done = total - left
        if done:
            events.note(f"{number - len(missing)} of {number} runs are done: resumes")
        working = work(self.job, missing, workers=workers)
        title = f"training {len(missing)} of {number} runs"
        with (
            timings.stage("training", resumed=done > 0) as stage,
            progress(title, total=total, unit="steps") as show,
            contextlib.closing(working),
        ):
            show(done)
            for part in working:
                done += part.num_tokens
                show(done)
            stage.amounts["steps"] = left


def plan_sweep(
    preset: str,
    task: str,
    options: SweepOptions,
    out: Path,
    device: str = "auto",
) -> Sweep:
    """The runs of a preset on a task with these options. Raises UserError for names and sizes that
    there are not."""
    return Sweep(preset, task, runs_of(preset, task, options), out, device)
