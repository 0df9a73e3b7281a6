"""Pictures of a comparison: where models differ from the reference, what the gap is made of, and on what it depends."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from recallkit.attribution.shares import NO_GAP, NOT_TOLD_FROM_ZERO
from recallkit.charts.lines import (
    AXIS,
    CHARACTER,
    FEW,
    FULL,
    Key,
    Point,
    bucket_axis,
    bucket_edge,
    counted,
    haloed,
    head,
    keys,
    labels,
    legend,
    line_panel,
    nice_axis,
    place,
    rounded,
    series,
    shade,
    share,
    shorten,
    span,
    stacked,
    text,
    upright,
    values,
)
from recallkit.charts.theme import WIDTH, Figure
from recallkit.config import MAX_COUNT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import altair as alt

    from recallkit.charts.lines import Series
    from recallkit.charts.theme import Chart, Palette
    from recallkit.comparison import Comparison

    Row = Mapping[str, Any]

_HITS, _OTHER = "ar_hit", "other"
_NAMES = {_HITS: "AR hits", _OTHER: "other tokens"}
_HOLLOW = f"Hollow: fewer than {FEW} tokens."
_NATS = "NLL, nats a token"
_ROW = 42
_MOST_SOURCES = 12
_POSITIONS = 16
"""Points of a line by position: the table's buckets are put together by twos, which halves their noise."""
_GAP = 18
_LEAST_SHARE, _LARGEST_SHARE = -1.0, 2.0
"""Shares beyond are drawn at the edge: where the gap of a source is next to nothing they can be of any size."""


def figures(comparison: Comparison) -> list[Figure]:
    """Every picture of a comparison that has something to show, in the order of a report."""
    makers: tuple[Callable[[Comparison], Figure | None], ...] = (
        _perplexities,
        _gap_parts,
        _by_count,
        _by_distance,
        _by_position,
        _by_source,
        _by_threshold,
    )
    return [figure for maker in makers if (figure := maker(comparison)) is not None]


# ---------------------------------------------------------------------------------------------- all tokens, a row a model


def _perplexities(comparison: Comparison) -> Figure | None:
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
    plot = alt.layer(*rules, *parts, *_row_heads(names, palette), width=FULL, height=height)
    entries = [
        Key("AR hits", palette.hits, None, "circle"),
        Key("other tokens", palette.rest, None, "circle", is_hollow=True),
        Key("reference", palette.soft, [4, 3], None, 1),
    ]
    return stacked(plot, legend(entries, palette, start=0))


def _row_heads(names: Iterable[tuple[str, str, float]], palette: Palette) -> list[alt.Chart]:
    """Above each row its model at the left, and its figures at the right."""
    import altair as alt

    rows = [{"name": name, "figures": shown, "y": y} for name, shown, y in names]
    base = alt.Chart(values(rows)).encode(y=alt.Y("y:Q"))
    mark: dict[str, Any] = {"baseline": "alphabetic", "aria": False}
    left, right = base.encode(x=alt.value(0), text="name:N"), base.encode(x=alt.value(FULL), text="figures:N")
    return [*haloed(left, palette, align="left", **mark), *haloed(right, palette, align="right", color=palette.soft, **mark)]


def _perplexity(nll: float) -> str:
    if nll > math.log(1e6):
        return rounded(float(f"{math.exp(min(nll, 700.0)):.3g}")) if nll < math.log(1e15) else f"10^{nll / math.log(10):.0f}"
    return f"{math.exp(nll):,.{2 if nll < math.log(100) else 1 if nll < math.log(1000) else 0}f}"


def _decades(nll: float) -> float:
    return nll / math.log(10)


