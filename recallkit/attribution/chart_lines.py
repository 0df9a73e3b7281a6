"""Pictures of a comparison with a line a model: NLLs by training frequency, distance, length of match and position."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from recallkit.display.chart_parts import (
    FEW,
    Point,
    bucket_axis,
    bucket_edge,
    head,
    keys,
    legend,
    line_panel,
    nice_axis,
    place,
    series,
    shade,
    shorten,
    span,
    stacked,
    text,
)
from recallkit.display.chart_theme import WIDTH, Figure
from recallkit.display.console import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import altair as alt

    from recallkit.attribution.comparison import Comparison
    from recallkit.display.chart_theme import Chart, Palette

    Row = Mapping[str, Any]

_HITS, _OTHER = "ar_hit", "other"
_NAMES = {_HITS: "AR hits", _OTHER: "other tokens"}
_HOLLOW = f"Hollow: fewer than {FEW} tokens."
_NATS = "NLL, nats a token"
_POSITIONS = 16
"""Points of a line by position: the table's buckets are put together by twos, which halves their noise."""
_GAP = 18


def by_count(comparison: Comparison) -> Figure | None:
    """Mean NLL by training frequency of the bigram, tokens that repeat one above those that do not (Zoology, figure 1)."""
    rows = comparison.tables.by_count.to_dicts()
    panels = {
        name: _sides(comparison, [row for row in rows if row["repeated"] is kind], "training count") for name, kind in _REPEATS.items()
    }
    panels = {name: sides for name, sides in panels.items() if sides}
    caption = (
        "Mean log-perplexity by how often training had the bigram (as figure 1 of Zoology): above, tokens that repeat a bigram "
        f"of their context, AR hits up to the threshold of {comparison.manifest['slices']['max_count']:,} (shaded); below, those "
        f"that do not. {_HOLLOW}"
    )
    edge = bucket_edge(comparison.manifest["slices"]["max_count"])
    draw = partial(_draw_counts, comparison.models, comparison.reference, panels, edge)
    return Figure("by_count", "By training frequency", caption, draw) if panels else None


_REPEATS = {"bigram repeated": True, "bigram not repeated": False}


def _sides(comparison: Comparison, rows: Sequence[Row], what: str, *, x: Callable[[Row], float] | None = None) -> dict[str, list[Point]]:
    """The points of the reference and of every model: any model's rows hold the reference's NLLs. Empty without rows."""
    at = x or (lambda row: math.ceil(place(row["low"])))
    sides = {comparison.reference: [row for row in rows if row["model"] == comparison.models[0]]}
    sides |= {model: [row for row in rows if row["model"] == model] for model in comparison.models}
    points = {}
    for name, mine in sides.items():
        column = "nll_reference" if name == comparison.reference else "nll_model"
        points[name] = [_point(name, row, row[column], at(row), what) for row in mine if math.isfinite(row[column])]
    return points if any(points.values()) else {}


def _point(name: str, row: Row, nll: float, x: float, what: str) -> Point:
    told = f"{shorten(name, 60)}, {what} {span(row['low'], row['high'])}: {nll:.2f} nats, {counted(row['tokens'], 'token')}"
    return Point(x, nll, told, row["tokens"] < FEW)


def _nll_axis(sides: Mapping[str, Sequence[Point]], most: int = 6) -> alt.Y:
    """NLLs upwards."""
    nlls = [point.y for points in sides.values() for point in points]
    return nice_axis(min(nlls), max(nlls), most=most)


def _places(panels: Iterable[Mapping[str, Sequence[Point]]]) -> list[float]:
    return [point.x for sides in panels for points in sides.values() for point in points]


def _draw_counts(
    models: Sequence[str], reference: str, panels: Mapping[str, Mapping[str, Sequence[Point]]], edge: float, palette: Palette
) -> Chart:
    looks, places = series(models, palette, reference), _places(panels.values())
    parts = []
    for index, (name, sides) in enumerate(panels.items()):
        title = "training count of the bigram, up to" if index == len(panels) - 1 else None
        axis = bucket_axis(places, title)
        axes = {"x": axis, "y": _nll_axis(sides)}
        above = head(palette, name, _NATS)
        below = []
        if _REPEATS[name] and (high := min(edge, max(places) + 0.5)) > min(places) - 0.5:
            below = [shade(palette, min(places) - 0.5, high, axis, _TALL)]
            above.append(text("AR hits", 6, _TALL - 8, colour=palette.soft))
        parts.append(line_panel(looks, sides, axes, palette, below=below, above=above, size=(WIDTH, _TALL)))
    return stacked(*parts, legend(keys(looks), palette), spacing=_GAP)


_TALL = 210


