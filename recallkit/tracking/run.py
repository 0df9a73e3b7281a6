"""The work of `track`: scores checkpoints that are not scored yet, and writes the tables by step
after each of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from recallkit import events
from recallkit.display import console
from recallkit.display.progress import one_after_another
from recallkit.errors import UsageError, UserError
from recallkit.intervening.run import intervene
from recallkit.measure.labelled import open_tokens
from recallkit.models.kinds import kind_of
from recallkit.models.prefix import other_prefixes
from recallkit.models.spec import ModelSpec, list_models
from recallkit.options import InterventionOptions, ScoringOptions
from recallkit.scoring import plan_scores, score_path
from recallkit.slicing.labels import summarise_slices
from recallkit.slicing.words import make_words, needed_columns
from recallkit.storage import artifacts
from recallkit.storage.result import Result, folder_of, table_files
from recallkit.storage.timings import Timings
from recallkit.tracking.steps import Watch, by_step, expand_all, is_pattern, step_of
from recallkit.tracking.tables import Checkpoint, TrackTables, make_tables, measure, read_sums

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recallkit.scoring.run import ScoringPlan
    from recallkit.slicing.definitions import Slice


def track_path(
    slices: Path,
    reference: ModelSpec,
    checkpoints: Sequence[ModelSpec],
    *,
    causal: bool = False,
    followed: Sequence[Slice] = (),
) -> Path:
    """Default folder of a run's table, such as `track/run-vs-attention`: of the folder of its first
    checkpoint, and the reference."""
    run = _run_of(checkpoints[0])
    words = [PurePath(run).name, "vs", reference.shown, *["causal"] * causal]
    question = {
        "reference": reference.key,
        "causal": causal,
        "slice": [slice_.given for slice_ in followed],
        "run": run,
    }
    return folder_of(slices / "track", words, question)


def _run_of(checkpoint: ModelSpec) -> str:
    """The folder of a run's checkpoints; of one that is in none its name."""
    return checkpoint.location.rpartition("/")[0] or checkpoint.location