def _perplexity_axis(nlls: Sequence[float]) -> alt.X:
    """An axis of log10 perplexities, whose ticks are perplexities: 1, 2 and 5 times powers of ten as far as there is room."""
    import altair as alt

    low, high = _decades(min(nlls)), _decades(max(nlls))
    room = max(high - low, 0.3) * 0.05
    low, high = low - room, high + room
    every = max(1, math.ceil((high - low) / 7))
    steps = (1, 2, 5) if high - low < 2.5 else (1, 3) if high - low < 4 else (1,)
    powers = range(math.floor(low), math.ceil(high) + 1, every)
    ticks = {math.log10(step) + power: step * 10.0**power for power in powers for step in steps}
    within = {tick: number for tick, number in ticks.items() if low <= tick <= high}
    scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    return alt.X("x:Q", scale=scale, axis=_named_ticks(within, "perplexity"))


def _named_ticks(ticks: Mapping[float, float], title: str) -> alt.Axis:
    """An axis with a tick at each key, which shows its number. The expression holds numbers of ours alone."""
    import altair as alt

    names = [rounded(number) if number < 1e15 else f"{number:.0e}" for number in ticks.values()]
    numbered = [f"abs(datum.value - {tick!r}) < 1e-9 ? '{name}' :" for tick, name in zip(ticks, names, strict=True)]
    return alt.Axis(values=list(ticks), labelExpr=" ".join([*numbered, "''"]), title=title)


def _gap_parts(comparison: Comparison) -> Figure | None:
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
        told = "share means nothing" if _is_void(parts[0]) else f"{share(parts[0]['gap_share'])} in AR hits"
        names.append((shown[model], f"{gap:.3f} nats, {told}".replace("-", "−"), top - 5))
        for row, (low, high) in zip(parts, _stack([_weight(row) for row in parts]), strict=True):
            tip = f"{shorten(model, 60)}, {_NAMES[row['slice']]}: {_weight(row):.3f} of {gap:.3f} nats, {counted(row['tokens'], 'token')}"
            blocks.append({"kind": row["slice"], "x": low, "x2": high, "y": top, "y2": top + 16, "text": tip})
        if not _is_void(parts[0]) and parts[0]["ci_low"] is not None:
            ends = sorted((parts[0]["ci_low"] * gap, parts[0]["ci_high"] * gap))
            whiskers.append({"x": ends[0], "x2": ends[1], "y": top + 8, "top": top + 4, "bottom": top + 12})
    ends = [0.0, *(block[end] for block in blocks for end in ("x", "x2")), *(row[end] for row in whiskers for end in ("x", "x2"))]
    room = 0.015 * (max(ends) - min(ends) or 1.0)
    scale = alt.Scale(domain=[min(ends) - room, max(ends) + room], nice=False)
    axis = alt.X("x:Q", scale=scale, axis=alt.Axis(title="nats a token behind the reference", tickCount=6, labelFlush=False))
    drawn = []
    for kind, colour in ((_HITS, palette.hits), (_OTHER, palette.rest)):
        mine = alt.Chart(values(block for block in blocks if block["kind"] == kind)).mark_rect(color=colour)
        drawn.append(mine.encode(x=axis, x2="x2:Q", y=down, y2="y2:Q", description="text:N"))
    drawn.append(upright(palette, 0.0, axis, height, [1, 0], palette.ink))
    drawn += _whiskers(whiskers, axis, down, palette) if whiskers else []
    plot = alt.layer(*drawn, *_row_heads(names, palette), width=FULL, height=height)
    entries = [Key(_NAMES[_HITS], palette.hits, None, "block"), Key(_NAMES[_OTHER], palette.rest, None, "block")]
    return stacked(plot, legend([*entries, Key("95 % interval", palette.ink, [1, 0], None)], palette, start=0))


def _whiskers(rows: Sequence[Row], axis: alt.X, down: alt.Y, palette: Palette) -> list[alt.Chart]:
    """An interval as a line with a cap at either end."""
    import altair as alt

    mark: dict[str, Any] = {"color": palette.ink, "strokeWidth": 1.4, "aria": False}
    caps = [{"x": row[end], "top": row["top"], "bottom": row["bottom"]} for row in rows for end in ("x", "x2")]
    ends = alt.Chart(values(caps)).mark_rule(**mark).encode(x=axis, y=alt.Y("top:Q"), y2="bottom:Q")
    return [alt.Chart(values(rows)).mark_rule(**mark).encode(x=axis, x2="x2:Q", y=down), ends]


