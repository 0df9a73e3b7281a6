"""Text, counted and labelled: `count`, `slice`, `profile`, and the counts as tables for Python."""

from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.commands.adapter import ANSWER, Outcome, command
from recallkit.declarations import File, amount, option, path
from recallkit.errors import UsageError
from recallkit.options import (
    TEXT,
    AnyModels,
    CountingOptions,
    ForceOptions,
    LabelledTextOptions,
    LabelOptions,
    ProfileOptions,
    TextOptions,
    WritingOptions,
    out_option,
)

if TYPE_CHECKING:
    import polars as pl

    from recallkit.display.notebook import Summary
    from recallkit.profiling.tables import ProfileTables


@dataclass(frozen=True)
class Count(TextOptions, CountingOptions, ForceOptions):
    """Which text is counted, or which counts are taken over."""

    default_split: str = field(default="train", init=False)
    out: File | None = out_option(
        "The DuckDB file to write.",
        default="counts.duckdb; in the cache without SOURCE and other options",
        metavar="FILE",
    )
    _: KW_ONLY
    only: File | None = option(
        "Keep only the bigrams that this slice directory contains.", metavar="DIR"
    )
    import_file: File | None = option(
        "Make the table from a Parquet or CSV file with columns first, second, count.",
        flags=("--import",),
        metavar="FILE",
        excludes=("sources", "texts"),
    )
    training_tokens: int | str | None = option(
        "With --import: tokens of the training text. Default: the sum of the counts.",
        metavar="N",
        parse=amount,
        needs="import_file",
    )
    export: File | None = option("Also write the bigrams to this Parquet file.", metavar="FILE")


@command(
    "count",
    Count,
    examples=(
        "recallkit count 'train/*.jsonl.zst' --limit-tokens 10M -o counts.duckdb",
        "recallkit count 'train/*.parquet' --tokenizer gpt2.json --workers 8 -o counts.duckdb",
    ),
)
def count(options: Count) -> Outcome["Summary"]:
    """Count training bigrams exactly, in bounded memory, into a DuckDB table (bigrams, unigrams,
    meta); resumes.

    In Python, `texts` can replace `sources`: a list of strings or of mappings with text and source,
    or a `datasets.Dataset`.

    Its frame has one row: path, id, num_tokens, num_documents, num_bigrams, boundary, tokenizer
    (its name), only.
    """
    from recallkit import builtin, counting
    from recallkit.counting.table import NGRAM_HASHES
    from recallkit.display.cells import counted, percent, timings_lines
    from recallkit.display.console import print_answer
    from recallkit.display.notebook import Summary

    if options.import_file is not None:
        file = path(options.out) or Path("counts.duckdb")
        meta = counting.import_counts(
            path(options.import_file),
            file,
            tokenizer=options.tokenizer_name,
            end_token=options.end_token,
            num_tokens=amount(options.training_tokens),
            boundary=options.boundary,
            force=options.force,
        )
    else:
        is_builtin = options.is_usual(TextOptions) and options.only is None
        file = builtin.results_folder("counts.duckdb", path(options.out), is_builtin=is_builtin)
        text = builtin.or_builtin(options, builtin.TRAINING_TEXT)
        meta = counting.count(
            text, file, only=path(options.only), force=options.force, options=options
        )
    if options.export is not None:
        counting.export_counts(file, path(options.export), force=options.force)
    documents = (
        f" of {counted(meta['num_documents'], 'document')}" if meta.get("num_documents") else ""
    )
    answer = (
        f"{meta['num_tokens']:,} training tokens{documents}, {meta['num_bigrams']:,} distinct "
        "bigrams"
    )
    if unseen := meta.get("unseen"):
        answer += (
            f"; {percent(unseen['share'])} of a document's bigrams are in no other document "
            f"({unseen['documents']:,} sampled)"
        )
    notes = timings_lines(meta.get("timings"), "counted", is_reused=meta.get("reused", False))
    facts = (
        "id",
        "num_tokens",
        "num_documents",
        "num_bigrams",
        "unseen",
        "boundary",
        "tokenizer",
        "only",
        "sources",
        "timings",
    )
    hashes = {NGRAM_HASHES: meta[NGRAM_HASHES]} if NGRAM_HASHES in meta else {}
    return Outcome(
        value=lambda: Summary(_row(file, meta)),
        show=lambda full: print_answer(f"{answer}.", notes=notes, places={"table": file}),
        json=lambda: {"path": str(file), **{name: meta.get(name) for name in facts}, **hashes},
    )


def _row(file: Path, meta: dict[str, Any]) -> "pl.DataFrame":
    import polars as pl

    integers, strings = (
        ("num_tokens", "num_documents", "num_bigrams"),
        ("boundary", "tokenizer", "only"),
    )
    schema = {
        "path": pl.String,
        "id": pl.String,
        **dict.fromkeys(integers, pl.Int64),
        **dict.fromkeys(strings, pl.String),
    }
    tokenizer = (meta.get("tokenizer") or {}).get("name")
    row = {**{name: meta.get(name) for name in schema}, "path": str(file), "tokenizer": tokenizer}
    return pl.DataFrame([row], schema=schema)


