"""Text in, counts and labels out: `count` and `slice`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recallkit.commands.app import app
from recallkit.options import (
    Address,
    Boundary,
    BoundaryChoice,
    Counts,
    EndToken,
    Engine,
    EngineChoice,
    Export,
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
    Workers,
    amount,
)

if TYPE_CHECKING:
    from recallkit.text.open_text import TextOptions


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
    order: Annotated[
        int, typer.Option(min=2, max=5, help="Also count longer n-grams: 3, 4 or 5 ids, into the table `ngrams` of the same file.")
    ] = 2,
    import_file: Annotated[
        Path | None,
        typer.Option(
            "--import",
            metavar="PATH",
            help="Make the table of a Parquet or CSV file with columns first, second, count, or of the ids of an index: "
            "tokengrams (.bin with .idx) or infini-gram (a directory). An index needs --tokenizer.",
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
    workers: Workers = 1,
    engine: Engine = EngineChoice.local,
    address: Address = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the bigrams to this Parquet file.", show_default=False)
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Count training bigrams exactly into a DuckDB table (bigrams, unigrams, meta), in bounded memory; resumes."""
    from recallkit import builtin, counting
    from recallkit.counting.run import CountingOptions
    from recallkit.counting.view import counts_json, print_counts
    from recallkit.display import console

    if import_file is not None and sources:
        raise typer.BadParameter("give SOURCE or --import, not both")
    if import_file is not None:
        path = out or Path("counts.duckdb")
        meta = counting.import_counts(
            import_file, path, tokenizer=tokenizer, end_token=end_token, num_tokens=training_tokens, boundary=boundary.value, force=force
        )
    else:
        text = _text(sources, tokenizer, end_token, boundary, limit_tokens, text_field, source_field, skip_bad)
        text, path = builtin.what_to_count(text, only=only, out=out)
        options = CountingOptions(order, engine.value, workers, address)
        meta = counting.count(text, path, only=only, force=force, options=options)
    if export is not None:
        counting.export_counts(path, export, force=force)
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
    max_count: MaxCount = None,
    max_rate: MaxRate = None,
    seq_len: SeqLen = None,
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
    from recallkit import builtin
    from recallkit.display import console, exports
    from recallkit.display.files import print_files
    from recallkit.slicing.labels import summarise_slices
    from recallkit.slicing.view import print_slices, slices_json, slices_table

    text = _text(sources, tokenizer, end_token, boundary, limit_tokens, text_field, source_field, skip_bad)
    slicing = builtin.what_to_slice(text, out=out, counts_file=counts, max_count=max_count, max_rate=max_rate, seq_len=seq_len)
    path, manifest = slicing.out, slicing.run(force=force)
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
    sources: list[str] | None,
    tokenizer: str | None,
    end_token: str | None,
    boundary: BoundaryChoice,
    limit_tokens: int | None,
    text_field: str | None,
    source_field: str | None,
    skip_bad: bool,
) -> TextOptions:
    """What is said of the text; its split is the command's."""
    from recallkit.text.open_text import TextOptions

    return TextOptions(tuple(sources or ()), "", tokenizer, end_token, boundary.value, limit_tokens, text_field, source_field, skip_bad)
