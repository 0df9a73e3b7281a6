"""Charts of a comparison with one row per model: perplexities, and the parts of each gap."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from recallkit.display.chart_parts import FULL, Key, cleared, labels, layered, legend, rounded, shorten, stacked, upright, values
from recallkit.display.chart_theme import Figure
from recallkit.display.console import counted, percent
from recallkit.measure.shares import is_void

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import altair as alt

    from recallkit.attribution.comparison import Comparison
    from recallkit.display.chart_theme import Chart, Palette

    Row = Mapping[str, Any]

_HITS, _OTHER = "ar_hit", "other"
_NAMES = {_HITS: "AR hits", _OTHER: "other tokens"}
_ROW = 42


def perplexities(comparison: Comparison) -> Figure | None:
    """Perplexity on AR hits and on other tokens, one row per model. None if there is nothing to draw."""
    kinds = [kind for kind in (_HITS, _OTHER) if comparison.totals[comparison.models[0], kind]["tokens"]]
    rows = [comparison.totals[comparison.models[0], kind] for kind in kinds]
    sides = {comparison.reference: [(row["slice"], row["nll_reference"], row["tokens"]) for row in rows]}
    for model in comparison.models:
        of_model = [comparison.totals[model, kind] for kind in kinds]
        sides[model] = [(row["slice"], row["nll_model"], row["tokens"]) for row in of_model]
    if not _is_finite(nll for points in sides.values() for _, nll, _ in points):
        return None
    caption = "Perplexity on AR hits and on other tokens, on a logarithmic scale. The dashed lines are the reference's."
    return Figure("perplexities", "Where the models differ", caption, partial(_draw_perplexities, comparison.reference, sides))


def _draw_perplexities(reference: str, sides: Mapping[str, Sequence[tuple[str, float, int]]], palette: Palette) -> Chart:
    import altair as alt

    shown, colours = labels(list(sides)), {_HITS: palette.hits, _OTHER: palette.rest}
    axis = _perplexity_axis([nll for points in sides.values() for _, nll, _ in points])
    rows, names, parts = [], [], []
    for index, (model, points) in enumerate(sides.items()):
        y = index * _ROW + 30
        figures_ = ", ".join(f"{_NAMES[kind].split()[0] if kind == _OTHER else _NAMES[kind]} {_perplexity(nll)}" for kind, nll, _ in points)
        names.append((shown[model], figures_, y - 14))
        for kind, nll, tokens in points:
            told = f"{shorten(model, 60)}, {_NAMES[kind]}: perplexity {_perplexity(nll)} ({nll:.2f} nats), {counted(tokens, 'token')}"
            rows.append({"kind": kind, "x": _decades(nll), "y": y, "text": told, "model": model})
    height = len(sides) * _ROW
    down = alt.Y("y:Q", scale=alt.Scale(domain=[0, height], reverse=True, nice=False), axis=None)
    ends = [sorted(_decades(nll) for _, nll, _ in points) for points in sides.values()]
    links = [{"x": found[0], "x2": found[-1], "y": index * _ROW + 30} for index, found in enumerate(ends)]
    parts.append(alt.Chart(values(links)).mark_rule(color=palette.rule, strokeWidth=2, aria=False).encode(x=axis, x2="x2:Q", y=down))
    rules = [upright(palette, _decades(nll), axis, height, [4, 3], colours[kind]) for kind, nll, _ in sides[reference]]
    for kind in (_HITS, _OTHER):
        mine = [row for row in rows if row["kind"] == kind]
        fill = colours[kind] if kind == _HITS else palette.page
        dots = alt.Chart(values(mine)).mark_point(shape="circle", size=80, fill=fill, stroke=colours[kind], strokeWidth=2, opacity=1)
        parts += [dots.encode(x=axis, y=down, description="text:N")] if mine else []
    plot = layered(*rules, *parts, *_row_heads(names, palette), width=FULL, height=height)
    entries = [
        Key("AR hits", palette.hits, None, "circle"),
        Key("other tokens", palette.rest, None, "circle", is_hollow=True),
        Key("reference", palette.soft, [4, 3], None, 1),
    ]
    return stacked(plot, legend(entries, palette, start=0))


def _row_heads(names: Iterable[tuple[str, str, float]], palette: Palette) -> list[alt.Chart]:
    """Above each row, the model on the left and its numbers on the right, on a ground that no line runs through."""
    import altair as alt

    told = list(names)
    rows = [{"name": name, "figures": shown, "y": y} for name, shown, y in told]
    base = alt.Chart(values(rows)).encode(y=alt.Y("y:Q"))
    mark: dict[str, Any] = {"baseline": "alphabetic", "aria": False}
    left = base.mark_text(align="left", **mark).encode(x=alt.value(0), text="name:N")
    right = base.mark_text(align="right", color=palette.soft, **mark).encode(x=alt.value(FULL), text="figures:N")
    return [cleared([y for *_, y in told], palette), left, right]


def _perplexity(nll: float) -> str:
    if nll > math.log(1e6):
        return rounded(float(f"{math.exp(min(nll, 700.0)):.3g}")) if nll < math.log(1e15) else f"10^{nll / math.log(10):.0f}"
    return f"{math.exp(nll):,.{2 if nll < math.log(100) else 1 if nll < math.log(1000) else 0}f}"


def _decades(nll: float) -> float:
    return nll / math.log(10)


def _perplexity_axis(nlls: Sequence[float]) -> alt.X:
    """An axis of log10 perplexities with ticks at perplexities: 1, 2 and 5 times powers of ten as far as there is room."""
    import altair as alt

    low, high = _decades(min(nlls)), _decades(max(nlls))
    room = max(high - low, 0.3) * 0.05
    low, high = low - room, high + room
    every = max(1, math.ceil((high - low) / 7))
    steps = (1, 2, 5) if high - low < 2.5 else (1, 3) if high - low < 4 else (1,)
    powers = range(math.floor(low), math.ceil(high) + 1, every)
    ticks = {math.log10(step) + power: f"{step}e{power}" for power in powers for step in steps}
    within = {tick: _tick(number) for tick, number in ticks.items() if low <= tick <= high}
    scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    return alt.X("x:Q", scale=scale, axis=_named_ticks(within, "perplexity"))


def _tick(number: str) -> str:
    """2e3 -> 2k; as it is if there is no name for so many, or if it is more than a float can be."""
    return rounded(float(number)) if float(number) < 1e15 else number


def _named_ticks(ticks: Mapping[float, str], title: str) -> alt.Axis:
    """An axis with a tick at each key, labelled with its name. The expression contains only numbers of our own."""
    import altair as alt

    numbered = [f"abs(datum.value - {tick!r}) < 1e-9 ? '{name}' :" for tick, name in ticks.items()]
    return alt.Axis(values=list(ticks), labelExpr=" ".join([*numbered, "''"]), title=title)


def gap_parts(comparison: Comparison) -> Figure | None:
    """The gap in nats per token, split over AR hits and other tokens, with the interval of the AR hits' part."""
    bars = {model: [comparison.totals[model, kind] for kind in ("all", _HITS, _OTHER)] for model in comparison.models}
    if not _is_finite(row["delta_nll"] for rows in bars.values() for row in rows if row["tokens"]):
        return None
    caption = (
        "How far each model is behind the reference (a lead to the left), split over AR hits and other tokens, "
        "with the 95 % interval of the AR hits' part."
    )
    return Figure("gap_parts", "What the gap is made of", caption, partial(_draw_parts, bars))


