"""`count`, and the counts as tables for Python."""

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from recallkit import config
from recallkit.commands.adapter import Outcome, checked, command
from recallkit.declarations import File, Option, Options, amount, path
from recallkit.errors import UsageError
from recallkit.options import CountingOptions, Counts, ForceOptions, TextOptions, out_option

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Count(TextOptions, CountingOptions, ForceOptions):
    """Which text is counted, or which counts are taken over."""

    default_split: str = field(default="train", init=False)
    out: Annotated[File | None, out_option("The DuckDB file to write.", default="counts.duckdb", metavar="FILE")] = None
    _: KW_ONLY
    only: Annotated[File | None, Option("Keep only the bigrams that this slice directory contains.", metavar="DIR")] = None
    import_file: Annotated[
        File | None,
        Option(
            "Make the table of a Parquet or CSV file with columns first, second, count, or of the ids of an index: "
            "tokengrams (.bin with .idx) or infini-gram (a directory). An index needs --tokenizer.",
            ("--import",),
            metavar="PATH",
        ),
    ] = None
    training_tokens: Annotated[
        int | str | None,
        Option("With --import: tokens of the training text; the sum of the counts if not given.", metavar="N", parse=amount),
    ] = None
    export: Annotated[File | None, Option("Also write the bigrams to this Parquet file.", metavar="FILE")] = None

    def __post_init__(self) -> None:
        """Raises UsageError also for a text and counts to import."""
        super().__post_init__()
        if self.import_file is not None and (self.sources is not None or self.texts is not None):
            raise UsageError("SOURCE and --import", where="count", remedy="give one of them")


@command(
    "count",
    Count,
    examples=(
        "recallkit count 'train/*.jsonl.zst' --limit-tokens 10M -o counts.duckdb",
        "recallkit count 'train/*.parquet' --tokenizer gpt2.json --workers 8 -o counts.duckdb",
    ),
)
def count(asked: Count) -> Outcome["pl.DataFrame"]:
    """Count training bigrams exactly into a DuckDB table (bigrams, unigrams, meta), in bounded memory; resumes.

    From Python `texts`, a list of strings, of mappings with text and source, or a `datasets.Dataset`, may take the place of `sources`.

    Returns one row: path, id, num_tokens, num_documents, num_bigrams, boundary, tokenizer (its name), only.
    """
    from recallkit import builtin, counting
    from recallkit.counting.view import counts_json, print_counts

    if asked.import_file is not None:
        file = path(asked.out) or Path("counts.duckdb")
        meta = counting.import_counts(
            path(asked.import_file),
            file,
            tokenizer=asked.tokenizer_name,
            end_token=asked.end_token,
            num_tokens=amount(asked.training_tokens),
            boundary=asked.boundary,
            force=asked.force,
        )
    else:
        is_builtin = asked.is_usual(TextOptions) and asked.only is None
        file = builtin.results_folder("counts.duckdb", path(asked.out), is_builtin=is_builtin)
        text = builtin.or_builtin(asked, builtin.TRAINING_TEXT)
        meta = counting.count(text, file, only=path(asked.only), force=asked.force, options=asked)
    if asked.export is not None:
        counting.export_counts(file, path(asked.export), force=asked.force)
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


@dataclass(frozen=True)
class Bigrams(Options):
    """Which bigrams are read."""

    counts: Counts = None
    _: KW_ONLY
    limit: Annotated[int | None, Option("The most frequent ones only.", least=1, most=config.MOST)] = None


@checked(Bigrams)
def bigrams(asked: Bigrams) -> "pl.DataFrame":
    """The `limit` most frequent bigrams of a counts table, the most frequent first; without `counts` those of the zoo's training.

    Columns: first, second (ids), count (in training). Reads the table into memory, 16 bytes per bigram.
    """
    import polars as pl

    from recallkit.counting.table import open_counts

    table = open_counts(path(asked.counts) or zoo_counts())
    keys = pl.Series("key", table.keys)
    ids = {"first": (keys // (1 << 32)).cast(pl.Int32), "second": (keys % (1 << 32)).cast(pl.Int32)}
    frame = pl.DataFrame({**ids, "count": pl.Series(table.counts).cast(pl.Int64)})
    return frame.sort("count", "first", "second", descending=[True, False, False]).head(asked.limit or len(frame))
