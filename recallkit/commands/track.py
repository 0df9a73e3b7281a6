"""Recall over the checkpoints of a run: `track`."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

from recallkit import config
from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import Argument, File, Option, path
from recallkit.errors import UsageError
from recallkit.options import MODEL_SYNTAX, AnyModel, AnyModels, ScoringOptions, Slices, WritingOptions, out_option

if TYPE_CHECKING:
    from recallkit.tracking.tables import TrackTables


@dataclass(frozen=True)
class Track(ScoringOptions, WritingOptions):
    """Which run is followed, and for how long."""

    reference: Annotated[AnyModel | None, Argument(f"A model to compare with: {MODEL_SYNTAX}.", metavar="REFERENCE")] = None
    checkpoints: Annotated[
        AnyModels | None,
        Argument("Checkpoints of one run, whose names tell their steps: checkpoint-500, step_500, or NAME-500=PATH.", metavar="CHECKPOINT"),
    ] = None
    _: KW_ONLY
    slices: Slices = None
    watch: Annotated[
        bool, Option("Go on, and score checkpoints as they come: those that the pattern names, or whose names differ in the step alone.")
    ] = False
    interval: Annotated[
        float,
        Option("With --watch: seconds between looks; files unchanged for so long are complete.", metavar="SECONDS", least=0.01, most=86400),
    ] = 30.0
    until: Annotated[
        int | None, Option("With --watch: end once this step, or a later one, is scored.", metavar="STEP", least=0, most=config.MOST)
    ] = None
    out: Annotated[File | None, out_option("Directory of the result tables.", default="a folder in the slices")] = None


@command(
    "track",
    Track,
    examples=(
        "recallkit track path/to/attention run/checkpoint-* --slices slices",
        "recallkit track path/to/attention 'run/checkpoint-*' --slices slices --watch",
    ),
    exports=True,
)
def track(asked: Track) -> Outcome["TrackTables"]:
    """Follow recall over the checkpoints of a training run: AR hits, their bigrams' first occurrences and other tokens by step.

    Scores what is not scored yet. Columns: see `TrackTables`.
    """
    from recallkit import builtin, tracking
    from recallkit.models.spec import one_model
    from recallkit.tracking.charts import track_figures
    from recallkit.tracking.run import watch
    from recallkit.tracking.view import print_track, shown_track, track_json

    if asked.reference is None or asked.checkpoints is None:
        missing = "REFERENCE" if asked.reference is None else "CHECKPOINT"
        raise UsageError("no model is named", where=missing, remedy="name a reference, then the checkpoints of a run")
    if asked.until is not None and not asked.watch:
        raise UsageError("goes with --watch", where="--until", remedy="give --watch as well, or leave it out")
    run = (
        one_model(asked.reference),
        builtin.named_models(asked.checkpoints),
        path(asked.slices) or builtin.slices(),
        path(asked.out),
        asked,
    )
    if asked.watch:
        tables, folder = watch(*run, print_track, force=asked.force, seconds=asked.interval, until=asked.until)
    else:
        tables, folder = tracking.track(*run, force=asked.force)
    return Outcome(
        value=lambda: tables,
        show=lambda: None if asked.watch else print_track(tables, folder),
        json=lambda: track_json(tables, folder),
        exports=lambda: [(tables, shown_track(tables), folder)],
        figures=lambda: track_figures(tables),
    )
