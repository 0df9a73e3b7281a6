"""Where the gap lies: `demo`, `gap`, `published`, `track`, and comparisons read back."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, replace
from typing import TYPE_CHECKING, Any

from recallkit.commands.adapter import ANSWER, Outcome, command
from recallkit.commands.slices import ComparedTextOptions, rest_of_text, slices_of
from recallkit.declarations import File, argument, names, numbers, option, path
from recallkit.errors import UsageError, UserError
from recallkit.options import (
    MODEL_SYNTAX,
    AnyModel,
    AnyModels,
    ComparisonOptions,
    FarContextOptions,
    ForceOptions,
    InterventionOptions,
    LogOptions,
    ReportOptions,
    ScoringOptions,
    WritingOptions,
    out_option,
    slice_option,
    slices_option,
)

if TYPE_CHECKING:
    import polars as pl

    from recallkit.attribution import GapQuestion
    from recallkit.attribution.comparison import Comparison
    from recallkit.attribution.tables import GapTables
    from recallkit.display.views import ResultView
    from recallkit.models.spec import ModelSpec
    from recallkit.papers.arithmetic import PublishedGap
    from recallkit.tracking.tables import TrackTables


@command("demo", ForceOptions, examples=("recallkit demo",), prints=ANSWER)
def demo(asked: ForceOptions) -> Outcome["GapTables"]:
    """Run the whole pipeline on the built-in text: slice it, score the zoo, measure gaps and recall, and write a page."""
    from recallkit import attribution, builtin, intervening, scoring
    from recallkit.attribution.comparison import read_comparison
    from recallkit.attribution.view import ComparisonView
    from recallkit.display import console
    from recallkit.intervening import view as causal_view
    from recallkit.report.write import write_report
    from recallkit.slicing import view as slices_view
    from recallkit.slicing.labels import summarise_slices

    slices = builtin.slices(force=asked.force)
    reference, *models = builtin.MODELS
    for model in builtin.MODELS if asked.force else ():  # `gap` scores what is not scored
        scoring.score(model, slices, force=True)
    tables = attribution.gap(reference, models, slices, force=asked.force)
    out = attribution.gap_path(slices, reference, models)
    specs = builtin.named_models(list(_AUDITED))
    causal = intervening.intervention_path(slices, specs, _OF_DEMO)
    audit = intervening.intervene(specs, slices, causal, replace(_OF_DEMO, force=asked.force))
    page = write_report(out, builtin.page(), ReportOptions(more=causal)).page
    views: dict[str, Callable[[], ResultView]] = {
        "gap": lambda: ComparisonView(read_comparison(out, slices), causal_view.causal_recall(audit)),
        "slices": lambda: slices_view.SlicesView(slices, slices_view.manifest_of(slices), summarise_slices(slices / "tokens.parquet")),
        "intervene": lambda: causal_view.InterventionView(causal, audit),
    }
    outcome = Outcome.of(tables, *views.values())

    def show(full: bool) -> None:
        outcome.show(full)
        console.print_page(page)

    return replace(outcome, show=show, json=lambda: {**{name: made().json() for name, made in views.items()}, "page": str(page)})


_AUDITED = ("zoo:attention", "zoo:based", "zoo:mamba")
_OF_DEMO = InterventionOptions(samples=200, slice=("ar_hit",), changes="moved")
"""Models of the demo whose causal recall is also measured, and the options: as much as fits its time."""


def _gate(given: Any) -> Any:
    from recallkit.attribution.gates import parse_gate

    return parse_gate(given) if isinstance(given, str) else given


@dataclass(frozen=True)
class Gap(FarContextOptions, ComparisonOptions, WritingOptions, ComparedTextOptions):
    """Which models are compared, and how their gap is divided."""

    reference: AnyModel | None = argument(f"The reference, usually the attention model: {MODEL_SYNTAX}.", metavar="REFERENCE")
    models: AnyModels | None = argument("Models to compare with it.", metavar="MODEL")
    _: KW_ONLY
    slice: str | Sequence[str] | None = slice_option()
    price: bool = option(
        "Also compare the bytes of each model's state with the recall it retains and its loss at first occurrences, as a table and a chart "
        "(docs/memory.md).",
        False,
    )
    placebo: AnyModels | None = option(
        "Earlier checkpoints of the reference, such as 'run/checkpoint-*'. Each model is also compared with the reference's own run at "
        "the model's loss (docs/slices.md). May be repeated.",
        metavar="CHECKPOINT",
    )

    divergence: bool = option(
        "Also measure the KL divergence of each model from the reference, and how often both rank the same token first, by slice, "
        "distance and position (docs/divergence.md).",
        False,
    )

    def compared(self) -> "tuple[ModelSpec, ...]":
        """The models, the reference first. Raises UsageError where there are not two."""
        from recallkit import builtin

        reference, others = self.reference, [] if self.models is None else self.models
        compared = builtin.named_models(None if reference is None else [reference, others])
        if (reference is None and self.models is not None) or len(compared) < 2:
            where = "gap" if reference is None else compared[0].shown
            raise UsageError("a gap is between two models", where=where, remedy="name the reference, and the models to compare with it")
        return compared

    def question(self) -> "GapQuestion":
        """What is asked besides recall and the gap.

        Raises UserError for an unknown slice, and where a pattern of the placebo names no checkpoint.
        """
        from recallkit.attribution import GapQuestion
        from recallkit.models.spec import list_models
        from recallkit.scoring.scores import choose_last
        from recallkit.slicing.definitions import parse_slices
        from recallkit.tracking.steps import expand

        return GapQuestion(
            parse_slices(names(self.slice)),
            self.cluster,
            self.clean,
            choose_last(numbers(self.context_gain), self.context_stride),
            self.price,
            self.divergence,
            expand(list_models(self.placebo)) if self.placebo else [],
        )


@dataclass(frozen=True, kw_only=True)
class GapLine(Gap):
    """What the command line has besides: in Python, `intervene` is a function, and an exit status is not a result."""

    causal: bool = option("Also measure causal recall, as `recallkit intervene` does; --full shows it beside the recall gain.", False)
    fail_above: Sequence[Any] | None = option(
        "Exit with status 1 if a model's NLL on AR hits, or on SLICE, is more than LIMIT nats above the reference's. With ar_hit=30%: if "
        "the slice carries more than that share of the gap. May be repeated (docs/automation.md).",
        metavar="[SLICE=]LIMIT",
        parse=_gate,
    )


@command(
    "gap",
    Gap,
    examples=(
        "recallkit gap path/to/attention path/to/mamba --text valid.jsonl.zst --train 'train/*.jsonl.zst'",
        "recallkit gap attn=path/to/attention mamba=path/to/mamba,dtype=bfloat16 --slices slices --export csv,tex",
        "recallkit gap path/to/attention path/to/mamba --slices slices --slice 'far=distance > 512'",
    ),
    prints=ANSWER,
)
def gap(asked: GapLine) -> Outcome["GapTables"]:
    """Measure how much of REFERENCE's recall each MODEL retains, how far it is behind on AR hits, and where the gap lies.

    Without models it compares those of the zoo. In Python, one mapping {NAME: model} will do, the reference first. Scores what is not
    scored yet. The tables are also written to `out` (`read_comparison` reads them). Columns: see `GapTables`; `by_count` is Figure 1 of
    Zoology.
    """
    from recallkit import attribution, intervening
    from recallkit.attribution.comparison import read_comparison
    from recallkit.attribution.gates import (
        check_gates,
        failure_line,
        judge_gates,
        resolve_gates,
        unjudged_lines,
    )
    from recallkit.attribution.view import ComparisonView
    from recallkit.display import console
    from recallkit.intervening import view as causal_view
    from recallkit.measure.labelled import open_tokens
    from recallkit.report.write import write_report

    compared, question = asked.compared(), asked.question()
    gates = resolve_gates(asked.fail_above or (), question.slices)
    folder = slices_of(asked, [*compared, *question.placebo])
    check_gates(gates, open_tokens(folder / "tokens.parquet", needs_counts=asked.causal))
    target = path(asked.out) or attribution.gap_path(folder, compared[0], compared[1:], question)
    usual = InterventionOptions(force=asked.force)
    tables = attribution.gap(compared[0], compared[1:], folder, target, asked, question, force=asked.force)
    audit, verdicts, failed = None, [], None
    try:
        if asked.causal:
            audit = intervening.intervene(compared, folder, None, usual, asked)
        elif not asked.clean:
            audit = intervening.finished_intervention(folder, compared)
        verdicts = judge_gates(gates, tables)
    except UserError as error:  # the gap itself is known, and printed
        failed = str(error)
    causal: list[Callable[[], ResultView]] = []
    if asked.causal and audit is not None:
        causal = [lambda: causal_view.InterventionView(intervening.intervention_path(folder, compared, usual))]
    rows = {} if audit is None or asked.clean else causal_view.causal_recall(audit)
    outcome = Outcome.of(tables, lambda: ComparisonView(read_comparison(target, folder), rows), *causal)
    page, rest = None, None
    if asked.text is not None:
        page = write_report(target, options=ReportOptions(slices=None if asked.out is None else folder)).page
        rest = rest_of_text(folder, compared)

    def show(full: bool) -> None:
        outcome.show(full)
        if page is not None:
            console.print_page(page)
        for line in (*unjudged_lines(verdicts), *filter(None, [rest])):
            console.note(line)

    def json() -> dict[str, Any]:
        more: dict[str, Any] = {"causal": causal[0]().json()} if causal else {}
        more |= {} if page is None else {"page": str(page)}
        return {**outcome.json(), "gates": [verdict.to_json() for verdict in verdicts], **more}

    return replace(outcome, show=show, json=json, failure=failed or failure_line(verdicts))


def read_comparison(folder: File, *, slices: File | None = None) -> "Comparison":
    """The result of `gap`: its tables, the reference, the models (best first), the manifest of how it was measured.

    `folder` is that of the tables, or a slice directory that contains exactly one comparison.
    """
    from recallkit.attribution import comparison
    from recallkit.attribution.view import ComparisonView

    read = comparison.read_comparison(path(folder), path(slices))
    seen = functools.cache(lambda: ComparisonView(read))
    read.show_as(lambda: seen().print(), lambda: list(seen().display_tables.values()), lambda models: seen().figures(models))
    return read


@dataclass(frozen=True)
class Published(LogOptions):
    """Which table is divided, and how."""

    table: File = argument(
        "A CSV with columns model, all, ar, other, or a table of a paper, such as zoology:4 or based:1 (docs/papers.md).",
        MISSING,
        metavar="TABLE",
    )
    _: KW_ONLY
    reference: str | None = option(
        "The model that others are compared with. Default: the first row, or the first of each group.", metavar="NAME"
    )
    ar_share: float | None = option("The AR hits' share of the tokens. Default: derived from the reference's row.", metavar="SHARE")
    out: File | None = out_option("The directory that --export writes to.")


@command("published", Published, examples=("recallkit published zoology:4",), prints=("export",))
def published(asked: Published) -> Outcome["PublishedGap"]:
    """Measure how much of the gap between published perplexities lies in AR hits, from a paper's table or your own.

    By default `reference` is the first row (of each group, if there is a column `group`), and `ar_share`, the share of AR hits, follows
    from its three perplexities. A column `printed` with the share that the table states, in percent, is compared.
    """
    from recallkit.papers.arithmetic import attribute_published, is_name, table_path
    from recallkit.papers.view import print_published, published_json, published_tables

    named = str(asked.table)
    table = table_path(named) if is_name(named) else path(asked.table)
    found = attribute_published(table, reference=asked.reference, ar_share=asked.ar_share)
    return Outcome(
        value=lambda: found,
        show=lambda full: print_published(found),
        json=lambda: published_json(found),
        exports=lambda: [({"published": found.frame}, published_tables(found), path(asked.out))],
    )


def paper_table(name: str) -> "pl.DataFrame":
    """A table that a paper prints, as numbers: `zoology:1` to `:5`, `based:1` to `:6`, `yun:1` and `:2` (docs/papers.md)."""
    from recallkit.papers.arithmetic import read_table

    return read_table(name)


@dataclass(frozen=True)
class Track(ScoringOptions, WritingOptions):
    """Which run is followed, and what is measured of it."""

    reference: AnyModel | None = argument(f"A model to compare with: {MODEL_SYNTAX}.", metavar="REFERENCE")
    checkpoints: AnyModels | None = argument(
        "Checkpoints of one run, named with their steps: checkpoint-500, step_500, or NAME-500=PATH.", metavar="CHECKPOINT"
    )
    _: KW_ONLY
    slices: File | None = slices_option()
    slice: str | Sequence[str] | None = slice_option()
    causal: bool = option(
        "Also measure causal recall, as `recallkit intervene` does. It scores changed text, which takes several times as long.", False
    )
    out: File | None = out_option("Directory of the result tables.", default="a folder in the slices")


@command(
    "track",
    Track,
    examples=(
        "recallkit track path/to/attention run/checkpoint-* --slices slices",
        "recallkit track path/to/attention 'run/checkpoint-*' --slices slices --causal",
    ),
    prints=ANSWER,
)
def track(asked: Track) -> Outcome["TrackTables"]:
    """Follow the recall gain on AR hits over the checkpoints of a training run, with the NLL of AR hits, other tokens and named slices.

    Scores what is not scored yet. Columns: see `TrackTables`.
    """
    from recallkit import builtin, tracking
    from recallkit.models.spec import one_model
    from recallkit.slicing.definitions import parse_slices
    from recallkit.tracking.run import track_path
    from recallkit.tracking.view import TrackView

    if asked.reference is None or asked.checkpoints is None:
        missing = "REFERENCE" if asked.reference is None else "CHECKPOINT"
        raise UsageError("no model is named", where=missing, remedy="name a reference, then the checkpoints of a run")
    reference, checkpoints = one_model(asked.reference), builtin.named_models(asked.checkpoints)
    slices = builtin.named_slices(asked.slices, [reference, *checkpoints])
    followed = parse_slices(names(asked.slice), without=())
    out = path(asked.out) or track_path(slices, reference, checkpoints, causal=asked.causal, followed=followed)
    run = tracking.TrackedRun(slices, out, reference, asked, asked.causal, asked.force, followed=followed)
    tables = tracking.track(run, checkpoints)
    return Outcome.of(tables, lambda: TrackView(out, tables))
