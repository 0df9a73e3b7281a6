"""Charts of multi-query associative recall: perplexity and accuracy by number of pairs (Zoology,
Figure 7), accuracy by distance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from recallkit.display.cells import counted, percent, span
from recallkit.display.charts import FEW, Figure, log_number, share
from recallkit.display.templates import line_chart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from recallkit.display.charts import Spec

    Row = Mapping[str, Any]

_LARGEST_NLL = 690.0
"""Its perplexity is a float."""
_RECALLED = "values recalled"


def mqar_figures(mqar: pl.DataFrame, by_distance: pl.DataFrame) -> list[Figure]:
    """The charts of a comparison (`MqarTables`), whose first model is the reference."""
    rows, distances = mqar.to_dicts(), by_distance.to_dicts()
    first, models = rows[0], list(dict.fromkeys(row["model"] for row in rows))
    bands = "; bands are 95 % intervals" * any(row["accuracy_low"] is not None for row in rows)
    what = (
        f"{counted(first['num_samples'], 'sequence')} of {first['length']:,} ids for each number "
        f"of pairs{bands}."
    )
    hollow = f" Hollow: fewer than {FEW} queries." * any(
        row["num_queries"] < FEW for row in distances
    )
    filler = (
        ", and of the filler behind the pairs"
        if any(row["filler_nll"] is not None for row in rows)
        else ""
    )
    return [
        Figure(
            "mqar_accuracy",
            "Values recalled by number of pairs",
            (
                "Share of the queried values that the model ranks first in its whole vocabulary. "
                f"{what}"
            ),
            _accuracy(models, rows),
            models,
        ),
        Figure(
            "mqar_perplexity",
            "Perplexity of values and filler",
            f"Perplexity of the queried values{filler}, by number of pairs. {what}",
            _perplexity(models, rows),
            models,
        ),
        Figure(
            "mqar_by_distance",
            "Values recalled by distance",
            "Share of the queried values that the model ranks first, by their distance to the "
            "query in ids, in powers of two; a plot for "
            f"each number of pairs.{hollow}",
            _by_distance(models, distances),
            models,
        ),
    ]


def _perplexity(models: Sequence[str], rows: Sequence[Row]) -> Spec:
    """Plots of values and of filler below each other; logarithmic, because they range from 1 to
    more than the vocabulary."""
    points = []
    for kind, panel in (("ar", "Queried values"), ("filler", "Filler")):
        for row in rows:
            nll, low, high = (row[f"{kind}_nll{end}"] for end in ("", "_low", "_high"))
            if nll is not None and nll < _LARGEST_NLL:
                ppl, bounded = math.exp(nll), low is not None and high < _LARGEST_NLL
                tip = f"{ppl:,.3g}" if ppl < 1000 else f"{ppl:,.0f}"
                said = {"at": counted(row["pairs"], "pair"), "shown": f"perplexity {tip}"}
                ends = {"low": math.exp(low), "high": math.exp(high)} if bounded else {}
                points.append(
                    {
                        "model": row["model"],
                        "x": row["pairs"],
                        "y": ppl,
                        **ends,
                        "panel": panel,
                        **said,
                    }
                )
    panels = list(dict.fromkeys(point["panel"] for point in points))
    y = log_number(
        "y",
        "perplexity",
        [point[name] for point in points for name in ("low", "y", "high") if name in point],
        grid=True,
    )
    return line_chart(
        points, models, _pairs(rows), y, reference=models[0], panels=panels, height=150
    )


def _accuracy(models: Sequence[str], rows: Sequence[Row]) -> Spec:
    points = [
        {
            "model": row["model"],
            "x": row["pairs"],
            "y": row["accuracy"],
            "low": row["accuracy_low"],
            "high": row["accuracy_high"],
            "at": counted(row["pairs"], "pair"),
            "shown": percent(row["accuracy"]),
        }
        for row in rows
    ]
    return line_chart(
        points, models, _pairs(rows), share("y", _RECALLED, zero=True), reference=models[0]
    )


def _pairs(rows: Sequence[Row]) -> Spec:
    return log_number("x", "number of key-value pairs", [row["pairs"] for row in rows], base=2)


def _by_distance(models: Sequence[str], rows: Sequence[Row]) -> Spec:
    """Small plots in two columns, one per number of pairs, all with the same axes."""
    points = []
    for row in rows:
        tip = f"{percent(row['accuracy'])} of {counted(row['num_queries'], 'value')}"
        said = {"at": f"{span(row['low'], row['high'])} ids", "shown": tip}
        few, panel = row["num_queries"] < FEW, counted(row["pairs"], "pair")
        points.append(
            {
                "model": row["model"],
                "x": row["high"],
                "y": row["accuracy"],
                "few": few,
                "panel": panel,
                **said,
            }
        )
    x = log_number(
        "x", "distance in ids", [point["x"] for point in points], base=2, labelOverlap=True
    )
    panels = list(dict.fromkeys(point["panel"] for point in points))
    y = share("y", _RECALLED, zero=True)
    return line_chart(
        points, models, x, y, reference=models[0], panels=panels, columns=2, width=152, height=96
    )
