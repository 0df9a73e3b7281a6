"""The picture of an intervention: what each model recalls, by distance and by training count, beside the reference."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from recallkit.display.chart_parts import Point, bucket_axis, head, keys, legend, line_panel, nice_axis, place, series, span, stacked
from recallkit.display.chart_theme import HEIGHT, WIDTH, Figure
from recallkit.display.console import counted
from recallkit.intervening.sampling import FIRST_RARE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.display.chart_theme import Chart, Palette
    from recallkit.intervening.tables import InterveneTables

FEW = 20
"""A mean over fewer samples is drawn hollow."""

_PANELS = (
    ("by_distance", "AR hits by distance", "tokens back to the bigram, up to"),
    ("by_count", "Repeated bigrams by training count", "training count of the bigram, up to"),
)


def intervene_figures(tables: InterveneTables) -> list[Figure]:
    """One picture, if there are AR hits or other repeated tokens to draw."""
    panels = {name: _rows(tables, name) for name, _, _ in _PANELS}
    if not any(panels.values()):
        return []
    caption = (
        "Nats that a model loses where the earlier occurrences of a token's bigram are replaced, less what as many replacements elsewhere "
        f"cost: above by distance to the latest occurrence, below by how often training had the bigram. Hollow: fewer than {FEW} samples."
    )
    return [
        Figure("recall", "Is it recall?", caption, partial(_draw, panels, tables.intervene["model"].unique(maintain_order=True).to_list()))
    ]


def _rows(tables: InterveneTables, name: str) -> list[dict[str, Any]]:
    frame: pl.DataFrame = getattr(tables, name)
    kept = frame.filter(slice="ar_hit") if name == "by_distance" else frame.filter(pl.col("slice") != FIRST_RARE)
    return (
        kept.filter(pl.col("recall").is_not_null())
        .sort("high", "samples")
        .unique(["model", "high"], keep="last", maintain_order=True)
        .to_dicts()
    )


def _draw(panels: dict[str, list[dict[str, Any]]], models: Sequence[str], palette: Palette) -> Chart:
    looks = series(models, palette, reference=models[0])
    parts: list[Chart] = []
    for name, title, axis in _PANELS:
        rows = panels[name]
        if not rows:
            continue
        points: dict[str, list[Point]] = {look.name: [] for look in looks}
        for row in rows:
            told = f"{row['model']}, {span(row['low'], row['high'])}: {row['recall']:.2f} nats, {counted(row['samples'], 'sample')}"
            points[row["model"]].append(Point(place(row["high"]), row["recall"], told, row["samples"] < FEW))
        values = [row["recall"] for row in rows]
        axes = {"x": bucket_axis([place(row["high"]) for row in rows], axis), "y": nice_axis(min(0.0, *values), max(values))}
        parts.append(line_panel(looks, points, axes, palette, above=head(palette, title, "nats recalled"), size=(WIDTH, HEIGHT)))
    return stacked(*parts, legend(keys(looks), palette), spacing=18)