def _weight(row: Row) -> float:
    """What a slice adds to the gap of all tokens, in nats a token."""
    return float((row["delta_nll"] or 0.0) * row["share_of_tokens"])


def _stack(parts: Sequence[float]) -> list[tuple[float, float]]:
    """Low and high end of each part: positive ones upwards from zero, one on the other, negative ones downwards."""
    ends, spans = {True: 0.0, False: 0.0}, []
    for part in parts:
        start = ends[part > 0]
        ends[part > 0] += part
        spans.append((min(start, start + part), max(start, start + part)))
    return spans


def _is_void(row: Row) -> bool:
    """Whether the share in a row means nothing: there is no gap to speak of, or nothing in the slice."""
    return row["gap_share"] is None or not {NO_GAP, NOT_TOLD_FROM_ZERO}.isdisjoint(row["note"].split("; "))


def _is_finite(numbers: Iterable[float]) -> bool:
    """Whether there is something to draw, and a place for all of it."""
    found = list(numbers)
    return bool(found) and all(map(math.isfinite, found))


# ------------------------------------------------------------------------------------------------- NLLs, a line a model


def _by_count(comparison: Comparison) -> Figure | None:
    rows = comparison.tables.by_count.to_dicts()
    panels = {
        name: _sides(comparison, [row for row in rows if row["repeated"] is kind], "training count") for name, kind in _REPEATS.items()
    }
    panels = {name: sides for name, sides in panels.items() if sides}
    caption = (
        "Mean log-perplexity by how often training had the bigram (as figure 1 of Zoology): above, tokens that repeat a bigram "
        f"of their context, AR hits up to the threshold of {comparison.manifest['slices']['max_count']:,} (shaded); below, those "
        f"that do not. {_HOLLOW}"
    )
    edge = bucket_edge(comparison.manifest["slices"]["max_count"])
    draw = partial(_draw_counts, comparison.models, comparison.reference, panels, edge)
    return Figure("by_count", "By training frequency", caption, draw) if panels else None


_REPEATS = {"bigram repeated": True, "bigram not repeated": False}


def _sides(comparison: Comparison, rows: Sequence[Row], what: str, *, x: Callable[[Row], float] | None = None) -> dict[str, list[Point]]:
    """The points of the reference and of every model: any model's rows hold the reference's NLLs. Empty without rows."""
    at = x or (lambda row: math.ceil(place(row["low"])))
    sides = {comparison.reference: [row for row in rows if row["model"] == comparison.models[0]]}
    sides |= {model: [row for row in rows if row["model"] == model] for model in comparison.models}
    points = {}
    for name, mine in sides.items():
        column = "nll_reference" if name == comparison.reference else "nll_model"
        points[name] = [_point(name, row, row[column], at(row), what) for row in mine if math.isfinite(row[column])]
    return points if any(points.values()) else {}


def _point(name: str, row: Row, nll: float, x: float, what: str) -> Point:
    told = f"{shorten(name, 60)}, {what} {span(row['low'], row['high'])}: {nll:.2f} nats, {counted(row['tokens'], 'token')}"
    return Point(x, nll, told, row["tokens"] < FEW)


def _nll_axis(sides: Mapping[str, Sequence[Point]], most: int = 6) -> alt.Y:
    """NLLs upwards."""
    nlls = [point.y for points in sides.values() for point in points]
    return nice_axis(min(nlls), max(nlls), most=most)


def _places(panels: Iterable[Mapping[str, Sequence[Point]]]) -> list[float]:
    return [point.x for sides in panels for points in sides.values() for point in points]


