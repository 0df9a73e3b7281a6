"""The work of `track`: scores checkpoints that are not scored yet, and writes the tables by step after each of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit import events
from recallkit.attribution.context_gain import context_gains
from recallkit.declarations import path
from recallkit.display.progress import one_after_another
from recallkit.errors import UserError
from recallkit.intervening.run import SAMPLES, AskedHits
from recallkit.measure.labelled import open_tokens
from recallkit.models.spec import ModelSpec, list_models
from recallkit.options import ScoringOptions
from recallkit.scoring import plan_scores, score_path
from recallkit.slicing.labels import summarise_slices
from recallkit.storage import artifacts
from recallkit.storage.result import Result, table_files
from recallkit.storage.schemas import frame_of
from recallkit.storage.timings import Timings
from recallkit.tracking.steps import Watch, by_step, expand_all, step_of
from recallkit.tracking.tables import Tracked, TrackTables, make_tables, read_sums

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    import numpy as np

    from recallkit.measure.sums import RowSums
    from recallkit.scoring.scores import LastIds


def track_path(slices: Path, reference: ModelSpec, checkpoints: Sequence[ModelSpec], context_gain: Sequence[LastIds] = ()) -> Path:
    """Default folder of a run's table: of the reference, the folder of the first checkpoint, and what else is asked."""
    run = checkpoints[0].location.rpartition("/")[0] or checkpoints[0].location
    return slices / "track" / artifacts.file_slug(" ".join([reference.key, run, *map(str, context_gain)]))


@dataclass
class TrackedRun:
    """The scored checkpoints of a training run: the scores of each step, and those of the reference."""

    slices: Path
    out: Path
    reference: ModelSpec | None = None
    scoring: ScoringOptions = ScoringOptions()
    samples: int = SAMPLES
    force: bool = False
    quiet: bool = False
    context_gain: Sequence[LastIds] = ()
    """Each checkpoint and the reference are also scored with these last ids alone."""
    scores: dict[int, tuple[str, Path]] = field(default_factory=dict)
    """Step -> the checkpoint's name and its score file; that of the changed text has the same name."""
    _read: dict[Path, tuple[RowSums, np.ndarray]] = field(default_factory=dict)
    """Of the score files that have been read: the sums of the text, and what is recalled."""
    _gains: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """Step -> the rows of `by_context`."""

    def __post_init__(self) -> None:
        """Opens the labels. Raises UserError where they cannot answer, and where `out` has another result."""
        self.tokens = open_tokens(self.slices / "tokens.parquet")
        if not summarise_slices(self.tokens.path)["ar_hits"][0]:
            raise UserError(
                "no token of it is an AR hit", where=self.tokens.path, remedy="slice more text, or slice with a larger --max-count"
            )
        question = {
            "reference": None if self.reference is None else self.reference.key,
            "sequences_digest": self.tokens.manifest["sequences_digest"],
            "samples": self.samples,
        }
        question |= {"context_gain": [[last.ids, last.stride] for last in self.context_gain]} if self.context_gain else {}
        self.result = Result(self.out / "track.parquet", "track", question, force=self.force, beside=table_files(TrackTables, self.out))
        self.result.finished()  # that of another question is not replaced; one of the same question grows
        self.hits = AskedHits.of(self.tokens, path(self.scoring.counts), self.samples)
        if self.reference is not None:
            self.score([self.reference])

    def score(self, specs: Sequence[ModelSpec], *, force: bool = False) -> None:
        """Scores text and changed text, unless that is done already; again with `force`, or where the whole run is forced."""
        force = force or self.force
        plans = plan_scores(specs, self.slices, self.scoring, force=force, quiet=self.quiet)
        shorter = [plan.from_last(last) for last in self.context_gain for plan in plans]
        for spec, plan in zip(specs, one_after_another(plans), strict=True):
            self.hits.score(spec, self.scoring, plan.run(), force=force, quiet=self.quiet)
        for plan in one_after_another(shorter):
            plan.run()

    def add(self, step: int, spec: ModelSpec) -> None:
        """Adds a checkpoint that has just been scored."""
        self.scores[step] = spec.shown, score_path(self.slices, spec)
        self._read.pop(self.scores[step][1], None)
        if self.reference is not None and self.context_gain:
            pair = (self.reference, spec)
            first = spec.shown + " (reference)" if self.reference.shown == spec.shown else self.reference.shown
            full = dict(zip((first, spec.shown), (score_path(self.slices, each) for each in pair), strict=True))
            shorter = {last: [score_path(self.slices, each, last) for each in pair] for last in self.context_gain}
            self._gains[step] = context_gains(self.tokens.path, full, shorter).to_dicts()

    def write(self) -> TrackTables:
        """Writes the tables of what was added so far, with the manifest; returns them."""
        timings = Timings()
        with timings.stage("measuring"):
            files: dict[int | None, tuple[str, Path]] = {}
            if self.reference is not None:
                files[None] = self.reference.shown, score_path(self.slices, self.reference)
            files |= {step: self.scores[step] for step in sorted(self.scores)}
            self._read_scores([file for _, file in files.values() if file not in self._read])
            models = [Tracked(name, step, *self._read[file]) for step, (name, file) in files.items()]
            tables = make_tables(models, self.hits)
            if self.context_gain:
                gains = [{"step": step, **row} for step in sorted(self._gains) for row in self._gains[step]]
                tables = replace(tables, by_context=frame_of("track/by_context", gains))
        manifest, scored = self.tokens.manifest, [artifacts.read_manifest(file) for _, file in files.values()]
        facts = {
            "models": [name for name, _ in files.values()],
            "sources": [each["source"] for each in scored],
            "score_files": [file.name for _, file in files.values()],
            "scores": [each["options"] for each in scored],
            "steps": {str(step): file.name for step, (_, file) in files.items() if step is not None},
            "asked": len(self.hits.asked),
            "slices": {name: manifest[name] for name in ("sequences_digest", "num_rows", "seq_len", "max_count", "counts")},
        }
        self.result.write_tables(tables, facts, timings)
        return tables

    def _read_scores(self, files: Sequence[Path]) -> None:
        if not files:
            return
        recalled = self.hits.recalled(files, [self.hits.changed.folder / "scores" / file.name for file in files])
        self._read |= dict(zip(files, zip(read_sums(self.tokens, files), recalled.T, strict=True), strict=True))


