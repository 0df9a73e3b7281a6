"""The figures of an intervention: a point for each model with its interval, and lines by distance
and by count, in points."""

from __future__ import annotations

import polars as pl

from recallkit.intervening.charts import intervene_figures
from recallkit.intervening.tables import InterveneTables
from tests.display.drawings import data, marks, svg


def made_tables(slice_: str = "ar_hit") -> InterveneTables:
    """Two models, with causal recall of 40 and 10 points in AR hits; buckets of 16 and 32
    samples."""
    rows = []
    for model, points in (("ref", 0.4), ("zoo:low", 0.1)):
        row = {
            "model": model,
            "slice": slice_,
            "points": points,
            "points_ci_low": points - 0.05,
            "points_ci_high": points + 0.05,
        }
        rows += [{**row, "low": high // 2 + 1, "high": high, "samples": high} for high in (16, 32)]
    frame = pl.DataFrame(rows)
    return InterveneTables(frame.filter(high=32), frame, frame, frame.clear())


def test_a_point_for_each_model_then_lines_by_distance():
    by_model, by_distance = intervene_figures(made_tables())
    assert (by_model.name, by_distance.name) == ("causal_recall", "causal_by_distance")
    assert by_model.models == by_distance.models == ["ref", "zoo:low"]
    drawn = marks(svg(by_model))
    low, reference = (
        drawn["zoo:low: 10.0 (5.0 to 15.0) points"],
        drawn["ref: 40.0 (35.0 to 45.0) points"],
    )
    assert low.x < reference.x
    assert low.y > reference.y, "the reference is above"
    assert [
        (row["y"], row["few"])
        for row in data(
            by_distance,
        )
    ] == [(0.4, True), (0.4, False), (0.1, True), (0.1, False)]
    assert [figure.name for figure in intervene_figures(made_tables("repeated"))] == [
        "causal_by_count",
    ]
