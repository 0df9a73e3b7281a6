"""The picture of slices: what share of each source repeats a bigram of its context, and what share is AR hits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from recallkit.display.chart_parts import FULL, MOST_SOURCES, Key, labels, layered, legend, name_axis, not_drawn, stacked, values
from recallkit.display.chart_theme import Figure
from recallkit.display.console import counted, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import polars as pl

    from recallkit.display.chart_theme import Chart, Palette

    Row = Mapping[str, Any]

_ROW = 24
_BAR = 15


def slice_figures(summary: pl.DataFrame) -> list[Figure]:
    """One picture of the largest sources; `summary` is the result of `summarise_slices`, ALL first."""
    whole, *sources = summary.to_dicts()
    rows = [whole, *sources[:MOST_SOURCES]] if len(sources) > 1 else [whole]
    hits = "" if whole["ar_hit_share"] is None else ", and of AR hits, which are repeated and rare in training"
    rest = not_drawn([row["source"] for row in sources[len(rows) - 1 :]]) if len(sources) > 1 else ""
    caption = f"Share of predicted tokens that repeat a bigram of their context{hits}, by source.{rest}"
    return [Figure("slices", "Repeated tokens and AR hits by source", caption, partial(_draw, rows))]


def _draw(rows: Sequence[Row], palette: Palette) -> Chart:
    import altair as alt

    names = labels([row["source"] for row in rows])
    y, room = name_axis(list(names.values()), "source")
    size = {"width": FULL - room, "height": _ROW * len(rows)}
    x = alt.X("share:Q", scale=alt.Scale(domainMin=0), axis=alt.Axis(title="share of tokens", format="~%", tickCount=5))
    layers, entries = [], []
    for name, told, colour in (("repeated", "repeated bigrams", palette.rest), ("ar_hit", "AR hits", palette.hits)):
        drawn = [{"name": names[row["source"]], "share": row[f"{name}_share"], "text": _told(row, name, told)} for row in rows]
        if rows[0][f"{name}_share"] is not None:
            bars = alt.Chart(values(drawn)).mark_bar(height=_BAR if name == "repeated" else _BAR - 6, color=colour)
            layers.append(bars.encode(x=x, y=y, description="text:N"))
            entries.append(Key(told, colour, None, "block"))
    return stacked(layered(*layers, **size), legend(entries, palette, start=-room))


def _told(row: Row, name: str, told: str) -> str:
    return f"{row['source']}: {percent(row[f'{name}_share'], 2)} {told} of {counted(row['tokens'], 'token')}"
