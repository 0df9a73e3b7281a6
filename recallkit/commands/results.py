"""Results for people to look at: `report`, `tokens`, `verify`; for Python their figures, and the
table of all tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from recallkit.commands.adapter import Outcome, choose_models, command
from recallkit.declarations import File, Options, argument, option, path
from recallkit.errors import UsageError, UserError
from recallkit.options import ReportOptions, out_option, slices_option

if TYPE_CHECKING:
    import polars as pl
    from altair.typing import ChartType

    from recallkit.attribution.comparison import Comparison
    from recallkit.display.charts import Figure
    from recallkit.display.notebook import NotebookResult
    from recallkit.report.token_view import ScoredSequence
    from recallkit.report.write import Report
    from recallkit.verification.findings import Verified


@dataclass(frozen=True)
class WriteReport(ReportOptions):
    """Which results a page shows."""

    folder: File | None = argument(
        (
            "The output of `gap`, `eval-recall`, `mqar` or `profile`, a slice directory, or a "
            "folder above them. Default: that of `demo`."
        ),
        metavar="DIR",
    )
    out: File | None = out_option(
        "The page to write.",
        default="report.html beside the comparison; demo.html in the cache",
        metavar="FILE",
    )
    _: KW_ONLY


@dataclass(frozen=True, kw_only=True)
class ReportLine(WriteReport):
    """What the command line has besides: Python has the page's path, and webbrowser."""

    open_page: bool = option("Open the page in a browser.", False, flags=("--open",))


@command(
    "report",
    WriteReport,
    examples=(
        "recallkit report slices --open",
        "recallkit report slices --with evals --figures figures --model mamba --model based",
    ),
    prints=("figures", "width", "drawn"),
)
def write_report(options: ReportLine) -> Outcome[Path]:
    """Write one HTML page with the answer, tables, figures, and the text token by token. It needs
    no network and contains corpus text.

    Returns the page.
    """
    from recallkit import builtin
    from recallkit.report import write
    from recallkit.storage.timings import Timings

    timings, target = Timings(), path(options.out)
    folder = path(options.folder) or path(options.slices)
    if folder is None:
        folder, target = builtin.comparison(), target or builtin.page()
    with timings.stage("writing the page") as stage:
        written = write.write_report(folder, target, options)
        stage.amounts["bytes"] = written.num_bytes
    if options.open_page:
        _open(written.page)
    return Outcome(
        value=lambda: written.page,
        show=lambda full: _print_report(written),
        json=lambda: {**written.to_json(), "timings": timings.to_json()},
        figures=lambda models: write.figures_of(written.results, models),
    )


def _print_report(written: "Report") -> None:
    """Prints where the page is, and what it contains."""
    from recallkit.display import console

    excerpts = (
        f", {written.excerpts:,} excerpts of the text" if written.excerpts else ", without text"
    )
    console.print_page(written.page)
    console.print_line(
        f"{written.num_bytes / 1e6:.1f} MB{excerpts}; open it in a browser, or with --open"
    )


def _open(page: Path) -> None:
    """Opens a page in the user's browser ($BROWSER, or the system's); a note if there is none."""
    import webbrowser

    from recallkit.display import console

    if not webbrowser.open(page.absolute().as_uri()):
        console.note(f"no browser was found: open {page}")


def figures(
    result: Union[File, "NotebookResult"],
    *,
    models: Sequence[str] = (),
    width: str | float = "column",
) -> "dict[str, ChartType]":
    """The figures of results by name, as altair charts in the colours of a paper: shown in a
    notebook, `.save("x.svg")`.

    `result` is what a function (`gap`, `profile`, `eval_mqar` ...) or `read_comparison` returned,
    or a folder of theirs. Only `models` and the reference are drawn, if some are given. Text of 11
    pixels is 8 points where a chart is as wide as `width` says: `column`, `text`, or inches. Raises
    UserError for a model that is not in them, and for a width that is none.
    """
    from recallkit.display.charts import styles_of
    from recallkit.display.figure_files import parse_width
    from recallkit.display.notebook import NotebookResult, charts
    from recallkit.report.write import figures_of, find_results

    def draw(chosen: Sequence[str]) -> "Sequence[Figure]":
        return (
            result.figures(chosen)
            if isinstance(result, NotebookResult)
            else figures_of(find_results(path(result)), chosen)
        )

    try:
        inches = parse_width(width)
    except ValueError as error:
        raise UsageError(str(error), where="width") from error
    every = draw(())
    return charts(draw(choose_models(models, every)) if models else every, styles_of(every), inches)


