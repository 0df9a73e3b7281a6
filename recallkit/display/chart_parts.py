"""Parts of charts of several models: names, lines over log2 buckets, panels, a legend.

Vega's own legends and titles do not adapt to small screens and truncate the ends of names, which distinguish models: here they
are text at computed positions, so that nothing overlaps at the width of a phone. All of it is data or fixed text.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from recallkit.display.chart_theme import DASHES, HEIGHT, WIDTH, Arrangement, model_colours, model_dashes, model_shapes, without_controls
from recallkit.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import altair as alt

    from recallkit.display.chart_theme import Chart, Palette

AXIS = 36
"""Pixels reserved for the numbers left of a plot, so that plots below each other are aligned."""
FULL = WIDTH + AXIS
FEW = 100
"""A mean over fewer tokens is drawn with a hollow point and a faint line."""
CHARACTER = 6.5
"""Width in pixels of a character of 11 pixels, in a wide font."""
_LINE = 17
_NAME = 24
_DOT = 26
_MOST_TICKS = 9
MOST_SOURCES = 6
"""Sources in a plot, the largest: more can be told apart neither by colours nor by rows as long as a phone is wide."""
_MOST_SAID = 12


@dataclass(frozen=True, slots=True)
class Series:
    """The style of a model, or of anything else that is compared: `name` as in the data, `label` as it is shown."""

    name: str
    label: str
    colour: str
    dash: Sequence[float]
    shape: str
    width: float = 1.5


@dataclass(frozen=True, slots=True)
class Point:
    """A value `y` at `x`; `text` is its tooltip, `is_few`: whether it is a mean over too few tokens."""

    x: float
    y: float
    text: str
    is_few: bool = False


def values(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    """Rows as a chart's data, none of which is ever an expression, a field's name or an address.

    They are passed as one string, because altair copies nested charts again and again, and a string is not copied.
    """
    import altair as alt

    return alt.InlineData(values=json.dumps(without_controls(list(rows))), format={"type": "json"})


def shorten(name: str, length: int = _NAME) -> str:
    """The name in one line of at most `length` characters: its beginning and its end."""
    name = printable(name) or "(no name)"
    first = (length - 1) // 2
    return name if len(name) <= length else f"{name[:first]}…{name[first + 1 - length :]}"


def labels(names: Sequence[str], length: int = _NAME) -> dict[str, str]:
    """A short label for each name, no two alike: of a path that is too long its last part, if no other name ends in it."""
    lasts = {name: name.rstrip("/").rpartition("/")[2] for name in names}
    known = Counter([*names, *lasts.values()])
    found: dict[str, str] = {}
    for name, last in lasts.items():
        whole = last if last and len(printable(name)) > length and known[last] == 1 else name
        label, again = shorten(whole, length), 2
        while label in found.values():
            mark = f" ({again})"
            label, again = shorten(whole, length - len(mark)) + mark, again + 1
        found[name] = label
    return found


def not_drawn(names: Sequence[str]) -> str:
    """A sentence for a caption that names what a picture leaves out, after a space; empty if that is nothing."""
    if not names:
        return ""
    said = [shorten(name, 40) for name in names[:_MOST_SAID]]
    rest = [f"{len(names) - len(said):,} more"] if len(names) > len(said) else []
    *before, last = [*said, *rest]
    return f" Not drawn, being smaller: {', '.join(before)}{' and ' if before else ''}{last}."


def series(models: Sequence[str], palette: Palette, reference: str | None = None) -> list[Series]:
    """The style of each model, the reference (if there is one) first, with its own colour and a wider line."""
    domain, colours = model_colours(models, palette, reference)
    dashes, shapes = model_dashes(models, reference)[1], model_shapes(models, reference)[1]
    shown = _named(domain, reference)
    looks = zip(domain, colours, dashes, shapes, strict=True)
    return [Series(name, shown[name], colour, dash, shape, 2.2 if name == reference else 1.5) for name, colour, dash, shape in looks]


def _named(names: Sequence[str], reference: str | None) -> dict[str, str]:
    """Labels, with the reference marked."""
    mark = " (ref.)"
    shown = labels([name for name in names if name != reference])
    return shown if reference is None else {reference: shorten(reference, _NAME - len(mark)) + mark, **shown}


def rounded(number: float) -> str:
    """1024 -> 1k, 1250 -> 1.25k, 1048576 -> 1M: for ticks, where a power of two is shown by its round figure."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            binary = 1024 ** round(math.log(size, 1000))
            return f"{number / (binary if number % binary == 0 else size):.4g}{unit}"
    return f"{number:g}"