@dataclass
class TrackedRun:
    """The scored checkpoints of a training run by step, and the reference (step None)."""

    slices: Path
    out: Path
    reference: ModelSpec | None = None
    scoring: ScoringOptions = ScoringOptions()
    causal: bool = False
    """Whether changed text is scored, too: see `intervene`."""
    force: bool = False
    quiet: bool = False
    followed: Sequence[Slice] = ()
    """Slices besides AR hits and other tokens, for the table `by_slice`."""
    folder: str | None = None
    """Of the checkpoints."""
    checkpoints: dict[int | None, Checkpoint] = field(default_factory=dict)
    prefixes: dict[str, str] = field(default_factory=dict)
    """The tokens that are read before every sequence, and the first model that reads each."""

    def __post_init__(self) -> None:
        """Opens the labels, and makes those of words where a slice needs them. Raises UserError
        where they cannot answer, and where `out` has another result."""
        self.tokens = open_tokens(self.slices / "tokens.parquet")
        if not summarise_slices(self.tokens.path)["ar_hits"][0]:
            raise UserError(
                "no token of it is an AR hit",
                where=self.tokens.path,
                remedy="slice more text, or slice with a larger --max-count",
            )
        question = {
            "reference": None if self.reference is None else self.reference.key,
            "sequences_digest": self.tokens.manifest["sequences_digest"],
            "causal": self.causal,
            "slice": [slice_.given for slice_ in self.followed],
        }
        path, beside = self.out / "track.parquet", table_files(TrackTables, self.out)
        self.result = Result(path, "track", question, force=self.force, beside=beside)
        # That of another question is not replaced; one of the same question grows.
        self.result.finished()
        self.tokens.check_known(self.followed, clean=False)
        if needed_columns(self.followed):
            make_words(self.slices)

    def score(self, specs: Sequence[ModelSpec], *, force: bool = False) -> None:
        """Scores what is not scored already; again with `force`, or where the run is forced."""
        force = force or self.force
        plans = plan_scores(specs, self.slices, self.scoring, force=force, quiet=self.quiet)
        self._note_prefixes(plans)
        for plan in one_after_another(plans):
            plan.run()

    def _note_prefixes(self, plans: Sequence[ScoringPlan]) -> None:
        """Says what is read before every sequence, where that is new in this run."""
        known = len(self.prefixes)
        for plan in plans:
            if not kind_of(plan.request.spec).is_control:
                self.prefixes.setdefault(plan.request.prefix.token, plan.model.shown)
        if len(self.prefixes) == known:
            return
        by_model = {model: token for token, model in self.prefixes.items()}
        for line in other_prefixes(by_model):
            console.note(line)
        if self.quiet and not known:
            for token in filter(None, self.prefixes):
                console.note(f"{token} is read before every sequence (bos='none' prevents it)")

    def add_reference(self) -> None:
        """Scores and adds the reference, if there is one."""
        if self.reference is not None:
            self.score([self.reference])
            self.add(None, self.reference)

    def add(self, step: int | None, spec: ModelSpec) -> None:
        """Adds a model that has been scored."""
        if step is not None and self.folder is None:
            self.folder = _run_of(spec)
        self.add_file(step, spec.shown, score_path(self.slices, spec))

    def add_file(self, step: int | None, model: str, file: Path) -> None:
        """Adds a model's score file, beside that of the reference."""
        first = list(filter(None, [self.reference]))
        files = [score_path(self.slices, spec) for spec in first]
        sums = read_sums(self.tokens, *files, file, slices=self.followed)
        self.checkpoints[step] = measure(model, step, file, sums, *(spec.shown for spec in first))

    def intervene(self, models: Sequence[ModelSpec]) -> None:
        """Adds the causal recall of the models, all that there are, for which changed text is
        scored."""
        options = InterventionOptions(slice=["ar_hit"], force=self.force)
        tables = intervene(models, self.slices, options=options, scoring=self.scoring)
        rows = {row["model"]: row for row in tables.intervene.filter(slice="ar_hit").to_dicts()}
        for checkpoint in self.checkpoints.values():
            row = rows[checkpoint.row["model"]]
            for end in ("", "_ci_low", "_ci_high"):
                checkpoint.row[f"causal{end}"] = row[f"points{end}"]

    def write(self) -> TrackTables:
        """Writes the tables of what was added so far, with the manifest; returns them."""
        timings = Timings()
        with timings.stage("measuring"):
            steps = sorted(self.checkpoints, key=lambda step: -1 if step is None else step)
            checkpoints = [self.checkpoints[step] for step in steps]
            tables = make_tables(checkpoints)
        manifests = [artifacts.read_manifest(one.file) for one in checkpoints]
        facts = {
            "models": tables.track["model"].to_list(),
            "sources": [manifest["source"] for manifest in manifests],
            "score_files": [one.file.name for one in checkpoints],
            "scores": [manifest["options"] for manifest in manifests],
            "slices": self.tokens.facts,
            "run": self.folder,
        }
        self.result.write_tables(tables, facts, timings)
        return tables


def track(run: TrackedRun, checkpoints: Sequence[ModelSpec]) -> TrackTables:
    """The tables of a run's checkpoints by step; scores what is not scored yet.

    Raises UserError for everything a user can correct, before a weight is read.
    """
    steps = by_step(expand_all(checkpoints))
    models = list_models(run.reference, *steps.values())
    run.score(models)
    for step, spec in zip([None, *steps], models, strict=True):
        run.add(step, spec)
    if run.causal:
        run.intervene(models)
    return run.write()


def watch(
    run: TrackedRun,
    checkpoints: Sequence[ModelSpec],
    show: Callable[[TrackTables], None],
    *,
    seconds: float = 30.0,
    until: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> TrackTables:
    """`track`, again and again as checkpoints come; `show` is called with each new table. Ends once
    a step from `until` on is scored.

    A checkpoint that cannot be read is named, and tried again when its files have changed; one that
    is replaced is scored again.
    """
    if not any(map(is_pattern, checkpoints)):
        remedy = "quote a pattern: 'run/checkpoint-*'"
        raise UsageError("no pattern matches checkpoints still to come", where="--watch", remedy=remedy)
    run.add_reference()
    waiting, last = Watch(checkpoints), -1
    while True:
        for spec in waiting.changed():
            step = step_of(spec)
            try:
                run.score([spec], force=step in run.checkpoints)
            except (UserError, OSError) as error:
                # An error of the system may be about another file than the checkpoint's.
                if isinstance(error, OSError) and Path(spec.location).name not in str(error):
                    raise
                events.note(f"{error} (tried again when its files change)")
                continue
            run.add(step, spec)
            last = max(last, step)
            show(run.write())
        if until is not None and last >= until:
            return run.write()
        sleep(seconds)
