"""Charts of a sweep: accuracy by bytes of state with the Pareto front, by width, by learning rate, by number of pairs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from recallkit.display.chart_parts import AXIS, Point, head, keys, legend, line_panel, rounded, series, stacked, values
from recallkit.display.chart_theme import HEIGHT, WIDTH, Figure
from recallkit.display.console import percent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import altair as alt

    from recallkit.display.chart_theme import Chart, Palette
    from recallkit.training.tables import TradeoffTables

    Row = Mapping[str, Any]

_MOST_MARKED = 8


def tradeoff_figures(tables: TradeoffTables) -> list[Figure]:
    """The pictures that the sweep has something to show in, first that of Based's Figure 2."""
    rows, rates, pairs = (frame.to_dicts() for frame in (tables.tradeoff, tables.by_rate, tables.by_pairs))
    best = "at the best of its learning rates"
    tasks = tables.tradeoff["task"].unique().to_list()
    where = f" ({tasks[0]})" if len(tasks) == 1 else ""
    figures = [
        Figure(
            "tradeoff",
            "Recall by bytes of state",
            f"Accuracy on MQAR{where} by bytes of state in float32, each model {best}; grey: the Pareto front.",
            partial(_draw, rows, "state_bytes", "bytes of state", rows, front=True),
        )
    ]
    for name, shown, wanted, axis in (
        ("width", rows, "Recall by width", "width"),
        ("learning_rate", _of_best(rates, rows), "Recall by learning rate", "learning rate"),
        ("pairs", _of_best(pairs, rows), "Recall by number of pairs", "number of key-value pairs"),
    ):
        if len({row[name] for row in shown}) > 1:
            what = f"each model {best}" if name == "width" else "of the most accurate of each line"
            caption = f"Accuracy on MQAR{where} by {axis}, {what}."
            figures.append(Figure(f"tradeoff_by_{name}", wanted, caption, partial(_draw, _highest(shown, name), name, axis, rows)))
    return figures


def _of_best(rows: Sequence[Row], models: Sequence[Row]) -> list[Row]:
    """The rows of each line's most accurate model, the smallest among equals."""
    best: dict[tuple[str, str], Row] = {}
    for row in models:
        line = row["task"], row["model"]
        if line not in best or (row["accuracy"], -row["state_bytes"]) > (best[line]["accuracy"], -best[line]["state_bytes"]):
            best[line] = row
    kept = {(row["task"], row["model"], row["width"], row["size"]) for row in best.values()}
    return [row for row in rows if (row["task"], row["model"], row["width"], row["size"]) in kept]


def _highest(rows: Sequence[Row], x: str) -> list[Row]:
    """Of a line's models at the same place, the most accurate."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        place = row["task"], row["model"], row[x]
        if place not in found or row["accuracy"] > found[place]["accuracy"]:
            found[place] = row
    return list(found.values())


def _draw(rows: Sequence[Row], x: str, title: str, models: Sequence[Row], palette: Palette, *, front: bool = False) -> Chart:
    """A plot per task below each other, all with the same axes."""
    names = list(dict.fromkeys(row["model"] for row in models))
    looks = series(names, palette, "attention" if "attention" in names else None)
    places = sorted({row[x] for row in rows})
    axis, y = _log_axis(places, title), _share_axis()
    panels = []
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    for task in tasks:
        mine = [row for row in rows if row["task"] == task]
        below = [_front(mine, axis, y, palette)] if front else []
        points = {name: _points(mine, name, x) for name in names}
        above = head(palette, task if len(tasks) > 1 else "MQAR", "accuracy")
        panels.append(line_panel(looks, points, {"x": axis("x"), "y": y("y")}, palette, below=below, above=above, size=(WIDTH, HEIGHT)))
    return stacked(*panels, legend(keys(looks), palette))


def _points(rows: Sequence[Row], model: str, x: str) -> list[Point]:
    mine = sorted((row for row in rows if row["model"] == model), key=lambda row: (row[x], row["accuracy"]))
    return [Point(row[x], row["accuracy"], f"{_shown(row)}: {percent(row['accuracy'])}") for row in mine]


def _shown(row: Row) -> str:
    return f"{row['model']}, width {row['width']}, {row['size']}".removesuffix(", ")


def _front(rows: Sequence[Row], axis: Callable[[str], alt.X], y: Callable[[str], alt.Y], palette: Palette) -> alt.Chart:
    """The highest accuracy that any model reaches with so many bytes, in steps."""
    import altair as alt

    best = sorted(({"x": row["state_bytes"], "y": row["accuracy"]} for row in rows if row["pareto"]), key=lambda row: row["x"])
    corners = [*best, {"x": max(row["state_bytes"] for row in rows), "y": best[-1]["y"]}]
    mark = alt.Chart(values(corners)).mark_line(interpolate="step-after", strokeWidth=5, opacity=0.25, color=palette.soft, aria=False)
    drawn: alt.Chart = mark.encode(x=axis("x"), y=y("y"))
    return drawn


def _log_axis(places: Sequence[float], title: str) -> Callable[[str], alt.X]:
    import altair as alt

    marked = list(places[:: -(-len(places) // _MOST_MARKED)]) if title != "bytes of state" else _powers(places)
    labels = " : ".join(f"datum.value == {place!r} ? '{rounded(place) if place >= 1 else f'{place:.2g}'}'" for place in marked)
    scale = alt.Scale(type="log", base=2, domain=[places[0] / 1.15, places[-1] * 1.15], nice=False)
    axis = alt.Axis(values=marked, labelExpr=f"{labels} : ''", grid=False, labelFlush=False, labelOverlap=True, title=title)
    return lambda field: alt.X(f"{field}:Q", scale=scale, axis=axis)


def _powers(places: Sequence[float]) -> list[float]:
    """Powers of two between the smallest and the largest, every second or third one where there are many."""
    powers = [2**exponent for exponent in range(60) if places[0] / 1.15 <= 2**exponent <= places[-1] * 1.15]
    return [float(power) for power in powers[:: max(1, -(-len(powers) // _MOST_MARKED))]] or list(places[:1])


def _share_axis() -> Callable[[str], alt.Y]:
    import altair as alt

    axis = alt.Axis(format="~%", tickCount=5, title=None, minExtent=AXIS, maxExtent=AXIS)
    return lambda field: alt.Y(f"{field}:Q", scale=alt.Scale(domain=[0, 1], nice=False), axis=axis)