def span(low: int, high: int) -> str:
    """3, 4 -> 3 to 4; 0, 0 -> 0."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def place(number: int) -> float:
    """The position of a whole number on an axis of log2 buckets, whose upper ends are 0 (0), 1 (1), 2 (2), 4 (3), 8 (4) ..."""
    return math.log2(number) + 1 if number else 0.0


def bucket_edge(largest: int) -> float:
    """The position on the axis of buckets at which numbers up to `largest` end: within a bucket, in proportion."""
    bucket = math.ceil(place(largest))
    size = 1 << max(0, bucket - 2)
    return bucket + 0.5 - (-largest % size) / size


def bucket_end(tick: int) -> int:
    """The upper end of the log2 bucket at a whole position: 0, 1, 2, 4, 8 ..."""
    return 1 << tick >> 1


def bucket_axis(
    places: Sequence[float], title: str | None, *, most: int = _MOST_TICKS, width: float = WIDTH, number: Callable[[int], int] = bucket_end
) -> alt.X:
    """The x axis of log2 buckets, as far as `places` go, with round ticks: the `number` of each, their upper ends."""
    import altair as alt

    first, last = math.floor(min(places)), math.ceil(max(places))
    ticks = list(range(first, last + 1, math.ceil((last - first + 1) / most)))
    names = {str(tick): rounded(number(tick)) for tick in ticks}
    axis = alt.Axis(values=ticks, labelExpr=f"({names})[datum.value]", title=title, grid=False, labelFlush=False, labelOverlap=False)
    return alt.X("x:Q", scale=alt.Scale(domain=[min(places) - 0.5, max(places) + 0.5], nice=False, zero=False), axis=axis)


def text(shown: str, x: float, y: float, *, align: str = "left", colour: str | None = None, bold: bool = False) -> alt.Chart:
    """Text at a position of a plot, in pixels from its upper left corner."""
    import altair as alt

    paint = {} if colour is None else {"color": colour}
    mark: dict[str, Any] = {"align": align, "baseline": "alphabetic", "fontWeight": 600 if bold else 400, "aria": False, **paint}
    words: alt.Chart = alt.Chart(values([{"text": shown}])).mark_text(**mark)
    return words.encode(x=alt.value(x), y=alt.value(y), text="text:N")


def cleared(baselines: Iterable[float], palette: Palette, width: float = FULL) -> alt.Chart:
    """A strip of the page's colour behind each line of text at `baselines`, in pixels: no line of a plot runs through a name."""
    import altair as alt

    rows = [{"y": baseline - 12, "y2": baseline + 5} for baseline in baselines]
    drawn: alt.Chart = alt.Chart(values(rows)).mark_rect(color=palette.page, opacity=1, aria=False)
    return drawn.encode(x=alt.value(0), x2=alt.value(width), y=alt.Y("y:Q"), y2="y2:Q")


def name_axis(names: Sequence[str], title: str, field: str = "name", **more: Any) -> tuple[alt.Y, float]:
    """The y axis of rows with a name each, in column `field`, in this order; and the pixels that it takes."""
    import altair as alt

    room = 10 + CHARACTER * max(map(len, names))
    head: dict[str, Any] = {"titleAngle": 0, "titleAlign": "right", "titleX": -6, "titleY": -8, "titleBaseline": "alphabetic"}
    size: dict[str, Any] = {"minExtent": room, "maxExtent": room, "labelLimit": room, "labelPadding": 6}
    axis = alt.Axis(title=title, ticks=False, domain=False, **head, **size, **more)
    return alt.Y(f"{field}:N", scale=alt.Scale(domain=list(names)), sort=None, axis=axis), room


def head(palette: Palette, left: str, right: str = "", width: float = WIDTH) -> list[alt.Chart]:
    """The line above a plot: its title, and at the right its unit."""
    unit = [text(right, width, -8, align="right", colour=palette.soft)] if right else []
    return [text(left, 0, -8, bold=True), *unit]


