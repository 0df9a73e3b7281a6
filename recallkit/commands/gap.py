"""`gap`, and comparisons read back."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from recallkit import config
from recallkit.commands.adapter import Outcome, command, in_notebooks
from recallkit.commands.intervene import outcome_of
from recallkit.declarations import Argument, File, Option, Options, names, numbers, path
from recallkit.errors import UsageError
from recallkit.options import (
    MODEL_SYNTAX,
    AnyModel,
    AnyModels,
    InterventionOptions,
    ScoringOptions,
    Slices,
    WritingOptions,
    out_option,
)

if TYPE_CHECKING:
    from pathlib import Path

    from recallkit.attribution.comparison import Comparison
    from recallkit.attribution.tables import GapTables
    from recallkit.models.spec import ModelSpec


def _gate(given: Any) -> Any:
    from recallkit.attribution.gates import parse_gate

    return parse_gate(given) if isinstance(given, str) else given


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(Options):
    """Of which tokens models are compared, and what intervals resample."""

    cluster: Annotated[
        Literal["document", "sequence", "source"],
        Option("What is independent of each other, and resampled for intervals: documents, or whole sources."),
    ] = "document"
    clean: Annotated[bool, Option("Leave out tokens that are known to be in the training text (column in_training).")] = False
    out: Annotated[File | None, out_option("Directory of the result tables.", default="a folder in the slices")] = None


@dataclass(frozen=True)
class Gap(ComparisonOptions, ScoringOptions, WritingOptions):
    """Which models are compared, and how their gap is divided."""

    reference: Annotated[AnyModel | None, Argument(f"The reference, usually the attention model: {MODEL_SYNTAX}.", metavar="REFERENCE")] = (
        None
    )
    models: Annotated[AnyModels | None, Argument("Models to compare with it.", metavar="MODEL")] = None
    _: KW_ONLY
    slices: Slices = None
    slice: Annotated[
        str | Sequence[str] | None,
        Option(
            "A further slice, by name (first_rare, rare_word, copy:kN ...: docs/slices.md), or as 'NAME=EXPRESSION' over columns of "
            "tokens.parquet and words.parquet, such as 'far=distance > 100'. May be repeated.",
            metavar="NAME",
        ),
    ] = None
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
    ] = None
    context_stride: Annotated[
        int | None,
        Option(
            "With --context-gain: each prediction sees N to N + this - 1 ids, at a cost of (N + this - 1) / this passes; 1 is exact.",
            metavar="NUMBER",
            least=1,
            most=config.LONGEST,
            default="N / 4",
        ),
    ] = None

    def compared(self) -> "tuple[ModelSpec, ...]":
        """The models, the reference first. Raises UsageError where there are not two."""
        from recallkit import builtin

        reference, others = self.reference, [] if self.models is None else self.models
        compared = builtin.named_models(None if reference is None else [reference, others])
        if (reference is None and self.models is not None) or len(compared) < 2:
            where = "gap" if reference is None else compared[0].shown
            raise UsageError("a gap is between two models", where=where, remedy="name the reference, and the models to compare with it")
        return compared


@dataclass(frozen=True, kw_only=True)
class GapLine(Gap):
    """What the command line has besides: in Python, `intervene` is a function, and an exit status is no result."""

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
    Gap,
    examples=(
        "recallkit gap zoo:attention zoo:hyena zoo:mamba",
        "recallkit gap attn=path/to/attention mamba=path/to/mamba,dtype=bfloat16 --slices slices --export csv,tex",
        "recallkit gap path/to/attention path/to/mamba --slices slices --slice 'far=distance > 512'",
    ),
    exports=True,
)
def gap(asked: GapLine) -> Outcome["GapTables"]:
    """Measure how much of the perplexity gap between REFERENCE and each MODEL lies in AR hits, with 95 % intervals.

    Between the models of the zoo if none is named; in Python also of one mapping {NAME: model}, the reference first. Scores what is not
    scored yet. The tables are also written to `out` (`read_comparison` reads them). Columns: see `GapTables`; `by_count` is Figure 1 of
    Zoology.
    """
    from recallkit import attribution, builtin
    from recallkit.attribution import comparison
    from recallkit.attribution.charts import figures
    from recallkit.attribution.gates import failure_line, judge_gates, resolve_gates, unjudged_lines
    from recallkit.attribution.view import gap_json, gap_tables, print_gap
    from recallkit.display import console
    from recallkit.scoring.scores import choose_last
    from recallkit.slicing.definitions import parse_slices
    from recallkit.slicing.view import manifest_of

    compared = asked.compared()
    given = parse_slices(names(asked.slice))
    gates = resolve_gates(asked.fail_above or (), given)
    folder = path(asked.slices) or builtin.slices()
    last = choose_last(numbers(asked.context_gain), asked.context_stride)
    if asked.context_stride is not None and not last:
        raise UsageError("needs --context-gain", where="--context-stride", remedy="say how many last ids, such as --context-gain 32")
    target = path(asked.out) or attribution.gap_path(folder, compared[0], compared[1:], given, clean=asked.clean, context_gain=last)
    question: dict[str, Any] = {"given": given, "cluster": asked.cluster, "clean": asked.clean, "context_gain": last}
    tables = attribution.gap(compared[0], compared[1:], folder, target, asked, force=asked.force, **question)
    causal = _causal(compared, folder, asked) if asked.causal else None
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


def _causal(models: Sequence["ModelSpec"], slices: "Path", scoring: GapLine) -> Outcome[Any]:
    """`gap --causal`: the same models under `intervene`, with its usual options."""
    from recallkit import intervening

    usual = InterventionOptions(force=scoring.force)
    target = intervening.intervention_path(slices, models, usual)
    return outcome_of(intervening.intervene(models, slices, target, usual, scoring), target)


def read_comparison(folder: File, *, slices: File | None = None) -> "Comparison":
    """The result of `gap`: its tables, the reference, the models (best first), the manifest of how it was measured.

    `folder` is that of the tables, or a slice directory that contains exactly one comparison.
    """
    from recallkit.attribution import comparison
    from recallkit.attribution.charts import figures
    from recallkit.attribution.view import gap_tables

    read = comparison.read_comparison(path(folder), path(slices))
    return in_notebooks(read, lambda: list(gap_tables(read.tables, read.manifest["slices"], read.folder).values()), lambda: figures(read))
