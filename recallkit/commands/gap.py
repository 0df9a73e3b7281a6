"""Where the gap lies: `demo`, `gap`, `published`, `track`, and comparisons read back."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.commands.adapter import ANSWER, E, Outcome, command
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
def demo(options: ForceOptions) -> Outcome["GapTables"]:
    """Run the whole pipeline on the built-in text: slice it, score the zoo, measure gaps and
    recall, and write a page."""
    from recallkit import attribution, builtin, intervening, scoring
    from recallkit.attribution.comparison import read_comparison
    from recallkit.attribution.view import ComparisonView
    from recallkit.intervening import view as causal_view
    from recallkit.report.write import write_report
    from recallkit.slicing import view as slices_view
    from recallkit.slicing.labels import summarise_slices

    slices = builtin.slices(force=options.force)
    reference, *models = builtin.MODELS
    for model in builtin.MODELS if options.force else ():  # `gap` scores what is not scored
        scoring.score(model, slices, force=True)
    tables = attribution.gap(reference, models, slices, force=options.force)
    out = builtin.comparison_path()
    specs = builtin.named_models(list(_AUDITED))
    causal = intervening.intervention_path(slices, specs, _OF_DEMO)
    audit = intervening.intervene(specs, slices, causal, replace(_OF_DEMO, force=options.force))
    page = write_report(out, builtin.page(), ReportOptions(more=causal)).page
    outcome = Outcome.from_views(
        tables,
        lambda: ComparisonView(read_comparison(out, slices), causal_view.causal_recall(audit)),
        lambda: slices_view.SlicesView(
            slices, slices_view.manifest_of(slices), summarise_slices(slices / "tokens.parquet")
        ),
        lambda: causal_view.InterventionView(causal, audit),
    )

    def json() -> dict[str, Any]:
        comparison, labels, intervention = (view.json() for view in outcome.views())
        return {"gap": comparison, "slices": labels, "intervene": intervention, "page": str(page)}

    return _with_notes(replace(outcome, json=json), page)


def _with_notes(outcome: Outcome[E], page: Path | None, notes: Sequence[str] = ()) -> Outcome[E]:
    """An outcome that also prints where its page is, and notes."""
    from recallkit.display import console

    def show(full: bool) -> None:
        outcome.show(full)
        if page is not None:
            console.print_page(page)
        for note in notes:
            console.note(note)

    return replace(outcome, show=show)


_AUDITED = ("zoo:attention", "zoo:based", "zoo:mamba")
"""Models of the demo whose causal recall is also measured: as many as fit its time."""
_OF_DEMO = InterventionOptions(samples=200, slice=("ar_hit",), changes="moved")
"""How it is measured."""


def _gate(limit: Any) -> Any:
    from recallkit.attribution.gates import parse_gate

    return parse_gate(limit) if isinstance(limit, str) else limit


@dataclass(frozen=True)
class Gap(FarContextOptions, ComparisonOptions, WritingOptions, ComparedTextOptions):
    """Which models are compared, and how their gap is divided."""

    reference: AnyModel | None = argument(
        f"The reference, usually the attention model: {MODEL_SYNTAX}.", metavar="REFERENCE"
    )
    models: AnyModels | None = argument("Models to compare with it.", metavar="MODEL")
    _: KW_ONLY
    slice: str | Sequence[str] | None = slice_option()
    price: bool = option(
        "Also compare the bytes of each model's state with the recall it retains and its loss at "
        "first occurrences, as a table and a chart "
        "(docs/memory.md).",
        False,
    )
    placebo: AnyModels | None = option(
        "Earlier checkpoints of the reference, such as 'run/checkpoint-*'. Each model is also "
        "compared with the reference's own run at "
        "the model's loss (docs/slices.md). May be repeated.",
        metavar="CHECKPOINT",
    )

    divergence: bool = option(
        "Also measure the KL divergence of each model from the reference, and how often both "
        "rank the same token first, by slice, "
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
            raise UsageError(
                "a gap is between two models",
                where=where,
                remedy="name the reference, and the models to compare with it",
            )
        return compared

    def question(self) -> "GapQuestion":
        """What is measured besides recall and the gap.

        Raises UserError for an unknown slice, and where a pattern of the placebo names no
        checkpoint.
        """
        from recallkit.attribution import GapQuestion
        from recallkit.models.spec import list_models
        from recallkit.scoring.windows import choose_last
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
    """What the command line has besides: in Python, `intervene` is a function, and an exit status
    is not a result."""

    causal: bool = option(
        (
            "Also measure causal recall, as `recallkit intervene` does; --full shows it beside the "
            "recall gain."
        ),
        False,
    )
    fail_above: Sequence[Any] | None = option(
        "Exit with status 1 if a model's NLL on AR hits, or on SLICE, is more than LIMIT nats "
        "above the reference's. With ar_hit=30%: if "
        "the slice carries more than that share of the gap. May be repeated (docs/automation.md).",
        metavar="[SLICE=]LIMIT",
        parse=_gate,
    )


@command(
    "gap",
    Gap,
    examples=(
        (
            "recallkit gap path/to/attention path/to/mamba --text valid.jsonl.zst --train "
            "'train/*.jsonl.zst'"
        ),
        (
            "recallkit gap attn=path/to/attention mamba=path/to/mamba,dtype=bfloat16 --slices "
            "slices --export csv,tex"
        ),
        (
            "recallkit gap path/to/attention path/to/mamba --slices slices --slice 'far=distance > "
            "512'"
        ),
    ),
    prints=ANSWER,
)
def gap(options: GapLine) -> Outcome["GapTables"]:
    """Measure how much of REFERENCE's recall each MODEL retains, how far it is behind on AR hits,
    and where the gap lies.

    Without models it compares those of the zoo. In Python, one mapping {NAME: model} will do, the
    reference first. Scores what is not scored yet. The tables are also written to `out`
    (`read_comparison` reads them). Columns: see `GapTables`; `by_count` is Figure 1 of Zoology.
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
    from recallkit.intervening import view as causal_view
    from recallkit.measure.labelled import open_tokens
    from recallkit.models.spec import list_models
    from recallkit.report.write import write_report

    models, question = options.compared(), options.question()
    gates = resolve_gates(options.fail_above or (), question.slices)
    folder = slices_of(options, list_models([*models, *question.placebo]))
    check_gates(gates, open_tokens(folder / "tokens.parquet", needs_counts=options.causal))
    target = path(options.out) or attribution.gap_path(folder, models[0], models[1:], question)
    tables = attribution.gap(
        models[0], models[1:], folder, target, options, question, force=options.force
    )
    usual = InterventionOptions(force=options.force)
    audit, verdicts, failures = None, [], []
    try:
        verdicts = judge_gates(gates, tables)
        failures.append(failure_line(verdicts))
    except UserError as error:  # the gap itself is known, and printed
        failures.append(str(error))
    try:
        if options.causal:
            audit = intervening.intervene(models, folder, None, usual, options)
        elif not options.clean:
            audit = intervening.finished_intervention(folder, models)
    except UserError as error:
        failures.append(str(error))
    failure = "; ".join(filter(None, failures)) or None
    has_audit = options.causal and audit is not None
    recalled = {} if audit is None or options.clean else causal_view.causal_recall(audit)
    views: list[Callable[[], ResultView]] = [
        lambda: ComparisonView(read_comparison(target, folder), recalled)
    ]
    if has_audit:
        views.append(
            lambda: causal_view.InterventionView(
                intervening.intervention_path(folder, models, usual)
            )
        )
    outcome = replace(Outcome.from_views(tables, *views), failure=failure)
    page, notes = None, unjudged_lines(verdicts)
    if options.text is not None:
        page = write_report(
            target, options=ReportOptions(slices=None if options.out is None else folder)
        ).page
        notes = [*notes, *rest_of_text(folder, models)]

    def json() -> dict[str, Any]:
        comparison, *others = (view.json() for view in outcome.views())
        facts: dict[str, Any] = {**comparison, "gates": [verdict.to_json() for verdict in verdicts]}
        if has_audit:
            [facts["causal"]] = others
        if page is not None:
            facts["page"] = str(page)
        return facts

    return _with_notes(replace(outcome, json=json), page, notes)


