"""Results as a page that people look at: `report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recallkit.commands.app import app
from recallkit.options import Figures, Json

if TYPE_CHECKING:
    from recallkit.report.write import Report


@app.command()
def report(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="What `gap`, `eval-recall`, `mqar` or `profile` wrote, a slice directory, or a folder above them; the embedded "
            "comparison if none.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FILE", help="The page to write.  \\[default: report.html beside the comparison]", show_default=False
        ),
    ] = None,
    slices: Annotated[
        Path | None,
        typer.Option(
            "--slices",
            metavar="DIR",
            help="The slice directory that was compared on, with its scores, where the comparison does not lie in it.",
            show_default=False,
        ),
    ] = None,
    more: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="DIR", help="Also show the results in this folder; may be repeated.", show_default=False),
    ] = None,
    sequence: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=0, help="Also show this sequence of the text; may be repeated.", show_default=False),
    ] = None,
    document: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=0, help="Also show all sequences of this document; may be repeated.", show_default=False),
    ] = None,
    figures: Figures = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page: the gap and what it is made of, pictures, and the text token by token. It needs no network; text is in it."""
    from recallkit import builtin
    from recallkit.display import console
    from recallkit.report.write import ReportOptions, write_report
    from recallkit.storage.timings import Timings

    options = ReportOptions(
        slices=slices, more=tuple(more or ()), figures=figures, sequences=tuple(sequence or ()), documents=tuple(document or ())
    )
    timings = Timings()
    compared = folder or builtin.comparison(slices)
    with timings.stage("writing the page") as stage:
        written = write_report(compared, out, options)
        stage.amounts["bytes"] = written.num_bytes
    if as_json:
        console.print_json({**written.to_json(), "timings": timings.to_json()})
        return
    print_report(written)


def print_report(written: Report) -> None:
    """Where the page lies, what it holds, and where the pictures are."""
    from recallkit.display import console
    from recallkit.display.files import print_files

    excerpts = f", {written.excerpts:,} excerpts of the text" if written.excerpts else ", no text"
    console.print_line(f"Page: {written.page}", is_path=True)
    console.print_line(f"      {written.num_bytes / 1e6:.1f} MB{excerpts}; open it in a browser")
    print_files(written.pictures)
