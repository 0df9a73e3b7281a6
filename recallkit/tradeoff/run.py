"""A sweep: runs that are finished are reused, the others trained, by one process or several; then their tables."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from recallkit import events
from recallkit.display.progress import progress
from recallkit.storage import artifacts
from recallkit.storage.ownership import JSON_MAGIC
from recallkit.storage.result import Result, table_files
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.tradeoff.jobs import Job
    from recallkit.tradeoff.presets import Choices
    from recallkit.tradeoff.tables import TradeoffTables


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep and where it is written: `out`/runs has a file per run, `out`/sweeps/NAME.HASH its tables."""

    preset: str
    jobs: Sequence[Job]
    out: Path
    choices: Mapping[str, Any] = field(default_factory=dict)
    """What was wanted otherwise than in the preset, for the command that makes it again."""

    @property
    def folder(self) -> Path:
        """Of the tables: each sweep has its own."""
        lines = [[job.architecture.model, job.identity()] for job in self.jobs]
        return self.out / "sweeps" / f"{self.preset.replace(':', '-')}.{artifacts.digest_json(lines)[:8]}"

    def run(self, *, device: str = "auto", workers: int = 1, force: bool = False) -> tuple[TradeoffTables, Path]:
        """Trains what is missing and writes the tables; returns them with their folder. Raises UserError for what a user can correct."""
        from recallkit.tradeoff.jobs import device_of, model_of, read_run
        from recallkit.tradeoff.tables import TradeoffTables, make_tables

        beside = table_files(TradeoffTables, self.folder)
        result = Result(self.folder / "tradeoff.parquet", "tradeoff", self._options(), beside=beside)
        result.check_replaceable()
        if force:
            for path in (paths := [job.path(self.out) for job in self.jobs]):
                artifacts.check_replaceable(path, JSON_MAGIC)
            for path in paths:
                artifacts.remove(path)
        missing = [place for place, job in enumerate(self.jobs) if read_run(job, self.out) is None]
        timings = Timings()
        if missing:
            device_of(device)
            for job in {self.jobs[place].architecture: self.jobs[place] for place in missing}.values():
                model_of(job)  # sizes that do not fit together are reported before hours of work
            self._train(missing, device, workers, timings)
        else:
            events.note(f"all {len(self.jobs)} runs are in {self.out / 'runs'}: reused (--force makes them again)")
        runs = [(job, _found(job, self.out)) for job in self.jobs]
        tables = make_tables(runs)
        result.write_tables(tables, self._facts(runs), timings)
        return tables, self.folder

    def _train(self, missing: Sequence[int], device: str, workers: int, timings: Timings) -> None:
        from recallkit.parallel.engines import work
        from recallkit.tradeoff.worker import TrainingJob

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

    def _options(self) -> dict[str, Any]:
        return {"preset": self.preset, "runs": [job.identity() for job in self.jobs]}

    def _facts(self, runs: Sequence[tuple[Job, dict[str, Any]]]) -> dict[str, Any]:
        """What the tables say, in short, and the machines that trained."""
        first = self.jobs[0].task
        return {
            "preset": self.preset,
            "choices": dict(self.choices),
            "learning_rates": sorted({job.learning_rate for job in self.jobs}),
            "vocab": first.vocab,
            "power": first.power,
            "seed": first.seed,
            "machines": sorted({str(found["machine"]) for _, found in runs}),
        }


def _found(job: Job, out: Path) -> dict[str, Any]:
    """The outcome of a run that was just made."""
    from recallkit.tradeoff.jobs import read_run

    found = read_run(job, out)
    assert found is not None
    return found


def plan_sweep(preset: str, choices: Choices, out: Path) -> Sweep:
    """The runs of a preset with these choices. Raises UserError for names and sizes that there are not."""
    from recallkit.tradeoff.presets import chosen_in, jobs_of

    return Sweep(preset, jobs_of(preset, choices), out, chosen_in(choices))
