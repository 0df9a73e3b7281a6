"""The work of `track`: scores checkpoints that are not scored yet, writes the tables by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from recallkit.display.progress import one_after_another
from recallkit.errors import UserError
from recallkit.intervening.run import intervene
from recallkit.measure.labelled import open_scores, open_tokens
from recallkit.measure.sums import add_up
from recallkit.models.spec import ModelSpec, list_models
from recallkit.options import InterventionOptions, ScoringOptions
from recallkit.scoring import make_scores, plan_scores, score_path
from recallkit.scoring.run import note_prefixes
from recallkit.slicing.labels import summarise_slices
from recallkit.slicing.words import make_words, needed_columns
from recallkit.storage import parquet_files, records
from recallkit.storage.result import Question, folder_of
from recallkit.storage.timings import Timings
from recallkit.tracking.steps import by_step, expand
from recallkit.tracking.tables import Checkpoint, TrackTables, make_tables, measure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        "slice": [slice_.option for slice_ in followed],
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
    followed: Sequence[Slice] = ()
    """Slices besides AR hits and other tokens, for the table `by_slice`."""
    checkpoints: dict[int | None, Checkpoint] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Opens the labels, and makes those of words where a slice needs them. Raises UserError
        where they cannot answer, and where `out` has another result."""
        self.tokens = open_tokens(self.slices / "tokens.parquet")
        if not summarise_slices(self.tokens.path)["ar_hits"][0]:
            problem = "no token of it is an AR hit"
            remedy = "slice more text, or slice with a larger --max-count"
            raise UserError(problem, where=self.tokens.path, remedy=remedy)
        self.options: records.TrackOptions = {
            "reference": None if self.reference is None else self.reference.key,
            "sequences_digest": self.tokens.manifest["sequences_digest"],
            "causal": self.causal,
            "slice": [slice_.option for slice_ in self.followed],
        }
        self.question = Question("track", TrackTables, self.out, self.options, self.force)
        self.question.check()  # another is not replaced; the answer to the same one grows
        self.tokens.check_known(self.followed, clean=False)
        if needed_columns(self.followed):
            make_words(self.slices)

    def add_models(self, models: Mapping[int | None, ModelSpec]) -> None:
        """Adds models by step; scores what is not scored already, all where the run is forced."""
        plans = plan_scores(list(models.values()), self.slices, self.scoring, force=self.force)
        note_prefixes(plans)
        for plan in one_after_another(plans):
            make_scores(plan)
        for step, spec in models.items():
            self.add(step, spec.shown, score_path(self.slices, spec))

    def add(self, step: int | None, model: str, file: Path) -> None:
        """Adds a model's score file, beside that of the reference. Raises UserError if one is
        damaged, or of other sequences."""
        reference, files = None, [file]
        if self.reference is not None:
            reference = self.reference.shown
            files = [score_path(self.slices, self.reference), file]
        scores = [open_scores(path, self.tokens) for path in files]
        sums = add_up(self.tokens, scores, self.followed, every_table=False).tables["slices"]
        slices = [slice_.name for slice_ in self.followed]
        self.checkpoints[step] = measure(model, step, file, sums, reference, slices)

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

    def write(self, folder: str | None = None) -> TrackTables:
        """Writes the tables of what was added so far, with the manifest; returns them. `folder`:
        of the checkpoints."""
        timings = Timings()
        with timings.stage("measuring"):
            steps = sorted(self.checkpoints, key=lambda step: -1 if step is None else step)
            checkpoints = [self.checkpoints[step] for step in steps]
            tables = make_tables(checkpoints)
        files = [one.file for one in checkpoints]
        scores = [parquet_files.read_manifest(file, records.Scores) for file in files]
        facts: records.Track = {
            "options": self.options,
            "models": tables.track["model"].to_list(),
            "sources": [manifest["source"] for manifest in scores],
            "score_files": [records.FileName(file.name) for file in files],
            "scores": [manifest["options"] for manifest in scores],
            "slices": self.tokens.facts,
            "run": folder,
        }
        self.question.write(tables, facts, timings)
        return tables


def track(run: TrackedRun, checkpoints: Sequence[ModelSpec]) -> TrackTables:
    """The tables of a run's checkpoints by step; scores what is not scored yet.

    Raises UserError for everything a user can correct, before a weight is read.
    """
    steps = by_step(expand(checkpoints))
    models = list_models(run.reference, *steps.values())
    run.add_models(dict(zip([None, *steps], models, strict=True)))
    if run.causal:
        run.intervene(models)
    return run.write(_run_of(models[1]))