def track(
    reference: ModelSpec,
    checkpoints: Sequence[ModelSpec],
    slices: Path,
    out: Path | None = None,
    scoring: ScoringOptions = ScoringOptions(),
    *,
    samples: int = SAMPLES,
    context_gain: Sequence[LastIds] = (),
    force: bool = False,
) -> tuple[TrackTables, Path]:
    """The table of a run's checkpoints by step, and its folder; scores what is not scored yet.

    Raises UserError for everything a user can correct, before a weight is read.
    """
    steps = by_step(expand_all(checkpoints))
    first, *named = list_models(reference, *steps.values())
    out = out or track_path(slices, reference, checkpoints, context_gain)
    run = TrackedRun(slices, out, first, scoring, samples, force, context_gain=context_gain)
    run.score(named)
    for step, spec in zip(steps, named, strict=True):
        run.add(step, spec)
    return run.write(), run.out


def watch(
    reference: ModelSpec,
    checkpoints: Sequence[ModelSpec],
    slices: Path,
    out: Path | None,
    scoring: ScoringOptions,
    show: Callable[[TrackTables, Path], None],
    *,
    samples: int = SAMPLES,
    context_gain: Sequence[LastIds] = (),
    force: bool = False,
    seconds: float = 30.0,
    until: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[TrackTables, Path]:
    """`track`, again and again as checkpoints come; `show` is called with each new table. Ends once a step from `until` on is scored.

    A checkpoint that cannot be read is named, and tried again when its files have changed; one that is replaced is scored again.
    """
    [first] = list_models(reference)
    out = out or track_path(slices, reference, checkpoints, context_gain)
    run = TrackedRun(slices, out, first, scoring, samples, force, context_gain=context_gain)
    waiting, read = Watch(checkpoints, seconds), dict[str, object]()
    while True:
        for spec in waiting.settled():
            if read.get(spec.location) == waiting.state(spec):
                continue
            read[spec.location] = waiting.state(spec)
            try:
                run.score([spec], force=step_of(spec) in run.scores)
            except (UserError, OSError) as error:
                if isinstance(error, OSError) and Path(spec.location).name not in str(error):  # of another file than the checkpoint's
                    raise
                events.note(f"{error} (tried again when its files change)")
                continue
            run.add(step_of(spec), spec)
            show(run.write(), run.out)
        if until is not None and run.scores and max(run.scores) >= until:
            return run.write(), run.out
        sleep(seconds)