def _draw_parts(bars: Mapping[str, Sequence[Row]], palette: Palette) -> Chart:
    import altair as alt

    shown, height = labels(list(bars)), len(bars) * _ROW
    down = alt.Y("y:Q", scale=alt.Scale(domain=[0, height], reverse=True, nice=False), axis=None)
    blocks, whiskers, names = [], [], []
    for index, (model, (whole, *parts)) in enumerate(bars.items()):
        top, gap = index * _ROW + 21, whole["delta_nll"]
        told = "share means nothing" if is_void(parts[0]) else f"{percent(parts[0]['gap_share'])} in AR hits"
        names.append((shown[model], f"{gap:.3f} nats, {told}".replace("-", "−"), top - 5))
        for row, (low, high) in zip(parts, _stack([_weight(row) for row in parts]), strict=True):
            tip = f"{shorten(model, 60)}, {_NAMES[row['slice']]}: {_weight(row):.3f} of {gap:.3f} nats, {counted(row['tokens'], 'token')}"
            blocks.append({"kind": row["slice"], "x": low, "x2": high, "y": top, "y2": top + 16, "text": tip})
        if not is_void(parts[0]) and parts[0]["ci_low"] is not None:
            ends = sorted((parts[0]["ci_low"] * gap, parts[0]["ci_high"] * gap))
            whiskers.append({"x": ends[0], "x2": ends[1], "y": top + 8, "top": top + 4, "bottom": top + 12})
    ends = [0.0, *(block[end] for block in blocks for end in ("x", "x2")), *(row[end] for row in whiskers for end in ("x", "x2"))]
    room = 0.015 * (max(ends) - min(ends) or 1.0)
    scale = alt.Scale(domain=[min(ends) - room, max(ends) + room], nice=False)
    axis = alt.X("x:Q", scale=scale, axis=alt.Axis(title="nats per token behind the reference", tickCount=6, labelFlush=False))
    drawn = []
    for kind, colour in ((_HITS, palette.hits), (_OTHER, palette.rest)):
        mine = alt.Chart(values(block for block in blocks if block["kind"] == kind)).mark_rect(color=colour)
        drawn.append(mine.encode(x=axis, x2="x2:Q", y=down, y2="y2:Q", description="text:N"))
    drawn.append(upright(palette, 0.0, axis, height, [1, 0], palette.ink))
    drawn += _whiskers(whiskers, axis, down, palette) if whiskers else []
    plot = layered(*drawn, *_row_heads(names, palette), width=FULL, height=height)
    entries = [Key(_NAMES[_HITS], palette.hits, None, "block"), Key(_NAMES[_OTHER], palette.rest, None, "block")]
    return stacked(plot, legend([*entries, Key("95 % interval", palette.ink, [1, 0], None)], palette, start=0))