def _draw_counts(
    models: Sequence[str], reference: str, panels: Mapping[str, Mapping[str, Sequence[Point]]], edge: float, palette: Palette
) -> Chart:
    looks, places = series(models, palette, reference), _places(panels.values())
    parts = []
    for index, (name, sides) in enumerate(panels.items()):
        title = "training count of the bigram, up to" if index == len(panels) - 1 else None
        axis = bucket_axis(places, title)
        axes = {"x": axis, "y": _nll_axis(sides)}
        above = head(palette, name, _NATS)
        below = []
        if _REPEATS[name] and (high := min(edge, max(places) + 0.5)) > min(places) - 0.5:
            below = [shade(palette, min(places) - 0.5, high, axis, _TALL)]
            above.append(text("AR hits", 6, _TALL - 8, colour=palette.soft))
        parts.append(line_panel(looks, sides, axes, palette, below=below, above=above, size=(WIDTH, _TALL)))
    return stacked(*parts, legend(keys(looks), palette), spacing=_GAP)


_TALL = 210


def _by_distance(comparison: Comparison) -> Figure | None:
    sides = _sides(comparison, [row for row in comparison.tables.by_distance.to_dicts() if row["ar_hit"]], "distance")
    caption = f"NLL of AR hits by the distance to the latest earlier occurrence of their bigram in the context. {_HOLLOW}"
    draw = partial(_draw_distances, comparison.models, comparison.reference, sides)
    return Figure("by_distance", "By distance", caption, draw) if sides else None


def _draw_distances(models: Sequence[str], reference: str, sides: Mapping[str, Sequence[Point]], palette: Palette) -> Chart:
    looks = series(models, palette, reference)
    axes = {"x": bucket_axis(_places([sides]), "tokens back to the bigram, up to"), "y": _nll_axis(sides)}
    return stacked(line_panel(looks, sides, axes, palette, above=head(palette, "AR hits", _NATS)), legend(keys(looks), palette))


def _by_position(comparison: Comparison) -> Figure | None:
    rows = comparison.tables.by_position.to_dicts()
    high = max((row["high"] for row in rows), default=1)
    panels = {
        _NAMES[kind]: _sides(comparison, _joined([row for row in rows if row["slice"] == kind], high), "position", x=_middle)
        for kind in (_HITS, _OTHER)
    }
    panels = {name: sides for name, sides in panels.items() if sides}
    caption = f"NLL by position in the sequence. {_HOLLOW}"
    draw = partial(_draw_positions, comparison.models, comparison.reference, panels, high)
    return Figure("by_position", "By position", caption, draw) if panels else None


def _middle(row: Row) -> float:
    return float(row["low"] + row["high"]) / 2


