"""`score`, and the comparison of scores with float64 for Python."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from recallkit.commands.adapter import Outcome, command, no_figures
from recallkit.declarations import File, option
from recallkit.options import (
    AnyModels,
    ScoringOptions,
    ShareOptions,
    WritingOptions,
    models_option,
    slices_option,
)

if TYPE_CHECKING:
    from recallkit.display.notebook import Summary


@dataclass(frozen=True)
class Score(ScoringOptions, WritingOptions):
    """Which models score which slices."""

    models: AnyModels | None = models_option()
    _: KW_ONLY
    slices: File | None = slices_option()


@dataclass(frozen=True, kw_only=True)
class ScoreLine(ShareOptions, Score):
    """What the command line has besides; in Python, `check_scores` is a function."""

    check: bool = option(
        (
            "Compare a sample with a float64 computation on CPU, and print the differences "
            "(control models are float64)."
        ),
        False,
        excludes=("share",),  # which makes a part of the scores
    )


@command(
    "score",
    Score,
    examples=(
        "recallkit score zoo:attention zoo:mamba",
        "recallkit score path/to/mamba --slices slices --dtype bfloat16 --workers 2",
    ),
)
def score(options: ScoreLine) -> Outcome["Summary"]:
    """Score every predicted token with a model, and write NLL (nats), argmax and rank to Parquet;
    resumes.

    Its frame has one row per model: model, tokens, nll_nats (mean per token), ppl, accuracy (share
    of tokens that are the model's first choice), dtype, path (the Parquet file). The scores
    themselves: `tokens`.
    """
    from recallkit import builtin, scoring
    from recallkit.display.notebook import Summary
    from recallkit.display.progress import one_after_another
    from recallkit.models.kinds import kind_of
    from recallkit.scoring.view import ScoresView

    models = builtin.named_models(options.models)
    folder = builtin.named_slices(options.slices, models)
    plans = scoring.plan_scores(models, folder, options, force=options.force, share=options.share)
    manifests = {plan.spec: scoring.make_scores(plan) for plan in one_after_another(plans)}
    if options.share is not None:
        return Outcome.of_shares({model.shown: manifest for model, manifest in manifests.items()})
    runs = [model for model in manifests if not kind_of(model.location).is_control]
    checked = runs if options.check else []
    checks = {model: scoring.check_scores(model, folder, options) for model in checked}
    view = ScoresView(folder, manifests, checks)
    return Outcome(
        value=lambda: Summary(view.frame()),
        show=lambda full: view.print(),
        json=view.json,
        exports=lambda: [({"scores": view.frame()}, {"scores": view.table()}, folder)],
    )


def check_scores(
    models: AnyModels,
    *,
    slices: File | None = None,
    counts: File | None = None,
    trust_remote_code: bool = False,
) -> "Summary":
    """Compares the scores of a few sequences with a float64 computation on CPU, as `recallkit score
    --check` does.

    Its frame has one row per model: model, tokens, largest and mean (absolute differences of NLLs
    in nats), sequence and position (of the largest), same_argmax (fraction of tokens; null if
    argmaxes cannot be compared).
    """
    import polars as pl

    from recallkit import builtin, scoring
    from recallkit.counting.remote import counts_here
    from recallkit.display.console import print_table
    from recallkit.display.notebook import Summary
    from recallkit.scoring.view import checks_table

    specs = builtin.named_models(models)
    folder = builtin.named_slices(slices, specs)
    options = ScoringOptions(counts=counts_here(counts), trust_remote_code=trust_remote_code)
    checks = {spec: scoring.check_scores(spec, folder, options) for spec in specs}
    summary = Summary(
        pl.DataFrame([{"model": spec.shown, **check} for spec, check in checks.items()])
    )
    summary.show_as(
        lambda: print_table(checks_table(checks)), lambda: [checks_table(checks)], no_figures
    )
    return summary
