"""`slice`."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import File, path
from recallkit.options import LabelledTextOptions, LabelOptions, TextOptions, WritingOptions, out_option

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Slice(LabelledTextOptions, WritingOptions):
    """Which text is labelled, and how."""

    out: Annotated[File | None, out_option(default="slices")] = None
    _: KW_ONLY


@command(
    "slice",
    Slice,
    examples=(
        "recallkit slice valid.jsonl.zst --counts counts.duckdb --max-count 1250 -o slices",
        "recallkit slice 'valid/*.parquet' --tokenizer gpt2.json --counts counts.duckdb --seq-len 1024 --limit-tokens 16M -o slices",
    ),
    exports=True,
)
def slice_(asked: Slice) -> Outcome["pl.DataFrame"]:
    """Label every predicted token: is its bigram repeated in the context, how far back, how often in training (AR hit)?

    An AR hit completes a bigram that occurred before in its sequence and occurs at most `max_count` times in training, or at
    most `max_rate` times per billion training tokens. With neither it is the papers' rate, or, where the counts are too few to
    resolve it, 5 occurrences; which, is reported and recorded. Without `counts` only repetition is labelled. Without `sources`
    it reads the built-in text with the counts of the zoo's training. From Python `texts`, a list of strings, of mappings with text and
    source, or a `datasets.Dataset`, may take their place.

    Returns one row per source, ALL first: source, tokens, repeated, repeated_share, ar_hits, ar_hit_share (fractions of the
    row's tokens; the last two null without counts). The labels themselves: `tokens`.
    """
    from recallkit import builtin, slicing
    from recallkit.slicing.charts import slice_figures
    from recallkit.slicing.labels import summarise_slices
    from recallkit.slicing.view import print_slices, read_slices_table, slices_json

    read = builtin.resolve_slice_defaults(asked, path(asked.out), is_sample=asked.is_usual(TextOptions, LabelOptions))
    folder = read.out
    manifest = slicing.slice_text(read.text, folder, counts=read.counts, rare=read.rare, seq_len=read.seq_len, force=asked.force)

    def summary() -> "pl.DataFrame":
        return summarise_slices(folder / "tokens.parquet")

    return Outcome(
        value=summary,
        show=lambda: print_slices(folder, manifest),
        json=lambda: slices_json(folder, manifest),
        exports=lambda: [({"summary": summary()}, {"summary": read_slices_table(folder, manifest)}, folder)],
        figures=lambda: slice_figures(summary()),
    )
