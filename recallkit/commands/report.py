"""Results as a page for readers: `report`; and their figures for Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Union

from recallkit.commands import options as opt
from recallkit.commands.adapter import Argument, File, Option, Outcome, command

if TYPE_CHECKING:
    from altair.typing import ChartType

    from recallkit.display.chart_theme import Figure
    from recallkit.display.notebook import Shown
    from recallkit.report.write import Report


@dataclass(frozen=True)
class ReportWords:
    """Options of the command line only: Python has the page's path, and webbrowser."""

    open_page: Annotated[bool, Option("Open the page in a browser.", ("--open",))] = False


@command(
    "report",
    examples=(
        "recallkit report slices --open",
        "recallkit report slices --with evals --figures figures -o report.html",
    ),
    words=ReportWords,
)
def write_report(
    own_words: ReportWords | None,
    folder: Annotated[
        File | None,
        Argument(
            "What `gap`, `eval-recall`, `mqar` or `profile` wrote, a slice directory, or a folder above them; the built-in comparison "
            "if none.",
            metavar="DIR",
        ),
    ] = None,
    out: Annotated[
        File | None, opt.out("The page to write.", default="report.html beside the comparison; demo.html in the cache", metavar="FILE")
    ] = None,
    *,
    slices: Annotated[
        File | None,
        Option("The slice directory that was compared on, with its scores, where the comparison is not in it.", metavar="DIR"),
    ] = None,
    more: Annotated[
        File | Sequence[File] | None, Option("Also show the results in this folder; may be repeated.", ("--with",), metavar="DIR")
    ] = None,
    sequence: Annotated[int | Sequence[int] | None, Option("Also show this sequence of the text; may be repeated.", least=0)] = None,
    document: Annotated[int | Sequence[int] | None, Option("Also show all sequences of this document; may be repeated.", least=0)] = None,
    figures: opt.Figures = None,
) -> Outcome[Path]:
    """Write one HTML page: the gap and what it is made of, figures, and the text token by token. It needs no network; text is in it.

    Returns the page.
    """
    from recallkit import builtin
    from recallkit.report import write
    from recallkit.storage.timings import Timings

    own, target, asked = opt.path(slices), opt.path(out), (opt.numbers(sequence), opt.numbers(document))
    options = write.ReportOptions(own, [Path(name) for name in opt.names(more)], opt.path(figures), *asked)
    timings = Timings()
    compared = opt.path(folder) or builtin.comparison(own)
    if folder is None and own is None and target is None:
        target = builtin.page()
    with timings.stage("writing the page") as stage:
        written = write.write_report(compared, target, options)
        stage.amounts["bytes"] = written.num_bytes
    if own_words is not None and own_words.open_page:
        _open(written.page)
    return Outcome(
        value=lambda: written.page,
        show=lambda: _print_report(written),
        json=lambda: {**written.to_json(), "timings": timings.to_json()},
    )


def _print_report(written: "Report") -> None:
    """Prints where the page is, what it contains, and where the figures are."""
    from recallkit.display import console
    from recallkit.display.console import print_files

    excerpts = f", {written.excerpts:,} excerpts of the text" if written.excerpts else ", no text"
    console.print_page(written.page)
    console.print_line(f"{written.num_bytes / 1e6:.1f} MB{excerpts}; open it in a browser, or with --open")
    print_files(written.pictures)


def _open(page: Path) -> None:
    """Opens a page in the user's browser ($BROWSER, or the system's); a note if there is none."""
    import webbrowser

    from recallkit.display import console

    if not webbrowser.open(page.absolute().as_uri()):
        console.note(f"no browser was found: open {page}")


def figures(of: Union[File, "Shown"]) -> "dict[str, ChartType]":
    """The figures of results by name, as altair charts in the colours of a paper: shown in a notebook, `.save("x.svg")`.

    `of` is what a function returned (`gap`, `profile`, `eval_mqar` ...) or `read_comparison`, or a folder that they wrote.
    """
    from recallkit.display.notebook import Shown, charts

    return charts(of.figures() if isinstance(of, Shown) else _figures(of))


def _figures(of: File) -> "list[Figure]":
    from recallkit.attribution.charts import figures as gap_figures
    from recallkit.attribution.comparison import read_comparison
    from recallkit.report.found import find_results
    from recallkit.report.sections import OTHERS

    found = find_results(opt.path(of))
    compared = gap_figures(read_comparison(found["gap"])) if "gap" in found else []
    return [*compared, *(figure for kind, place in found.items() if kind != "gap" for figure in OTHERS[kind](place)[1])]
