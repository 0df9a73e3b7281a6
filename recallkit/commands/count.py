"""`count`, and the counts as tables for Python."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from recallkit import config
from recallkit.commands import options as opt
from recallkit.commands.adapter import File, Option, Outcome, checked, command
from recallkit.errors import UsageError

if TYPE_CHECKING:
    import polars as pl


@command(
    "count",
    examples=(
        "recallkit count 'train/*.jsonl.zst' --limit-tokens 10M -o counts.duckdb",
        "recallkit count 'train/*.parquet' --tokenizer gpt2.json --workers 8 -o counts.duckdb",
    ),
)
def count(
    sources: opt.Sources = None,
    out: Annotated[File | None, opt.out("The DuckDB file to write.", default="counts.duckdb", metavar="FILE")] = None,
    *,
    tokenizer: opt.Tokenizer = None,
    end_token: opt.EndToken = None,
    boundary: opt.Boundary = "pack",
    limit_tokens: opt.LimitTokens = None,
    text_field: opt.TextField = None,
    source_field: opt.SourceField = None,
    skip_bad: opt.SkipBad = False,
    texts: opt.Texts = None,
    only: Annotated[File | None, Option("Keep only the bigrams that this slice directory contains.", metavar="DIR")] = None,
    import_file: Annotated[
        File | None,
        Option(
            "Make the table of a Parquet or CSV file with columns first, second, count, or of the ids of an index: "
            "tokengrams (.bin with .idx) or infini-gram (a directory). An index needs --tokenizer.",
            ("--import",),
            metavar="PATH",
        ),
    ] = None,
    training_tokens: Annotated[
        int | str | None,
        Option("With --import: tokens of the training text; the sum of the counts if not given.", metavar="N", parse=opt.amount),
    ] = None,
    hashes: Annotated[
        int,
        Option(
            "Hashes to keep of the text's 13-grams, and as many of its 50-grams, 8 bytes each, by which `slice` finds copies of it; "
            "none are kept with --only or --import.",
            least=0,
            most=1 << 30,
        ),
    ] = config.NUM_HASHES,
    workers: opt.Workers = 1,
    engine: opt.Engine = "local",
    address: opt.Address = None,
    export: Annotated[File | None, Option("Also write the bigrams to this Parquet file.", metavar="FILE")] = None,
    force: opt.Force = False,
) -> Outcome["pl.DataFrame"]:
    """Count training bigrams exactly into a DuckDB table (bigrams, unigrams, meta), in bounded memory; resumes.

    From Python `texts`, a list of strings, of mappings with text and source, or a `datasets.Dataset`, may take the place of `sources`.

    Returns one row: path, id, num_tokens, num_documents, num_bigrams, boundary, tokenizer (its name), only.
    """
    from recallkit import builtin, counting
    from recallkit.counting.run import CountingOptions
    from recallkit.counting.view import counts_json, print_counts

    kept = opt.path(only)
    if import_file is not None:
        if sources is not None or texts is not None:
            raise UsageError("SOURCE and --import", where="count", remedy="give one of them")
        file, spec, num_tokens = opt.path(out) or Path("counts.duckdb"), opt.text(tokenizer), opt.amount(training_tokens)
        meta = counting.import_counts(
            opt.path(import_file), file, tokenizer=spec, end_token=end_token, num_tokens=num_tokens, boundary=boundary, force=force
        )
    else:
        is_builtin = opt.nothing_given(
            sources, texts, tokenizer, end_token, boundary != "pack", limit_tokens, text_field, source_field, skip_bad, only
        )
        read = opt.text_options(
            sources, tokenizer, end_token, boundary, limit_tokens, text_field, source_field, skip_bad=skip_bad, texts=texts
        )
        read, file = builtin.resolve_count_defaults(read, opt.path(out), is_builtin=is_builtin)
        meta = counting.count(read, file, only=kept, force=force, options=CountingOptions(engine, workers, address, hashes))
    if export is not None:
        counting.export_counts(file, opt.path(export), force=force)
    return Outcome(value=lambda: _row(file, meta), show=lambda: print_counts(meta, file), json=lambda: counts_json(meta, file))


def _row(file: Path, meta: dict[str, Any]) -> "pl.DataFrame":
    import polars as pl

    numbers = {name: meta.get(name) for name in ("num_tokens", "num_documents", "num_bigrams")}
    told = {"boundary": meta.get("boundary"), "tokenizer": (meta.get("tokenizer") or {}).get("name"), "only": meta.get("only")}
    schema = {"path": pl.String, "id": pl.String, **dict.fromkeys(numbers, pl.Int64), **dict.fromkeys(told, pl.String)}
    return pl.DataFrame([{"path": str(file), "id": meta["id"], **numbers, **told}], schema=schema)


def zoo_counts() -> Path:
    """The counts of the 3 million tokens that the zoo's models were trained on, made in the cache folder if they do not exist.

    Use them as `counts` to slice text other than the built-in one for models of the zoo.
    """
    from recallkit import builtin

    return builtin.counts()


@checked
def bigrams(
    counts: opt.Counts = None, *, limit: Annotated[int | None, Option("The most frequent ones only.", least=1, most=config.MOST)] = None
) -> "pl.DataFrame":
    """The `limit` most frequent bigrams of a counts table, the most frequent first; without `counts` those of the zoo's training.

    Columns: first, second (ids), count (in training). Reads the table into memory, 16 bytes per bigram.
    """
    import polars as pl

    from recallkit.counting.table import open_counts

    table = open_counts(opt.path(counts) or zoo_counts())
    keys = pl.Series("key", table.keys)
    ids = {"first": (keys // (1 << 32)).cast(pl.Int32), "second": (keys % (1 << 32)).cast(pl.Int32)}
    frame = pl.DataFrame({**ids, "count": pl.Series(table.counts).cast(pl.Int64)})
    return frame.sort("count", "first", "second", descending=[True, False, False]).head(len(frame) if limit is None else limit)
