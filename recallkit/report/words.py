"""A comparison in words: the question, the definition of AR hits, how it was measured.

And the first screen of its page: the answer in a sentence, and a row per model with its shares of the gap as bars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.attribution.answer import PPL
from recallkit.attribution.view import comparison_answer, what_of_training
from recallkit.display import cells
from recallkit.display.cells import percent, percent_range, resampled, shares_of_leads
from recallkit.display.charts import labels
from recallkit.display.exports import MOST_NAMED, bare, command_line
from recallkit.measure.shares import is_void
from recallkit.report.markup import tag, text
from recallkit.scoring.scores import last_options
from recallkit.slicing.threshold import rate_and_rule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.attribution.answer import Recalled
    from recallkit.attribution.comparison import Comparison
    from recallkit.display.charts import Style

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
    context = {**last_options(manifest.get("context_gain") or []), "price": bool(manifest.get("price"))}
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


_EDGES = 4.0, 96.0
"""Where 0 and 100 % are on a bar, in % of its width: markers have room beside them."""
_SHAPES = {
    "circle": "M-4.5,0a4.5,4.5,0,1,0,9,0a4.5,4.5,0,1,0,-9,0Z",
    "square": "M-4,-4H4V4H-4Z",
    "diamond": "M0,-5.5L5,0L0,5.5L-5,0Z",
    "cross": "M-1.7,-5H1.7V-1.7H5V1.7H1.7V5H-1.7V1.7H-5V-1.7H-1.7Z",
    "triangle-up": "M0,-5L5,4H-5Z",
    "triangle-down": "M0,5L5,-4H-5Z",
    "triangle-left": "M-5,0L4,-5V5Z",
    "triangle-right": "M5,0L-4,-5V5Z",
}
"""The points of charts, as paths around 0."""


def opening(comparison: Comparison, recalled: Recalled, styles: Mapping[str, Style], evidence: Mapping[str, str]) -> str:
    """The answer, the rows, and what is needed to read them.

    `recalled`: as `answer.in_short` has it; empty if it was not measured. `evidence`: what a page shows of each model further down, by the
    name of the part: what a link to it says.
    """
    said = comparison_answer(comparison, recalled)
    parts = [
        tag("p", text(said), class_="answer"),
        _rows(comparison, recalled, styles, evidence),
        tag("p", *_legend(comparison), class_="notes"),
    ]
    return "\n".join(parts)


def _rows(comparison: Comparison, recalled: Recalled, styles: Mapping[str, Style], evidence: Mapping[str, str]) -> str:
    """The reference, then the models by their perplexity."""
    names = labels([comparison.reference, *comparison.models], 32)
    totals, first = comparison.totals, comparison.totals[comparison.models[0], "all"]
    in_bits = bool(comparison.manifest["inexact"]) and first["bpb_reference"] is not None
    column, form, quality = ("bpb", ".3f", "bits per byte") if in_bits else ("ppl", PPL, "perplexity")
    heads = ["model", quality, "gap, nats per token", "share of the gap in AR hits", *(["gone without recall"] if recalled else [])]
    heads += ["where it loses most"] if evidence else []

    def row(model: str, *given: str) -> str:
        name = tag("th", marker(styles[model]), " ", tag("span", text(names[model])), scope="row", title=model)
        more = [tag("td", cell, data_label=head) for head, cell in zip(heads[1:], given, strict=True)]
        return tag("tr", name, *more) + "\n"

    rows = [
        row(
            comparison.reference,
            cells.number(f"{column}_reference", form)(first),
            tag("span", "reference", class_="soft"),
            *[""] * (len(heads) - 3),
        )
    ]
    for number, model in enumerate(comparison.models, 1):
        whole, hits = totals[model, "all"], totals[model, "ar_hit"]
        ahead = tag("span", " ahead", class_="soft") if whole["delta_nll"] < 0 and not is_void(whole) else ""
        given = [cells.number(f"{column}_model", form)(whole), f"{whole['delta_nll']:z.3f}{ahead}", _lies_in(hits, styles[model])]
        if recalled:
            given.append(_recalled(recalled.get(model), styles[model]))
        if evidence:
            links = (tag("a", text(words), href=f"#{part}-{number}") for part, words in evidence.items())
            given.append(" · ".join(links))
        rows.append(row(model, *given))
    scale = tag("span", *(tag("span", end) for end in ("0", "50", "100 %")), class_="scale", aria_hidden="true")
    bars = {"share of the gap in AR hits": "#tables", "gone without recall": "#intervene"}
    named = [tag("a", text(head), href=bars[head]) + scale if head in bars else text(head) for head in heads]
    shown = [tag("th", head, scope="col") for head in named]
    return tag("table", tag("thead", tag("tr", *shown)), "\n", tag("tbody", *rows), class_="models")


def _legend(comparison: Comparison) -> list[str]:
    """What AR hits are, and what is drawn."""
    facts, first = comparison.manifest["slices"], comparison.models[0]
    whole, hits = comparison.totals[first, "all"], comparison.totals[first, "ar_hit"]
    leads = [
        model
        for model in comparison.models
        if comparison.totals[model, "all"]["delta_nll"] < 0 and not is_void(comparison.totals[model, "ar_hit"])
    ]
    definition = (
        f"AR hits complete a bigram that is in the context already and was seen at most {facts['max_count']:,} times in training: "
        f"{percent(hits['share_of_tokens'], 2)} of {whole['tokens']:,} tokens (dotted). Whiskers, 95 % intervals: {resampled(whole)}. "
        "Tick: the control, what the share would be if AR hits differed as the first occurrences of their bigrams do."
        f"{shares_of_leads(leads)} "
    )
    return [text(definition), " ", tag("a", "How it was measured", href="#method"), "."]


def _lies_in(hits: Mapping[str, Any], style: Style) -> str:
    """The AR hits' share of the gap, or why it means nothing."""
    if is_void(hits):
        return tag("span", text(f"means nothing: {hits['note']}"), class_="soft")
    control = [] if hits["control_share"] is None else [("control", hits["control_share"])]
    ticks = [("chance", hits["share_of_tokens"]), *control]
    beside = "".join(f"; control {percent(share)}" for _, share in control)
    return _bar(hits["gap_share"], hits["ci_low"], hits["ci_high"], style, ticks, beside)


