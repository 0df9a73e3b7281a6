"""The work of `track`: scores checkpoints that are not scored yet, writes the tables by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from recallkit.display.progress import one_after_another
from recallkit.errors import UserError
from recallkit.intervening.run import intervene
from recallkit.measure.labelled import open_tokens
from recallkit.models.spec import ModelSpec, list_models
from recallkit.options import InterventionOptions, ScoringOptions
from recallkit.scoring import plan_scores, score_path
from recallkit.scoring.run import note_prefixes
from recallkit.slicing.labels import summarise_slices
from recallkit.slicing.words import make_words, needed_columns
from recallkit.storage import artifacts
from recallkit.storage.result import Question, folder_of
from recallkit.storage.timings import Timings
from recallkit.tracking.steps import by_step, expand_all
from recallkit.tracking.tables import Checkpoint, TrackTables, make_tables, measure, read_sums

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
    followed: Sequence[Slice] = ()
    """Slices besides AR hits and other tokens, for the table `by_slice`."""
    folder: str | None = None
    """Of the checkpoints."""
    checkpoints: dict[int | None, Checkpoint] = field(default_factory=dict)

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
        identity = {
            "reference": None if self.reference is None else self.reference.key,
            "sequences_digest": self.tokens.manifest["sequences_digest"],
            "causal": self.causal,
            "slice": [slice_.given for slice_ in self.followed],
        }
        self.question = Question("track", TrackTables, self.out, identity, self.force)
        self.question.check()  # another is not replaced; the answer to the same one grows
        self.tokens.check_known(self.followed, clean=False)
        if needed_columns(self.followed):
            make_words(self.slices)

    def add_models(self, models: Mapping[int | None, ModelSpec]) -> None:
        """Adds models by step; scores what is not scored already, all where the run is forced."""
        plans = plan_scores(list(models.values()), self.slices, self.scoring, force=self.force)
        note_prefixes(plans)
        for plan in one_after_another(plans):
            plan.run()
        for step, spec in models.items():
            self.add(step, spec.shown, score_path(self.slices, spec))

    def add(self, step: int | None, model: str, file: Path) -> None:
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
        self.question.write(tables, facts, timings)
        return tables


def track(run: TrackedRun, checkpoints: Sequence[ModelSpec]) -> TrackTables:
    """The tables of a run's checkpoints by step; scores what is not scored yet.

    Raises UserError for everything a user can correct, before a weight is read.
    """
    steps = by_step(expand_all(checkpoints))
    models = list_models(run.reference, *steps.values())
    run.folder = _run_of(models[1])
    run.add_models(dict(zip([None, *steps], models, strict=True)))
    if run.causal:
        run.intervene(models)
    return run.write()
