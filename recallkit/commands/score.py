"""`score`, and the comparison of scores with float64."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from recallkit import config
from recallkit.commands import options as opt
from recallkit.commands.adapter import Option, Outcome, checked, command
from recallkit.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from recallkit.models.spec import ModelSpec


def _share(text: str) -> tuple[int, int]:
    """`3/16`: the third of 16. Raises ValueError for anything else."""
    place, _, shares = text.partition("/")
    if not (place.isdecimal() and shares.isdecimal() and 1 <= int(place) <= int(shares) <= config.LONGEST):
        raise ValueError(f"{text!r} is no share; give one such as 3/16, from 1/16 to 16/16")
    return int(place), int(shares)


@dataclass(frozen=True)
class ScoreWords:
    """Options of the command line only: one of many jobs, started by a scheduler; in Python, `check_scores` is a function."""

    share: Annotated[
        tuple[int, int] | None,
        Option(
            "Score the K-th of N shares and join nothing, for N jobs at once; a run without it joins them.",
            metavar="K/N",
            parse=_share,
            panel=opt.MANY_DEVICES,
        ),
    ] = None
    check: Annotated[
        bool, Option("Compare a sample with a float64 computation on CPU and print the differences (control models are float64).")
    ] = False


@command(
    "score",
    examples=(
        "recallkit score zoo:attention zoo:mamba",
        "recallkit score path/to/mamba --slices slices --dtype bfloat16 --workers 2",
    ),
    words=ScoreWords,
)
def score(
    own: ScoreWords | None,
    models: opt.Models = None,
    *,
    slices: opt.Slices = None,
    counts: opt.Counts = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = None,
    batch_tokens: opt.BatchTokens = None,
    model_tokenizer: Annotated[
        Any,
        Option(
            "The model's tokenizer, where it brings none: as --tokenizer, or `bytes`. If it is not the slices' own, the model reads "
            "the same bytes and its NLLs are aligned to the reference tokens.",
            metavar="TOKENIZER",
        ),
    ] = None,
    context: opt.Context = None,
    stride: Annotated[
        int | None,
        Option(
            "Read sequences that are longer than the context in windows, N predictions from each further one.",
            least=1,
            most=config.LONGEST,
            panel=opt.LONG_SEQUENCES,
        ),
    ] = None,
    carry_state: Annotated[
        bool, Option("A recurrent model reads --context ids at a time and keeps its state between them.", panel=opt.LONG_SEQUENCES)
    ] = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    workers: opt.Workers = 1,
    engine: opt.Engine = "local",
    address: opt.Address = None,
    log_to: opt.LogTo = None,
    force: opt.Force = False,
) -> Outcome["pl.DataFrame"]:
    """Score every predicted token with a model: NLL (nats), argmax and rank to Parquet; resumes.

    Returns one row per model: model, tokens, nll_nats (mean per token), ppl, accuracy (share of tokens that no vocabulary entry
    outranks), dtype, path (the Parquet file). The scores themselves: `tokens`.
    """
    from recallkit import builtin, scoring
    from recallkit.display.progress import one_after_another
    from recallkit.models.kinds import kind_of
    from recallkit.scoring.view import print_checks, print_scores, print_shares, scores_json, scores_table

    own = own or ScoreWords()
    if own.share is not None and (force or own.check or engine == "ray" or log_to):
        raise UsageError("goes with none of --force, --check, --engine ray and --log-to", where="--share", remedy="leave one of them out")
    options = scoring.ScoringOptions(
        opt.path(counts),
        device,
        dtype,
        opt.amount(batch_tokens),
        force,
        model_tokenizer,
        context,
        stride,
        carry_state,
        trust_remote_code,
        workers,
        engine,
        address,
        own.share,
    )
    folder = opt.path(slices) or builtin.slices()
    plans = scoring.plan_scores(opt.models(models, builtin.MODELS), folder, options)
    manifests = {plan.model: plan.run() for plan in one_after_another(plans)}
    checks = {
        each: scoring.check_scores(each, folder, options) for each in manifests if own.check and not kind_of(each.location).is_control
    }

    def show() -> None:
        print_scores(folder, manifests)
        if checks:
            print_checks(checks)

    if own.share is not None:
        return Outcome(
            value=lambda: _rows(folder, {}),
            show=lambda: print_shares(manifests),
            json=lambda: {model.shown: progress for model, progress in manifests.items()},
        )
    return Outcome(
        value=lambda: _rows(folder, manifests),
        show=show,
        json=lambda: [scores_json(folder, model, manifest, checks.get(model)) for model, manifest in manifests.items()],
        exports=lambda: [({"scores": _rows(folder, manifests)}, {"scores": scores_table(folder, manifests)}, folder)],
    )


def _rows(folder: Path, manifests: Mapping["ModelSpec", Mapping[str, Any]]) -> "pl.DataFrame":
    """One row per model."""
    import polars as pl

    from recallkit.scoring import score_path
    from recallkit.scoring.scores import summarise_scores

    rows = [
        {
            "model": model.shown,
            "tokens": manifest["num_rows"],
            **summarise_scores(score_path(folder, model)).row(0, named=True),
            "dtype": manifest["dtype"],
            "path": str(score_path(folder, model)),
        }
        for model, manifest in manifests.items()
    ]
    return pl.DataFrame(rows, schema_overrides={"dtype": pl.String})


@checked
def check_scores(
    models: opt.AnyModels, *, slices: opt.Slices = None, counts: opt.Counts = None, trust_remote_code: opt.TrustRemoteCode = False
) -> "pl.DataFrame":
    """Compares the scores of a few sequences with a float64 computation on CPU, as `recallkit score --check` does.

    Returns one row per model: model, tokens, largest and mean (absolute differences of NLLs in nats), sequence and position
    (of the largest), same_argmax (fraction of tokens; null if argmaxes cannot be compared).
    """
    import polars as pl

    from recallkit import builtin, scoring

    folder = opt.path(slices) or builtin.slices()
    options = scoring.ScoringOptions(opt.path(counts), trust_remote_code=trust_remote_code)
    return pl.DataFrame([{"model": model.shown, **scoring.check_scores(model, folder, options)} for model in opt.models(models)])
