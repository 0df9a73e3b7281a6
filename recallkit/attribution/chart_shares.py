"""Charts of a comparison with one small plot per model: shares of the gap by source, by threshold, by class of the partition, by slice."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from recallkit.attribution.knee import describe_knees, knees
from recallkit.display.chart_parts import (
    AXIS,
    CHARACTER,
    FULL,
    MOST_SOURCES,
    Key,
    bucket_axis,
    head,
    in_columns,
    labels,
    layered,
    legend,
    not_drawn,
    place,
    rounded,
    series,
    shorten,
    stacked,
    unit_line,
    upright,
    values,
)
from recallkit.display.chart_theme import WIDTH, Figure
from recallkit.display.console import counted, percent
from recallkit.measure.shares import is_void
from recallkit.slicing.definitions import PARTITION
from recallkit.slicing.threshold import papers_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import altair as alt

    from recallkit.attribution.comparison import Comparison
    from recallkit.display.chart_parts import Series
    from recallkit.display.chart_theme import Chart, Palette

    Row = Mapping[str, Any]

_HITS, _OTHER = "ar_hit", "other"
_SOURCE_NAME, _SLICE_NAME = 16, 25
_OF_AR_HITS, _THRESHOLD = "AR hits' share of the gap", "AR hits are bigrams up to"
_LEFT_OUT = "Shares that mean nothing, such as those of a gap that cannot be told from zero, are left out."
_LEAST_SHARE, _LARGEST_SHARE = -1.0, 2.0
"""Shares beyond these are drawn at the edge: if the gap of a source is close to zero, they can be of any size."""
_TICK = 34
"""Pixels from one labelled tick of shares to the next."""


def by_source(comparison: Comparison) -> Figure | None:
    """The AR hits' share of each source's gap, for the largest sources only. None if there is nothing to draw."""
    of_models = {model: _source_rows(comparison, model) for model in comparison.models}
    tokens = {row["source"]: row["tokens"] for row in of_models[comparison.models[0]]["all"]}
    sources = sorted(tokens, key=lambda source: (-tokens[source], source))
    sources, smaller = sources[:MOST_SOURCES], sources[MOST_SOURCES:]
    shares = {
        model: {row["source"]: row for row in rows[_HITS] if row["source"] in sources and not is_void(row)}
        for model, rows in of_models.items()
    }
    shown = [model for model in comparison.models if shares[model]]
    if not shown or len(tokens) < 2:
        return None
    caption = (
        f"The AR hits' share of each source's gap, with its 95 % interval; the dashed line is the share of all sources "
        f"together. {_LEFT_OUT}{not_drawn(smaller)}"
    )
    whole = {model: comparison.totals[model, _HITS] for model in shown}
    draw = partial(_draw_rows, comparison, shown, sources, shares, whole)
    return Figure("by_source", "By source", caption, draw)


def by_partition(comparison: Comparison) -> Figure | None:
    """The share of the gap in each class of PARTITION. None if there is nothing to draw."""
    caption = (
        "Every token is in one class: by what of it is in the context already, and by how often training saw its bigram. The dots are "
        "the classes' shares of the gap, with 95 % intervals, the hollow squares their shares of tokens. The first class is the AR hits. "
        f"{_LEFT_OUT}"
    )
    rows = comparison.tables.by_partition.to_dicts()
    return _share_figure(comparison, rows, [class_.name for class_ in PARTITION], ("by_partition", "By what is in the context", caption))


def by_slice(comparison: Comparison) -> Figure | None:
    """The share of the gap in each requested slice. None if there is nothing to draw."""
    caption = (
        "The slices' shares of the gap, with 95 % intervals; the hollow squares are their shares of tokens. Slices may overlap. "
        + " ".join([*(f"{slice_.name}: {slice_.sentence}" for slice_ in comparison.given), _LEFT_OUT])
    )
    rows = [comparison.totals[model, slice_.name] for model in comparison.models for slice_ in comparison.given]
    return _share_figure(comparison, rows, [slice_.name for slice_ in comparison.given], ("by_slice", "By slice", caption))


def _share_figure(comparison: Comparison, rows: Sequence[Row], names: Sequence[str], told: tuple[str, str, str]) -> Figure | None:
    """A figure of rows, each of one model and one slice; `told` are its name, title and caption."""
    shown = [model for model in comparison.models if _has_share(comparison, model)]
    shares = {model: {row["slice"]: row for row in rows if row["model"] == model and not is_void(row)} for model in shown}
    if not any(shares.values()):
        return None
    return Figure(*told, partial(_draw_rows, comparison, shown, names, shares, {}))


def _source_rows(comparison: Comparison, model: str) -> dict[str, list[Row]]:
    """Rows of one model and single sources, by slice."""
    rows = comparison.source_rows(model)
    return {kind: [row for row in rows if row["slice"] == kind] for kind in ("all", _HITS)}


def _draw_rows(
    comparison: Comparison,
    models: Sequence[str],
    sources: Sequence[str],
    shares: Mapping[str, Mapping[str, Row]],
    whole: Mapping[str, Row],
    palette: Palette,
) -> Chart:
    """One line per source, with `whole` the share of all of them; without it, one line per slice, with its share of tokens."""
    import altair as alt

    looks = {look.name: look for look in series(comparison.models, palette, comparison.reference)}
    names = labels(sources, _SOURCE_NAME if whole else _SLICE_NAME)
    columns, left = (1 if len(models) == 1 else 2), 10 + CHARACTER * max(len(name) for name in names.values())
    width, height = (FULL - left - 18 * (columns - 1)) / columns, 18 * len(sources)
    drawn = [row for rows in shares.values() for row in rows.values()]
    marks = [row["gap_share"] for row in whole.values() if not is_void(row)] if whole else [row["share_of_tokens"] for row in drawn]
    domain = _share_domain(drawn, marks)
    axis = alt.X("x:Q", scale=alt.Scale(domain=domain, nice=False), axis=_share_axis(domain, width))
    titles = _titles(looks, models, width)
    plots = []
    for index, model in enumerate(models):
        rows = _source_axis(names, sources, height, left, is_named=index % columns == 0)
        drawn_rows = _row_plot(
            looks[model], names, sources, shares[model], whole.get(model), (axis, rows, domain), (width, height), palette
        )
        plots.append(layered(*drawn_rows, *head(palette, titles[model]), width=width, height=height))
    key = (
        Key("all sources", palette.soft, [4, 3], None, 1) if whole else Key("share of tokens", palette.soft, None, "square", is_hollow=True)
    )
    what = f"{_OF_AR_HITS}, by source" if whole else "share of the gap"
    return stacked(unit_line(what, palette, -left), _grid(plots, columns, palette, [key], left))


def _source_axis(names: Mapping[str, str], sources: Sequence[str], height: float, left: float, *, is_named: bool) -> alt.Y:
    """One line per source, named at the left of the first column. The names are data of the scale, not of an expression."""
    import altair as alt

    scale = alt.Scale(domain=[names[source] for source in sources], range=[0, height])
    named: dict[str, Any] = {"minExtent": left, "maxExtent": left, "labelLimit": left} if is_named else {"labels": False}
    axis = alt.Axis(title=None, grid=True, domain=False, ticks=False, labelPadding=6, **named)
    return alt.Y("source:N", scale=scale, axis=axis, sort=None)


def _row_plot(
    look: Series,
    names: Mapping[str, str],
    sources: Sequence[str],
    shares: Mapping[str, Row],
    whole: Row | None,
    axes: tuple[alt.X, alt.Y, tuple[float, float]],
    size: tuple[float, float],
    palette: Palette,
) -> list[alt.Chart]:
    """The layers of one model's plot: its shares with their intervals, cut at the edges of the axis."""
    import altair as alt

    x, y, (low, high) = axes
    rows = []
    for source in (source for source in sources if source in shares):
        row = shares[source]
        told = f"{shorten(look.name, 60)}, {shorten(source, 60)}: {_share_told(row, 'AR hit' if whole else 'token')}"
        ends = (row["ci_low"], row["ci_high"]) if row["ci_low"] is not None else (row["gap_share"],) * 2
        cut = [min(max(value, low), high) for value in (row["gap_share"], *ends)]
        rows.append({"source": names[source], "x": cut[0], "low": cut[1], "high": cut[2], "text": told, "of": row["share_of_tokens"]})
    lines = alt.Chart(values(rows)).mark_rule(color=look.colour, strokeWidth=1.6, aria=False).encode(x=_other(x, "low"), x2="high:Q", y=y)
    dots = alt.Chart(values(rows)).mark_point(shape=look.shape, size=40, fill=look.colour, stroke=look.colour, strokeWidth=1, opacity=1)
    if whole is None:
        squares = alt.Chart(values(rows)).mark_point(shape="square", size=40, stroke=palette.soft, strokeWidth=1.2, opacity=1, aria=False)
        marks = [squares.encode(x=_other(x, "of"), y=y)]
    else:
        is_within = not is_void(whole) and low <= whole["gap_share"] <= high
        marks = [upright(palette, whole["gap_share"], x, size[1], [4, 3])] if is_within else []
    zero = upright(palette, 0.0, x, size[1], [1, 0], palette.rule)
    return [zero, *marks, lines, dots.encode(x=x, y=y, description="text:N")]