def _whiskers(rows: Sequence[Row], axis: alt.X, down: alt.Y, palette: Palette) -> list[alt.Chart]:
    """An interval as a line with a cap at each end."""
    import altair as alt

    mark: dict[str, Any] = {"color": palette.ink, "strokeWidth": 1.4, "aria": False}
    caps = [{"x": row[end], "top": row["top"], "bottom": row["bottom"]} for row in rows for end in ("x", "x2")]
    ends = alt.Chart(values(caps)).mark_rule(**mark).encode(x=axis, y=alt.Y("top:Q"), y2="bottom:Q")
    return [alt.Chart(values(rows)).mark_rule(**mark).encode(x=axis, x2="x2:Q", y=down), ends]


def _weight(row: Row) -> float:
    """What a slice contributes to the gap over all tokens, in nats per token."""
    return float((row["delta_nll"] or 0.0) * row["share_of_tokens"])


def _stack(parts: Sequence[float]) -> list[tuple[float, float]]:
    """Low and high end of each part: positive parts are stacked upwards from zero, negative ones downwards."""
    ends, spans = {True: 0.0, False: 0.0}, []
    for part in parts:
        start = ends[part > 0]
        ends[part > 0] += part
        spans.append((min(start, start + part), max(start, start + part)))
    return spans


def _is_finite(numbers: Iterable[float]) -> bool:
    """Whether there are numbers, all of them finite."""
    found = list(numbers)
    return bool(found) and all(map(math.isfinite, found))