@dataclass(frozen=True)
class ShowTokens(Options):
    """Which sequence is shown, and with which models."""

    folder: File | None = argument(
        (
            "The folder of a comparison (`recallkit gap`), or a slice directory. Default: the "
            "built-in one."
        ),
        metavar="DIR",
    )
    _: KW_ONLY
    sequence: int | None = option(
        "Number of the sequence, from 0. Default: the one where the models differ most."
    )
    model: str | None = option(
        "The model. Default: the one farthest behind on AR hits.", metavar="NAME"
    )
    reference: str | None = option(
        "The model to compare it with. Default: the comparison's reference.", metavar="NAME"
    )
    slices: File | None = slices_option()


@command(
    "tokens",
    ShowTokens,
    examples=(
        "recallkit tokens",
        "recallkit tokens slices --sequence 12 --reference zoo:attention --model zoo:mamba",
    ),
)
def show_tokens(options: ShowTokens) -> Outcome["ScoredSequence"]:
    """Show the text of one sequence, and mark each token: is it an AR hit, and which of two models
    was right?"""
    from recallkit.report.sequence import open_excerpts
    from recallkit.report.token_view import ScoredSequence, print_tokens, tokens_json

    has_both = options.model is not None and options.reference is not None
    slices, comparison = _find(path(options.folder), path(options.slices), needs_names=not has_both)
    reference, model = _models(comparison, options.reference, options.model)
    excerpts = open_excerpts(
        slices, [name for name in (reference, model) if name is not None], comparison
    )
    number = excerpts.most_telling() if options.sequence is None else options.sequence
    rows = excerpts.read(number)
    shown = ScoredSequence(
        number,
        excerpts.num_sequences,
        rows,
        excerpts.text_of(rows["prev_token"].head(1))[0],
        reference,
        model,
        has_counts=excerpts.has_counts,
        is_chosen=options.sequence is None,
    )
    return Outcome(
        value=lambda: shown,
        show=lambda full: print_tokens(shown),
        json=lambda: {"slices": str(slices), **tokens_json(shown)},
    )


def _find(
    folder: Path | None, slices: Path | None, *, needs_names: bool
) -> "tuple[Path, Comparison | None]":
    """The slice directory, and the comparison that names models: None if there is none, or of
    slices whose models have names.

    Raises UserError if there is nothing to show, or several comparisons to choose from.
    """
    from recallkit import builtin
    from recallkit.attribution.comparison import find_comparison, read_comparison

    folder = folder or slices
    if folder is None:
        slices, folder = builtin.slices(), builtin.comparison_path()
        return slices, read_comparison(folder) if (folder / "gap.parquet").is_file() else None
    if (folder / "gap.parquet").is_file():
        comparison = read_comparison(folder, slices)
        if comparison.slices is None:
            raise UserError(
                "the compared slices are not around it",
                where=folder,
                remedy="name them with --slices DIR",
            )
        return comparison.slices, comparison
    if not (folder / "tokens.parquet").is_file():
        raise UserError(
            "neither a comparison nor slices",
            where=folder,
            remedy="name a directory of `recallkit gap` or `recallkit slice`",
        )
    # Only the names are used here: labels may have been made again since.
    has_comparison = needs_names and any((folder / "gap").glob("*/gap.parquet"))
    return folder, read_comparison(find_comparison(folder)) if has_comparison else None


def _models(
    comparison: "Comparison | None", reference: str | None, model: str | None
) -> tuple[str | None, str | None]:
    """The reference and the model, as they are named, else those of the comparison: the model that
    is farthest behind on AR hits.

    A reference alone is returned as the model.
    """
    if comparison is not None:
        reference = reference or comparison.reference
        others = [name for name in comparison.models if name != reference] or [comparison.reference]
        behind = {
            name: (comparison.totals.get((name, "ar_hit")) or {}).get("delta_nll") or 0.0
            for name in others
        }
        model = model or max(others, key=lambda name: behind[name])
    if reference is not None and reference == model:
        raise UserError("given twice", where=model, remedy="name another --model or --reference")
    return (reference, model) if model is not None else (None, reference)


