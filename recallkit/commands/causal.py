"""Is it recall? `intervene`: what models lose where the earlier occurrences of a bigram are
changed; `ablate`: without a mixer."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Literal

from recallkit import config
from recallkit.commands.adapter import ANSWER, Outcome, command
from recallkit.declarations import File, argument, option, path
from recallkit.errors import UsageError
from recallkit.options import (
    MODEL_SYNTAX,
    AnyModel,
    AnyModels,
    ComparisonOptions,
    InterventionOptions,
    ScoringOptions,
    ShareOptions,
    WritingOptions,
    models_option,
    out_option,
    slices_option,
)

if TYPE_CHECKING:
    from recallkit.ablation.tables import AblationTables
    from recallkit.intervening.tables import InterveneTables


@dataclass(frozen=True)
class Intervene(InterventionOptions, ScoringOptions, WritingOptions):
    """Which models are measured, on which tokens."""

    models: AnyModels | None = models_option()
    _: KW_ONLY
    slices: File | None = slices_option()
    out: File | None = out_option(
        "Directory of the result tables.", default="a folder in the slices"
    )


@dataclass(frozen=True, kw_only=True)
class InterveneLine(ShareOptions, Intervene):
    """The same, for one of many jobs."""


@command(
    "intervene",
    Intervene,
    examples=(
        "recallkit intervene zoo:attention zoo:mamba --samples 200",
        "recallkit intervene path/to/attention path/to/mamba --slices slices --figures figures",
    ),
    prints=ANSWER,
)
def intervene(options: InterveneLine) -> Outcome["InterveneTables"]:
    """Measure causal recall: how much less probable tokens become when earlier occurrences of their
    bigrams are broken up; resumes.

    The first model is the reference. For every other model the answer says how much of the
    reference's causal recall it retains, and what part of its gap the difference is.
    Columns: see `InterveneTables`.
    """
    from recallkit import builtin, intervening
    from recallkit.intervening.view import InterventionView
    from recallkit.options import BUILTIN_SAMPLES

    compared = builtin.named_models(options.models)
    folder = builtin.named_slices(options.slices, compared)
    if options.models is None:
        options = replace(options, samples=options.samples or BUILTIN_SAMPLES)
    target = path(options.out) or intervening.intervention_path(folder, compared, options)
    if options.share is not None:
        return Outcome.of_shares(
            intervening.score_share(compared, folder, options, options, options.share)
        )
    tables = intervening.intervene(compared, folder, target, options, options)
    return Outcome.from_views(tables, lambda: InterventionView(target, tables))


_MODEL = "zoo:hybrid"


@dataclass(frozen=True)
class Ablate(ComparisonOptions, ScoringOptions, WritingOptions):
    """Which mixers of which model are replaced, and by what."""

    model: AnyModel | None = argument(
        f"The model: {MODEL_SYNTAX}. Default: {_MODEL}.", metavar="MODEL"
    )
    _: KW_ONLY
    slices: File | None = slices_option()
    mixers: str = option(
        "Sets of mixers, joined with commas: layers (0,3,5), kinds (attention), or several at "
        "once (0+3); each: every mixer on its own "
        "and every kind as a whole.",
        "each",
        metavar="SETS",
    )
    heads: bool = option(
        "Search the heads of these mixers: all heads of a mixer together, then halves of every "
        "group that recall needs, down to single "
        "heads.",
        False,
    )
    budget: int | None = option(
        "Which N mixers keep the recall: remove one at a time, always the one without which the "
        "most recall gain is retained; of those whose cache grows, or of --mixers.",
        metavar="N",
        least=1,
        most=config.MOST,
    )
    by: Literal["zero", "mean"] = option(
        "What replaces their outputs: zero, or each output's mean over the text.", "zero"
    )


@command(
    "ablate",
    Ablate,
    examples=(
        "recallkit ablate zoo:hybrid --mixers each --figures figures",
        "recallkit ablate path/to/model --slices slices -o ablation",
        "recallkit ablate zoo:hybrid --mixers attention --heads",
        "recallkit ablate zoo:attention --budget 2",
    ),
    prints=ANSWER,
)
def ablate(options: Ablate) -> Outcome["AblationTables"]:
    """Replace the outputs of a model's token mixers, one by one and by kind, and measure the recall
    retained and the loss.

    With --budget, which few attention layers keep most of the recall.

    Scores the model unchanged and without each set of mixers, where that is not done yet. The
    tables are also written to `out`.
    Columns: see `AblationTables`.
    """
    from recallkit import ablation, builtin
    from recallkit.ablation.view import AblationView
    from recallkit.models.spec import one_model

    sets = [name.strip() for name in options.mixers.split(",") if name.strip()]
    if not sets:
        raise UsageError(
            "no mixers are named", where="--mixers", remedy="name layers or kinds, or each"
        )
    model = one_model(_MODEL if options.model is None else options.model)
    folder = builtin.named_slices(options.slices, [model])
    question = ablation.AblationQuestion(
        mixers=sets,
        by=options.by,
        heads=options.heads,
        budget=options.budget,
        clean=options.clean,
        cluster=options.cluster,
    )
    target = path(options.out) or ablation.ablation_path(folder, model, question)
    tables = ablation.ablate(model, folder, target, options, question, force=options.force)
    return Outcome.from_views(tables, lambda: AblationView(target, tables))
