"""The templates of charts: lines by model, bars with intervals, and maps of cells. They take
rows; a room's charts choose them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display.charts import (
    TIP,
    AtFirst,
    Colour,
    column,
    labels,
    layer,
    model_channels,
    plot,
    shorten,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.display.charts import Spec, Style, StyleOf

_IN_LEGEND = 36
"""Characters of a name in a legend, which is as wide as a phone."""


def line_chart(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    x: Spec,
    y: Spec,
    *before: Spec,
    reference: str | None = None,
    styles: Mapping[str, Style] | None = None,
    legend: Mapping[str, str] | None = None,
    some_first: bool = True,
    **more: Any,
) -> Spec:
    """A line for each `model` of the rows, through points `x`, `y`, with a band from `low` to
    `high` where they have one.

    `names` are the models, in the order of the legend, on which a click chooses a model and makes
    the others grey. `at` and `shown` of a row are its place and its value in words. Points of rows
    that are `few` are hollow; the line leaves out those that are `apart`. `before` is drawn first.
    `some_first`: of many models a page colours some until others are chosen.
    """
    legend = legend or labels(names, _IN_LEGEND, reference)
    points = []
    for row in rows:
        name = legend[row["model"]] if styles else row["model"]
        tip = f"{shorten(name, 60)}, {row['at']}: {row['shown']}"
        of_reference = {"reference": True} if row["model"] == reference else {}
        points.append({**row, "model": legend[row["model"]], "tip": tip, **of_reference})
    channels = model_channels(legend, styles=styles)
    stroke = {**channels["stroke"], "condition": [_NOT_CHOSEN]}
    few = {"test": "datum.few", "value": Colour("page")}
    faint = {"condition": {**_NOT_CHOSEN, "value": 0.4}, "value": 1}
    band = {
        "y": {**y, "field": "low"},
        "y2": {"field": "high"},
        "fill": {**channels["fill"], "condition": [_NOT_CHOSEN]},
        "opacity": {"condition": {**_NOT_CHOSEN, "value": 0.04}, "value": 0.13},
    }
    fill = {**channels["fill"], "condition": [few, _NOT_CHOSEN]}
    dots = {
        "y": y,
        "stroke": stroke,
        "fill": fill,
        "shape": channels["shape"],
        "opacity": faint,
        **TIP,
    }
    line = layer(
        "line",
        "!datum.apart",
        channels={"y": y, "stroke": stroke, "strokeDash": channels["strokeDash"], "opacity": faint},
        strokeWidth=1.6,
    )
    layers = [
        *(
            [layer("area", "isValid(datum.low)", channels=band)]
            if any(row.get("low") is not None for row in rows)
            else []
        ),
        line,
        layer("point", channels=dots, size=26, strokeWidth=1.2),
    ]
    # The legend is the buttons of a choice: each click adds a model or takes it away, as a finger
    # has no shift key. Vega-Lite makes it one
    # where the first layer that has the legend has the choice, too.
    chosen = {
        "name": "chosen",
        "select": {"type": "point", "fields": ["model"], "toggle": "true"},
        "bind": "legend",
    }
    layers[0]["params"] = [{**chosen, "value": AtFirst(legend, reference) if some_first else []}]
    return plot(points, *before, *layers, x=x, **more)


_NOT_CHOSEN: Spec = {
    "test": {"not": {"or": [{"param": "chosen"}, "datum.reference"]}},
    "value": Colour("rest"),
}


def on_front(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> list[bool]:
    """Of each row whether no other one has a larger `y` with as small an `x`, or as large a `y`
    with a smaller one."""
    places = [(row[x], row[y]) for row in rows]

    def is_beaten(x: float, y: float) -> bool:
        return any(a <= x and (b, -a) > (y, -x) for a, b in places)

    return [not is_beaten(x, y) for x, y in places]


def front_layer(y: Spec) -> Spec:
    """The rows that are `front`, joined by steps: the most that can be had for so much."""
    return layer(
        "line",
        "datum.front",
        channels={"y": y},
        interpolate="step-after",
        strokeWidth=5,
        opacity=0.25,
        color="soft",
    )


def across(
    colour: str | StyleOf,
    *,
    x: float | None = None,
    y: float | None = None,
    tip: str | None = None,
    **paint: Any,
) -> Spec:
    """A line across a plot at one place, drawn once however many rows there are; announced by
    its `tip` if it has one."""
    place = {"datum": y if x is None else x, "type": "quantitative"}
    # Vega-Lite leaves out rows that lack the field of the plot's own x, though this line's x is a
    # datum.
    one_row = [{"x": x}]
    ends = (
        {"x": place} if x is not None else {"x": {"value": 0}, "x2": {"value": "width"}, "y": place}
    )
    described: Spec = {} if tip is None else {"description": {"value": tip}}
    return {
        "data": {"values": one_row},
        **layer("rule", channels={**ends, **described}, color=colour, **paint),
    }


# -------------------------------------------------------------------------- bars, and maps of cells


def bars(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    x: Spec,
    *marks: Spec,
    y: str = "model",
    ends: tuple[str, str] = ("low", "high"),
    rule: Mapping[str, Any] | None = None,
    behind: Sequence[Spec] = (),
    before: Sequence[Spec] = (),
    **more: Any,
) -> Spec:
    """A line of marks for each of the `names` in column `y`, from above; with a `rule` a line
    between its `ends`, its interval.

    `behind` is drawn as it is, `before` before the rule.
    """
    place = column(y, sort=list(names), axis={"title": None})

    def placed(mark: Spec) -> Spec:
        return {**mark, "encoding": {"x": x, "y": place, **mark["encoding"]}}

    layers = [*behind, *map(placed, before)]
    if rule is not None:
        low, high = ends
        channels = {
            "x": {**x, "field": low},
            "x2": {"field": high},
            "y": place,
            **rule.get("channels", {}),
        }
        layers.append(layer("rule", f"isValid(datum.{low})", **{**rule, "channels": channels}))
    return plot(rows, *layers, *map(placed, marks), **more)


def heat_map(
    rows: Sequence[Mapping[str, Any]],
    x: Spec,
    y: Spec,
    value: str,
    scale: Spec,
    text: str | None = None,
    **more: Any,
) -> Spec:
    """A cell for each row, the fuller its colour the larger the `value`, with its `text`. `x`
    and `y`: columns with their axes."""
    across_, down = (
        {**channel, "axis": {**channel["axis"], "ticks": False, "domain": False}}
        for channel in (x, y)
    )
    opacity = column(value, "quantitative", scale=scale, legend=None)
    cells = layer(
        "rect",
        channels={"x": across_, "y": down, "opacity": opacity, **TIP},
        color="m0",
        stroke="page",
    )
    words = (
        []
        if text is None
        else [layer("text", channels={"x": across_, "y": down, "text": column(text)})]
    )
    return plot(rows, cells, *words, **more)