def read_comparison(folder: File, *, slices: File | None = None) -> "Comparison":
    """The result of `gap`: its tables, the reference, the models (best first), the manifest of how
    it was measured.

    `folder` is that of the tables, or a slice directory that contains exactly one comparison.
    """
    from recallkit.attribution import comparison
    from recallkit.attribution.view import ComparisonView

    result = comparison.read_comparison(path(folder), path(slices))
    view = functools.cache(lambda: ComparisonView(result))
    result.show_as(
        lambda: view().print(),
        lambda: list(view().display_tables.values()),
        lambda models: view().figures(models),
    )
    return result


@dataclass(frozen=True)
class Published(LogOptions):
    """Which table is divided, and how."""

    table: File = argument(
        (
            "A CSV with columns model, all, ar, other, or a table of a paper, such as zoology:4 or "
            "based:1 (docs/papers.md)."
        ),
        MISSING,
        metavar="TABLE",
    )
    _: KW_ONLY
    reference: str | None = option(
        (
            "The model that others are compared with. Default: the first row, or the first of each "
            "group."
        ),
        metavar="NAME",
    )
    ar_share: float | None = option(
        "The AR hits' share of the tokens. Default: derived from the reference's row.",
        metavar="SHARE",
    )
    out: File | None = out_option("The directory that --export writes to.")


