"""`intervene`: what models lose where the earlier occurrences of a bigram are changed."""

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import File, path
from recallkit.options import InterventionOptions, Models, ScoringOptions, Slices, WritingOptions, out_option

if TYPE_CHECKING:
    from recallkit.intervening.tables import InterveneTables


@dataclass(frozen=True)
class Intervene(InterventionOptions, ScoringOptions, WritingOptions):
    """Which models are asked, and about what."""

    models: Models = None
    _: KW_ONLY
    slices: Slices = None
    out: Annotated[File | None, out_option("Directory of the result tables.", default="a folder in the slices")] = None


@command(
    "intervene",
    Intervene,
    examples=(
        "recallkit intervene zoo:attention zoo:mamba --samples 200",
        "recallkit intervene path/to/attention path/to/mamba --slices slices --figures figures",
    ),
    exports=True,
)
def intervene(asked: Intervene) -> Outcome["InterveneTables"]:
    """Measure what models recall: the nats they lose where the earlier occurrences of a bigram are replaced, less a placebo's; resumes.

    The first model is the reference: beside the share of each other model's gap that lies in AR hits, the share that is recall.
    Columns: see `InterveneTables`.
    """
    from recallkit import builtin, intervening
    from recallkit.options import BUILTIN_SAMPLES

    folder = path(asked.slices) or builtin.slices()
    compared = builtin.named_models(asked.models)
    if asked.models is None:
        asked = replace(asked, samples=asked.samples or BUILTIN_SAMPLES)
    target = path(asked.out) or intervening.intervention_path(folder, compared, asked)
    return outcome_of(intervening.intervene(compared, folder, target, asked, asked), target)


def outcome_of(tables: "InterveneTables", folder: Path) -> Outcome["InterveneTables"]:
    """The result in `folder` in every form."""
    from recallkit.intervening.charts import intervene_figures
    from recallkit.intervening.view import intervene_json, print_intervene, shown_intervene

    return Outcome(
        value=lambda: tables,
        show=lambda: print_intervene(tables, folder),
        json=lambda: intervene_json(tables, folder),
        exports=lambda: [(tables, shown_intervene(tables, folder), folder)],
        figures=lambda: intervene_figures(tables),
    )
