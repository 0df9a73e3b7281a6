"""How much a text repeats itself: `profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recallkit import config
from recallkit.commands.app import app
from recallkit.options import (
    Boundary,
    BoundaryChoice,
    Counts,
    EndToken,
    Export,
    Figures,
    Force,
    Json,
    LimitTokens,
    MaxCount,
    MaxRate,
    SeqLen,
    SkipBad,
    SourceField,
    Sources,
    TextField,
    Tokenizer,
)


@app.command()
def profile(
    sources: Sources = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="The directory to write.  \\[default: profile]", show_default=False)
    ] = None,
    slices: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Profile the labelled tokens of a slice directory instead of text.", show_default=False),
    ] = None,
    counts: Counts = None,
    max_count: MaxCount = None,
    max_rate: MaxRate = None,
    seq_len: SeqLen = None,
    stop_words: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Words whose bigrams are left out: ours, nltk (its data must be there), none, or a file of a word a line."
        ),
    ] = "ours",
    x_min: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=config.LONGEST,
            metavar="N",
            help="Where the power law of distances begins; the best fit if not given.",
            show_default=False,
        ),
    ] = None,
    tokenizer: Tokenizer = None,
    end_token: EndToken = None,
    boundary: Boundary = BoundaryChoice.pack,
    limit_tokens: LimitTokens = None,
    text_field: TextField = None,
    source_field: SourceField = None,
    skip_bad: SkipBad = False,
    figures: Figures = None,
    export: Export = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Profile a text by source: repeated bigrams a sequence, their distances and positions, AR hits; in bounded memory, resumes."""
    from recallkit import builtin, profiling
    from recallkit.display import console, exports
    from recallkit.display.chart_theme import check_figures_folder, save_figures
    from recallkit.display.files import print_files
    from recallkit.profiling.charts import profile_figures
    from recallkit.profiling.view import print_profile, profile_json, profile_tables
    from recallkit.storage import artifacts
    from recallkit.text.open_text import TextOptions

    check_figures_folder(figures)
    text = TextOptions(
        tuple(sources or ()), "validation", tokenizer, end_token, boundary.value, limit_tokens, text_field, source_field, skip_bad
    )
    options = profiling.ProfileOptions(stop_words, x_min, force)
    if slices is not None:
        if text != TextOptions((), "validation") or (counts, max_count, max_rate, seq_len) != (None, None, None, None):
            raise typer.BadParameter("--slices brings its own text, sequences and counts: leave out what decides them")
        path = out or Path("profile")
        tables = profiling.profile_slices(slices, path, options)
    else:
        asked = builtin.what_to_slice(
            text,
            out=out,
            counts_file=counts,
            max_count=max_count,
            max_rate=max_rate,
            seq_len=seq_len,
            name="profile",
            usual=stop_words == "ours" and x_min is None,
        )
        path = asked.out
        tables = profiling.profile(asked.text, path, counts=asked.counts, rare=asked.rare, seq_len=asked.seq_len, options=options)
    manifest = artifacts.read_manifest(path / "profile.parquet")
    written = exports.export(tables, profile_tables(tables, manifest), path, export) if export else []
    written += save_figures(profile_figures(tables, manifest["seq_len"]), figures) if figures is not None else []
    if as_json:
        console.print_json({**profile_json(tables, manifest, path), "files": [str(file) for file in written]})
        return
    print_profile(tables, manifest, path)
    print_files(written)
