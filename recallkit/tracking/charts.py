"""A run by step: recall by association, and NLLs of AR hits, of the first occurrences of their bigrams and of other tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.display.charts import Figure, Style, across, line_chart, number
from recallkit.tracking.tables import APPEARS

if TYPE_CHECKING:
    from recallkit.tracking.tables import TrackTables

_CURVES = {"recall": "recalled", "ar_nll": "AR hits", "first_nll": "their first occurrences", "other_nll": "other tokens"}
_STYLES = {
    "recall": Style("m0", (5, 3), "triangle-up"),
    "ar_nll": Style("hits", (1, 0), "circle"),
    "first_nll": Style("ink", (1, 0), "diamond"),
    "other_nll": Style("rest", (1, 0), "square"),
}
_LEAST_RATIO = 30
"""Steps that differ by more are on a logarithmic axis, with step 0 at its left."""


def track_figures(tables: TrackTables) -> list[Figure]:
    """The curve, where there are two checkpoints or more."""
    rows = tables.track.to_dicts()
    steps = sorted((row for row in rows if row["step"] is not None), key=lambda row: row["step"])
    if len(steps) < 2:
        return []
    reference = next((row for row in rows if row["step"] is None), None)
    bands = " (bands: 95 % over documents)" * any(row[f"{name}_ci_low"] is not None for row in steps for name in _CURVES)
    caption = (
        f"By training step{bands}, what is recalled by association, nats lost in AR hits without it, and NLLs "
        "of AR hits, of the first occurrences of their bigrams, where nothing can be recalled, and of other tokens."
    )
    caption += "" if reference is None else f" Dashed: {reference['model']}."
    appears = next(
        (row["step"] for row in tables.verdict.to_dicts() if row["verdict"] == APPEARS and row["step"] != steps[0]["step"]), None
    )
    caption += "" if appears is None else f" Upright: recall by association appears at step {appears:,}."
    points = [
        {
            "model": name,
            "x": row["step"],
            "y": row[name],
            "low": row[f"{name}_ci_low"],
            "high": row[f"{name}_ci_high"],
            "at": f"step {row['step']:,}",
            "shown": f"{row[name]:z.2f} nats",
        }
        for name in _CURVES
        for row in steps
    ]
    places = [row["step"] for row in steps]
    least = min((place for place in places if place > 0), default=1)
    scale = {"type": "symlog", "constant": least} if places[-1] >= _LEAST_RATIO * least else {}
    axis = {"values": places, "labelOverlap": True, "labelExpr": "format(datum.value, '~s')", "grid": False}
    x = number("x", "training step", axis=axis, domain=[places[0], places[-1]], nice=False, padding=8, **scale)
    before = []
    if reference is not None:
        for name, style in _STYLES.items():
            before.append(across(style.colour, y=reference[name], strokeDash=[3, 3], opacity=0.8))
    if appears is not None:
        before.append(across("soft", x=appears, tip=f"recall appears at step {appears:,}", strokeDash=[2, 2]))
    y = number("y", "nats per token", zero=True)
    drawn = line_chart(points, list(_CURVES), x, y, *before, styles=_STYLES, shown=_CURVES)
    return [Figure("track", "Recall and NLL by training step", caption, drawn)]
