"""`ablate`."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from recallkit.commands.adapter import Outcome, command
from recallkit.commands.gap import ComparisonOptions
from recallkit.declarations import Argument, Option, path
from recallkit.errors import UsageError
from recallkit.options import MODEL_SYNTAX, AnyModel, ScoringOptions, Slices, WritingOptions

if TYPE_CHECKING:
    from recallkit.ablation.tables import AblationTables

_MODEL = "zoo:hybrid"


@dataclass(frozen=True)
class Ablate(ComparisonOptions, ScoringOptions, WritingOptions):
    """Which mixers of which model are replaced, and by what."""

    model: Annotated[AnyModel | None, Argument(f"The model, {MODEL_SYNTAX}; {_MODEL} if none.", metavar="MODEL")] = None
    _: KW_ONLY
    slices: Slices = None
    mixers: Annotated[
        str,
        Option(
            "Sets of mixers, joined with commas: layers (0,3,5), kinds (attention), or several at once (0+3); each: every one by itself "
            "and every kind as a whole.",
            metavar="SETS",
        ),
    ] = "each"
    by: Annotated[Literal["zero", "mean"], Option("What replaces their outputs: zero, or the mean of each over the text.")] = "zero"


@command(
    "ablate",
    Ablate,
    examples=(
        "recallkit ablate zoo:hybrid --mixers each --figures figures",
        "recallkit ablate path/to/model --slices slices -o ablation",
    ),
    exports=True,
)
def ablate(asked: Ablate) -> Outcome["AblationTables"]:
    """Replace the outputs of a model's mixers, one by one and by kind, and measure what AR hits and other tokens lose: which layers recall.

    Scores the model as it is and without each set of mixers, as far as that is not done yet. The tables are also written to `out`.
    Columns: see `AblationTables`.
    """
    from recallkit import ablation, builtin
    from recallkit.ablation.charts import ablation_figures
    from recallkit.ablation.view import ablation_json, ablation_tables, print_ablation
    from recallkit.models.spec import one_model
    from recallkit.storage import artifacts

    sets = [name.strip() for name in asked.mixers.split(",") if name.strip()]
    if not sets:
        raise UsageError("no mixers are named", where="--mixers", remedy="name layers or kinds, or each")
    model, folder = one_model(_MODEL if asked.model is None else asked.model), path(asked.slices) or builtin.slices()
    target = path(asked.out) or ablation.ablation_path(folder, model, sets, asked.by, clean=asked.clean)
    question: dict[str, Any] = {"asked": sets, "by": asked.by, "cluster": asked.cluster, "clean": asked.clean}
    tables = ablation.ablate(model, folder, target, asked, force=asked.force, **question)
    manifest = artifacts.read_manifest(target / "ablation.parquet")
    return Outcome(
        value=lambda: tables,
        show=lambda: print_ablation(tables, manifest, target),
        json=lambda: ablation_json(tables, manifest, target),
        exports=lambda: [(tables, ablation_tables(tables, manifest), target)],
        figures=lambda: ablation_figures(tables),
    )
