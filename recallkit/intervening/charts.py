"""The chart of an intervention: what each model recalls, by distance and by training count, beside the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display.cells import counted, span
from recallkit.display.charts import Figure, line_chart, log_number, number
from recallkit.intervening.sampling import FIRST_RARE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.display.charts import Spec
    from recallkit.intervening.tables import InterveneTables

    Row = Mapping[str, Any]

FEW = 20
"""A mean over fewer samples is drawn hollow."""
_PANELS = {
    "by_distance": ("AR hits by distance to the latest occurrence", "tokens back to the bigram, up to"),
    "by_count": ("Repeated bigrams by how often training had them", "training count of the bigram, up to"),
}


def intervene_figures(tables: InterveneTables) -> list[Figure]:
    """One chart, if there are AR hits or other repeated tokens to draw."""
    panels = {name: found for name in _PANELS if (found := _points(tables, name))}
    models = tables.intervene["model"].unique(maintain_order=True).to_list()
    caption = (
        "Nats that a model loses where no id of the earlier matches of a token is next to what it was next to, less what as many moves "
        "elsewhere cost."
    )
    caption += f" Hollow: fewer than {FEW} samples." * any(point["few"] for found in panels.values() for point in found)
    return [Figure("recall", "Is it recall?", caption, _drawn(panels, models), models)] if panels else []


def _points(tables: InterveneTables, name: str) -> list[dict[str, Any]]:
    """The points of a panel; where two slices have a bucket, that of the larger sample."""
    rows = [row for row in getattr(tables, name).to_dicts() if row["recall"] is not None]
    rows = [row for row in rows if (row["slice"] == "ar_hit" if name == "by_distance" else row["slice"] != FIRST_RARE)]
    found = {(row["model"], row["high"]): row for row in sorted(rows, key=lambda row: (row["high"], row["samples"]))}
    points = []
    for (model, high), row in found.items():
        tip = f"{model}, {span(row['low'], row['high'])}: {row['recall']:.2f} nats, {counted(row['samples'], 'sample')}"
        points.append({"model": model, "x": high, "y": row["recall"], "few": row["samples"] < FEW, "tip": tip})
    return points


def _drawn(panels: Mapping[str, Sequence[Row]], models: Sequence[str]) -> Spec:
    parts = []
    for name, points in panels.items():
        title, axis = _PANELS[name]
        x, y = log_number("x", axis, [point["x"] for point in points], base=2), number("y", "nats recalled", zero=True)
        parts.append({**line_chart(points, models, x, y, reference=models[0]), "title": {"text": title, "anchor": "start", "fontSize": 11}})
    return {"vconcat": parts}
