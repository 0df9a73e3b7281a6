"""Recall over the checkpoints of a run: `track`."""

from typing import TYPE_CHECKING, Annotated

from recallkit import config
from recallkit.commands import options as opt
from recallkit.commands.adapter import Argument, File, Option, Outcome, command
from recallkit.errors import UsageError

if TYPE_CHECKING:
    from recallkit.tracking.tables import TrackTables


@command(
    "track",
    examples=(
        "recallkit track path/to/attention run/checkpoint-* --slices slices",
        "recallkit track path/to/attention 'run/checkpoint-*' --slices slices --watch",
    ),
    exports=True,
)
def track(
    reference: Annotated[opt.AnyModel | None, Argument(f"A model to compare with: {opt.MODEL_SYNTAX}.", metavar="REFERENCE")] = None,
    checkpoints: Annotated[
        opt.AnyModels | None,
        Argument("Checkpoints of one run, whose names tell their steps: checkpoint-500, step_500, or NAME-500=PATH.", metavar="CHECKPOINT"),
    ] = None,
    *,
    slices: opt.Slices = None,
    watch: Annotated[
        bool, Option("Go on, and score checkpoints as they come: those that the pattern names, or whose names differ in the step alone.")
    ] = False,
    interval: Annotated[
        float,
        Option("With --watch: seconds between looks; files unchanged for so long are complete.", metavar="SECONDS", least=0.01, most=86400),
    ] = 30.0,
    until: Annotated[
        int | None, Option("With --watch: end once this step, or a later one, is scored.", metavar="STEP", least=0, most=config.MOST)
    ] = None,
    out: Annotated[File | None, opt.out("Directory of the result tables.", default="a folder in the slices")] = None,
    counts: opt.Counts = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = None,
    batch_tokens: opt.BatchTokens = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    workers: opt.Workers = 1,
    log_to: opt.LogTo = None,
    force: opt.Force = False,
) -> Outcome["TrackTables"]:
    """Follow recall over the checkpoints of a training run: AR hits, their bigrams' first occurrences and other tokens by step.

    Scores what is not scored yet. Columns: see `TrackTables`.
    """
    from recallkit import builtin, tracking
    from recallkit.models.spec import one_model
    from recallkit.scoring import ScoringOptions
    from recallkit.tracking.charts import track_figures
    from recallkit.tracking.run import watch as watch_run
    from recallkit.tracking.view import print_track, shown_track, track_json

    if reference is None or checkpoints is None:
        missing = "REFERENCE" if reference is None else "CHECKPOINT"
        raise UsageError("no model is named", where=missing, remedy="name a reference, then the checkpoints of a run")
    if until is not None and not watch:
        raise UsageError("goes with --watch", where="--until", remedy="give --watch as well, or leave it out")
    first, named = one_model(reference), opt.models(checkpoints)
    folder = opt.path(slices) or builtin.slices()
    scoring = ScoringOptions(
        opt.path(counts), device, dtype, opt.amount(batch_tokens), trust_remote_code=trust_remote_code, workers=workers
    )
    if watch:
        tables, path = watch_run(first, named, folder, opt.path(out), scoring, print_track, force=force, seconds=interval, until=until)
    else:
        tables, path = tracking.track(first, named, folder, opt.path(out), scoring, force=force)
    return Outcome(
        value=lambda: tables,
        show=lambda: None if watch else print_track(tables, path),
        json=lambda: track_json(tables, path),
        exports=lambda: [(tables, shown_track(tables), path)],
        figures=lambda: track_figures(tables),
    )
