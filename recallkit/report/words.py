"""A comparison in words: the question, what AR hits are, how it was measured.

And the first screen of its page: the answer, and a row per model with its recall and its gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.attribution.answer import whole
from recallkit.attribution.view import ComparisonView, void_notes, what_of_training
from recallkit.display import cells
from recallkit.display.cells import DASH, bounds, percent, resampled, too_few
from recallkit.display.charts import labels
from recallkit.measure.ratio import NUM_RESAMPLES
from recallkit.measure.shares import NO_HITS, is_void
from recallkit.models.prefix import other_prefixes
from recallkit.report.markup import facts_list, notes, tag, text
from recallkit.slicing.threshold import rate_and_rule
from recallkit.storage.artifacts import MANIFEST
from recallkit.storage.timings import read_timings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


_EFFICIENCY = "1 less the NLL summed over a slice's tokens, divided by that at the first occurrences of their bigrams"


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
        counted = {"AR hits": f"{ar_hits}; {threshold}", "Training counts": f"{trained}; id {counts['id']}"}
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
        "Recall gain": "p(token) less p(token at the first occurrence of its bigram in the sequence), "
        f"where p = exp(-NLL); the mean over {comparison.hit}s, in points of probability",
        "Retained": "a model's recall gain divided by the reference's, if that is shown to exceed 0.1 points",
        "Share of the gap": f"difference in NLL summed over the {comparison.hit}s, divided by that over "
        "all tokens (Zoology, appendix C.1); it can be below 0 and above 100 %",
        **({"Recall efficiency": _EFFICIENCY} if comparison.requested else {}),
        **{f"Slice {slice_.name}": slice_.sentence for slice_ in comparison.requested},
        "95 % intervals": f"{resampled(every)}; {intervals}",
        "Program": f"recallkit {manifest['recallkit_version']}, schema {manifest['schema_version']}",
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


def opening(comparison: Comparison) -> str:
    """The answer, a row per model, what its columns are, and why some figures are not shown.

    The tables are in the order of `comparison.models`.
    """
    hits = [comparison.totals[model, "ar_hit"] for model in comparison.models]
    parts = [
        tag("p", text(ComparisonView(comparison, is_page=True).answer()), class_="answer"),
        tag("div", _models(comparison), class_="rows"),
        facts_list(_legend(comparison), class_="legend"),
        notes(
            *_why_not_retained(hits[0]),
            *void_notes(hits),
            *other_prefixes(comparison.manifest["prefixes"]),
        ),
    ]
    return "\n".join(parts)


def _models(comparison: Comparison) -> str:
    """The reference, then the models by their perplexity, each a link to where it loses most."""
    shown = labels([comparison.reference, *comparison.models], 32)
    view = ComparisonView(comparison, is_page=True)
    rows = [_first_screen_row(row) for row in view.first_rows()]
    end = _end_of_axis([row[name] or 0.0 for row in rows for name in ("at_first", "on_hits")])
    line = f"first occurrence → {comparison.hit}"  # the picture of the answer, on one axis
    quality, form = ("bits per byte", ".3f") if view.is_in_bits else ("perplexity", ",.2f")
    columns: dict[str, Callable[[Row], str]] = {
        quality: lambda row: cells.or_dash(row["all"], form),
        "gap, nats per token": _gap,
        line: lambda row: _line(row, end),
        "retained": lambda row: _figure(row, "retained"),
        f"share of the gap in {comparison.hit}s": lambda row: _figure(row, "gap_share"),
    }
    if comparison.has_counts:
        columns["in all repeated bigrams"] = lambda row: _figure(row, "repeated_gap_share")
    scales = dict.fromkeys(["model", *columns], "") | {line: _scale(end)}
    heads = (tag("th", text(head), scale, scope="col") for head, scale in scales.items())
    lines = []
    for number, row in enumerate(rows):
        label = text(shown[row["model"]])
        name = tag("a", label, href=f"#losses-{number}") if number else label
        measured = (tag("td", cell(row), data_label=head) for head, cell in columns.items())
        lines.append(tag("tr", tag("th", name, scope="row", title=row["model"]), *measured) + "\n")
    head = tag("thead", tag("tr", *heads))
    return tag("table", head, "\n", tag("tbody", *lines), class_="models")


def _first_screen_row(row: Row) -> Row:
    """A row with the probabilities of its own side; shares that mean nothing are None."""
    side = "reference" if row["is_reference"] else "model"
    return {
        **row,
        "at_first": row[f"first_p_{side}"],
        "on_hits": row[f"p_{side}"],
        "gap_share": None if is_void(row) else row["gap_share"],
    }


def _gap(row: Row) -> str:
    if row["is_reference"]:
        return tag("span", "reference", class_="soft")
    return f"{row['delta_nll']:z.3f}"


def _figure(row: Row, name: str) -> str:
    """A share with its interval, if it has one: `44 % (37 to 53)`; a dash if it is not known."""
    if row["is_reference"]:
        return ""
    low, high = row.get(f"{name}_ci_low"), row.get(f"{name}_ci_high")
    value = tag("span", DASH if row[name] is None else whole(row[name]), class_="figure")
    if row[name] is None or low is None or high is None:
        return value
    return value + tag("span", f"({bounds(100 * low, 100 * high, 'z.0f')})", class_="within")


_ROUND = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def _end_of_axis(probabilities: Sequence[float]) -> float:
    """The first of some round numbers that no probability exceeds by more than rounding."""
    return next((end for end in _ROUND if end >= max(probabilities)), 1.0)


def _scale(end: float) -> str:
    """The axis's ends and its middle in per cent, above all lines."""
    marks = ("0", f"{50 * end:g}", f"{100 * end:g} %")
    return tag("span", *(tag("span", mark) for mark in marks), class_="scale", aria_hidden="true")


