"""Charts of an intervention: how much of each gap is recall, and what models recall, by distance and by training count."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from recallkit.attribution.charts import LEFT_OUT, at_the_edge, share_scale
from recallkit.display.cells import counted, percent, percent_range, shares_of_leads, span
from recallkit.display.charts import (
    TIP,
    Colour,
    Figure,
    across,
    column,
    labels,
    layer,
    legend_of,
    line_chart,
    log_number,
    number,
    plot,
    share,
    shorten,
)
from recallkit.intervening.changed_text import FIRST_RARE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.intervening.tables import InterveneTables

    Row = Mapping[str, Any]

FEW = 20
"""A mean over fewer samples is drawn hollow."""
_KINDS = {
    "by_distance": ("Recall by distance to the latest occurrence", "tokens back to the bigram, up to", "AR hits"),
    "by_count": ("Recall by training count", "training count of the bigram, up to", "repeated bigrams"),
}


_SHARES = {"gap_share": "lies in AR hits", "recall_share": "gone if neither could recall there"}


def intervene_figures(tables: InterveneTables) -> list[Figure]:
    """The answer, where shares of a gap mean something; then the charts of AR hits and of other repeated tokens, if there are any."""
    gaps = {row["model"]: row["gap"] for row in tables.recall_share.to_dicts()}
    reference, *others = tables.intervene["model"].unique(maintain_order=True).to_list()
    models = [reference, *sorted(others, key=lambda model: gaps.get(model, math.inf))]
    found = _answer(tables, models)
    for name, (title, axis, what) in _KINDS.items():
        if points := _points(tables, name):
            hollow = f" Hollow: fewer than {FEW} samples." * any(point["few"] for point in points)
            caption = (
                f"Nats that a model loses on {what} when the ids of their earlier matches are separated, less the effect of as many moves "
                f"elsewhere.{hollow}"
            )
            x, y = log_number("x", axis, [point["x"] for point in points], base=2), number("y", "nats recalled", zero=True)
            found.append(Figure(f"recalled_{name}", title, caption, line_chart(points, models, x, y, reference=models[0]), models))
    return found


def _answer(tables: InterveneTables, models: Sequence[str]) -> list[Figure]:
    """Two shares of each model's gap, one row per model."""
    rows = tables.recall_share.filter(slice="ar_hit", void=False).sort("gap").to_dicts()
    names, points = labels([row["model"] for row in rows]), []
    for row in rows:
        for name, kind in _SHARES.items():
            low, high = row[f"{name}_ci_low"], row[f"{name}_ci_high"]
            tip = f"{shorten(row['model'], 60)}: {percent(row[name])} of the gap {kind} ({percent_range(low, high)})"
            points.append(
                {"model": names[row["model"]], "kind": kind, "share": row[name], "low": low, "high": high, "beside": None, "tip": tip}
            )
    if not points:
        return []
    x = share("share", "share of the gap", **share_scale(points))
    y = {"y": column("model", sort=list(names.values()), axis={"title": None}), "yOffset": column("kind", sort=list(_SHARES.values()))}
    kinds = list(_SHARES.values())
    colour = column("kind", scale={"domain": kinds, "range": [Colour("hits"), Colour("ink")]}, legend=legend_of(kinds))
    shape = column("kind", scale={"domain": kinds, "range": ["circle", "diamond"]}, legend=legend_of(kinds))
    spec = plot(
        points,
        across("rule", x=0),
        layer("rule", channels={"x": {**x, "field": "low"}, "x2": {"field": "high"}, **y, "color": colour}, strokeWidth=1.4),
        layer("point", channels={"x": x, **y, "color": colour, "shape": shape, **TIP}, filled=True, size=50, opacity=1),
        height=30 * len(names),
    )
    leads = shares_of_leads(shorten(row["model"], 60) for row in rows if row["gap"] < 0)
    caption = (
        "How much of each gap to the reference lies in AR hits, and how much would be gone if neither model could recall by association "
        f"there, with 95 % intervals. {LEFT_OUT}{leads}{at_the_edge(points)}"
    )
    return [Figure("recall_share", "How much of the gap is recall?", caption, spec, models)]


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
