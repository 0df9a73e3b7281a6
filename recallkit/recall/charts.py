"""Charts of recall evaluations: accuracy of every model by task, and by what makes recall hard."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from recallkit.display.chart_parts import (
    AXIS,
    CHARACTER,
    FULL,
    Point,
    bucket_axis,
    head,
    keys,
    labels,
    layered,
    legend,
    line_panel,
    place,
    series,
    shorten,
    span,
    stacked,
    values,
)
from recallkit.display.chart_theme import WIDTH, Figure
from recallkit.display.console import counted, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from recallkit.display.chart_parts import Series
    from recallkit.display.chart_theme import Chart, Palette
    from recallkit.recall.tables import RecallTables

    Row = Mapping[str, Any]

_FEW_PROMPTS = 20
"""An accuracy over fewer prompts is drawn hollow: one prompt is five percentage points or more."""
_BAR, _NAME, _FIGURE, _TASK = 18, 20, 46, 36
"""Pixels from bar to bar, characters per name, pixels for the figure at the right, characters of a task."""
_PANEL = 150
_BUCKETS = {
    "by_distance": ("By distance of the answer", "tokens between the answer and the prompt's end, up to", "distance"),
    "by_occurrences": ("By occurrences of the answer", "occurrences of the answer in the prompt, up to", "occurrences"),
    "by_length": ("By length of the prompt", "tokens of the prompt, up to", "length"),
}


def figures(tables: RecallTables) -> list[Figure]:
    """All charts of an evaluation that have data; the first model of the table is the reference."""
    rows = tables.recall.to_dicts()
    if not rows:
        return []
    models, reference = list(dict.fromkeys(row["model"] for row in rows)), rows[0]["reference"]
    caption = "Share of prompts whose generation contains the value, with its 95 % interval (documents are the units)."
    found = [Figure("recall_accuracy", "Accuracy by task", caption, partial(_draw_accuracy, models, reference, rows))]
    bucketed = (_bucket_figure(name, getattr(tables, name), models, reference) for name in _BUCKETS)
    return [*found, *(figure for figure in bucketed if figure is not None)]


def _draw_accuracy(models: Sequence[str], reference: str, rows: Sequence[Row], palette: Palette) -> Chart:
    looks = {look.name: look for look in series(models, palette, reference)}
    names = labels(models, _NAME)
    left = CHARACTER * max(len(name) for name in names.values()) + 18
    tasks = labels(list(dict.fromkeys(row["task"] for row in rows)), _TASK)
    panels = []
    for task, title in tasks.items():
        mine = [row for row in rows if row["task"] == task]
        panels.append(_task_bars(title, mine, names, looks, left, palette))
    return stacked(*panels)


def _task_bars(
    task: str, rows: Sequence[Row], names: Mapping[str, str], looks: Mapping[str, Series], left: float, palette: Palette
) -> Chart:
    """One bar per model, named at its left, with its interval and, at the right, its figure."""
    import altair as alt

    width, height = FULL - left - _FIGURE, _BAR * len(rows)
    ticks = alt.Axis(title=None, format=".0%", tickCount=5, grid=True, domain=False, ticks=False, labelFlush=False)
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, 1]), axis=ticks)
    room = alt.Axis(title=None, labels=False, ticks=False, domain=False, grid=False, minExtent=left, maxExtent=left)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[0, height], reverse=True, nice=False), axis=room)
    drawn = [_bar(index * _BAR, row, names, looks[row["model"]]) for index, row in enumerate(rows)]
    base = alt.Chart(values(drawn))
    bars = base.mark_rect(aria=True).encode(
        x=x, x2="zero:Q", y=y, y2="bottom:Q", fill=alt.Fill("colour:N", scale=None), description="text:N"
    )
    known = alt.Chart(values(row for row in drawn if row["low"] is not None))
    ends = known.encode(x=alt.X("low:Q", scale=x["scale"], axis=x["axis"]), x2="high:Q", y=alt.Y("middle:Q"))
    around = ends.mark_rule(color=palette.page, strokeWidth=3.4, aria=False)  # the reference's bar has the colour of the line
    whiskers = ends.mark_rule(color=palette.ink, strokeWidth=1.4, aria=False)
    words = base.encode(y=alt.Y("middle:Q"))
    mark: dict[str, Any] = {"align": "right", "baseline": "middle", "aria": False}
    named = words.mark_text(**mark).encode(x=alt.value(-8), text="name:N")
    told = words.mark_text(color=palette.soft, **mark).encode(x=alt.value(width + _FIGURE), text="figure:N")
    above = head(palette, task, "accuracy", width + _FIGURE)
    return layered(bars, around, whiskers, named, told, *above, width=width, height=height)


def _bar(top: float, row: Row, names: Mapping[str, str], look: Series) -> dict[str, Any]:
    low, high, error = row["ci_low"], row["ci_high"], row["standard_error"]
    within = "" if low is None else f", 95 % interval {percent(low)} to {percent(high)}"
    about = "" if error is None else f" (standard error {percent(error)})"
    prompts = counted(row["num_rows"], "prompt")
    return {
        "x": row["accuracy"],
        "zero": 0,
        "y": top + 3,
        "bottom": top + _BAR - 3,
        "middle": top + _BAR / 2,
        "low": low,
        "high": high,
        "name": names[row["model"]],
        "figure": percent(row["accuracy"]),
        "colour": look.colour,
        "text": f"{shorten(row['model'], 60)}, {shorten(row['task'], 60)}: {percent(row['accuracy'])}{about}{within}, {prompts}",
    }


def _bucket_figure(name: str, frame: pl.DataFrame, models: Sequence[str], reference: str) -> Figure | None:
    title, unit, what = _BUCKETS[name]
    panels: dict[str, dict[str, list[Point]]] = {}
    for row in frame.to_dicts():
        panels.setdefault(row["task"], {}).setdefault(row["model"], []).append(_point(row, what))
    caption = f"Accuracy by {what} (tokens, in buckets of powers of two). Hollow: fewer than {_FEW_PROMPTS} prompts."
    if what == "occurrences":
        caption = caption.replace("(tokens, in", "(in")
    return Figure(f"recall_{name}", title, caption, partial(_draw_buckets, models, reference, panels, unit)) if panels else None


def _point(row: Row, what: str) -> Point:
    accuracy, prompts = percent(row["accuracy"]), counted(row["num_rows"], "prompt")
    told = f"{shorten(row['model'], 60)}, {shorten(row['task'], 60)}, {what} {span(row['low'], row['high'])}: {accuracy}, {prompts}"
    return Point(math.ceil(place(row["low"])), row["accuracy"], told, row["num_rows"] < _FEW_PROMPTS)


def _draw_buckets(
    models: Sequence[str], reference: str, panels: Mapping[str, Mapping[str, Sequence[Point]]], unit: str, palette: Palette
) -> Chart:
    import altair as alt

    looks = series(models, palette, reference)
    places = [point.x for sides in panels.values() for points in sides.values() for point in points]
    ticks = alt.Axis(title=None, format=".0%", tickCount=5, grid=True, domain=False, ticks=False, minExtent=AXIS, maxExtent=AXIS)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[0, 1]), axis=ticks)
    drawn, titles = [], labels(list(panels), _TASK)
    for index, (task, sides) in enumerate(panels.items()):
        x = bucket_axis(places, unit if index == len(panels) - 1 else None)
        above = head(palette, titles[task], "accuracy")
        drawn.append(line_panel(looks, sides, {"x": x, "y": y}, palette, above=above, size=(WIDTH, _PANEL)))
    return stacked(*drawn, legend(keys(looks), palette))