def unit_line(unit: str, palette: Palette, start: float = -AXIS) -> Chart:
    """A line above several plots, beginning `start` pixels left of them: what they all show."""

    return layered(text(unit, start, 6, colour=palette.soft), width=FULL + start, height=8)


def line_panel(
    looks: Sequence[Series],
    points: Mapping[str, Sequence[Point]],
    axes: Mapping[str, Any],
    palette: Palette,
    *,
    below: Sequence[alt.Chart] = (),
    above: Sequence[alt.Chart] = (),
    size: tuple[float, float] = (WIDTH, HEIGHT),
    dot: float = _DOT,
) -> Chart:
    """A line for each of `looks`, the first on top; `points` by name; `below` and `above` are drawn before and after.

    Lines are solid where means are over enough tokens, otherwise faint; dots have tooltips.
    """
    import altair as alt

    faint, solid, dots = [], [], []
    for look in reversed(looks):
        mine = points.get(look.name, ())
        paint = {"colour": look.colour, "dash": list(look.dash), "width": look.width, "shape": look.shape}
        if any(point.is_few for point in mine) and len(mine) > 1:
            faint += [{"x": point.x, "y": point.y, "run": look.label, **paint} for point in mine]
        for start, run in _runs(mine):
            solid += [{"x": point.x, "y": point.y, "run": f"{look.label} {start}", **paint} for point in run]
        fills = {True: palette.page, False: look.colour}
        dots += [{"x": point.x, "y": point.y, "text": point.text, "fill": fills[point.is_few], **paint} for point in mine]
    thin = alt.Chart(values(faint)).mark_line(strokeWidth=0.8, opacity=0.45, aria=False).encode(**_paint("stroke", "strokeDash"))
    firm = alt.Chart(values(solid)).mark_line(aria=False).encode(**_paint("stroke", "strokeDash", "strokeWidth"))
    marks = alt.Chart(values(dots)).mark_point(size=dot, strokeWidth=1, opacity=1).encode(**_paint("stroke", "fill", "shape"))
    layers = [chart.encode(**axes, detail="run:N") for chart, rows in ((thin, faint), (firm, solid)) if rows]
    return layered(*below, *layers, marks.encode(**axes, description="text:N"), *above, width=size[0], height=size[1])


def _runs(points: Sequence[Point]) -> list[tuple[int, list[Point]]]:
    """Runs of two or more neighbouring points, none of them of few tokens: the index at which each run starts, and its points."""
    found = []
    for is_few, places in groupby(range(len(points)), lambda index: points[index].is_few):
        run = list(places)
        if not is_few and len(run) > 1:
            found.append((run[0], [points[index] for index in run]))
    return found


def nice_axis(low: float, high: float, *, most: int = 6, **options: Any) -> alt.Y:
    """A y axis that covers `low` to `high`, with a line at multiples of 1, 2 or 5 times a power of ten."""
    import altair as alt

    low = min(low, 0.0) if low < 0.4 * high else low
    rough = (high - low or 1.0) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [place * step for place in range(first, max(last, first + 1) + 1)]
    axis = alt.Axis(values=ticks, title=None, grid=True, domain=False, ticks=False, minExtent=AXIS, maxExtent=AXIS, **options)
    return alt.Y("y:Q", scale=alt.Scale(domain=[ticks[0], ticks[-1]], nice=False, zero=False), axis=axis)


def shade(palette: Palette, low: float, high: float, axis: alt.X, height: float) -> alt.Chart:
    """A region of the x axis in the colour of AR hits."""
    import altair as alt

    mark = alt.Chart(values([{"x": low, "x2": high}])).mark_rect(color=palette.hits, opacity=0.13, aria=False)
    drawn: alt.Chart = mark.encode(x=axis, x2="x2:Q", y=alt.value(0), y2=alt.value(height))
    return drawn


