"""Charts of a comparison with one line per model: NLLs by training frequency, distance, match length and position."""

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
)
from recallkit.display.chart_theme import WIDTH, Figure
from recallkit.display.console import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import altair as alt

    from recallkit.attribution.comparison import Comparison
    from recallkit.display.chart_theme import Chart, Palette

    Row = Mapping[str, Any]
    Sides = dict[str, list[Point]]
    XAxis = Callable[[Sequence[float], str | None], alt.X]

_HITS, _OTHER = "ar_hit", "other"
_NAMES = {_HITS: "AR hits", _OTHER: "other tokens"}
_HOLLOW = f"Hollow: fewer than {FEW} tokens."
_NATS = "NLL, nats per token"
_POSITIONS = 16
"""Points of a line by position: the table's buckets are merged in pairs, which reduces their noise."""
_GAP = 18


def by_count(comparison: Comparison) -> Figure | None:
    """Mean NLL by training frequency of the bigram, repeated tokens above and the others below (Zoology, figure 1)."""
    rows, threshold = comparison.tables.by_count.to_dicts(), comparison.manifest["slices"]["max_count"]
    panels = {
        name: _sides(comparison, [row for row in rows if row["repeated"] is kind], "training count") for name, kind in _REPEATS.items()
    }
    caption = (
        "Mean log-perplexity by how often training had the bigram (as figure 1 of Zoology): above, tokens that repeat a bigram "
        f"of their context, AR hits up to the threshold of {threshold:,} (shaded); below, those that do not. {_HOLLOW}"
    )
    looks = {"title": "training count of the bigram, up to", "edge": bucket_edge(threshold), "spacing": _GAP, "size": (WIDTH, _TALL)}
    return _figure(comparison, ("by_count", "By training frequency", caption), panels, bucket_axis, **looks)


_REPEATS = {"bigram repeated": True, "bigram not repeated": False}
_TALL = 210


def _figure(comparison: Comparison, told: tuple[str, str, str], panels: Mapping[str, Sides], axis: XAxis, **looks: Any) -> Figure | None:
    """A figure of the panels that have points; `told` are its name, title and caption. None if no panel has points."""
    panels = {name: sides for name, sides in panels.items() if sides}
    return Figure(*told, partial(_draw, comparison, panels, axis, **looks)) if panels else None


def _draw(
    comparison: Comparison,
    panels: Mapping[str, Sides],
    axis: XAxis,
    palette: Palette,
    *,
    title: str,
    edge: float = -math.inf,
    most: int = 6,
    spacing: float = 14,
    **panel: Any,
) -> Chart:
    """Panels one below the other over a shared `axis`, titled at the last; AR hits are up to `edge`, if that is on the axis."""
    looks = series(comparison.models, palette, comparison.reference)
    places = [point.x for sides in panels.values() for points in sides.values() for point in points]
    parts: list[Chart] = []
    for index, (name, sides) in enumerate(panels.items()):
        x, nlls = axis(places, title if index == len(panels) - 1 else None), [point.y for points in sides.values() for point in points]
        above, below = head(palette, name, _NATS), []
        if _REPEATS.get(name) and (high := min(edge, max(places) + 0.5)) > min(places) - 0.5:
            below, above = [shade(palette, min(places) - 0.5, high, x, _TALL)], head(palette, f"{name} (shaded: AR hits)", _NATS)
        axes = {"x": x, "y": nice_axis(min(nlls), max(nlls), most=most)}
        parts.append(line_panel(looks, sides, axes, palette, below=below, above=above, **panel))
    return stacked(*parts, legend(keys(looks), palette), spacing=spacing)


def _sides(comparison: Comparison, rows: Sequence[Row], what: str, *, x: Callable[[Row], float] | None = None) -> Sides:
    """The points of the reference and of every model; any model's rows contain the reference's NLLs. Empty without rows."""
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


def by_distance(comparison: Comparison) -> Figure | None:
    """Mean NLL of AR hits by the distance to the latest earlier occurrence of their bigram. None if there is nothing to draw."""
    sides = _sides(comparison, [row for row in comparison.tables.by_distance.to_dicts() if row["ar_hit"]], "distance")
    caption = f"NLL of AR hits by the distance to the latest earlier occurrence of their bigram in the context. {_HOLLOW}"
    told = ("by_distance", "By distance", caption)
    return _figure(comparison, told, {"AR hits": sides}, bucket_axis, title="tokens back to the bigram, up to")


def by_match(comparison: Comparison) -> Figure | None:
    """Mean NLL of AR hits by the length of the longest earlier match. None if there is nothing to draw."""
    rows = [row for row in comparison.tables.by_match.to_dicts() if row["ar_hit"]]
    sides = _sides(comparison, rows, "match length", x=lambda row: _match_place(row["low"]))
    caption = f"NLL of AR hits by match length: tokens in the longest preceding context shared with an earlier occurrence. {_HOLLOW}"
    told = ("by_match", "By length of match", caption)
    return _figure(comparison, told, {"AR hits": sides}, partial(bucket_axis, number=_match_low), title="tokens matched, from")


def _match_place(low: int) -> float:
    """Place of a bucket of match lengths on the axis: 0, 1, 2 and 3 at their own places, 4 to 7 at 4, 8 to 15 at 5 ..."""
    return low if low < 4 else low.bit_length() + 1


def _match_low(tick: int) -> int:
    """The shortest match of the bucket at a place: the inverse of `_match_place`."""
    return tick if tick < 4 else 1 << (tick - 2)


def by_position(comparison: Comparison) -> Figure | None:
    """Mean NLL of AR hits and of other tokens by position in the sequence. None if there is nothing to draw."""
    rows = comparison.tables.by_position.to_dicts()
    high = max((row["high"] for row in rows), default=1)
    panels = {
        _NAMES[kind]: _sides(comparison, _joined([row for row in rows if row["slice"] == kind], high), "position", x=_middle)
        for kind in (_HITS, _OTHER)
    }
    told = ("by_position", "By position", f"NLL by position in the sequence. {_HOLLOW}")
    looks = {"title": "position in the sequence", "most": 5, "spacing": _GAP, "size": (WIDTH, 160), "dot": 16}
    return _figure(comparison, told, panels, partial(_position_axis, high), **looks)


def _position_axis(high: int, _: Sequence[float], title: str | None) -> alt.X:
    import altair as alt

    axis = alt.Axis(title=title, tickCount=6, grid=False, format=",d", labelFlush=False)
    return alt.X("x:Q", scale=alt.Scale(domain=[0, high], nice=False), axis=axis)


def _middle(row: Row) -> float:
    return float(row["low"] + row["high"]) / 2


def _joined(rows: Sequence[Row], high: int) -> list[Row]:
    """The buckets of each model, merged until there are at most `_POSITIONS`: means weighted by their tokens."""
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