def by_distance(comparison: Comparison) -> Figure | None:
    """Mean NLL of AR hits by the distance to the latest earlier occurrence of their bigram. None where there is nothing to draw."""
    sides = _sides(comparison, [row for row in comparison.tables.by_distance.to_dicts() if row["ar_hit"]], "distance")
    caption = f"NLL of AR hits by the distance to the latest earlier occurrence of their bigram in the context. {_HOLLOW}"
    draw = partial(_draw_distances, comparison.models, comparison.reference, sides)
    return Figure("by_distance", "By distance", caption, draw) if sides else None


def _draw_distances(models: Sequence[str], reference: str, sides: Mapping[str, Sequence[Point]], palette: Palette) -> Chart:
    looks = series(models, palette, reference)
    axes = {"x": bucket_axis(_places([sides]), "tokens back to the bigram, up to"), "y": _nll_axis(sides)}
    return stacked(line_panel(looks, sides, axes, palette, above=head(palette, "AR hits", _NATS)), legend(keys(looks), palette))


def by_match(comparison: Comparison) -> Figure | None:
    """Mean NLL of AR hits by the length of the longest earlier match. None where there is nothing to draw."""
    rows = [row for row in comparison.tables.by_match.to_dicts() if row["ar_hit"]]
    sides = _sides(comparison, rows, "match length", x=lambda row: _match_place(row["low"]))
    caption = (
        "NLL of AR hits by how long a context they could be found by: tokens before each one that also stood before an earlier "
        f"occurrence of it, the most over all of these. {_HOLLOW}"
    )
    draw = partial(_draw_matches, comparison.models, comparison.reference, sides)
    return Figure("by_match", "By length of match", caption, draw) if sides else None


def _match_place(low: int) -> float:
    """Where a bucket of match lengths stands: 0, 1, 2 and 3 at their own places, 4 to 7 at 4, 8 to 15 at 5 ..."""
    return low if low < 4 else low.bit_length() + 1


def _match_low(tick: int) -> int:
    """The shortest match of the bucket at a place: the inverse."""
    return tick if tick < 4 else 1 << (tick - 2)


def _draw_matches(models: Sequence[str], reference: str, sides: Mapping[str, Sequence[Point]], palette: Palette) -> Chart:
    looks = series(models, palette, reference)
    axes = {"x": bucket_axis(_places([sides]), "tokens matched, from", number=_match_low), "y": _nll_axis(sides)}
    return stacked(line_panel(looks, sides, axes, palette, above=head(palette, "AR hits", _NATS)), legend(keys(looks), palette))


def by_position(comparison: Comparison) -> Figure | None:
    """Mean NLL of AR hits and of other tokens by position in the sequence. None where there is nothing to draw."""
    rows = comparison.tables.by_position.to_dicts()
    high = max((row["high"] for row in rows), default=1)
    panels = {
        _NAMES[kind]: _sides(comparison, _joined([row for row in rows if row["slice"] == kind], high), "position", x=_middle)
        for kind in (_HITS, _OTHER)
    }
    panels = {name: sides for name, sides in panels.items() if sides}
    caption = f"NLL by position in the sequence. {_HOLLOW}"
    draw = partial(_draw_positions, comparison.models, comparison.reference, panels, high)
    return Figure("by_position", "By position", caption, draw) if panels else None


def _middle(row: Row) -> float:
    return float(row["low"] + row["high"]) / 2


def _joined(rows: Sequence[Row], high: int) -> list[Row]:
    """The buckets of each model put together until there are at most `_POSITIONS`: means weighted by their tokens."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["model"], (row["high"] * _POSITIONS - 1) // high), []).append(row)
    return [
        {
            "model": model,
            "low": min(row["low"] for row in parts),
            "high": max(row["high"] for row in parts),
            "tokens": (tokens := sum(row["tokens"] for row in parts)),
            **{name: sum(row[name] * row["tokens"] for row in parts) / tokens for name in ("nll_reference", "nll_model")},
        }
        for (model, _), parts in found.items()
    ]


def _draw_positions(
    models: Sequence[str], reference: str, panels: Mapping[str, Mapping[str, Sequence[Point]]], high: int, palette: Palette
) -> Chart:
    import altair as alt

    looks, parts = series(models, palette, reference), []
    for index, (name, sides) in enumerate(panels.items()):
        title = "position in the sequence" if index == len(panels) - 1 else None
        axis = alt.Axis(title=title, tickCount=6, grid=False, format=",d", labelFlush=False)
        axes = {"x": alt.X("x:Q", scale=alt.Scale(domain=[0, high], nice=False), axis=axis), "y": _nll_axis(sides, 5)}
        parts.append(line_panel(looks, sides, axes, palette, above=head(palette, name, _NATS), size=(WIDTH, 160), dot=16))
    return stacked(*parts, legend(keys(looks), palette), spacing=_GAP)
