"""Charts of multi-query associative recall: perplexity and accuracy by number of pairs (Zoology, Figure 7), accuracy by distance."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from recallkit.display.chart_parts import (
    AXIS,
    FEW,
    Point,
    bucket_axis,
    head,
    in_columns,
    keys,
    legend,
    line_panel,
    place,
    series,
    span,
    stacked,
    unit_line,
    values,
)
from recallkit.display.chart_theme import HEIGHT, WIDTH, Figure
from recallkit.display.console import counted, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import altair as alt
    import polars as pl

    from recallkit.display.chart_parts import Series
    from recallkit.display.chart_theme import Chart, Palette

    Row = Mapping[str, Any]

_PANEL_WIDTH, _PANEL_HEIGHT = 152, 96
"""Width of one of two plots beside each other."""
_MOST_MARKED = 7
"""Numbers of pairs labelled on an axis: if there are more, every second, third ... one."""
_MOST_POWERS = 8
"""Powers of ten labelled on an axis, at most."""
_LARGEST_LOG = 700.0
"""Largest NLL whose exp is finite in float64."""


def mqar_figures(mqar: pl.DataFrame, by_distance: pl.DataFrame) -> list[Figure]:
    """The charts of a comparison (`MqarTables`), whose first model is the reference."""
    rows, distances = mqar.to_dicts(), by_distance.to_dicts()
    first = rows[0]
    what = f"{first['num_samples']:,} sequences of {first['length']:,} ids for each number of pairs; bands are 95 % intervals."
    return [
        Figure(
            "mqar_perplexity",
            "Perplexity in multi-query associative recall",
            f"Perplexity of the values asked for, and of the filler behind the pairs, by number of pairs. {what}",
            partial(_draw_perplexity, rows),
        ),
        Figure(
            "mqar_accuracy",
            "Values recalled by number of pairs",
            f"Share of the values asked for that the model ranks first in its whole vocabulary. {what}",
            partial(_draw_accuracy, rows),
        ),
        Figure(
            "mqar_by_distance",
            "Values recalled by distance",
            "Share of the values asked for that the model ranks first, by the ids from the pair's key to the query's, in powers of two; "
            f"a plot for each number of pairs. Hollow: fewer than {FEW} queries.",
            partial(_draw_by_distance, rows, distances),
        ),
    ]


def _looks(rows: Sequence[Row], palette: Palette) -> list[Series]:
    models = list(dict.fromkeys(row["model"] for row in rows))
    return series(models, palette, reference=models[0])


def _draw_perplexity(rows: Sequence[Row], palette: Palette) -> Chart:
    """Plots of values and of filler below each other; logarithmic, because they range from 1 to more than the vocabulary."""
    looks = _looks(rows, palette)
    panels = []
    for kind, title in (("ar", "Values asked for"), ("filler", "Filler")):
        kept = [row for row in rows if row[f"{kind}_nll"] is not None and row[f"{kind}_nll"] < _LARGEST_LOG]
        if kept:
            ends = [math.exp(end) for row in kept for end in _spread(row, f"{kind}_nll")]
            y = partial(_log_axis, min(ends) / 1.1, max(ends) * 1.1)
            size = (WIDTH, round(0.75 * HEIGHT))
            panels.append(_by_pairs(kept, rows, looks, f"{kind}_nll", y, _as_ppl, head(palette, title, "perplexity"), palette, size))
    return stacked(*panels, legend(keys(looks), palette))


def _draw_accuracy(rows: Sequence[Row], palette: Palette) -> Chart:
    looks = _looks(rows, palette)
    most = max(_spread(row, "accuracy")[-1] for row in rows)
    title = head(palette, "Values recalled", "share of those asked for")
    panel = _by_pairs(rows, rows, looks, "accuracy", partial(_share_axis, most), _as_it_is, title, palette, (WIDTH, HEIGHT))
    return stacked(panel, legend(keys(looks), palette))


def _spread(row: Row, name: str) -> list[float]:
    """A value with the ends of its interval, if it has one, ascending."""
    found = (row[f"{name}_low"], row[name], row[f"{name}_high"])
    return sorted(value for value in found if value is not None and value < _LARGEST_LOG)


def _as_ppl(nll: float) -> tuple[float, str]:
    """A perplexity, and its text."""
    ppl = math.exp(nll)
    return ppl, f"perplexity {ppl:,.3g}" if ppl < 1000 else f"perplexity {ppl:,.0f}"


def _as_it_is(accuracy: float) -> tuple[float, str]:
    return accuracy, percent(accuracy)


def _by_pairs(
    rows: Sequence[Row],
    every: Sequence[Row],
    looks: Sequence[Series],
    name: str,
    y: Callable[[str], alt.Y],
    show: Callable[[float], tuple[float, str]],
    above: Sequence[alt.Chart],
    palette: Palette,
    size: tuple[float, float],
) -> Chart:
    """A plot of the figure `name` of `rows` over the numbers of pairs of `every` row, each line with its band of intervals."""
    x = _pairs_axis(sorted({row["pairs"] for row in every}))
    points: dict[str, list[Point]] = {look.name: [] for look in looks}
    for row in rows:
        number, text = show(row[name])
        points[row["model"]].append(Point(row["pairs"], number, f"{row['model']}, {counted(row['pairs'], 'pair')}: {text}"))
    bands = [_band([row for row in rows if row["model"] == look.name], name, look, {"x": x, "y": y("low")}, show) for look in looks]
    drawn = [band for band in bands if band is not None]
    return line_panel(looks, points, {"x": x, "y": y("y")}, palette, below=drawn, above=above, size=size)


def _band(
    rows: Sequence[Row], name: str, look: Series, axes: Mapping[str, Any], show: Callable[[float], tuple[float, str]]
) -> alt.Chart | None:
    """The intervals of one line; None if none is known."""
    import altair as alt

    ends = [
        {"x": row["pairs"], "low": show(row[f"{name}_low"])[0], "high": show(row[f"{name}_high"])[0]}
        for row in rows
        if row[f"{name}_low"] is not None and row[f"{name}_high"] < _LARGEST_LOG
    ]
    if not ends:
        return None
    band: alt.Chart = alt.Chart(values(ends)).mark_area(color=look.colour, opacity=0.13, aria=False).encode(**axes, y2="high:Q")
    return band


def _pairs_axis(pairs: Sequence[int]) -> alt.X:
    import altair as alt

    marked = list(pairs[:: -(-len(pairs) // _MOST_MARKED)])
    scale = alt.Scale(type="log", base=2, domain=[pairs[0] / 1.15, pairs[-1] * 1.15], nice=False)
    axis = alt.Axis(values=marked, format=",d", grid=False, labelFlush=False, labelOverlap=False, title="number of key-value pairs")
    return alt.X("x:Q", scale=scale, axis=axis)


def _log_axis(low: float, high: float, field: str) -> alt.Y:
    """Labelled at powers of ten, or at 1, 2, 5, 10 ... if these are too few."""
    import altair as alt

    steps = (1,) if high / low > 200 else (1, 2, 5)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    exponents = range(first, last + 1, math.ceil((last - first + 1) / _MOST_POWERS))
    marks = [step * 10.0**exponent for exponent in exponents for step in steps if low <= step * 10.0**exponent <= high]
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    marked = {"values": marks} if len(marks) > 1 else {"tickCount": 3}
    return alt.Y(
        f"{field}:Q", scale=scale, axis=alt.Axis(**marked, format="~s" if high < 1e15 else "~e", title=None, minExtent=AXIS, maxExtent=AXIS)
    )


def _share_axis(most: float, field: str, *, numbered: bool = True) -> alt.Y:
    """Shares from 0 to 100 %, or to less if all are small."""
    import altair as alt

    end = min(1.0, max(0.01, 1.1 * most))
    axis = alt.Axis(format="~%", tickCount=5, title=None, minExtent=AXIS, maxExtent=AXIS, labels=numbered)
    return alt.Y(f"{field}:Q", scale=alt.Scale(domain=[0, end], nice=False), axis=axis)


def _draw_by_distance(rows: Sequence[Row], distances: Sequence[Row], palette: Palette) -> Chart:
    """Small plots in two columns, one per number of pairs, all with the same axes."""

    looks = _looks(rows, palette)
    every = [place(row["high"]) for row in distances]
    most = max(row["accuracy"] for row in distances)
    pairs = list(dict.fromkeys(row["pairs"] for row in distances))
    panels = []
    for index, number in enumerate(pairs):
        points: dict[str, list[Point]] = {look.name: [] for look in looks}
        for row in (row for row in distances if row["pairs"] == number):
            text = (
                f"{row['model']}, {span(row['low'], row['high'])} ids: {percent(row['accuracy'])} of {counted(row['num_queries'], 'value')}"
            )
            points[row["model"]].append(Point(place(row["high"]), row["accuracy"], text, is_few=row["num_queries"] < FEW))
        title = "ids from key to query, up to" if index >= len(pairs) - 2 else None
        axes = {"x": bucket_axis(every, title, most=5, width=_PANEL_WIDTH), "y": _share_axis(most, "y", numbered=index % 2 == 0)}
        above = head(palette, counted(number, "pair"), width=_PANEL_WIDTH)
        panels.append(line_panel(looks, points, axes, palette, above=above, size=(_PANEL_WIDTH, _PANEL_HEIGHT), dot=12))
    return stacked(
        unit_line("values recalled, share of those asked for", palette),
        in_columns(*panels, columns=2, spacing=(14, 0)),
        legend(keys(looks), palette),
    )
