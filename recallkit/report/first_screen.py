"""The first screen of a comparison's page: the answer in a sentence, and a row per model with its shares of the gap as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.attribution.answer import PPL
from recallkit.attribution.view import comparison_answer
from recallkit.display import cells
from recallkit.display.cells import percent, percent_range, resampled, shares_of_leads
from recallkit.display.charts import labels
from recallkit.measure.shares import is_void
from recallkit.report.markup import tag, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.attribution.answer import Recalled
    from recallkit.attribution.comparison import Comparison
    from recallkit.display.charts import Style

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