def _joined(rows: Sequence[Row], high: int) -> list[Row]:
    """The buckets of each model put together until there are at most `_POSITIONS`: means weighted by their tokens."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["model"], (row["high"] * _POSITIONS - 1) // high), []).append(row)
    return [
        {
            "model": model,
            "low": min(row["low"] for row in parts),
            "high": max(row["high"] for row in parts),
            "tokens": (tokens := sum(row["tokens"] for row in parts)),
            **{name: sum(row[name] * row["tokens"] for row in parts) / tokens for name in ("nll_reference", "nll_model")},
        }
        for (model, _), parts in found.items()
    ]


def _draw_positions(
    models: Sequence[str], reference: str, panels: Mapping[str, Mapping[str, Sequence[Point]]], high: int, palette: Palette
) -> Chart:
    import altair as alt

    looks, parts = series(models, palette, reference), []
    for index, (name, sides) in enumerate(panels.items()):
        title = "position in the sequence" if index == len(panels) - 1 else None
        axis = alt.Axis(title=title, tickCount=6, grid=False, format=",d", labelFlush=False)
        axes = {"x": alt.X("x:Q", scale=alt.Scale(domain=[0, high], nice=False), axis=axis), "y": _nll_axis(sides, 5)}
        parts.append(line_panel(looks, sides, axes, palette, above=head(palette, name, _NATS), size=(WIDTH, 160), dot=16))
    return stacked(*parts, legend(keys(looks), palette), spacing=_GAP)


# ------------------------------------------------------------------------------------------- shares, a small plot a model


def _by_source(comparison: Comparison) -> Figure | None:
    of_models = {model: _source_rows(comparison, model) for model in comparison.models}
    tokens = {row["source"]: row["tokens"] for row in of_models[comparison.models[0]]["all"]}
    sources = sorted(tokens, key=lambda source: (-tokens[source], source))[:_MOST_SOURCES]
    shares = {
        model: {row["source"]: row for row in rows[_HITS] if row["source"] in sources and not _is_void(row)}
        for model, rows in of_models.items()
    }
    shown = [model for model in comparison.models if shares[model]]
    if not shown or len(tokens) < 2:
        return None
    rest = f" The {_MOST_SOURCES} largest of {len(tokens):,} sources." if len(tokens) > _MOST_SOURCES else ""
    caption = (
        f"The AR hits' share of each source's gap, with its 95 % interval; the dashed line is the share of all sources together.{rest} "
        "A share that means nothing, because the gap cannot be told from zero, is left out."
    )
    whole = {model: comparison.totals[model, _HITS] for model in shown}
    draw = partial(_draw_sources, comparison, shown, sources, shares, whole)
    return Figure("by_source", "By source", caption, draw)


def _source_rows(comparison: Comparison, model: str) -> dict[str, list[Row]]:
    """Rows of one model by slice, without the three of all sources together, which come first."""
    rows = [row for row in comparison.tables.gap.to_dicts() if row["model"] == model][3:]
    return {kind: [row for row in rows if row["slice"] == kind] for kind in ("all", _HITS)}


def _draw_sources(
    comparison: Comparison,
    models: Sequence[str],
    sources: Sequence[str],
    shares: Mapping[str, Mapping[str, Row]],
    whole: Mapping[str, Row],
    palette: Palette,
) -> Chart:
    import altair as alt

    looks = {look.name: look for look in series(comparison.models, palette, comparison.reference)}
    names = labels(sources, 16)
    columns, left = (1 if len(models) == 1 else 2), min(110, 10 + CHARACTER * max(len(name) for name in names.values()))
    width, height = (FULL - left - 18 * (columns - 1)) / columns, 18 * len(sources)
    ends = [
        end
        for rows in shares.values()
        for row in rows.values()
        for end in (row["gap_share"], row["ci_low"], row["ci_high"])
        if end is not None
    ]
    domain = _share_domain([*ends, *(row["gap_share"] for row in whole.values() if not _is_void(row))])
    axis = alt.X("x:Q", scale=alt.Scale(domain=domain, nice=False), axis=_share_axis(domain, width))
    plots = []
    for index, model in enumerate(models):
        rows = _source_axis(names, sources, height, left, is_named=index % columns == 0)
        plots.append(
            _source_plot(looks[model], names, sources, shares[model], whole[model], (axis, rows, domain), (width, height), palette)
        )
    return _grid(plots, columns, palette, [Key("all sources", palette.soft, [4, 3], None, 1)], left)


def _source_axis(names: Mapping[str, str], sources: Sequence[str], height: float, left: float, *, is_named: bool) -> alt.Y:
    """A line a source, named at the left of the first column. The names are data of the scale, not of an expression."""
    import altair as alt

    scale = alt.Scale(domain=[names[source] for source in sources], range=[0, height])
    named: dict[str, Any] = {"minExtent": left, "maxExtent": left, "labelLimit": left} if is_named else {"labels": False}
    axis = alt.Axis(title=None, grid=True, domain=False, ticks=False, labelPadding=6, **named)
    return alt.Y("source:N", scale=scale, axis=axis, sort=None)


def _source_plot(
    look: Series,
    names: Mapping[str, str],
    sources: Sequence[str],
    shares: Mapping[str, Row],
    whole: Row,
    axes: tuple[alt.X, alt.Y, tuple[float, float]],
    size: tuple[float, float],
    palette: Palette,
) -> Chart:
    import altair as alt

    x, y, (low, high) = axes
    rows = []
    for source in (source for source in sources if source in shares):
        row = shares[source]
        told = f"{shorten(look.name, 60)}, {shorten(source, 60)}: {_share_told(row)}"
        ends = (row["ci_low"], row["ci_high"]) if row["ci_low"] is not None else (row["gap_share"],) * 2
        cut = [min(max(value, low), high) for value in (row["gap_share"], *ends)]
        rows.append({"source": names[source], "x": cut[0], "low": cut[1], "high": cut[2], "text": told})
    lines = alt.Chart(values(rows)).mark_rule(color=look.colour, strokeWidth=1.6, aria=False).encode(x=_other(x, "low"), x2="high:Q", y=y)
    dots = alt.Chart(values(rows)).mark_point(shape=look.shape, size=40, fill=look.colour, stroke=look.colour, strokeWidth=1, opacity=1)
    marks = [] if _is_void(whole) else [upright(palette, whole["gap_share"], x, size[1], [4, 3])]
    zero = upright(palette, 0.0, x, size[1], [1, 0], palette.rule)
    layers = [
        zero,
        *marks,
        lines,
        dots.encode(x=x, y=y, description="text:N"),
        *head(palette, shorten(look.label, int(size[0] / CHARACTER))),
    ]
    return alt.layer(*layers, width=size[0], height=size[1])


def _share_told(row: Row) -> str:
    interval = "" if row["ci_low"] is None else f" ({share(row['ci_low'])} to {share(row['ci_high'])})"
    return f"{share(row['gap_share'])}{interval} of the gap, {counted(row['tokens'], 'AR hit')}"


def _other(axis: alt.X, field: str) -> alt.X:
    """The same axis for another column."""
    import altair as alt

    return alt.X(f"{field}:Q", scale=axis["scale"], axis=axis["axis"])


def _share_domain(shares: Sequence[float]) -> tuple[float, float]:
    """From 0, or what is below it, to what is highest; cut where shares are out of all proportion."""
    low, high = max(_LEAST_SHARE, min([0.0, *shares])), min(_LARGEST_SHARE, max([0.1, *shares]))
    room = 0.04 * (high - low)
    return (low - room if low < 0 else low - room / 2, high + room)


def _share_axis(domain: tuple[float, float], width: float) -> alt.Axis:
    import altair as alt

    return alt.Axis(title=None, format=".0%", grid=True, tickCount=max(2, int(width // 45)), labelFlush=False, domain=False, ticks=False)


def _grid(plots: Sequence[Chart], columns: int, palette: Palette, entries: Sequence[Key], left: float = AXIS) -> Chart:
    """Small plots in `columns`, row by row, and what their lines mean below."""
    import altair as alt

    grid = alt.concat(*plots, columns=columns, spacing={"row": 10, "column": 18}).resolve_scale(x="independent", y="independent")
    return stacked(grid, *([legend(entries, palette, start=-left)] if entries else []))


def _by_threshold(comparison: Comparison) -> Figure | None:
    rows = comparison.tables.by_threshold.to_dicts()
    shown = [model for model in comparison.models if not _is_void(comparison.totals[model, _HITS]) or _has_share(comparison, model)]
    of_models = {model: [row for row in rows if row["model"] == model and row["gap_share"] is not None] for model in shown}
    of_models = {model: found for model, found in of_models.items() if len(found) > 1}
    if not of_models:
        return None
    used = comparison.manifest["slices"]["max_count"]
    caption = (
        "The AR hits' share of the gap where bigrams up to another training count are AR hits, with its 95 % interval; "
        "in grey the other models."
    )
    draw = partial(_draw_thresholds, comparison, of_models, used)
    return Figure("by_threshold", "By threshold", caption, draw)


def _has_share(comparison: Comparison, model: str) -> bool:
    """Whether the model's gap is one to take shares of, though no token is an AR hit at the threshold that was used."""
    whole = comparison.totals[model, "all"]
    return whole["gap_share"] is not None and not _is_void(whole)


