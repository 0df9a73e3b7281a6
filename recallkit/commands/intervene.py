"""`intervene`: what models lose where the earlier occurrences of a bigram are changed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from recallkit import config
from recallkit.commands import options as opt
from recallkit.commands.adapter import File, Option, Outcome, command

if TYPE_CHECKING:
    from recallkit.intervening.tables import InterveneTables


@command(
    "intervene",
    examples=(
        "recallkit intervene zoo:attention zoo:mamba --samples 200",
        "recallkit intervene path/to/attention path/to/mamba --slices slices --figures figures",
    ),
    exports=True,
)
def intervene(
    models: opt.Models = None,
    *,
    slices: opt.Slices = None,
    slice: Annotated[  # noqa: A002 - the option's name
        str | Sequence[str] | None,
        Option(
            "A slice to ask about, by name or as 'NAME=EXPRESSION'; may be repeated.",
            metavar="NAME",
            default="ar_hit, repeated_frequent, first_rare",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        Option("Tokens of each slice that are asked about.", least=1, most=config.LONGEST, default="2000; 300 for the built-in models"),
    ] = None,
    design: Annotated[
        Literal["joint", "exact"],
        Option("joint: many changes in one sequence; exact: a sequence for each change, which takes several times as long."),
    ] = "joint",
    seed: Annotated[int, Option("Decides samples and replacements.", least=0, most=config.MOST)] = 0,
    out: Annotated[File | None, opt.out("Directory of the result tables.", default="a folder in the slices")] = None,
    counts: opt.Counts = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = None,
    batch_tokens: opt.BatchTokens = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    workers: opt.Workers = 1,
    log_to: opt.LogTo = None,
    force: opt.Force = False,
) -> Outcome["InterveneTables"]:
    """Measure what models recall: the nats they lose where the earlier occurrences of a bigram are replaced, less a placebo's; resumes.

    The first model is the reference: beside the share of each other model's gap that lies in AR hits, the share that is recall.
    Columns: see `InterveneTables`.
    """
    from recallkit import builtin, intervening
    from recallkit.scoring import ScoringOptions
    from recallkit.slicing.definitions import parse_slices

    folder = opt.path(slices) or builtin.slices()
    compared = opt.models(models, builtin.MODELS)
    asked = parse_slices(opt.names(slice), without=())
    usual = intervening.BUILTIN_SAMPLES if models is None else intervening.SAMPLES
    options = intervening.InterventionOptions(samples or usual, design, seed, asked, force)
    scoring = ScoringOptions(
        opt.path(counts), device, dtype, opt.amount(batch_tokens), trust_remote_code=trust_remote_code, workers=workers
    )
    target = opt.path(out) or intervening.intervention_path(folder, compared, options)
    return outcome_of(intervening.intervene(compared, folder, target, options, scoring), target)


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
