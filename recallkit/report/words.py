"""A comparison in words: the question, the definition of AR hits, how it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.attribution.view import what_of_training
from recallkit.display.again import MOST_NAMED, bare, command_line
from recallkit.display.cells import percent, resampled
from recallkit.slicing.threshold import rate_and_rule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.attribution.comparison import Comparison

_NUM_SOURCES = 6


def question(comparison: Comparison) -> str:
    """The question, as text."""
    if comparison.tables.by_price is not None:
        return "What does a smaller state cost in recall?"
    return f"How much of the perplexity gap to {comparison.reference} is associative recall?"


def definition(comparison: Comparison) -> str:
    """The definition of AR hits, and what their share says, as text."""
    facts, totals, first = comparison.manifest["slices"], comparison.totals, comparison.models[0]
    hits, copied = totals[first, "ar_hit"], what_of_training(facts, totals[first, "all"]["tokens"])
    definition = (
        f"AR hits are the tokens where associative recall (AR) can be seen: they complete a bigram which occurred earlier in the "
        f"same context and was seen at most {facts['max_count']:,} times in {facts['counts']['num_tokens']:,} training tokens. "
        f"They are {percent(hits['share_of_tokens'], 2)} of the tokens. Their share says where the gap lies, not why."
    )
    return " ".join([definition, *copied])


def method(comparison: Comparison) -> dict[str, str]:
    """How it was measured, as a list of facts."""
    manifest, facts = comparison.manifest, comparison.manifest["slices"]
    counts, tokenizer = facts["counts"], facts["tokenizer"]
    whole, hits = (comparison.totals[comparison.models[0], kind] for kind in ("all", "ar_hit"))
    packing = "documents packed one after the other" if facts["boundary"] == "pack" else "the context reset at each document"
    inexact = [f"{percent(share['all'])} for {model}" for model, share in manifest["inexact"].items()]
    return {
        "Text": f"{facts['num_rows']:,} predicted tokens in {facts['num_sequences']:,} sequences of up to {facts['seq_len']:,}, {packing}",
        "Sources (tokens)": _sources(comparison),
        "AR hits": f"{hits['tokens']:,} tokens, {percent(hits['share_of_tokens'], 2)} of all; largest training count "
        f"{facts['max_count']:,} ({rate_and_rule(facts)})",
        "Training counts": f"{counts['num_tokens']:,} tokens, {counts['num_bigrams']:,} distinct bigrams; id {counts['id']}",
        "Tokenizer": f"{tokenizer['name']}, {tokenizer['vocab_size']:,} entries; digest {tokenizer['digest']}",
        **({"Other tokenizers": f"tokens that do not begin and end at their boundaries: {', '.join(inexact)}"} if inexact else {}),
        "Share of the gap": "difference in NLL (the logarithm of perplexity) summed over the AR hits, divided by the same over all tokens "
        "(Zoology, section 3.1); clipped: at most 100 %, as the papers print it",
        **{f"Slice {slice_.name}": slice_.sentence for slice_ in comparison.given},
        "95 % intervals": f"{resampled(whole)}; expanded percentile intervals of 2,000 resamples (Hesterberg, 2015)",
        "Program": f"recallkit {manifest['recallkit_version']}, table schema {manifest['schema_version']}",
        "Slices": f"sequences {facts['sequences_digest']}",
    }


def _sources(comparison: Comparison) -> str:
    """The largest sources with their tokens."""
    tokens = {row["source"]: row["tokens"] for row in comparison.source_rows(comparison.models[0]) if row["slice"] == "all"}
    largest = sorted(tokens.items(), key=lambda item: (-item[1], item[0]))
    more = [f"{len(largest) - _NUM_SOURCES:,} smaller ones"] if len(largest) > _NUM_SOURCES else []
    return ", ".join([*(f"{source} {number:,}" for source, number in largest[:_NUM_SOURCES]), *more])


def commands(comparison: Comparison, labels: Mapping[str, Any] | None) -> list[str]:
    """The commands that make the tables and the page again. `labels`: the slices' manifest, if they are available.

    Files are named without their folders, so that a page reveals nothing about the machine that it was made on.
    """
    manifest, facts, known = comparison.manifest, comparison.manifest["slices"], labels or {}
    drawn = known.get("drawn") or {}
    names = [bare(name) for name in known.get("names", [])]
    slicing = {
        "tokenizer": bare(facts["tokenizer"]["name"]),
        "counts": bare(facts["counts"]["path"]) if known else "COUNTS",
        **{name: facts[name] for name in ("max_count", "seq_len", "boundary")},
        "limit_tokens": known.get("limit_tokens"),
        "sample": drawn.get("tokens"),
        "seed": drawn.get("seed") or None,
    }
    given = tuple(slice_.given for slice_ in comparison.given)
    context = {**_context_options(manifest.get("context_gain") or []), "price": bool(manifest.get("price"))}
    return [
        command_line("slice", *(names if 0 < len(names) <= MOST_NAMED else ["TEXT..."]), **slicing, o="DIR"),
        command_line(
            "gap",
            comparison.reference,
            *manifest["models"],
            slices="DIR",
            slice=given,
            clean=bool(manifest.get("clean")),
            divergence=bool(manifest.get("divergence")),
            **context,
        ),
        command_line("report", "DIR"),
    ]


def files(comparison: Comparison) -> str:
    """The files that the page is made of: tables, and, where the slices are at hand, labels and scores.

    Scores are named by their models: their files' names contain the folders of models.
    """
    tables = ", ".join(f"{name}.parquet" for name in comparison.tables.frames())
    if comparison.slices is None:
        return tables
    scored = ", ".join([comparison.reference, *comparison.manifest["models"]])
    return f"{tables}; of the slices tokens.parquet, tokenizer.json and the scores of {scored}"


def _context_options(context_gain: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The options of the command for what is gained from far context: [last ids, stride] each."""
    usual = all(stride == max(1, ids // 4) for ids, stride in context_gain)
    stride = {} if usual else {"context_stride": min(stride for _, stride in context_gain)}
    return {"context_gain": [ids for ids, _ in context_gain], **stride}
