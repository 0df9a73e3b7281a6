"""`gap`, the arithmetic on printed perplexities, and comparisons read back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from recallkit import config
from recallkit.commands import options as opt
from recallkit.commands.adapter import Argument, File, Option, Outcome, checked, command, in_notebooks
from recallkit.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from recallkit.attribution.comparison import Comparison
    from recallkit.attribution.published import PublishedGap
    from recallkit.attribution.tables import GapTables
    from recallkit.models.spec import ModelSpec
    from recallkit.scoring import ScoringOptions


def _gate(given: Any) -> Any:
    from recallkit.attribution.gates import parse_gate

    return parse_gate(given)


ArShare = Annotated[
    float | None, Option("With --table: the share of AR tokens, if not to be derived from the reference's row.", metavar="SHARE")
]


@dataclass(frozen=True)
class GapWords:
    """Options of the command line only: in Python, `gap_of_table` and `intervene` are functions, and an exit status is no result."""

    table: Annotated[
        File | None,
        Option(
            "Do the arithmetic on printed perplexities instead: a CSV with columns model, all, ar, other, or a paper's table, such as "
            "zoology:4 or based:1 (docs/papers.md).",
            metavar="FILE",
        ),
    ] = None
    ar_share: ArShare = None
    causal: Annotated[
        bool, Option("Also change what earlier occurrences there are, and measure how much of the gap is recall: `recallkit intervene`.")
    ] = False
    fail_above: Annotated[
        Sequence[Any] | None,
        Option(
            "Exit 1 if a model's NLL is more than LIMIT nats above the reference's on AR hits, or on SLICE; or, as in ar_hit=30%, if more "
            "than that share of the gap lies in it. May be repeated (docs/ci.md).",
            metavar="[SLICE=]LIMIT",
            parse=_gate,
        ),
    ] = None


@command(
    "gap",
    examples=(
        "recallkit gap zoo:attention zoo:hyena zoo:mamba",
        "recallkit gap attn=path/to/attention mamba=path/to/mamba,dtype=bfloat16 --slices slices --export csv,tex",
        "recallkit gap path/to/attention path/to/mamba --slices slices --slice 'far=distance > 512'",
        "recallkit gap --table zoology:4",
    ),
    words=GapWords,
    exports=True,
)
def gap(
    own: GapWords | None,
    reference: Annotated[
        opt.AnyModel | None, Argument(f"The reference, usually the attention model: {opt.MODEL_SYNTAX}.", metavar="REFERENCE")
    ] = None,
    models: Annotated[opt.AnyModels | None, Argument("Models to compare with it.", metavar="MODEL")] = None,
    *,
    slices: opt.Slices = None,
    slice: Annotated[  # noqa: A002 - the option's name
        str | Sequence[str] | None,
        Option(
            "A further slice, by name (first_rare, rare_word, copy:kN ...: docs/slices.md), or as 'NAME=EXPRESSION' over columns of "
            "tokens.parquet and words.parquet, such as 'far=distance > 100'. May be repeated.",
            metavar="NAME",
        ),
    ] = None,
    cluster: Annotated[
        Literal["document", "sequence", "source"],
        Option("What is independent of each other, and resampled for intervals: documents, or whole sources."),
    ] = "document",
    context_gain: Annotated[
        int | Sequence[int] | None,
        Option(
            "Also score with the last N ids alone, and split the gap by what is gained from context further back: several N joined with "
            "commas, such as 8,32,128 (docs/context.md). Each costs about five times as much as scoring.",
            metavar="NUMBERS",
            least=1,
            most=config.LONGEST,
            joined=True,
        ),
    ] = None,
    context_stride: Annotated[
        int | None,
        Option(
            "With --context-gain: each prediction sees N to N + this - 1 ids, at a cost of (N + this - 1) / this passes; 1 is exact.",
            metavar="NUMBER",
            least=1,
            most=config.LONGEST,
            default="N / 4",
        ),
    ] = None,
    clean: Annotated[bool, Option("Leave out tokens that are known to be in the training text (column in_training).")] = False,
    out: Annotated[File | None, opt.out("Directory of the result tables.", default="a folder in the slices")] = None,
    counts: opt.Counts = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = None,
    batch_tokens: opt.BatchTokens = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    workers: opt.Workers = 1,
    log_to: opt.LogTo = None,
    force: opt.Force = False,
) -> Outcome["GapTables"]:
    """Measure how much of the perplexity gap between REFERENCE and each MODEL lies in AR hits, with 95 % intervals.

    Between the models of the zoo if none is named; in Python also of one mapping {NAME: model}, the reference first. Scores what is not
    scored yet. The tables are also written to `out` (`read_comparison` reads them). Columns: see `GapTables`; `by_count` is Figure 1 of
    Zoology.
    """
    from recallkit import attribution, builtin, scoring
    from recallkit.attribution import comparison
    from recallkit.attribution.charts import figures
    from recallkit.attribution.gates import failure_line, judge_gates, resolve_gates, unjudged_lines
    from recallkit.attribution.view import gap_json, gap_tables, print_gap
    from recallkit.display import console
    from recallkit.scoring.scores import choose_last
    from recallkit.slicing.definitions import parse_slices
    from recallkit.slicing.view import manifest_of

    own = own or GapWords()
    if own.table is not None:
        with_models = {"--slice": slice, "--context-gain": context_gain, "--fail-above": own.fail_above, "--causal": own.causal or None}
        for flag, value in with_models.items():
            if value is not None:
                raise UsageError("needs models, and --table has none", where=flag, remedy="give one of them")
        return _published(own.table, None if reference is None else str(reference), own.ar_share, out)
    compared = opt.models(None if reference is None else [reference, [] if models is None else models], builtin.MODELS)
    if (reference is None and models is not None) or len(compared) < 2:
        where = "gap" if reference is None else compared[0].shown
        raise UsageError("a gap is between two models", where=where, remedy="name the reference, and the models to compare with it")
    options = scoring.ScoringOptions(
        opt.path(counts), device, dtype, opt.amount(batch_tokens), force, trust_remote_code=trust_remote_code, workers=workers
    )
    given = parse_slices(opt.names(slice))
    gates = resolve_gates(own.fail_above or (), given)
    folder = opt.path(slices) or builtin.slices()
    last = choose_last(opt.numbers(context_gain), context_stride)
    if context_stride is not None and not last:
        raise UsageError("needs --context-gain", where="--context-stride", remedy="say how many last ids, such as --context-gain 32")
    target = opt.path(out) or attribution.gap_path(folder, compared[0], compared[1:], given, clean=clean, context_gain=last)
    question: dict[str, Any] = {"given": given, "cluster": cluster, "clean": clean, "context_gain": last}
    tables = attribution.gap(compared[0], compared[1:], folder, target, options, **question)
    causal = _causal(compared, folder, options) if own.causal else None
    verdicts = judge_gates(gates, tables)

    def show() -> None:
        print_gap(tables, manifest_of(folder), target)
        if causal is not None:
            causal.show()
        for line in unjudged_lines(verdicts):
            console.note(line)

    def json() -> dict[str, Any]:
        more = {"causal": causal.json()} if causal else {}
        return {**gap_json(tables, manifest_of(folder), target), "gates": [verdict.to_json() for verdict in verdicts], **more}

    return Outcome(
        value=lambda: tables,
        show=show,
        json=json,
        exports=lambda: [(tables, gap_tables(tables, manifest_of(folder), target), target), *(causal.exports() if causal else ())],
        figures=lambda: [*figures(comparison.read_comparison(target, folder)), *(causal.figures() if causal else ())],
        failure=failure_line(verdicts),
    )


def _causal(models: Sequence["ModelSpec"], slices: "Path", scoring: "ScoringOptions") -> Outcome[Any]:
    """`gap --causal`: the same models under `intervene`, with its usual options."""
    from recallkit import intervening
    from recallkit.commands.intervene import outcome_of

    target = intervening.intervention_path(slices, models, intervening.InterventionOptions())
    return outcome_of(intervening.intervene(models, slices, target, scoring=scoring), target)


def _published(table: File, reference: str | None, ar_share: float | None, out: File | None) -> Outcome[Any]:
    """`gap --table`: the arithmetic on printed perplexities."""
    from recallkit.attribution.view import print_published, published_json, published_tables

    published = gap_of_table(table, reference=reference, ar_share=ar_share)
    return Outcome(
        value=lambda: published,
        show=lambda: print_published(published),
        json=lambda: published_json(published),
        exports=lambda: [({"published": published.frame}, published_tables(published), opt.path(out))],
    )


@checked
def gap_of_table(table: File, *, reference: str | None = None, ar_share: ArShare = None) -> "PublishedGap":
    """The same arithmetic on printed perplexities, `recallkit gap --table`: a CSV (model, all, ar, other), or a paper's table.

    By default `reference` is the first row (of each group, if there is a column `group`), and `ar_share`, the share of AR hits, follows
    from its three perplexities. A column `printed` with the share that the table states, in percent, is compared.
    """
    from recallkit.attribution import papers
    from recallkit.attribution.published import attribute_published
    from recallkit.attribution.view import published_tables

    path = papers.table_path(str(table)) if papers.is_name(str(table)) else opt.path(table)
    published = attribute_published(path, reference=reference, ar_share=ar_share)
    return in_notebooks(published, lambda: list(published_tables(published).values()))


@checked
def paper_table(name: str) -> "pl.DataFrame":
    """A table that a paper prints, as numbers: `zoology:1` to `:5`, `based:1` to `:6`, `yun:1` and `:2` (docs/papers.md)."""
    from recallkit.attribution import papers

    return papers.read_table(name)


def read_comparison(folder: File, *, slices: File | None = None) -> "Comparison":
    """The result of `gap`: its tables, the reference, the models (best first), the manifest of how it was measured.

    `folder` is that of the tables, or a slice directory that contains exactly one comparison.
    """
    from recallkit.attribution import comparison
    from recallkit.attribution.charts import figures
    from recallkit.attribution.view import gap_tables

    read = comparison.read_comparison(opt.path(folder), opt.path(slices))
    return in_notebooks(read, lambda: list(gap_tables(read.tables, read.manifest["slices"], read.folder).values()), lambda: figures(read))
