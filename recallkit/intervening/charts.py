"""Charts of an intervention: causal recall by model, by distance and by training count, in points
of probability."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import cells
from recallkit.display.charts import TIP, Figure, labels, layer, log_number, number, shorten
from recallkit.display.templates import across, bars, line_chart
from recallkit.intervening.tables import REPEATED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from recallkit.intervening.tables import InterveneTables

FEW = 20  # a mean over fewer samples is drawn hollow
_ROW = 22  # pixels from one model's row to the next
_AXIS: Mapping[str, Any] = {
    "title": "causal recall, points",
    "axis": {"labelExpr": "format(100 * datum.value, '~g')"},
}
_CAPTION = (
    "Points of probability that {} lose when their earlier occurrences are broken up, less the "
    "loss from equally many swaps elsewhere in the text."
)
_KINDS = {
    "by_distance": (
        "ar_hit",
        "AR hits",
        "Causal recall by distance to the latest occurrence",
        "tokens back to the bigram, up to",
    ),
    "by_count": (
        REPEATED,
        "repeated bigrams",
        "Causal recall by training count",
        "training count of the bigram, up to",
    ),
}


def intervene_figures(tables: InterveneTables) -> list[Figure]:
    """Causal recall in AR hits, a row for each model; then by distance in AR hits, and by count in
    all repeated bigrams."""
    models = tables.intervene["model"].unique(maintain_order=True).to_list()
    figures = [
        _by_model(tables.intervene.filter(slice="ar_hit"), models),
        *(_by_bucket(tables, name, models) for name in _KINDS),
    ]
    return [figure for figure in figures if figure.spec["data"]["values"]]


def _by_model(hits: pl.DataFrame, models: Sequence[str]) -> Figure:
    """A point for each model, with its interval."""
    names = labels(models, reference=models[0])
    points = hits.select("model", "points", "points_ci_low", "points_ci_high").to_dicts()
    for row in points:
        row["tip"] = f"{shorten(row['model'], 60)}: {cells.figure(row, 'points')} points"
        row["model"] = names[row["model"]]
    spec = bars(
        points,
        list(names.values()),
        number("points", **_AXIS),
        layer("point", channels=TIP, filled=True, size=50, opacity=1, color="ink"),
        ends=("points_ci_low", "points_ci_high"),
        rule={"color": "soft", "strokeWidth": 1.4},
        behind=[across("rule", x=0)],
        height=_ROW * len(points),
    )
    lines = "" if hits["points_ci_low"].is_null().all() else " With 95 % intervals."
    return Figure(
        "causal_recall",
        "Causal recall",
        f"{_CAPTION.format('AR hits')}{lines}",
        spec,
        models,
    )


def _by_bucket(tables: InterveneTables, name: str, models: Sequence[str]) -> Figure:
    """A line for each model, through the mean of each bucket of a table."""
    slice_, what, title, axis = _KINDS[name]
    points = []
    for row in getattr(tables, name).filter(slice=slice_).to_dicts():
        tip = f"{100 * row['points']:z.1f} points, {cells.counted(row['samples'], 'sample')}"
        place = {"x": row["high"], "at": cells.span(row["low"], row["high"])}
        few = row["samples"] < FEW
        points.append(
            {**place, "model": row["model"], "y": row["points"], "few": few, "shown": tip},
        )
    x = log_number("x", axis, [point["x"] for point in points], base=2)
    spec = line_chart(points, models, x, number("y", zero=True, **_AXIS), reference=models[0])
    hollow = f" Hollow: fewer than {FEW} samples." * any(point["few"] for point in points)
    return Figure(f"causal_{name}", title, f"{_CAPTION.format(what)}{hollow}", spec, models)
