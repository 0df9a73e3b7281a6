"""Charts of recall evaluations: accuracy of every model by task, and by what makes recall hard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display.cells import counted, percent, span
from recallkit.display.charts import (
    TIP,
    Figure,
    column,
    labels,
    layer,
    log_number,
    model_channels,
    number,
    shorten,
)
from recallkit.display.templates import bars, heat_map, line_chart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.display.charts import Spec
    from recallkit.recall.tables import RecallTables

    Row = Mapping[str, Any]

_FEW_PROMPTS = 20
"""An accuracy over fewer prompts is drawn hollow: one prompt is five percentage points or more."""
_TASK = 110
"""Pixels of a task's plot: those of three are side by side."""
_BUCKETS = {
    "by_distance": (
        "By distance of the answer",
        "tokens back",
        "distance (tokens from the answer to the prompt's end, in",
    ),
    "by_occurrences": (
        "By occurrences of the answer",
        "occurrences",
        "occurrences (of the answer in the prompt, in",
    ),
    "by_length": ("By length of the prompt", "prompt's tokens", "length (tokens of the prompt, in"),
}


def figures(tables: RecallTables) -> list[Figure]:
    """All charts of an evaluation that have data; the first model of the table is the reference."""
    rows = tables.recall.to_dicts()
    if not rows:
        return []
    models, reference = list(dict.fromkeys(row["model"] for row in rows)), rows[0]["reference"]
    within = ", with its 95 % interval (documents are the units)" * any(
        row["ci_low"] is not None for row in rows
    )
    caption = f"Share of prompts whose generation contains the value{within}."
    drawn = [
        Figure(
            "recall_accuracy",
            "Accuracy by task",
            caption,
            _accuracy(models, reference, rows),
            models,
        )
    ]
    for name, (title, axis, what) in _BUCKETS.items():
        if points := _points(getattr(tables, name).to_dicts(), what.split()[0]):
            hollow = f" Hollow: fewer than {_FEW_PROMPTS} prompts." * any(
                point["few"] for point in points
            )
            caption = f"Accuracy by {what} buckets of powers of two).{hollow}"
            drawn.append(
                Figure(
                    f"recall_{name}",
                    title,
                    caption,
                    _buckets(models, reference, points, axis),
                    models,
                )
            )
    depths = tables.by_depth.partition_by("task", as_dict=True, maintain_order=True)
    return [
        *drawn,
        *(_depths(task, frame.to_dicts(), models, reference) for (task,), frame in depths.items()),
    ]


def _depths(task: str, rows: Sequence[Row], models: Sequence[str], reference: str) -> Figure:
    """A heat map for each model: the fuller the colour of a cell, the more often the needle was
    found at this length and depth."""
    names = labels(models, 20, reference)
    drawn = []
    for row in rows:
        length, depth = f"{row['length']:,}", f"{100 * row['depth']:.0f} %"
        times = f"{percent(row['accuracy'])} of {counted(row['num_rows'], 'prompt')}"
        tip = f"{shorten(row['model'], 60)}, {task}, {length} ids, depth {depth}: {times}"
        place = {
            "panel": names[row["model"]],
            "model": row["model"],
            "length": length,
            "depth": depth,
        }
        drawn.append({**place, "accuracy": row["accuracy"], "tip": tip})
    lengths = list(dict.fromkeys(cell["length"] for cell in drawn))
    depths = list(dict.fromkeys(cell["depth"] for cell in drawn))
    spec = heat_map(
        drawn,
        column("length", sort=lengths, axis={"title": "ids", "labelAngle": 0}),
        column("depth", sort=depths, axis={"title": "depth of the needle"}),
        "accuracy",
        {"domain": [0, 1], "range": [0.04, 1]},
        panels=list(dict.fromkeys(cell["panel"] for cell in drawn)),
        columns=3,
        width=_TASK,
        height=13 * len(depths),
    )
    caption = (
        "Share of needles found by length of the prompt and depth of the needle, from 0 % (faint) "
        f"to 100 % (full colour). Task {task}; the depth is the share of the context before the "
        "needle."
    )
    return Figure(f"recall_depth_{task}", f"Needles found: {task}", caption, spec, models)


def _accuracy(models: Sequence[str], reference: str, rows: Sequence[Row]) -> Spec:
    """A row for each model, with its accuracy and the interval, and a plot beside the others for
    each task."""
    names, tasks = (
        labels(models, 20, reference),
        labels(list(dict.fromkeys(row["task"] for row in rows)), 36),
    )
    drawn = []
    for row in rows:
        low, high, error = row["ci_low"], row["ci_high"], row["standard_error"]
        within = "" if low is None else f", 95 % interval {percent(low)} to {percent(high)}"
        about = "" if error is None else f" (standard error {percent(error)})"
        share, prompts = percent(row["accuracy"]), counted(row["num_rows"], "prompt")
        tip = (
            f"{shorten(row['model'], 60)}, {shorten(row['task'], 60)}: {share}{about}{within}, "
            f"{prompts}"
        )
        place = {"panel": tasks[row["task"]], "model": names[row["model"]]}
        drawn.append({**place, "accuracy": row["accuracy"], "low": low, "high": high, "tip": tip})
    paint = model_channels(names, legend=False)
    return bars(
        drawn,
        list(names.values()),
        _accuracy_channel("accuracy"),
        layer(
            "point",
            channels={"fill": paint["fill"], "shape": paint["shape"], **TIP},
            stroke=None,
            size=44,
            opacity=1,
        ),
        rule={"channels": {"stroke": paint["stroke"]}, "strokeWidth": 1.4},
        panels=list(tasks.values()),
        columns=len(tasks),
        width=_TASK,
        height=18 * len(names),
    )


def _accuracy_channel(name: str) -> Spec:
    return number(name, "accuracy", axis={"format": "~%", "values": [0, 0.5, 1]}, domain=[0, 1])


def _points(rows: Sequence[Row], what: str) -> list[dict[str, Any]]:
    """The points of one way to divide prompts into buckets, up to `high` each."""
    tasks, points = labels(list(dict.fromkeys(row["task"] for row in rows)), 36), []
    for row in rows:
        at = f"{shorten(row['task'], 60)}, {what} {span(row['low'], row['high'])}"
        said = {
            "at": at,
            "shown": f"{percent(row['accuracy'])}, {counted(row['num_rows'], 'prompt')}",
        }
        few, panel = row["num_rows"] < _FEW_PROMPTS, tasks[row["task"]]
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
    return points


def _buckets(models: Sequence[str], reference: str, points: Sequence[Row], axis: str) -> Spec:
    x = log_number("x", axis, [point["x"] for point in points], base=2)
    panels = list(dict.fromkeys(point["panel"] for point in points))
    return line_chart(
        points,
        models,
        x,
        _accuracy_channel("y"),
        reference=reference,
        panels=panels,
        columns=len(panels),
        width=_TASK,
        height=_TASK,
    )
