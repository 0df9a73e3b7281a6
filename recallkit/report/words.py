"""A comparison in words: the question, what AR hits are, how it was measured.

And the first screen of its page: the answer, and a row per model with its recall and its gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.attribution.answer import short_percent
from recallkit.attribution.view import ComparisonView, void_notes, what_of_training
from recallkit.display import cells
from recallkit.display.cells import DASH, bounds, percent, resampled, too_few
from recallkit.display.charts import labels
from recallkit.measure.ratio import NUM_RESAMPLES
from recallkit.measure.shares import NO_HITS, is_void
from recallkit.models.prefix import other_prefixes
from recallkit.slicing.threshold import rate_and_rule
from recallkit.storage.artifacts import MANIFEST
from recallkit.storage.timings import read_timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.attribution.comparison import Comparison
    from recallkit.display.cells import Row

_NUM_SOURCES = 6


def question(comparison: Comparison) -> str:
    """The question, as text."""
    if comparison.tables.by_price is not None:
        return "What does a smaller state cost in recall?"
    reference = labels([comparison.reference, *comparison.models], 32)[comparison.reference]
    return f"How much of {reference}'s recall is retained, and where does the gap lie?"


def definition(comparison: Comparison) -> str:
    """What AR hits are, and what can be read from their share of the gap, as text."""
    slices = comparison.manifest["slices"]
    tokens = comparison.totals[comparison.models[0], "all"]["tokens"]
    counts = comparison.counts
    if counts is None:
        return (
            "Associative recall can be seen on the last tokens of bigrams that are in the context "
            "already. How often training had them is unknown here, so some may have been "
            "memorised. Their share of the gap says where it lies, not why."
        )
    rare = f"seen at most {slices['max_count']:,} times in {counts['num_tokens']:,}"
    sentences = (
        "AR hits are the tokens on which associative recall (AR) can be seen: the last tokens of "
        f"bigrams that are in the context already and were {rare} training tokens.",
        "Their share of the gap says where the gap lies, not why.",
        *what_of_training(slices, tokens),
    )
    return " ".join(sentences)


_EFFICIENCY = (
    "1 less the NLL summed over a slice's tokens, divided by that at the first occurrences of "
    "their bigrams"
)


def method(comparison: Comparison) -> dict[str, str]:
    """How it was measured, as a list of facts."""
    manifest, first = comparison.manifest, comparison.models[0]
    every, hits = comparison.totals[first, "all"], comparison.totals[first, "ar_hit"]
    slices = manifest["slices"]
    counts, tokenizer = slices["counts"], slices["tokenizer"]
    predicted = f"{slices['num_rows']:,} predicted tokens in {slices['num_sequences']:,} sequences"
    packing = {"pack": "documents packed one after the other"}
    boundary = packing.get(slices["boundary"], "the context reset at each document")
    ar_hits = f"{hits['tokens']:,} tokens, {percent(hits['share_of_tokens'], 2)} of all"
    counted = {"Repeated bigrams": ar_hits, "Training counts": "unknown"}
    if counts is not None:
        threshold = f"largest training count {slices['max_count']:,} ({rate_and_rule(slices)})"
        trained = f"{counts['num_tokens']:,} tokens, {counts['num_bigrams']:,} distinct bigrams"
        counted = {
            "AR hits": f"{ar_hits}; {threshold}",
            "Training counts": f"{trained}; id {counts['id']}",
        }
    inexact = [f"{percent(share['all'])} for {name}" for name, share in manifest["inexact"].items()]
    others = f"tokens that do not begin and end at their boundaries: {', '.join(inexact)}"
    prefixes = [f"{token} by {name}" for name, token in manifest["prefixes"].items() if token]
    intervals = f"expanded percentile intervals of {NUM_RESAMPLES:,} resamples (Hesterberg, 2015)"
    entries = f"{tokenizer['name']}, {tokenizer['vocab_size']:,} entries"
    return {
        "Text": f"{predicted} of up to {slices['seq_len']:,}, {boundary}",
        "Sources (tokens)": _sources(comparison),
        **counted,
        "Tokenizer": f"{entries}; digest {tokenizer['digest']}",
        **({"Other tokenizers": others} if inexact else {}),
        **({"Read before every sequence": ", ".join(prefixes)} if prefixes else {}),
        "Recall gain": "p(token) less p(token at the first occurrence of its bigram in the "
        f"sequence), where p = exp(-NLL); the mean over {comparison.hit}s, in points of "
        "probability",
        "Retained": (
            "a model's recall gain divided by the reference's, if that is shown to exceed 0.1 "
            "points"
        ),
        "Share of the gap": f"difference in NLL summed over the {comparison.hit}s, divided by "
        "that over all tokens (Zoology, appendix C.1); it can be below 0 and above 100 %",
        **({"Recall efficiency": _EFFICIENCY} if comparison.requested else {}),
        **{f"Slice {slice_.name}": slice_.sentence for slice_ in comparison.requested},
        "95 % intervals": f"{resampled(every)}; {intervals}",
        "Program": f"recallkit {manifest['recallkit_version']}, "
        f"schema {manifest['schema_version']}",
        "Slices": f"sequences {slices['sequences_digest']}",
    }


def _sources(comparison: Comparison) -> str:
    """The largest sources with their tokens."""
    rows = [row for row in comparison.source_rows(comparison.models[0]) if row["slice"] == "all"]
    largest = sorted(rows, key=lambda row: (-row["tokens"], row["source"]))
    parts = [f"{row['source']} {row['tokens']:,}" for row in largest[:_NUM_SOURCES]]
    smaller = len(largest) - len(parts)
    return ", ".join([*parts, *([f"{smaller:,} smaller ones"] if smaller else [])])


def commands(comparison: Comparison) -> list[str]:
    """The commands that were typed to make the labels, if these are available, and the tables."""
    commands = [ComparisonView(comparison, is_page=True).command]
    if comparison.slices is not None:
        labels = read_timings(comparison.slices / MANIFEST, kind="tokens") or {}
        commands.insert(0, labels.get("command") or "")
    return list(dict.fromkeys(filter(None, commands)))


def files(comparison: Comparison) -> str:
    """The files that the page is made of: tables, and of slices that are at hand labels and scores.

    Scores are named by their models: their files' names contain the folders of models.
    """
    tables = ", ".join(f"{name}.parquet" for name in comparison.tables.frames())
    if comparison.slices is None:
        return tables
    scored = ", ".join([comparison.reference, *comparison.manifest["models"]])
    return f"{tables}; of the slices tokens.parquet, tokenizer.json and the scores of {scored}"


# ------------------------------------------------------------------------------- the first screen


def answer(comparison: Comparison) -> str:
    """What a page begins with."""
    return ComparisonView(comparison, is_page=True).answer()


def first_screen(comparison: Comparison) -> dict[str, Any]:
    """For page.html: the reference, then the models by their perplexity, what the columns are, and
    why some figures are not shown."""
    view = ComparisonView(comparison, is_page=True)
    rows, hit = view.first_rows(), comparison.hit
    names = labels([comparison.reference, *comparison.models], 32)
    quality, form = ("bits per byte", ".3f") if view.is_in_bits else ("perplexity", ",.2f")
    headers = [
        quality,
        "gap, nats per token",
        f"first occurrence → {hit}",  # the picture of the answer, on one axis
        "retained",
        f"share of the gap in {hit}s",
    ]
    if comparison.has_counts:
        headers.append("in all repeated bigrams")
    end = _end_of_axis([value or 0.0 for row in rows for value in _probabilities(row)])
    hits = [comparison.totals[model, "ar_hit"] for model in comparison.models]
    return {
        "headers": headers,
        "line": 3,
        "scale": ["0", f"{50 * end:g}", f"{100 * end:g} %"],
        "rows": [_first_screen_row(row, names, form, end, len(headers)) for row in rows],
        "legend": _legend(comparison),
        "notes": [
            *_why_not_retained(hits[0]),
            *void_notes(hits),
            *other_prefixes(comparison.manifest["prefixes"]),
        ],
    }


def _first_screen_row(
    row: Row,
    names: Mapping[str, str],
    form: str,
    end: float,
    width: int,
) -> dict[str, Any]:
    """A row's line, and its cells: text, or a figure with its interval."""
    quality = cells.or_dash(row["all"], form)
    if row["is_reference"]:
        figures = [quality, {"text": "reference", "style": "soft", "within": ""}]
        shares: list[Any] = [""] * (width - 3)
    else:
        figures = [quality, f"{row['delta_nll']:z.3f}"]
        known = row if not is_void(row) else {**row, "gap_share": None}
        shares = [_figure(known, name) for name in ("retained", "gap_share", "repeated_gap_share")]
    return {
        "model": row["model"],
        "label": names[row["model"]],
        "line": _line(row, end),
        "cells": [*figures, "", *shares],
    }