def _titles(looks: Mapping[str, Series], models: Sequence[str], width: float) -> dict[str, str]:
    """A title for each model's plot of `width` pixels, no two alike."""
    return dict(zip(models, labels([looks[model].label for model in models], int(width / CHARACTER)).values(), strict=True))


def _share_told(row: Row, noun: str = "AR hit") -> str:
    interval = "" if row["ci_low"] is None else f" ({percent(row['ci_low'])} to {percent(row['ci_high'])})"
    return f"{percent(row['gap_share'])}{interval} of the gap, {counted(row['tokens'], noun)}"


def _other(axis: alt.X, field: str) -> alt.X:
    """The same axis for another column."""
    import altair as alt

    return alt.X(f"{field}:Q", scale=axis["scale"], axis=axis["axis"])


def _share_domain(rows: Sequence[Row], marks: Sequence[float] = ()) -> tuple[float, float]:
    """From the lowest value, at most 0, to the highest of shares, intervals and `marks`; cut off where they are out of all proportion."""
    ends = (row[name] for row in rows for name in ("gap_share", "ci_low", "ci_high"))
    shares = [*marks, *(end for end in ends if end is not None)]
    low, high = max(_LEAST_SHARE, min([0.0, *shares])), min(_LARGEST_SHARE, max([0.1, *shares]))
    room = 0.04 * (high - low)
    return (low - room if low < 0 else low - room / 2, high + room)