def _draw_thresholds(comparison: Comparison, of_models: Mapping[str, Sequence[Row]], used: int, palette: Palette) -> Chart:
    import altair as alt

    looks = {look.name: look for look in series(comparison.models, palette, comparison.reference)}
    columns = 1 if len(of_models) == 1 else 2
    width = WIDTH if columns == 1 else (FULL - AXIS - 18) / 2
    height = 200 if columns == 1 else 100
    ends = [
        end for rows in of_models.values() for row in rows for end in (row["gap_share"], row["ci_low"], row["ci_high"]) if end is not None
    ]
    domain = _share_domain(ends)
    last = max(place(row["threshold"]) for rows in of_models.values() for row in rows)
    x = bucket_axis([0, last], None, most=9 if columns == 1 else 5)
    known = dict.fromkeys(row["threshold"] for rows in of_models.values() for row in rows)
    entries = [Key(f"AR hits here: up to {rounded(used)}", palette.ink, [4, 3], None, 1)] if used in known else []
    entries += (
        [Key(f"Zoology's {MAX_COUNT:,} of 10B tokens", palette.soft, [1.5, 2.5], None, 1.2)]
        if used != MAX_COUNT and MAX_COUNT in known
        else []
    )
    plots = []
    for index, model in enumerate(of_models):
        named: dict[str, Any] = {"minExtent": AXIS, "maxExtent": AXIS} if index % columns == 0 else {"labels": False}
        axis = alt.Axis(title=None, format=".0%", grid=True, tickCount=4 if columns == 2 else 6, domain=False, ticks=False, **named)
        y = alt.Y("y:Q", scale=alt.Scale(domain=domain, nice=False), axis=axis)
        rules = [upright(palette, place(used), x, height, [4, 3], palette.ink)] if used in known else []
        rules += [upright(palette, place(MAX_COUNT), x, height, [1.5, 2.5])] if used != MAX_COUNT and MAX_COUNT in known else []
        others = [_share_lines([rows for name, rows in of_models.items() if name != model], x, y, palette)] if len(of_models) > 1 else []
        mine = _share_band(looks[model], of_models[model], x, y, domain)
        top = head(palette, shorten(looks[model].label, int(width / CHARACTER)))
        plots.append(alt.layer(*others, *rules, *mine, *top, width=width, height=height))
    return _grid(plots, columns, palette, entries)


