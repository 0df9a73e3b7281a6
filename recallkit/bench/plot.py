"""Times against the size that was varied, as in Based's figures 4 to 7: a plot for each operation, a line for each implementation."""

from __future__ import annotations

import math
from functools import partial
from itertools import cycle, groupby
from typing import TYPE_CHECKING, Any

from recallkit.bench.results import OURS
from recallkit.display.chart_parts import (
    AXIS,
    CHARACTER,
    Point,
    Series,
    in_columns,
    keys,
    labels,
    legend,
    line_panel,
    rounded,
    shorten,
    stacked,
    text,
    unit_line,
    values,
)
from recallkit.display.chart_theme import PAPER, Figure, check_picture, save_figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import altair as alt

    from recallkit.bench.results import Results, Row
    from recallkit.display.chart_theme import Chart, Palette

_ACROSS = 3
"""Plots side by side."""
_WIDTH, _HEIGHT = 300, 200
_LETTERS = {"b": "rows in the batch", "n": "tokens", "t": "tokens", "d": "width", "vocab": "vocabulary", "keys": "keys a query"}


def bench_figures(results: Results, name: str = "bench") -> list[Figure]:
    """One picture of every operation measured at two sizes or more, a plot each; none where there is no such operation."""
    found = list(_varied(results.rows))
    machine = results.machine
    caption = f"{machine['name']}, {machine['dtype']}, torch {machine['torch']}"
    return [Figure(name, "Times of operations", f"{caption}.", partial(_draw, found, caption))] if found else []


def draw(results: Results, path: Path) -> bool:
    """Writes the picture of `bench_figures` (`path` ends in .svg, .png or .pdf) -> whether there is something to draw.

    Raises UserError for another kind of file, and where `path` is a file that is not one of our pictures.
    """
    check_picture(path)
    figures = bench_figures(results, path.stem)
    for figure in figures:
        save_figure(figure, path)
    return bool(figures)


def _varied(rows: list[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    """Operation and fixed sizes, the one size that varies, and the rows: wherever two sizes differ in one letter only."""
    known = [row for row in rows if row.problem is None and row.ratio is not None]
    for operation, group in groupby(known, lambda row: row.benchmark):
        found = list(group)
        for letter in found[0].size:
            by_rest: dict[tuple[Any, ...], list[Row]] = {}
            for row in found:
                rest = tuple((name, value) for name, value in row.size.items() if name != letter)
                by_rest.setdefault(rest, []).append(row)
            for rest, alike in by_rest.items():
                if len({row.size.get(letter) for row in alike}) > 1:
                    yield " ".join([operation, *(f"{name}={value:,}" for name, value in rest)]), letter, alike


def _draw(found: Sequence[tuple[str, str, list[Row]]], caption: str, palette: Palette = PAPER) -> Chart:
    """All plots in rows of `_ACROSS`, below a line on the machine."""

    plots = [_draw_one(title, letter, rows, palette) for title, letter, rows in found]
    grid = in_columns(*plots, columns=_ACROSS, spacing=(28, 28))
    return stacked(unit_line(caption, palette), grid)


def _draw_one(title: str, letter: str, rows: Sequence[Row], palette: Palette) -> Chart:
    """Milliseconds of each implementation over one size, both logarithmic: ours solid, others dashed, ranges as bands."""
    import altair as alt

    looks = _looks(rows, palette)
    ticks = sorted({row.size[letter] for row in rows})
    axes = {"x": _sizes_axis(ticks, _LETTERS.get(letter, letter)), "y": _times_axis(rows)}
    ordered = sorted(rows, key=lambda row: row.size[letter])
    points = {look.name: [_point(row, letter) for row in ordered if row.implementation == look.name] for look in looks}
    ranges = [
        {"x": row.size[letter], "y": 1e3 * row.fastest, "high": 1e3 * row.slowest, "run": look.label, "fill": look.colour}
        for look in looks
        for row in ordered
        if row.implementation == look.name
    ]
    bands = alt.Chart(values(ranges)).mark_area(opacity=0.15, aria=False)
    below = [bands.encode(**axes, y2="high:Q", detail="run:N", fill=alt.Fill("fill:N", scale=None))]
    name = text(shorten(title, int((_WIDTH + AXIS) / CHARACTER)), -AXIS, -22, bold=True)
    above = [name, text("milliseconds", 0, -8, colour=palette.soft)]
    panel = line_panel(looks, points, axes, palette, below=below, above=above, size=(_WIDTH, _HEIGHT))
    return stacked(panel, legend(keys(looks), palette, width=_WIDTH + AXIS))


def _looks(rows: Sequence[Row], palette: Palette) -> list[Series]:
    """Colours and dashes of implementations, in the order of their rows."""
    names = list(dict.fromkeys(row.implementation for row in rows))
    shown = labels(names)
    looks = {True: ([1, 0], "circle", 2.0), False: ([5, 3], "square", 1.2)}
    colours = zip(names, cycle(palette.models), strict=False)
    return [Series(name, shown[name], colour, *looks[name.startswith(OURS)]) for name, colour in colours]


def _point(row: Row, letter: str) -> Point:
    shown = f"{shorten(row.implementation, 60)}, {letter}={row.size[letter]:,}"
    times = f"{1e3 * row.seconds:.4g} ms ({1e3 * row.fastest:.4g} to {1e3 * row.slowest:.4g})"
    return Point(row.size[letter], 1e3 * row.seconds, f"{shown}: {times}")


def _sizes_axis(ticks: Sequence[int], title: str) -> alt.X:
    """Sizes on a logarithmic axis, with a tick at each measured one as far as there is room."""
    import altair as alt

    every = math.ceil(len(ticks) / 7)
    axis = alt.Axis(values=list(ticks)[::every], format=",d", title=title, grid=False, labelFlush=False, labelOverlap=False)
    return alt.X("x:Q", scale=alt.Scale(type="log", domain=[ticks[0] / 1.15, ticks[-1] * 1.15], nice=False), axis=axis)


def _times_axis(rows: Sequence[Row]) -> alt.Y:
    """Milliseconds on a logarithmic axis, with ticks at 1, 2 and 5 times powers of ten where these are few enough."""
    import altair as alt

    low, high = 1e3 * min(row.fastest for row in rows) / 1.1, 1e3 * max(row.slowest for row in rows) * 1.1
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 2.2 else (1,)
    ticks = [tick for power in powers for step in steps if low <= (tick := float(f"{step}e{power}")) <= high]
    names = {f"{tick:g}": rounded(tick) for tick in ticks}
    shown = " ".join(f"abs(datum.value / {tick!r} - 1) < 1e-9 ? '{names[f'{tick:g}']}' :" for tick in ticks)
    axis = alt.Axis(values=ticks, labelExpr=f"{shown} ''", title=None, grid=True, domain=False, ticks=False, minExtent=AXIS, maxExtent=AXIS)
    return alt.Y("y:Q", scale=alt.Scale(type="log", domain=[low, high], nice=False), axis=axis)