def zoo_counts() -> Path:
    """The counts of the 3 million tokens that the zoo's models were trained on, made in the cache
    folder if they do not exist.

    Use them as `counts` to slice text other than the built-in one for models of the zoo.
    """
    from recallkit import builtin

    return builtin.counts()


def bigrams(counts: File | None = None, *, limit: int | None = None) -> "pl.DataFrame":
    """The `limit` most frequent bigrams of a counts table, the most frequent first; without
    `counts` those of the zoo's training.

    Columns: first, second (ids), count (in training). Reads the table into memory, 16 bytes per
    bigram.
    """
    import polars as pl

    from recallkit.counting.remote import counts_here
    from recallkit.counting.table import open_counts

    table = open_counts(counts_here(counts) or zoo_counts())
    keys = pl.Series("key", table.keys)
    ids = {"first": (keys // (1 << 32)).cast(pl.Int32), "second": (keys % (1 << 32)).cast(pl.Int32)}
    frame = pl.DataFrame({**ids, "count": pl.Series(table.counts).cast(pl.Int64)})
    return frame.sort("count", "first", "second", descending=[True, False, False]).head(
        len(frame) if limit is None else limit
    )


@dataclass(frozen=True)
class Slice(LabelledTextOptions, WritingOptions):
    """Which text is labelled, and how."""

    out: File | None = out_option(
        default="slices; a folder in the cache without SOURCE and other options"
    )
    _: KW_ONLY
    sample: int | str | None = option(
        "Draw whole documents at random, about N tokens in all, from each source in proportion "
        "to its size. Documents longer than a "
        "source's part are skipped. The text is read once to draw them.",
        metavar="N",
        parse=amount,
        excludes=("limit_tokens",),
        panel=TEXT,
    )
    seed: int = option(
        "Seed of --sample.", 0, least=0, most=config.MOST, panel=TEXT, needs="sample"
    )
    models: AnyModels | None = option(
        (
            "Take the tokenizer from this model, and --seq-len from its context, at most "
            f"{config.SEQ_LEN}. May be repeated."
        ),
        flags=("--for",),
        metavar="MODEL",
    )
    pack: bool = option(
        "Also write the ids as arrays, to folders called pack, for programs that record NLLs "
        "(docs/nlls.md); with counts those of the "
        "changed text of `intervene`, too.",
        False,
    )

    @property
    def drawn_tokens(self) -> int | None:
        """`sample` as a number."""
        return amount(self.sample)


@command(
    "slice",
    Slice,
    examples=(
        "recallkit slice valid.jsonl.zst --counts counts.duckdb --max-count 1250 -o slices",
        (
            "recallkit slice 'valid/*.parquet' --for path/to/attention --for path/to/mamba "
            "--counts counts.duckdb --sample 1M -o slices"
        ),
    ),
    prints=ANSWER,
)
def slice_(options: Slice) -> Outcome["Summary"]:
    """Label every predicted token: is its bigram repeated in the context, how far back, and is it
    rare in training (then an AR hit)?

    An AR hit completes a bigram that occurred before in its sequence and occurs at most `max_count`
    times in training, or at most `max_rate` times per billion training tokens. The default is the
    papers' rate, or 5 occurrences where the counts are too few to resolve it; the rule is reported
    and recorded. Without `counts` only repetition is labelled; run again with `counts`, it adds
    them. Without `sources` it reads the built-in text with the counts of the zoo's training. In
    Python, `texts` can replace `sources`: a list of strings or of mappings with text and source, or
    a `datasets.Dataset`.

    Its frame has one row per source, ALL first: source, tokens, repeated, repeated_share, ar_hits,
    ar_hit_share (fractions of the row's tokens; the last two null without counts). The labels
    themselves: `tokens`.
    """
    from recallkit import builtin, slicing
    from recallkit.display.console import note
    from recallkit.display.notebook import Summary
    from recallkit.models.loading import sequences_for
    from recallkit.models.spec import list_models
    from recallkit.slicing.labels import summarise_slices
    from recallkit.slicing.view import SlicesView
    from recallkit.text.sample import Sample
    from recallkit.text.tokenizers import BUILTIN

    if options.models is not None:
        tokenizer, seq_len = sequences_for(
            list_models(options.models), options.tokenizer_name, options.end_token, options.seq_len
        )
        options = replace(
            options, tokenizer=None if tokenizer == BUILTIN else tokenizer, seq_len=seq_len
        )
    is_builtin = options.sample is None and options.is_usual(TextOptions, LabelOptions)
    labelled = builtin.resolve_slice_defaults(options, path(options.out), is_builtin=is_builtin)
    folder, sample = (
        labelled.out,
        None if options.drawn_tokens is None else Sample(options.drawn_tokens, options.seed),
    )
    manifest = slicing.slice_text(
        labelled.text,
        folder,
        counts=labelled.counts,
        rare=labelled.rare,
        seq_len=labelled.seq_len,
        sample=sample,
        force=options.force,
    )
    if reason := _why_no_interval(folder / "tokens.parquet"):
        remedy = "slice more text"
        if sample is not None:
            remedy = "draw more with --sample"
        elif options.limit_tokens is not None:
            instead = f"--sample {options.limit_tokens} in place of --limit-tokens"
            remedy = f"{instead} draws documents of all of the text"
        note(f"results on these slices will have no interval: {reason}; {remedy}")
    packs = _write_packs(folder, path(options.counts)) if options.pack else []
    summary = summarise_slices(folder / "tokens.parquet")
    return Outcome.from_views(
        Summary(summary), lambda: SlicesView(folder, manifest, summary, packs)
    )


def _why_no_interval(tokens: Path) -> str | None:
    """Why intervals over these labels' documents are none, however models score; None if there will
    be some."""
    import polars as pl

    from recallkit.display.cells import too_few
    from recallkit.measure.ratio import MIN_CLUSTERS, Spread

    counts = pl.len().alias("all tokens"), pl.sum("ar_hit").alias("AR hits")
    is_known = pl.count("ar_hit").alias("known")
    documents = pl.scan_parquet(tokens, glob=False).group_by("document").agg(*counts, is_known)
    sizes = documents.collect()
    for name in ("all tokens", "AR hits") if sizes["known"].sum() else ("all tokens",):
        effective = float(Spread.of_sizes(sizes[name].to_numpy()).effective)
        if effective < MIN_CLUSTERS:
            return too_few(name, effective)
    return None


def _write_packs(folder: Path, counts: Path | None) -> list[Path]:
    """The packs of a slice directory and of the changed text that `intervene` makes of it."""
    from recallkit.counting.table import REPEATED_ONLY
    from recallkit.display.console import note
    from recallkit.intervening.changed_text import make_changed_text
    from recallkit.measure.labelled import open_tokens
    from recallkit.options import InterventionOptions
    from recallkit.slicing.pack import write_pack
    from recallkit.storage.timings import Timings

    packs = [write_pack(folder)]
    tokens = open_tokens(folder / "tokens.parquet", needs_counts=False)
    if tokens.manifest["counts"] is None or tokens.manifest["counts"].get(REPEATED_ONLY):
        note("no pack of changed text: it is made with counts of all training bigrams (--counts)")
        return packs
    return [*packs, write_pack(make_changed_text(tokens, InterventionOptions(), counts, Timings()))]


@dataclass(frozen=True)
class Profile(ProfileOptions, LabelledTextOptions, WritingOptions):
    """Which text is profiled, and how."""

    out: File | None = out_option(
        default="profile; a folder in the cache without SOURCE and other options"
    )
    _: KW_ONLY
    slices: File | None = option(
        "Profile the labelled tokens of a slice directory instead of text.", metavar="DIR"
    )

    def __post_init__(self) -> None:
        """Raises UsageError also for slices together with what they bring along."""
        super().__post_init__()
        if self.slices is not None and not self.is_usual(TextOptions, LabelOptions):
            remedy = "leave out the options for these"
            raise UsageError(
                "a slice directory brings its own text, sequences and counts",
                where="--slices",
                remedy=remedy,
            )


@command(
    "profile",
    Profile,
    examples=(
        "recallkit profile valid.jsonl.zst --counts counts.duckdb --figures figures",
        "recallkit profile 'books/*.txt' --boundary document --seq-len 4096 -o books",
    ),
    prints=ANSWER,
)
def profile(options: Profile) -> Outcome["ProfileTables"]:
    """Profile a text by source, in bounded memory: repeated bigrams per sequence, their distances
    and positions, AR hits; resumes.

    The text is given as for `slice` (in Python also as `texts`), or as a slice directory, `slices`.
    Columns: see `ProfileTables`.
    """
    from recallkit import builtin, profiling
    from recallkit.profiling.view import ProfileView

    if options.slices is not None:
        folder = path(options.out) or Path("profile")
        tables = profiling.profile_slices(path(options.slices), folder, options)
    else:
        is_builtin = options.is_usual(TextOptions, LabelOptions) and (
            options.stop_words,
            options.x_min,
        ) == ("ours", None)
        text = builtin.resolve_slice_defaults(
            options, path(options.out), is_builtin=is_builtin, name="profile"
        )
        folder = text.out
        tables = profiling.profile(
            text.text,
            folder,
            counts=text.counts,
            rare=text.rare,
            seq_len=text.seq_len,
            options=options,
        )
    return Outcome.from_views(tables, lambda: ProfileView(folder, tables))