def upright(
    palette: Palette, x: float, axis: alt.X, height: float, dash: Sequence[float], colour: str | None = None, told: str = ""
) -> alt.Chart:
    """A line through the whole plot at `x`; `told`, if there is anything to tell, is its label."""
    import altair as alt

    row = {"x": x, "text": told}
    mark = alt.Chart(values([row])).mark_rule(color=colour or palette.soft, strokeDash=list(dash), strokeWidth=1, aria=bool(told))
    labelled: dict[str, Any] = {"description": "text:N"} if told else {}
    drawn: alt.Chart = mark.encode(x=axis, y=alt.value(0), y2=alt.value(height), **labelled)
    return drawn


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend: `label` behind a line, a dot or both, or a block of colour (`shape` "block")."""

    label: str
    colour: str
    dash: Sequence[float] | None = None
    shape: str | None = None
    width: float = 1.5
    is_hollow: bool = False


def keys(looks: Sequence[Series]) -> list[Key]:
    """The legend's entries of lines with dots."""
    return [Key(look.label, look.colour, look.dash, look.shape, look.width) for look in looks]


def legend(entries: Sequence[Key], palette: Palette, start: float = -AXIS, width: float = FULL) -> Chart:
    """The legend, in as many columns as the longest label allows, row by row, beginning `start` pixels left of the plots."""

    longest = 30 + CHARACTER * max(len(entry.label) for entry in entries)
    columns = max(1, min(len(entries), int(width // longest), 4))
    rows = []
    for index, entry in enumerate(entries):
        x, y = start + index % columns * width / columns, 8 + index // columns * _LINE
        paint = {"colour": entry.colour, "fill": palette.page if entry.is_hollow else entry.colour, "width": entry.width}
        looks = {"dash": list(entry.dash or DASHES[0]), "shape": entry.shape, "line": entry.dash is not None}
        rows.append({"x": x, "x2": x + 22, "middle": x + 11, "after": x + 27, "y": y, "text": entry.label, **paint, **looks})
    lined, blocks = [row for row in rows if row["line"]], [row for row in rows if row["shape"] == "block"]
    dotted = [row for row in rows if row["shape"] not in (None, "block")]
    rules = _pixels(lined, "x").mark_rule(aria=False).encode(x2="x2:Q", **_paint("stroke", "strokeDash", "strokeWidth"))
    squares = _pixels(blocks, "middle").mark_square(size=110, opacity=1, aria=False).encode(**_paint("fill"))
    dots = _pixels(dotted, "middle").mark_point(size=_DOT + 8, strokeWidth=1.2, opacity=1, aria=False)
    drawn = [(rules, lined), (squares, blocks), (dots.encode(**_paint("stroke", "fill", "shape")), dotted)]
    shown = _pixels(rows, "after").mark_text(align="left", baseline="middle", aria=False).encode(text="text:N")
    height = _LINE * math.ceil(len(entries) / columns)
    return layered(*(part for part, found in drawn if found), shown, width=width + start, height=height)


def _pixels(rows: Sequence[Mapping[str, Any]], x: str) -> alt.Chart:
    """Marks at the positions in the rows, in pixels."""
    import altair as alt

    return alt.Chart(values(rows)).encode(x=alt.X(f"{x}:Q", scale=None, axis=None), y=alt.Y("y:Q", scale=None, axis=None))


def _paint(*channels: str) -> dict[str, Any]:
    """Channels with values taken directly from the rows, without a scale and hence without a legend by Vega."""
    import altair as alt

    made = {
        "stroke": alt.Stroke("colour:N", scale=None),
        "fill": alt.Fill("fill:N", scale=None),
        "shape": alt.Shape("shape:N", scale=None),
        "strokeDash": alt.StrokeDash("dash:N", scale=None),
        "strokeWidth": alt.StrokeWidth("width:Q", scale=None),
    }
    return {channel: made[channel] for channel in channels}


def layered(*parts: Chart, width: float, height: float) -> Arrangement:
    """Charts in one plot, the last on top."""
    return Arrangement("layer", parts, {"width": width, "height": height})


def in_columns(*plots: Chart, columns: int, spacing: tuple[float, float]) -> Arrangement:
    """Plots row by row, each with its own axes; `spacing` between rows and between columns."""
    return Arrangement("concat", plots, {"columns": columns, "spacing": dict(zip(("row", "column"), spacing, strict=True))})


def stacked(*parts: Chart, spacing: float = 14) -> Arrangement:
    """Charts below each other, aligned at the left, each with its own axes."""
    return Arrangement("vconcat", parts, {"spacing": spacing})
