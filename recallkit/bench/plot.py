"""Times drawn against what was varied, as Based's figures 4 to 7 have them: an axis for each operation, a line for each implementation."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Any

from recallkit.bench.results import OURS
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from recallkit.bench.results import Results, Row

_ACROSS = 3
"""Axes side by side."""
_LETTERS = {"b": "rows in the batch", "n": "tokens", "t": "tokens", "d": "width", "vocab": "vocabulary", "keys": "keys a query"}


def draw(results: Results, path: Path) -> int:
    """Writes one picture (`path` ends in .svg, .png or .pdf) of every operation measured at two sizes or more -> how many axes it has.

    Nothing is written where there is nothing to draw: 0. Raises UserError without matplotlib, or for another kind of file.
    """
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise UserError(f"no picture is written as {path.suffix or 'that'}", where=path, remedy="use .svg, .png or .pdf")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("drawing needs matplotlib", where=path, remedy="pip install 'recallkit[plots]'") from error

    series = list(_varied(results.rows))
    if not series:
        return 0
    down = math.ceil(len(series) / _ACROSS)
    figure = Figure(figsize=(4.6 * min(_ACROSS, len(series)), 3.5 * down + 0.4), layout="constrained")
    axes = figure.subplots(down, min(_ACROSS, len(series)), squeeze=False).ravel()
    for ax, (title, letter, rows) in zip(axes, series, strict=False):
        _draw_one(ax, title, letter, rows)
    for ax in axes[len(series) :]:
        ax.set_axis_off()
    machine = results.machine
    figure.suptitle(f"{machine['name']}, {machine['dtype']}, torch {machine['torch']}", fontsize=10)
    figure.savefig(path)
    return len(series)


def _varied(rows: list[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    """Operation and fixed sizes, the one size that varies, and the rows: wherever two sizes differ in one letter alone."""
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


def _draw_one(ax: Any, title: str, letter: str, rows: list[Row]) -> None:
    names = list(dict.fromkeys(row.implementation for row in rows))
    for place, name in enumerate(names):
        mine = sorted((row for row in rows if row.implementation == name), key=lambda row: row.size[letter])
        places, times = [row.size[letter] for row in mine], [1e3 * row.seconds for row in mine]
        ours = name.startswith(OURS)
        ax.plot(places, times, "o-" if ours else "s--", color=f"C{place}", linewidth=2 if ours else 1.2, markersize=4, label=name)
        ax.fill_between(places, [1e3 * row.fastest for row in mine], [1e3 * row.slowest for row in mine], color=f"C{place}", alpha=0.15)
    ax.set(xscale="log", yscale="log", title=title, xlabel=_LETTERS.get(letter, letter), ylabel="milliseconds")
    ticks = sorted({row.size[letter] for row in rows})
    ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
    ax.minorticks_off()
    ax.title.set_fontsize(9)
    ax.grid(alpha=0.3)
    ax.legend(fontsize=7)
