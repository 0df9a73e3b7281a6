"""Text in, counts and labels out: `count` and `slice`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recallkit import config
from recallkit.commands.app import app
from recallkit.options import (
    LONGEST,
    MOST,
    Boundary,
    BoundaryChoice,
    Counts,
    EndToken,
    Export,
    Force,
    Json,
    LimitTokens,
    SkipBad,
    SourceField,
    Sources,
    TextField,
    Tokenizer,
    amount,
)

if TYPE_CHECKING:
    from recallkit.pipeline import RareCount
    from recallkit.texts import TextOptions


@app.command()
def count(
    sources: Sources = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="The DuckDB file to write.  \\[default: counts.duckdb]", show_default=False),
    ] = None,
    tokenizer: Tokenizer = None,
    end_token: EndToken = None,
    boundary: Boundary = BoundaryChoice.pack,
    limit_tokens: LimitTokens = None,
    text_field: TextField = None,
    source_field: SourceField = None,
    skip_bad: SkipBad = False,
    only: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep only the bigrams that this slice directory holds.", show_default=False)
    ] = None,
    import_file: Annotated[
        Path | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Make the table of a Parquet or CSV file with columns first, second, count.",
            show_default=False,
        ),
    ] = None,
    training_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=amount,
            help="With --import: tokens of the training text; the sum of the counts if not given.",
            show_default=False,
        ),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the bigrams to this Parquet file.", show_default=False)
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Count training bigrams exactly into a DuckDB table (bigrams, unigrams, meta), in bounded memory; resumes."""
    from recallkit import console, embedded, pipeline
    from recallkit.views.text import counts_json, print_counts

    if import_file is not None and sources:
        raise typer.BadParameter("give SOURCE or --import, not both")
    if import_file is not None:
        path = out or Path("counts.duckdb")
        meta = pipeline.import_counts(
            import_file, path, tokenizer=tokenizer, num_tokens=training_tokens, boundary=boundary.value, force=force
        )
    else:
        named = tuple(sources or embedded.TRAINING_TEXT.sources)
        text = _text(named, "train", tokenizer, end_token, boundary, limit_tokens, text_field, source_field, skip_bad)
        is_embedded = text == embedded.TRAINING_TEXT and only is None
        path = out or (embedded.folder() / "counts.duckdb" if is_embedded else Path("counts.duckdb"))
        meta = pipeline.count(text, path, only=only, force=force)
    if export is not None:
        pipeline.export_counts(path, export, force=force)
    if as_json:
        console.print_json(counts_json(meta, path))
    else:
        print_counts(meta, path)


@app.command(name="slice")
def slice_(
    sources: Sources = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="The directory to write.  \\[default: slices]", show_default=False)
    ] = None,
    counts: Counts = None,
    max_count: Annotated[
        int | None,
        typer.Option(min=0, max=MOST, help=f"Largest count of a rare bigram.  \\[default: {config.MAX_COUNT}]", show_default=False),
    ] = None,
    max_rate: Annotated[
        float | None,
        typer.Option(min=0, help="The same as occurrences a billion training tokens (the papers' 1250 of 10B is 125).", show_default=False),
    ] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LONGEST,
            help=f"Predictions in a sequence.  \\[default: {config.SEQ_LEN}; for the embedded text {config.EMBEDDED_SEQ_LEN}]",
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
    export: Export = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Label every predicted token: is its bigram repeated in the context, how far back, how often in training (AR hit)?"""
    from recallkit import console, embedded, exports, pipeline
    from recallkit.stages.slices import summarise_slices
    from recallkit.views.text import print_files, print_slices, slices_json, slices_table

    if max_count is not None and max_rate is not None:
        raise typer.BadParameter("give --max-count or --max-rate, not both")
    if max_rate is not None and not max_rate < MOST:
        raise typer.BadParameter("--max-rate: give a number of occurrences")
    named = tuple(sources or embedded.VALIDATION_TEXT.sources)
    text = _text(named, "validation", tokenizer, end_token, boundary, limit_tokens, text_field, source_field, skip_bad)
    rare = _rare(max_count, max_rate)
    is_embedded = seq_len is None and (counts, max_count, max_rate) == (None, None, None) and text == embedded.WHOLE_VALIDATION_TEXT
    if is_embedded:
        text, seq_len = embedded.VALIDATION_TEXT, config.EMBEDDED_SEQ_LEN
    if counts is None and not sources and tokenizer is None:
        counts = embedded.counts()
        rare = embedded.RARE if max_count is None and max_rate is None else rare
    path = out or (embedded.folder() / "slices" if is_embedded else Path("slices"))
    manifest = pipeline.slice_text(text, path, counts=counts, rare=rare, seq_len=seq_len or config.SEQ_LEN, force=force)
    written = []
    if export:
        summary = summarise_slices(path / "tokens.parquet")
        written = exports.export({"summary": summary}, {"summary": slices_table(summary, manifest)}, path, export)
    if as_json:
        console.print_json(slices_json(path, manifest))
    else:
        print_slices(path, manifest)
        print_files(written)


def _text(
    sources: tuple[str, ...],
    default_split: str,
    tokenizer: str | None = None,
    end_token: str | None = None,
    boundary: BoundaryChoice = BoundaryChoice.pack,
    limit_tokens: int | None = None,
    text_field: str | None = None,
    source_field: str | None = None,
    skip_bad: bool = False,
) -> TextOptions:
    from recallkit.texts import TextOptions

    return TextOptions(sources, default_split, tokenizer, end_token, boundary.value, limit_tokens, text_field, source_field, skip_bad)


def _rare(max_count: int | None, max_rate: float | None) -> RareCount:
    from recallkit.pipeline import RareCount

    return RareCount(config.MAX_COUNT if max_count is None else max_count, max_rate)