def tokens(slices: File | None = None, models: Any = ()) -> "pl.LazyFrame":
    """Every predicted token of a slice directory with its labels and the scores of `models`.

    Columns of the labels: sequence, position, document, source, prev_token, token, repeated,
    context_class (what is in the context already: bigram, token, or, of a new token, nothing),
    distance (tokens back to the bigram's latest earlier occurrence), first_distance (to its first
    one), occurrences (earlier ones), match_length (the longest preceding context shared with an
    earlier occurrence, in tokens), overwritten (the token before was followed by another one
    since), train_count, ar_hit, in_training (ids of the longest n-gram around it that is known to
    be in the training text, 13 or 50; 0 if none is, null if that is not known).
    Of each model: nll_NAME (nats), argmax_NAME, rank_NAME (0 is best), where NAME is the model as
    it is given, or its name: of {NAME: model}, or `NAME=model`. `models` are given as to `score`,
    or by the names that results show.

    Lazy: only the columns that a query requests are read. Row i of labels and scores is the same
    token; that they are of the same sequences is checked here. Raises UserError if a model has no
    scores of these slices (`score` makes them).
    """
    import polars as pl

    from recallkit import builtin, scoring
    from recallkit.measure.labelled import LabelledTokens, open_scores
    from recallkit.models.spec import one_model
    from recallkit.storage import parquet_files, records

    labels = builtin.named_slices(slices) / "tokens.parquet"
    known = LabelledTokens(labels, parquet_files.read_manifest(labels, records.Tokens))
    listed = [models] if isinstance(models, str) else models
    chosen = (
        models if isinstance(models, Mapping) else {one_model(model).key: model for model in listed}
    )
    columns = [pl.scan_parquet(labels, glob=False)]
    for name, model in chosen.items():
        file = scoring.find_scores(labels.parent, model)
        if not file.is_file():
            remedy = f"recallkit.score({model!r}, slices={str(labels.parent)!r})"
            raise UserError("not scored yet", where=model, remedy=remedy)
        open_scores(file, known)
        kinds = (pl.col(kind).alias(f"{kind}_{name}") for kind in ("nll", "argmax", "rank"))
        columns.append(pl.scan_parquet(file, glob=False).select(kinds))
    return pl.concat(columns, how="horizontal") if len(columns) > 1 else columns[0]


def token_texts(slices: File | None = None) -> "pl.DataFrame":
    """The text of every id of a slice directory's tokenizer, to be joined with `tokens` on token or
    prev_token.

    Columns: token (id), text; bytes that are not a whole character become U+FFFD.
    """
    import polars as pl

    from recallkit import builtin, profiling
    from recallkit.storage import parquet_files, records
    from recallkit.text.tokenizers import load_slices_tokenizer

    folder = builtin.named_slices(slices)
    labels = parquet_files.read_manifest(folder / "tokens.parquet", records.Tokens)
    tokenizer = load_slices_tokenizer(folder, labels["tokenizer"])
    texts = profiling.token_texts(tokenizer)
    return pl.DataFrame(
        {"token": range(len(texts)), "text": texts}, schema={"token": pl.Int32, "text": pl.String}
    )


@dataclass(frozen=True)
class Verify(Options):
    """Which results are checked."""

    folder: File = argument(
        "A directory of results, with all directories in it.", MISSING, metavar="DIR"
    )
    _: KW_ONLY
    clean: bool = option(
        (
            "First remove what killed runs left behind: temporary files, and parts of complete "
            "results."
        ),
        False,
    )


@command(
    "verify",
    Verify,
    examples=(
        "recallkit verify slices",
        "recallkit verify . --clean",
        "recallkit verify slices --json",
    ),
)
def verify(options: Verify) -> Outcome["Verified"]:
    """Check that results are unchanged since they were written, and that they belong together:
    digests, ids, rows, references.

    The exit status is 1 if a result is damaged or does not fit the others. Unfinished work and
    leftovers are only reported.
    """
    from recallkit.verification.run import verify as verify_folder

    verified = verify_folder(path(options.folder), clean=options.clean)
    problem = (
        f"{options.folder} has results that are damaged or do not belong together; each line "
        "above has its remedy"
    )
    return Outcome(
        value=lambda: verified,
        show=lambda full: verified.print(),
        json=verified.to_json,
        failure=None if verified.is_sound else problem,
    )
