"""The curve of a run: NLLs of AR hits, of the first occurrences of their bigrams and of other tokens, by step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from recallkit.display.chart_parts import Point, Series, head, keys, legend, line_panel, nice_axis, rounded, stacked, upright, values
from recallkit.display.chart_theme import DASHES, HEIGHT, WIDTH, Figure, model_colours, model_shapes
from recallkit.tracking.tables import recall_appears

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import altair as alt

    from recallkit.display.chart_theme import Chart, Palette
    from recallkit.tracking.tables import TrackTables

    Row = Mapping[str, Any]

_CURVES = {"ar_nll": "AR hits", "first_nll": "their first occurrences", "other_nll": "other tokens"}
_MOST_MARKED = 7
_LEAST_RATIO = 30


def track_figures(tables: TrackTables) -> list[Figure]:
    """The curve, where there are two checkpoints or more."""
    rows = tables.track.to_dicts()
    steps = sorted((row for row in rows if row["step"] is not None), key=lambda row: row["step"])
    if len(steps) < 2:
        return []
    reference = next((row for row in rows if row["step"] is None), None)
    caption = (
        "NLL by training step (bands: 95 % over documents): tokens that complete a rare bigram of their context, the first occurrences of "
        "those bigrams, where nothing can be recalled, and other tokens."
    )
    caption += "" if reference is None else f" Dashed: {reference['model']}."
    appears = recall_appears(rows)
    caption += "" if appears is None else f" Upright: recall appears at step {appears:,}."
    return [Figure("track", "NLL by training step", caption, partial(_draw, steps, reference, appears))]


def _draw(steps: Sequence[Row], reference: Row | None, appears: int | None, palette: Palette) -> Chart:
    axis = _StepAxis([row["step"] for row in steps])
    names = list(_CURVES)
    _, colours = model_colours(names, palette, names[0])
    _, shapes = model_shapes(names, names[0])
    looks = [
        Series(name, _CURVES[name], colour, DASHES[0], shape, 2.2 if name == names[0] else 1.5)
        for name, colour, shape in zip(names, colours, shapes, strict=True)
    ]
    every = [
        row[f"{name}{end}"]
        for name in names
        for row in [*steps, *([reference] if reference else [])]
        for end in ("", "_ci_low", "_ci_high")
    ]
    known = [value for value in every if value is not None]
    y = nice_axis(min(0.0, *known), max(known))
    points = {name: [Point(axis.at(row["step"]), row[name], _told(row, name)) for row in steps] for name in names}
    below: list[alt.Chart] = [_band(steps, look, axis, y) for look in looks if steps[0][f"{look.name}_ci_low"] is not None]
    below += [] if reference is None else [_level(reference[look.name], look, axis, y) for look in looks]
    below += (
        []
        if appears is None
        else [upright(palette, axis.at(appears), axis.x, HEIGHT, DASHES[2], told=f"recall appears at step {appears:,}")]
    )
    panel = line_panel(
        looks,
        points,
        {"x": axis.x, "y": y},
        palette,
        below=below,
        above=head(palette, "NLL", "nats per token"),
        size=(WIDTH, HEIGHT),
    )
    return stacked(panel, legend(keys(looks), palette), spacing=18)


def _told(row: Row, name: str) -> str:
    return f"step {row['step']:,}, {_CURVES[name]}: {row[name]:.2f} nats"


class _StepAxis:
    """The x axis of steps: logarithmic from step 1 on where they span more than a factor of _LEAST_RATIO, with step 0 left of it."""

    def __init__(self, steps: Sequence[int]) -> None:
        import altair as alt

        positive = [step for step in steps if step > 0]
        self._is_log = bool(positive) and max(positive) >= _LEAST_RATIO * min(positive)
        self._left = min(positive) / 2 if positive else 1.0
        places = [self.at(step) for step in steps]
        marked = [step for number, step in enumerate(steps) if number % -(-len(steps) // _MOST_MARKED) == 0]
        shown = " : ".join(f"abs(datum.value - {self.at(step)!r}) < 1e-9 ? '{rounded(step)}'" for step in marked)
        space = 0.04 * (max(places) - min(places))
        domain = [min(places) / 1.1, max(places) * 1.1] if self._is_log else [min(places) - space, max(places) + space]
        scale = alt.Scale(type="log" if self._is_log else "linear", domain=domain, nice=False, zero=False)
        axis = alt.Axis(
            values=[self.at(step) for step in marked],
            labelExpr=f"{shown} : ''",
            grid=False,
            labelFlush=False,
            labelOverlap=True,
            title="training step",
        )
        self.x = alt.X("x:Q", scale=scale, axis=axis)
        self.ends = (places[0], places[-1])

    def at(self, step: int) -> float:
        """The place of a step."""
        return float(step) if step > 0 or not self._is_log else self._left


def _band(steps: Sequence[Row], look: Series, axis: _StepAxis, y: alt.Y) -> alt.Chart:
    import altair as alt

    rows = [{"x": axis.at(row["step"]), "y": row[f"{look.name}_ci_low"], "y2": row[f"{look.name}_ci_high"]} for row in steps]
    drawn: alt.Chart = (
        alt.Chart(values(rows)).mark_area(color=look.colour, opacity=0.15, clip=True, aria=False).encode(x=axis.x, y=y, y2="y2:Q")
    )
    return drawn


def _level(level: float, look: Series, axis: _StepAxis, y: alt.Y) -> alt.Chart:
    """The reference's value, across the plot."""
    import altair as alt

    rows = [{"x": place, "y": level} for place in axis.ends]
    mark = alt.Chart(values(rows)).mark_line(color=look.colour, strokeDash=[3, 3], strokeWidth=1, opacity=0.8, aria=False)
    drawn: alt.Chart = mark.encode(x=axis.x, y=y)
    return drawn