def _probabilities(row: Row) -> tuple[float | None, float | None]:
    """Mean p at first occurrences and on AR hits, of the row's own side."""
    side = "reference" if row["is_reference"] else "model"
    return row[f"first_p_{side}"], row[f"p_{side}"]


def _figure(row: Row, name: str) -> dict[str, str]:
    """A share with its interval, if it has one: `44 % (37 to 53)`; a dash if it is not known."""
    low, high = row.get(f"{name}_ci_low"), row.get(f"{name}_ci_high")
    is_known = row[name] is not None
    within = ""
    if is_known and low is not None and high is not None:
        within = f"({bounds(100 * low, 100 * high, 'z.0f')})"
    return {
        "text": short_percent(row[name]) if is_known else DASH,
        "style": "figure",
        "within": within,
    }


_ROUND = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def _end_of_axis(probabilities: Sequence[float]) -> float:
    """The first of some round numbers that no probability exceeds by more than rounding."""
    return next((end for end in _ROUND if end >= max(probabilities)), 1.0)


def _line(row: Row, end: float) -> dict[str, Any] | None:
    """The line from p at first occurrences to p on AR hits, and both in figures; None without AR
    hits."""
    at_first, on_hits = _probabilities(row)
    if at_first is None or on_hits is None:
        return None
    start, stop = (f"{100 * value / end:.2f}%" for value in (at_first, on_hits))
    return {
        "start": start,
        "stop": stop,
        "shares": [short_percent(at_first).removesuffix(" %"), short_percent(on_hits)],
    }


