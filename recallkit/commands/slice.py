"""`slice`."""

from typing import TYPE_CHECKING, Annotated

from recallkit.commands import options as opt
from recallkit.commands.adapter import File, Outcome, command

if TYPE_CHECKING:
    import polars as pl


@command(
    "slice",
    examples=(
        "recallkit slice valid.jsonl.zst --counts counts.duckdb --max-count 1250 -o slices",
        "recallkit slice 'valid/*.parquet' --tokenizer gpt2.json --counts counts.duckdb --seq-len 1024 --limit-tokens 16M -o slices",
    ),
    exports=True,
)
def slice_(
    sources: opt.Sources = None,
    out: Annotated[File | None, opt.out(default="slices")] = None,
    *,
    counts: opt.Counts = None,
    max_count: opt.MaxCount = None,
    max_rate: opt.MaxRate = None,
    seq_len: opt.SeqLen = None,
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
) -> Outcome["pl.DataFrame"]:
    """Label every predicted token: is its bigram repeated in the context, how far back, how often in training (AR hit)?

    An AR hit completes a bigram that occurred before in its sequence and occurs at most `max_count` times in training, or at
    most `max_rate` times per billion training tokens. With neither it is the papers' rate, or, where the counts are too few to
    resolve it, 5 occurrences; which, is reported and recorded. Without `counts` only repetition is labelled. Without `sources`
    it reads the built-in text with the counts of the zoo's training. From Python `texts`, a list of strings, of mappings with text and
    source, or a `datasets.Dataset`, may take their place.

    Returns one row per source, ALL first: source, tokens, repeated, repeated_share, ar_hits, ar_hit_share (fractions of the
    row's tokens; the last two null without counts). The labels themselves: `tokens`.
    """
    from recallkit import builtin
    from recallkit.slicing.charts import slice_figures
    from recallkit.slicing.labels import summarise_slices
    from recallkit.slicing.view import print_slices, read_slices_table, slices_json

    about_text = (sources, texts, tokenizer, end_token, boundary != "pack", limit_tokens, text_field, source_field, skip_bad)
    slicing = builtin.resolve_slice_defaults(
        opt.text_options(sources, tokenizer, end_token, boundary, limit_tokens, text_field, source_field, skip_bad=skip_bad, texts=texts),
        out=opt.path(out),
        counts_file=opt.path(counts),
        max_count=max_count,
        max_rate=max_rate,
        seq_len=seq_len,
        is_sample=opt.nothing_given(*about_text, counts, max_count, max_rate, seq_len),
    )
    manifest, folder = slicing.run(force=force), slicing.out

    def summary() -> "pl.DataFrame":
        return summarise_slices(folder / "tokens.parquet")

    return Outcome(
        value=summary,
        show=lambda: print_slices(folder, manifest),
        json=lambda: slices_json(folder, manifest),
        exports=lambda: [({"summary": summary()}, {"summary": read_slices_table(folder, manifest)}, folder)],
        figures=lambda: slice_figures(summary()),
    )
