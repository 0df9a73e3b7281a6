"""`ablate`."""

from typing import TYPE_CHECKING, Annotated, Literal

from recallkit.commands import options as opt
from recallkit.commands.adapter import Argument, File, Option, Outcome, command
from recallkit.errors import UsageError

if TYPE_CHECKING:
    from recallkit.ablation.tables import AblationTables

_MODEL = "zoo:hybrid"


@command(
    "ablate",
    examples=(
        "recallkit ablate zoo:hybrid --mixers each --figures figures",
        "recallkit ablate path/to/model --slices slices -o ablation",
    ),
    exports=True,
)
def ablate(
    model: Annotated[opt.AnyModel | None, Argument(f"The model, {opt.MODEL_SYNTAX}; {_MODEL} if none.", metavar="MODEL")] = None,
    *,
    slices: opt.Slices = None,
    mixers: Annotated[
        str,
        Option(
            "Sets of mixers, joined with commas: layers (0,3,5), kinds (attention), or several at once (0+3); each: every one by itself "
            "and every kind as a whole.",
            metavar="SETS",
        ),
    ] = "each",
    by: Annotated[Literal["zero", "mean"], Option("What replaces their outputs: zero, or the mean of each over the text.")] = "zero",
    cluster: Annotated[
        Literal["document", "sequence", "source"],
        Option("What is independent of each other, and resampled for intervals: documents, or whole sources."),
    ] = "document",
    clean: Annotated[bool, Option("Leave out tokens that are known to be in the training text (column in_training).")] = False,
    out: Annotated[File | None, opt.out("Directory of the result tables.", default="a folder in the slices")] = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = None,
    batch_tokens: opt.BatchTokens = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    workers: opt.Workers = 1,
    log_to: opt.LogTo = None,
    force: opt.Force = False,
) -> Outcome["AblationTables"]:
    """Replace the outputs of a model's mixers, one by one and by kind, and measure what AR hits and other tokens lose: which layers recall.

    Scores the model as it is and without each set of mixers, as far as that is not done yet. The tables are also written to `out`.
    Columns: see `AblationTables`.
    """
    from recallkit import ablation, builtin, scoring
    from recallkit.ablation.charts import ablation_figures
    from recallkit.ablation.view import ablation_json, ablation_tables, print_ablation
    from recallkit.models.spec import one_model
    from recallkit.storage import artifacts

    asked = [name.strip() for name in mixers.split(",") if name.strip()]
    if not asked:
        raise UsageError("no mixers are named", where="--mixers", remedy="name layers or kinds, or each")
    options = scoring.ScoringOptions(
        None, device, dtype, opt.amount(batch_tokens), force, trust_remote_code=trust_remote_code, workers=workers
    )
    spec, folder = one_model(_MODEL if model is None else model), opt.path(slices) or builtin.slices()
    target = opt.path(out) or ablation.ablation_path(folder, spec, asked, by, clean=clean)
    tables = ablation.ablate(spec, folder, target, options, asked=asked, by=by, cluster=cluster, clean=clean)
    manifest = artifacts.read_manifest(target / "ablation.parquet")
    return Outcome(
        value=lambda: tables,
        show=lambda: print_ablation(tables, manifest, target),
        json=lambda: ablation_json(tables, manifest, target),
        exports=lambda: [(tables, ablation_tables(tables, manifest), target)],
        figures=lambda: ablation_figures(tables),
    )