@command("published", Published, examples=("recallkit published zoology:4",), prints=("export",))
def published(options: Published) -> Outcome["PublishedGap"]:
    """Measure how much of the gap between published perplexities lies in AR hits, from a paper's
    table or your own.

    By default `reference` is the first row (of each group, if there is a column `group`), and
    `ar_share`, the share of AR hits, follows from its three perplexities. A column `printed` with
    the share that the table states, in percent, is compared.
    """
    from recallkit.papers.arithmetic import attribute_published, is_name, table_path
    from recallkit.papers.view import print_published, published_json, published_tables

    name = str(options.table)
    table = table_path(name) if is_name(name) else path(options.table)
    gaps = attribute_published(table, reference=options.reference, ar_share=options.ar_share)
    return Outcome(
        value=lambda: gaps,
        show=lambda full: print_published(gaps),
        json=lambda: published_json(gaps),
        exports=lambda: [({"published": gaps.frame}, published_tables(gaps), path(options.out))],
    )


def paper_table(name: str) -> "pl.DataFrame":
    """A table that a paper prints, as numbers: `zoology:1` to `:5`, `based:1` to `:6`, `yun:1` and
    `:2` (docs/papers.md)."""
    from recallkit.papers.arithmetic import read_table

    return read_table(name)


@dataclass(frozen=True)
class Track(ScoringOptions, WritingOptions):
    """Which run is followed, and what is measured of it."""

    reference: AnyModel | None = argument(
        f"A model to compare with: {MODEL_SYNTAX}.", metavar="REFERENCE"
    )
    checkpoints: AnyModels | None = argument(
        (
            "Checkpoints of one run, named with their steps: checkpoint-500, step_500, or "
            "NAME-500=PATH."
        ),
        metavar="CHECKPOINT",
    )
    _: KW_ONLY
    slices: File | None = slices_option()
    slice: str | Sequence[str] | None = slice_option()
    causal: bool = option(
        (
            "Also measure causal recall, as `recallkit intervene` does. It scores changed text, "
            "which takes several times as long."
        ),
        False,
    )
    out: File | None = out_option(
        "Directory of the result tables.", default="a folder in the slices"
    )


@command(
    "track",
    Track,
    examples=(
        "recallkit track path/to/attention run/checkpoint-* --slices slices",
        "recallkit track path/to/attention 'run/checkpoint-*' --slices slices --causal",
    ),
    prints=ANSWER,
)
def track(options: Track) -> Outcome["TrackTables"]:
    """Follow the recall gain on AR hits over the checkpoints of a training run, with the NLL of AR
    hits, other tokens and named slices.

    Scores what is not scored yet. Columns: see `TrackTables`.
    """
    from recallkit import builtin, tracking
    from recallkit.models.spec import one_model
    from recallkit.slicing.definitions import parse_slices
    from recallkit.tracking.run import track_path
    from recallkit.tracking.view import TrackView

    if options.reference is None or options.checkpoints is None:
        missing = "REFERENCE" if options.reference is None else "CHECKPOINT"
        raise UsageError(
            "no model is named",
            where=missing,
            remedy="name a reference, then the checkpoints of a run",
        )
    reference, checkpoints = one_model(options.reference), builtin.named_models(options.checkpoints)
    slices = builtin.named_slices(options.slices, [reference, *checkpoints])
    followed = parse_slices(names(options.slice), without=())
    out = path(options.out) or track_path(
        slices, reference, checkpoints, causal=options.causal, followed=followed
    )
    run = tracking.TrackedRun(
        slices, out, reference, options, options.causal, options.force, followed=followed
    )
    tables = tracking.track(run, checkpoints)
    return Outcome.from_views(tables, lambda: TrackView(out, tables))