def _recalled(row: Mapping[str, Any] | None, style: Style) -> str:
    """How much of the gap would be gone without recall, if that means something."""
    if row is None:
        return tag("span", "means nothing", class_="soft")
    return _bar(row["recall_share"], row["recall_share_ci_low"], row["recall_share_ci_high"], style, [("chance", row["share_of_tokens"])])


def _bar(share: float, low: float | None, high: float | None, style: Style, ticks: Sequence[tuple[str, float]], more: str = "") -> str:
    """A dot and a whisker on an axis from 0 to 100 %, and the figure; what is beyond the axis is marked at its ends."""
    within = "" if low is None else f" ({percent_range(low, high)})"
    least, most = (share if bound is None else bound for bound in (low, high))
    parts = [_line("axis", 0, 1, "50%", "50%"), *(_line(kind, at, at, "10%", "90%") for kind, at in ticks)]
    parts += [_line("whisker", least, most, "50%", "50%")]
    parts += [_at(float(end), tag("path", d="M0,-5L6,0L0,5" if end else "M0,-5L-6,0L0,5", class_="beyond")) for end in _beyond(least, most)]
    parts += [_at(share, tag("path", d=_SHAPES[style.shape], fill=f"var(--{style.colour})"))]
    drawn = tag("svg", *parts, class_="bar", role="img", aria_label=f"{percent(share)}{within}{more}")
    return drawn + tag("span", text(percent(share)), class_="figure", title=f"{percent(share)}{within}{more}")


def _beyond(low: float, high: float) -> list[int]:
    """The ends of the axis, 0 and 1, that an interval crosses."""
    return [end for end, crosses in ((0, low < 0), (1, high > 1)) if crosses]


def _place(share: float) -> str:
    left, right = _EDGES
    return f"{left + (right - left) * min(1.0, max(0.0, share)):.2f}%"


def _line(kind: str, start: float, stop: float, top: str, bottom: str) -> str:
    return tag("line", x1=_place(start), x2=_place(stop), y1=top, y2=bottom, class_=kind)


def _at(share: float, shape: str) -> str:
    """A shape around a place of the axis."""
    return tag("svg", shape, x=_place(share), y="50%", overflow="visible", width="1", height="1")


def marker(style: Style) -> str:
    """The point of a model in charts."""
    shape = tag("path", d=_SHAPES[style.shape], fill=f"var(--{style.colour})")
    return tag("svg", shape, viewBox="-6 -6 12 12", width="12", height="12", class_="marker", aria_hidden="true")
