"""The picture of ablations: what each set of mixers is worth in each slice, as a map of its losses."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from recallkit.ablation.words import HEADERS, SLICES_TOLD, labelled
from recallkit.display.chart_parts import FULL, labels, layered, name_axis, values
from recallkit.display.chart_theme import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.ablation.tables import AblationTables
    from recallkit.display.chart_theme import Chart, Palette

    Row = Mapping[str, Any]

_ROW_HEIGHT = 18
_DARKEST = 0.8
"""Opacity of the largest loss: figures stay readable on it, in light and in dark."""


def ablation_figures(tables: AblationTables) -> list[Figure]:
    """The map of losses, a row a set of mixers and a column a slice."""
    rows = tables.ablation.to_dicts()
    caption = (
        f"Nats per token that {rows[0]['model']} loses on each slice without each of its mixers; the darker, the more, by the square root. "
        f"{SLICES_TOLD}"
    )
    return [Figure("ablation", "What each mixer is worth, by slice", caption, partial(_draw, rows))]


def _draw(rows: Sequence[Row], palette: Palette) -> Chart:
    import altair as alt

    names = labels(list(dict.fromkeys(map(labelled, rows))))
    drawn = [{**_cell(row), "name": names[labelled(row)], "slice": HEADERS[row["slice"]]} for row in rows if row["loss"] is not None]
    most = max((cell["loss"] for cell in drawn), default=0.0)
    plain: dict[str, Any] = {"ticks": False, "domain": False, "grid": False}
    y, room = name_axis(list(names.values()), "without", grid=False)
    base = alt.Chart(values(drawn)).encode(
        x=alt.X("slice:N", sort=list(HEADERS.values()), axis=alt.Axis(title="nats per token lost", orient="top", labelAngle=0, **plain)),
        y=y,
    )
    depth = alt.Opacity("loss:Q", scale=alt.Scale(type="sqrt", domain=[0, max(most, 1e-9)], range=[0.0, _DARKEST], clamp=True), legend=None)
    boxes = base.mark_rect(color=palette.models[0], stroke=palette.page).encode(opacity=depth, description="told:N")
    figures = base.mark_text(aria=False, color=palette.ink).encode(text="text:N")
    return layered(boxes, figures, width=FULL - room, height=_ROW_HEIGHT * len(names))


def _cell(row: Row) -> dict[str, Any]:
    loss, low, high = row["loss"], row["loss_ci_low"], row["loss_ci_high"]
    ends = "" if low is None else f" ({low:.2f} to {high:.2f})"
    return {
        "loss": loss,
        "text": f"{loss:.2f}",
        "told": f"without {labelled(row)}, {HEADERS[row['slice']]}: {loss:.3f} nats per token{ends}",
    }
