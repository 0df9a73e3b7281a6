"""Charts of a sweep: accuracy by bytes of state with the Pareto front, by width, by learning rate, by number of pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display.cells import percent
from recallkit.display.charts import Figure, layer, line_chart, log_number, share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.display.charts import Spec
    from recallkit.training.tables import TradeoffTables

    Row = Mapping[str, Any]


def tradeoff_figures(tables: TradeoffTables) -> list[Figure]:
    """The charts that the sweep has something to show in, first that of Based's Figure 2."""
    rows, rates, pairs = (frame.to_dicts() for frame in (tables.tradeoff, tables.by_rate, tables.by_pairs))
    best, models = "at the best of its learning rates", list(dict.fromkeys(row["model"] for row in rows))
    tasks = tables.tradeoff["task"].unique().to_list()
    where = f" ({tasks[0]})" if len(tasks) == 1 else ""
    caption = f"Accuracy on MQAR{where} by bytes of state in float32, each model {best}; grey: the Pareto front."
    found = [Figure("tradeoff", "Recall by bytes of state", caption, _drawn(rows, "state_bytes", "bytes of state", models), models)]
    for name, shown, title, axis in (
        ("width", rows, "Recall by width", "width"),
        ("learning_rate", _of_best(rates, rows), "Recall by learning rate", "learning rate"),
        ("pairs", _of_best(pairs, rows), "Recall by number of pairs", "number of key-value pairs"),
    ):
        if len({row[name] for row in shown}) > 1:
            what = f"each model {best}" if name == "width" else "of the most accurate of each line"
            drawn = _drawn(_highest(shown, name), name, axis, models)
            found.append(Figure(f"tradeoff_by_{name}", title, f"Accuracy on MQAR{where} by {axis}, {what}.", drawn, models))
    return found


def _of_best(rows: Sequence[Row], models: Sequence[Row]) -> list[Row]:
    """The rows of each line's most accurate model, the smallest among equals."""
    best: dict[tuple[str, str], Row] = {}
    for row in sorted(models, key=lambda row: (row["accuracy"], -row["state_bytes"])):
        best[row["task"], row["model"]] = row
    kept = {(row["task"], row["model"], row["width"], row["size"]) for row in best.values()}
    return [row for row in rows if (row["task"], row["model"], row["width"], row["size"]) in kept]


def _highest(rows: Sequence[Row], x: str) -> list[Row]:
    """Of a line's models at the same place, the most accurate."""
    return list({(row["task"], row["model"], row[x]): row for row in sorted(rows, key=lambda row: row["accuracy"])}.values())


def _drawn(rows: Sequence[Row], x: str, title: str, models: Sequence[str]) -> Spec:
    """A plot per task below each other, all with the same axes."""
    points = []
    for row in rows:
        at = f"width {row['width']}, {row['size']}".removesuffix(", ")
        point = {"model": row["model"], "x": row[x], "y": row["accuracy"], "panel": row["task"], "front": row.get("pareto", False)}
        points.append({**point, "at": at, "shown": percent(row["accuracy"])})
    points.sort(key=lambda point: (point["x"], point["y"]))
    tasks = list(dict.fromkeys(point["panel"] for point in points))
    base, axis = (10, {"format": "~g"}) if x == "learning_rate" else (2, {"labelOverlap": True})
    y = share("y", "accuracy", domain=[0, 1])
    front = layer("line", "datum.front", channels={"y": y}, interpolate="step-after", strokeWidth=5, opacity=0.25, color="soft")
    before = [front] if x == "state_bytes" else []
    places = log_number("x", title, [point["x"] for point in points], base=base, **axis)
    return line_chart(points, models, places, y, *before, panels=tasks if len(tasks) > 1 else ())