def _legend(comparison: Comparison) -> dict[str, str]:
    """What the columns of the rows are, by name."""
    totals, first = comparison.totals, comparison.models[0]
    every, hits, repeated = (totals[first, slice_] for slice_ in ("all", "ar_hit", "repeated"))
    rare, share = comparison.manifest["slices"]["max_count"], percent(hits["share_of_tokens"], 2)
    more, rarely = "", ""
    if comparison.has_counts:
        tokens = percent(repeated["share_of_tokens"], 0)
        more = f", and that of all repeated bigrams, {tokens} of the tokens"
        rarely = f" and was seen at most {rare:,} times in training"
    what = comparison.hit
    return {
        what[0].upper() + what[1:]: "the last token of a bigram that is in the context already"
        f"{rarely}; {share} of {every['tokens']:,} tokens",
        "Line": "from the mean probability where these bigrams first occur (grey) to that where "
        "they return (orange); its length is the recall gain",
        "Retained": "the model's recall gain, in per cent of the reference's",
        "Share of the gap": (
            f"the part that {what}s carry{more}; where the gap is negative, the part of the "
            "model's lead"
        ),
        "In brackets": f"95 % intervals: {resampled(every)}",
    }


def _why_not_retained(hits: Row) -> list[str]:
    """Why it is not known what models retain; empty if it is. The reason is the same for all."""
    if hits["retained"] is not None:
        return []
    why = f"the recall gain of {hits['reference']} is not shown to exceed 0.1 points"
    if not hits["tokens"]:
        why = NO_HITS
    elif hits["gain_reference_ci_low"] is None:
        why = too_few(
            "AR hits" if hits["slice"] == "ar_hit" else "repeated bigrams",
            hits["effective_clusters"],
            f"{hits['cluster']}s",
        )
    return [f"What is retained is unknown: {why}."]
