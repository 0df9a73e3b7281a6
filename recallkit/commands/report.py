"""Results as a page for readers: `report`; and their figures for Python."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Union

from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import Argument, File, Option, path
from recallkit.options import ReportOptions, out_option

if TYPE_CHECKING:
    from altair.typing import ChartType

    from recallkit.display.chart_theme import Figure
    from recallkit.display.notebook import Shown
    from recallkit.report.write import Report


@dataclass(frozen=True)
class WriteReport(ReportOptions):
    """Which results a page shows."""

    folder: Annotated[
        File | None,
        Argument(
            "What `gap`, `eval-recall`, `mqar` or `profile` wrote, a slice directory, or a folder above them; the built-in comparison "
            "if none.",
            metavar="DIR",
        ),
    ] = None
    out: Annotated[
        File | None,
        out_option("The page to write.", default="report.html beside the comparison; demo.html in the cache", metavar="FILE"),
    ] = None
    _: KW_ONLY


@dataclass(frozen=True, kw_only=True)
class ReportLine(WriteReport):
    """What the command line has besides: Python has the page's path, and webbrowser."""

    open_page: Annotated[bool, Option("Open the page in a browser.", ("--open",))] = False


@command(
    "report",
    WriteReport,
    examples=(
        "recallkit report slices --open",
        "recallkit report slices --with evals --figures figures -o report.html",
    ),
)
def write_report(asked: ReportLine) -> Outcome[Path]:
    """Write one HTML page: the gap and what it is made of, figures, and the text token by token. It needs no network; text is in it.

    Returns the page.
    """
    from recallkit import builtin
    from recallkit.report import write
    from recallkit.storage.timings import Timings

    timings, target = Timings(), path(asked.out)
    compared = path(asked.folder) or builtin.comparison(path(asked.slices))
    if asked.folder is None and asked.slices is None and target is None:
        target = builtin.page()
    with timings.stage("writing the page") as stage:
        written = write.write_report(compared, target, asked)
        stage.amounts["bytes"] = written.num_bytes
    if asked.open_page:
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

    found = find_results(path(of))
    compared = gap_figures(read_comparison(found["gap"])) if "gap" in found else []
    return [*compared, *(figure for kind, place in found.items() if kind != "gap" for figure in OTHERS[kind](place)[1])]