def _share_lines(of_others: Sequence[Sequence[Row]], x: alt.X, y: alt.Y, palette: Palette) -> alt.Chart:
    """The lines of the other models, for comparison."""
    import altair as alt

    rows = [{"x": place(row["threshold"]), "y": row["gap_share"], "run": run} for run, found in enumerate(of_others) for row in found]
    lines = alt.Chart(values(rows)).mark_line(color=palette.rest, opacity=0.4, strokeWidth=0.9, aria=False)
    drawn: alt.Chart = lines.encode(x=x, y=y, detail="run:N")
    return drawn


def _share_band(look: Series, rows: Sequence[Row], x: alt.X, y: alt.Y, domain: tuple[float, float]) -> list[alt.Chart]:
    """The share of one model with its interval, and a dot at every threshold that says what it is."""
    import altair as alt

    found = []
    for row in rows:
        told = f"{shorten(look.name, 60)}, up to {row['threshold']:,}: {_share_told(row)}"
        found.append({"x": place(row["threshold"]), "y": row["gap_share"], "low": row["ci_low"], "high": row["ci_high"], "text": told})
    band = alt.Chart(values(row for row in found if row["low"] is not None))
    area = band.mark_area(color=look.colour, opacity=0.2, aria=False).encode(
        x=x, y=alt.Y("low:Q", scale=y["scale"], axis=y["axis"]), y2="high:Q"
    )
    line = alt.Chart(values(found)).mark_line(color=look.colour, strokeWidth=1.6, aria=False).encode(x=x, y=y)
    dots = alt.Chart(values(found)).mark_point(shape=look.shape, size=9, fill=look.colour, stroke=look.colour, strokeWidth=1, opacity=1)
    return [area, line, dots.encode(x=x, y=y, description="text:N")]
