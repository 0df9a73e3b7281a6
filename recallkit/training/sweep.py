"""A sweep: every run that is not done yet is trained, in one process or several, and the tables of all are written."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from recallkit import events
from recallkit.declarations import parameters_of
from recallkit.display.progress import progress
from recallkit.options import SweepOptions
from recallkit.parallel.job import Done
from recallkit.storage import artifacts
from recallkit.storage.result import Result, table_files
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from recallkit.parallel.job import WorkerSlot
    from recallkit.training.jobs import Job
    from recallkit.training.tables import TradeoffTables


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep and where it is written: `out`/runs has a file per run, `out`/sweeps/NAME.HASH its tables."""

    preset: str
    task: str
    jobs: Sequence[Job]
    out: Path
    choices: Mapping[str, Any] = field(default_factory=dict)
    """The options that differ from the preset, for the command that makes it again."""

    @property
    def folder(self) -> Path:
        """Of the tables: each sweep has its own."""
        lines = [[job.architecture.model, job.identity()] for job in self.jobs]
        return self.out / "sweeps" / f"{self.preset.replace(':', '-')}.{artifacts.digest_json(lines)[:8]}"

    def run(self, *, device: str = "auto", workers: int = 1, force: bool = False) -> tuple[TradeoffTables, Path]:
        """Trains what is missing and writes the tables; returns them with their folder. Raises UserError for what a user can correct."""
        from recallkit.models.devices import choose_device
        from recallkit.training.jobs import model_of, read_run
        from recallkit.training.tables import TradeoffTables, make_tables

        options = {"preset": self.preset, "runs": [job.identity() for job in self.jobs]}
        beside = table_files(TradeoffTables, self.folder)
        result = Result(self.folder / "tradeoff.parquet", "tradeoff", options, beside=beside)
        result.check_replaceable()
        if force:
            for path in (paths := [job.path(self.out) for job in self.jobs]):
                artifacts.check_replaceable(path)
            for path in paths:
                path.unlink(missing_ok=True)
        missing = [place for place, job in enumerate(self.jobs) if read_run(job, self.out) is None]
        timings = Timings()
        if missing:
            choose_device(device)
            for job in {self.jobs[place].architecture: self.jobs[place] for place in missing}.values():
                model_of(job)  # sizes that do not fit together are reported before hours of work
            self._train(missing, device, workers, timings)
        else:
            events.note(f"all {len(self.jobs)} runs are in {self.out / 'runs'}: reused (--force makes them again)")
        outcomes = [(job, read_run(job, self.out) or {}) for job in self.jobs]
        tables, task = make_tables(outcomes), self.jobs[0].task
        facts = {
            "preset": self.preset,
            "task": self.task,
            "choices": dict(self.choices),
            "learning_rates": sorted({job.learning_rate for job in self.jobs}),
            "vocab": task.vocab,
            "task_options": dict(task.options),
            "seed": task.seed,
            "machines": sorted({str(outcome["machine"]) for _, outcome in outcomes}),
        }
        result.write_tables(tables, facts, timings)
        return tables, self.folder

    def _train(self, missing: Sequence[int], device: str, workers: int, timings: Timings) -> None:
        from recallkit.parallel import work

        total = sum(job.steps for job in self.jobs)
        done = total - sum(self.jobs[place].steps for place in missing)
        if done:
            events.note(f"{len(self.jobs) - len(missing)} of {len(self.jobs)} runs are done: resumes")
        working = work(TrainingJob(tuple(self.jobs), self.out, device), missing, workers=workers)
        showing = progress(f"training {len(missing)} of {len(self.jobs)} runs", total=total, unit="steps")
        with timings.stage("training", resumed=done > 0) as stage, showing as show, contextlib.closing(working):
            show(done)
            for part in working:
                done += part.num_tokens
                show(done)
            stage.amounts["steps"] = sum(self.jobs[place].steps for place in missing)


def plan_sweep(preset: str, task: str, choices: SweepOptions, out: Path) -> Sweep:
    """The runs of a preset on a task with these choices. Raises UserError for names and sizes that there are not."""
    from recallkit.training.presets import jobs_of

    kept = {name: value for name, value in choices.not_usual().items() if name in parameters_of(SweepOptions)}
    return Sweep(preset, task, jobs_of(preset, task, choices), out, kept)


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Everything that a process needs to train; it can be pickled. Items are indices of `jobs`, on a GPU of its own if there is one."""

    jobs: tuple[Job, ...]
    folder: Path
    device: str

    doing: ClassVar[str] = "training"
    where: ClassVar[str] = "train"
    remedy: ClassVar[str] = "give fewer --workers or a smaller --batch"
    max_items_per_task: ClassVar[int] = 1

    @property
    def prefers_gpu(self) -> bool:
        """Whether a GPU would be used."""
        return self.device != "cpu"

    def open(self, slot: WorkerSlot | None = None) -> TrainingJob:
        """Chooses a GPU by turns."""
        import torch

        if slot is not None and self.device in ("auto", "cuda") and torch.cuda.is_available():
            return replace(self, device=f"cuda:{slot.place % torch.cuda.device_count()}")
        return self

    def run(self, items: Sequence[int]) -> Iterator[Done]:
        """Trains runs one after the other; reports steps at each measurement, and a run as whole when its file is on disk."""
        from recallkit.models.devices import choose_device
        from recallkit.training.jobs import train_run

        device = choose_device(self.device)
        for item in items:
            with _one_thread():
                for steps in train_run(self.jobs[item], self.folder, device):
                    yield Done(steps, is_whole=False)
            yield Done(0)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One CPU thread: small models gain nothing from more, and sums in the last bit would depend on their number."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
