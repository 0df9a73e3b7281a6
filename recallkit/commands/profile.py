"""`profile`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from recallkit import config
from recallkit.commands import options as opt
from recallkit.commands.adapter import File, Option, Outcome, command
from recallkit.errors import UsageError

if TYPE_CHECKING:
    from recallkit.profiling.tables import ProfileTables


@command(
    "profile",
    examples=(
        "recallkit profile valid.jsonl.zst --counts counts.duckdb --figures figures",
        "recallkit profile 'books/*.txt' --boundary document --seq-len 4096 -o books",
    ),
    exports=True,
)
def profile(
    sources: opt.Sources = None,
    out: Annotated[File | None, opt.out(default="profile")] = None,
    *,
    slices: Annotated[File | None, Option("Profile the labelled tokens of a slice directory instead of text.", metavar="DIR")] = None,
    counts: opt.Counts = None,
    max_count: opt.MaxCount = None,
    max_rate: opt.MaxRate = None,
    seq_len: opt.SeqLen = None,
    stop_words: Annotated[
        str,
        Option("Words whose bigrams are left out: ours, nltk (its data must be there), none, or a file of a word a line.", metavar="LIST"),
    ] = "ours",
    x_min: Annotated[
        int | None, Option("Where the power law of distances begins; the best fit if not given.", least=1, most=config.LONGEST)
    ] = None,
    tokenizer: opt.Tokenizer = None,
    end_token: opt.EndToken = None,
    boundary: opt.Boundary = "pack",
    limit_tokens: opt.LimitTokens = None,
    text_field: opt.TextField = None,
    source_field: opt.SourceField = None,
    skip_bad: opt.SkipBad = False,
    texts: opt.Texts = None,
    log_to: opt.LogTo = None,
    force: opt.Force = False,
) -> Outcome["ProfileTables"]:
    """Profile a text by source: repeated bigrams per sequence, their distances and positions, AR hits; in bounded memory, resumes.

    The text is given as for `slice` (from Python also as `texts`), or as a slice directory, `slices`. Columns: see `ProfileTables`.
    """
    from recallkit import builtin, profiling
    from recallkit.profiling.charts import profile_figures
    from recallkit.profiling.view import print_profile, profile_json, profile_tables
    from recallkit.storage import artifacts

    about_text = (sources, texts, tokenizer, end_token, boundary != "pack", limit_tokens, text_field, source_field, skip_bad)
    unsaid = opt.nothing_given(*about_text, counts, max_count, max_rate, seq_len)
    options = profiling.ProfileOptions(stop_words, x_min, force)
    if slices is not None:
        if not unsaid:
            remedy = "leave out what decides them"
            raise UsageError("a slice directory brings its own text, sequences and counts", where="--slices", remedy=remedy)
        folder = opt.path(out) or Path("profile")
        tables = profiling.profile_slices(opt.path(slices), folder, options)
    else:
        asked = builtin.resolve_slice_defaults(
            opt.text_options(
                sources, tokenizer, end_token, boundary, limit_tokens, text_field, source_field, skip_bad=skip_bad, texts=texts
            ),
            out=opt.path(out),
            counts_file=opt.path(counts),
            max_count=max_count,
            max_rate=max_rate,
            seq_len=seq_len,
            is_sample=unsaid and stop_words == "ours" and x_min is None,
            name="profile",
        )
        folder = asked.out
        tables = profiling.profile(asked.text, folder, counts=asked.counts, rare=asked.rare, seq_len=asked.seq_len, options=options)
    manifest = artifacts.read_manifest(folder / "profile.parquet")
    return Outcome(
        value=lambda: tables,
        show=lambda: print_profile(tables, manifest, folder),
        json=lambda: profile_json(tables, manifest, folder),
        exports=lambda: [(tables, profile_tables(tables, manifest), folder)],
        figures=lambda: profile_figures(tables, manifest["seq_len"]),
    )
