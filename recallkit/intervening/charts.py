"""Charts of an intervention: what each model recalls, by distance and by training count, beside the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display.cells import counted, span
from recallkit.display.charts import Figure, line_chart, log_number, number
from recallkit.intervening.sampling import FIRST_RARE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recallkit.intervening.tables import InterveneTables

    Row = Mapping[str, Any]

FEW = 20
"""A mean over fewer samples is drawn hollow."""
_KINDS = {
    "by_distance": ("Recall by distance to the latest occurrence", "tokens back to the bigram, up to", "AR hits"),
    "by_count": ("Recall by training count", "training count of the bigram, up to", "repeated bigrams"),
}


def intervene_figures(tables: InterveneTables) -> list[Figure]:
    """The charts of AR hits and of other repeated tokens, if there are any."""
    models = tables.intervene["model"].unique(maintain_order=True).to_list()
    found = []
    for name, (title, axis, what) in _KINDS.items():
        if points := _points(tables, name):
            hollow = f" Hollow: fewer than {FEW} samples." * any(point["few"] for point in points)
            caption = (
                f"Nats that a model loses on {what} where no id of the earlier matches of a token is next to what it was next to, "
                f"less what as many moves elsewhere cost.{hollow}"
            )
            x, y = log_number("x", axis, [point["x"] for point in points], base=2), number("y", "nats recalled", zero=True)
            found.append(Figure(f"recalled_{name}", title, caption, line_chart(points, models, x, y, reference=models[0]), models))
    return found


def _points(tables: InterveneTables, name: str) -> list[dict[str, Any]]:
    """The points of a chart; where two slices have a bucket, that of the larger sample."""
    rows = [row for row in getattr(tables, name).to_dicts() if row["recall"] is not None]
    rows = [row for row in rows if (row["slice"] == "ar_hit" if name == "by_distance" else row["slice"] != FIRST_RARE)]
    found = {(row["model"], row["high"]): row for row in sorted(rows, key=lambda row: (row["high"], row["samples"]))}
    points = []
    for (model, high), row in found.items():
        shown = f"{row['recall']:.2f} nats, {counted(row['samples'], 'sample')}"
        said = {"at": span(row["low"], row["high"]), "shown": shown}
        points.append({"model": model, "x": high, "y": row["recall"], "few": row["samples"] < FEW, **said})
    return points