def _share_axis(domain: tuple[float, float], width: float) -> alt.Axis:
    """An axis of shares, with as many round ticks as have room, two or more."""
    import altair as alt

    low, high = domain
    steps = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0)
    step = next((step for step in steps if step / (high - low) * width >= _TICK), steps[-1])
    ticks = [place * step for place in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return alt.Axis(title=None, values=ticks, format=".0%", grid=True, labelFlush=False, labelOverlap=False, domain=False, ticks=False)


def _grid(plots: Sequence[Chart], columns: int, palette: Palette, entries: Sequence[Key], left: float = AXIS) -> Chart:
    """Small plots in `columns`, row by row, with the legend of their lines below."""

    grid = in_columns(*plots, columns=columns, spacing=(10, 18))
    return stacked(grid, *([legend(entries, palette, start=-left)] if entries else []))


def by_threshold(comparison: Comparison) -> Figure | None:
    """The AR hits' share of the gap at every threshold on the training count. None if there is nothing to draw."""
    rows = comparison.tables.by_threshold.to_dicts()
    shown = [model for model in comparison.models if not is_void(comparison.totals[model, _HITS]) or _has_share(comparison, model)]
    of_models = {model: [row for row in rows if row["model"] == model and not is_void(row)] for model in shown}
    of_models = {model: found for model, found in of_models.items() if len(found) > 1}
    if not of_models:
        return None
    used = comparison.manifest["slices"]["max_count"]
    caption = (
        "The AR hits' share of the gap where bigrams up to another training count are AR hits, with its 95 % interval; "
        f"in grey the other models. {_LEFT_OUT}"
    )
    if told := describe_knees(comparison.tables.by_count):
        caption += f" Solid upright lines are the knees of the model and of the reference, in their colours. {told}"
    draw = partial(_draw_thresholds, comparison, of_models, used)
    return Figure("by_threshold", "By threshold", caption, draw)


def _has_share(comparison: Comparison, model: str) -> bool:
    """Whether shares of the model's gap are meaningful, although no token is an AR hit at the threshold that was used."""
    whole = comparison.totals[model, "all"]
    return whole["gap_share"] is not None and not is_void(whole)


def _draw_thresholds(comparison: Comparison, of_models: Mapping[str, Sequence[Row]], used: int, palette: Palette) -> Chart:
    import altair as alt

    looks = {look.name: look for look in series(comparison.models, palette, comparison.reference)}
    columns = 1 if len(of_models) == 1 else 2
    width = WIDTH if columns == 1 else (FULL - AXIS - 18) / 2
    height = 200 if columns == 1 else 100
    drawn = [row for rows in of_models.values() for row in rows]
    domain, known = _share_domain(drawn), {row["threshold"] for row in drawn}
    places = [0, max(map(place, known))]
    marks = {used: Key(f"AR hits here: up to {rounded(used)}", palette.ink, [4, 3], None, 1)}
    papers = papers_count(comparison.manifest["slices"]["counts"]["num_tokens"])
    if 0 < papers <= max(known):
        marks.setdefault(papers, Key(f"the papers' rate: up to {rounded(papers)}", palette.soft, [1.5, 2.5], None, 1.2))
    found = {name: knee.count for name, knee in knees(comparison.tables.by_count).items() if knee.count is not None}
    titles = _titles(looks, list(of_models), width)
    plots = []
    for index, model in enumerate(of_models):
        x = bucket_axis(places, _THRESHOLD if index >= len(of_models) - columns else None, most=9 if columns == 1 else 5)
        named: dict[str, Any] = {"minExtent": AXIS, "maxExtent": AXIS} if index % columns == 0 else {"labels": False}
        axis = alt.Axis(title=None, format=".0%", grid=True, tickCount=4 if columns == 2 else 6, domain=False, ticks=False, **named)
        y = alt.Y("y:Q", scale=alt.Scale(domain=domain, nice=False), axis=axis)
        rules = [upright(palette, place(threshold), x, height, key.dash or (), key.colour) for threshold, key in marks.items()]
        others = [_share_lines([rows for name, rows in of_models.items() if name != model], x, y, palette)] if len(of_models) > 1 else []
        mine = _share_band(looks[model], of_models[model], x, y, domain)
        told = {model: f"{shorten(model, 60)}, knee: {found[model]:,}"} if model in found else {}
        both = [name for name in (comparison.reference, model) if name in found and place(found[name]) <= places[1] + 0.5]
        bends = [upright(palette, place(found[name]), x, height, [1, 0], looks[name].colour, told.get(name, "")) for name in both]
        top = head(palette, titles[model])
        plots.append(layered(*others, *rules, *bends, *mine, *top, width=width, height=height))
    reference = looks[comparison.reference]
    entries = [Key(f"knee of {shorten(reference.label, 30)}", reference.colour, [1, 0], None, 1)] if comparison.reference in found else []
    return stacked(unit_line(_OF_AR_HITS, palette), _grid(plots, columns, palette, [*marks.values(), *entries]))


def _share_lines(of_others: Sequence[Sequence[Row]], x: alt.X, y: alt.Y, palette: Palette) -> alt.Chart:
    """The lines of the other models, for comparison."""
    import altair as alt

    rows = [{"x": place(row["threshold"]), "y": row["gap_share"], "run": run} for run, found in enumerate(of_others) for row in found]
    lines = alt.Chart(values(rows)).mark_line(color=palette.rest, opacity=0.4, strokeWidth=0.9, aria=False, clip=True)
    drawn: alt.Chart = lines.encode(x=x, y=y, detail="run:N")
    return drawn


def _share_band(look: Series, rows: Sequence[Row], x: alt.X, y: alt.Y, domain: tuple[float, float]) -> list[alt.Chart]:
    """The share of one model with its interval, cut at the edges of the plot, and a labelled dot at every threshold within it."""
    import altair as alt

    found = []
    for row in rows:
        told = f"{shorten(look.name, 60)}, up to {row['threshold']:,}: {_share_told(row)}"
        found.append({"x": place(row["threshold"]), "y": row["gap_share"], "low": row["ci_low"], "high": row["ci_high"], "text": told})
    band = alt.Chart(values(row for row in found if row["low"] is not None))
    area = band.mark_area(color=look.colour, opacity=0.2, aria=False, clip=True).encode(
        x=x, y=alt.Y("low:Q", scale=y["scale"], axis=y["axis"]), y2="high:Q"
    )
    line = alt.Chart(values(found)).mark_line(color=look.colour, strokeWidth=1.6, aria=False, clip=True).encode(x=x, y=y)
    within = [row for row in found if domain[0] <= row["y"] <= domain[1]]
    dots = alt.Chart(values(within)).mark_point(shape=look.shape, size=9, fill=look.colour, stroke=look.colour, strokeWidth=1, opacity=1)
    return [area, line, dots.encode(x=x, y=y, description="text:N")]