def _line(row: Row, end: float) -> str:
    """The line from p at first occurrences to p on AR hits, and both in figures."""
    if row["on_hits"] is None:
        return DASH
    start, stop = (f"{100 * row[name] / end:.2f}%" for name in ("at_first", "on_hits"))
    parts = [
        tag("line", x1="0", x2="100%", y1="50%", y2="50%", class_="axis"),
        tag("line", x1=start, x2=stop, y1="50%", y2="50%", class_="gain"),
        tag("circle", cx=start, cy="50%", r="3", class_="at-first"),
        tag("circle", cx=stop, cy="50%", r="4.5", class_="on-hits"),
    ]
    shares = (whole(row["at_first"]).removesuffix(" %"), whole(row["on_hits"]))
    figures = " → ".join(tag("span", share, class_="figure") for share in shares)
    return tag("svg", *parts, class_="bar", aria_hidden="true") + figures


def _legend(comparison: Comparison) -> dict[str, str]:
    """What the columns of the rows are, by name."""
    totals, first = comparison.totals, comparison.models[0]
    every, hits, repeated = (totals[first, slice_] for slice_ in ("all", "ar_hit", "repeated"))
    rare, share = comparison.manifest["slices"]["max_count"], percent(hits["share_of_tokens"], 2)
    more, rarely = "", ""
    if comparison.has_counts:
        more = f", and that of all repeated bigrams, {percent(repeated['share_of_tokens'], 0)} of the tokens"
        rarely = f" and was seen at most {rare:,} times in training"
    what = comparison.hit
    return {
        what[0].upper() + what[1:]: "the last token of a bigram that is in the context already"
        f"{rarely}; {share} of {every['tokens']:,} tokens",
        "Line": "from the mean probability where these bigrams first occur (grey) to that where they "
        "return (orange); its length is the recall gain",
        "Retained": "the model's recall gain, in per cent of the reference's",
        "Share of the gap": f"the part that {what}s carry{more}; where the gap is negative, the part of the model's lead",
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
        why = too_few("AR hits" if hits["slice"] == "ar_hit" else "repeated bigrams", hits["effective_clusters"], f"{hits['cluster']}s")
    return [f"What is retained is unknown: {why}."]
