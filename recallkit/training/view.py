"""A sweep as text and charts: accuracy beside bytes of state, at every learning rate, by number of pairs."""

from __future__ import annotations

from math import sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Any

from recallkit.display import cells
from recallkit.display.cells import counted, percent
from recallkit.display.charts import Figure, front_layer, line_chart, log_number, share
from recallkit.display.exports import Look, command_line
from recallkit.display.tables import Table
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables
from recallkit.training.tables import TradeoffTables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.display.cells import Cell, Row
    from recallkit.display.charts import Spec

_MOST_SAID = 3
_NEAR = 0.05
"""Models whose accuracy is within this of the best are about as accurate."""


def look(folder: Path, tables: TradeoffTables | None = None) -> Look:
    """The sweep in a folder as people see it: its tables are read unless they are given."""
    tables, manifest = tables or read_tables(TradeoffTables, folder), artifacts.read_manifest(folder / "tradeoff.parquet")
    shown = shown_tradeoff(tables)
    return Look(folder, "tradeoff", tables, shown, tradeoff_figures, answer(tables), method(manifest), command(manifest))


def answer(tables: TradeoffTables) -> str:
    """A sentence for each of the first tasks: the most accurate model, and the smallest state of one nearly as accurate."""
    tasks = tables.tradeoff["task"].unique(maintain_order=True).to_list()
    shown = [(task, f" on {task}" * (len(tasks) > 1)) for task in tasks[:_MOST_SAID]]
    return " ".join(_task_answer(_of(tables.tradeoff, task), _of(tables.by_pairs, task), where) for task, where in shown)


def _task_answer(rows: Sequence[Row], by_pairs: Sequence[Row], where: str) -> str:
    best = min(rows, key=lambda row: (-row["accuracy"], row["state_bytes"]))
    near = min((row for row in rows if row["accuracy"] >= best["accuracy"] - _NEAR), key=lambda row: (row["state_bytes"], -row["accuracy"]))
    given = f"{percent(best['accuracy'])} of the values with {best['state_bytes']:,} bytes of state"
    said = f"Of {len(rows):,} models{where}, none gives more values than {_named(best)}, {given}"
    if len(rows) == 1:
        said = f"{_named(best)} gives {given}{where}"
    tests = [row for row in by_pairs if (row["model"], row["width"], row["size"]) == (best["model"], best["width"], best["size"])]
    guess = fmean(1 / row["pairs"] for row in tests)
    chance = sqrt(sum((1 - 1 / row["pairs"]) / row["pairs"] / row["num_queries"] for row in tests)) / len(tests)
    if _is_of_values(best["task"]) and best["accuracy"] <= guess + 2 * chance:
        return f"{said}: not shown to be more than guessing among a sequence's values ({percent(guess)})."
    if len(rows) == 1:
        return f"{said}."
    if near is not best:
        named = f"{near['state_bytes']:,} bytes, of {_named(near)} ({percent(near['accuracy'])})"
        return f"{said}; the smallest state within {100 * _NEAR:.0f} points of that is {named}."
    if all(row["state_bytes"] >= best["state_bytes"] for row in rows):
        return f"{said}; none has a smaller state."
    return f"{said}; none with a smaller state is within {100 * _NEAR:.0f} points of it."


def _is_of_values(task: str) -> bool:
    """Whether the answer to a question is one of a sequence's values, of which there are as many as pairs."""
    return task.startswith(("mqar", "read_twice", "overwriting", "distractors"))


def _named(row: Row) -> str:
    """`mamba (width 64, state 16)`."""
    return f"{row['model']} (width {_size(row)})"


def method(manifest: Mapping[str, Any]) -> dict[str, str]:
    """How it was measured: the runs, their rates, the machines."""
    runs = manifest["options"]["runs"]
    rates = ", ".join(f"{rate:.2g}" for rate in manifest["learning_rates"])
    return {
        "Runs": f"{counted(len(runs), 'run')} at learning rates {rates}, of which each model's best counts; vocabulary of "
        f"{manifest['vocab']:,} ids, seed {manifest['seed']}",
        "State": "bytes in float32 after the longest test",
        "Machines": ", ".join(manifest["machines"]),
    }


def command(manifest: Mapping[str, Any]) -> str:
    """The command that makes it again, with the options that are not those of the preset, if they are known."""
    return command_line("train", task=manifest["task"], preset=manifest["preset"], **manifest.get("choices", {}), o="DIR")


def shown_tradeoff(tables: TradeoffTables) -> dict[str, Table]:
    """What is printed, for each task: models at their best rate, accuracy at every rate, by number of pairs."""
    found: dict[str, Table] = {}
    tasks = tables.tradeoff["task"].unique(maintain_order=True).to_list()
    for number, task in enumerate(tasks, 1):
        models, rates, pairs = (_of(frame, task) for frame in (tables.tradeoff, tables.by_rate, tables.by_pairs))
        ending = "" if len(tasks) == 1 else f"-{number}"
        found[f"tradeoff{ending}"] = _models(models, task)
        found[f"rates{ending}"] = _rates(models, rates)
        if len({(row["length"], row["pairs"]) for row in pairs}) > 1:
            found[f"pairs{ending}"] = _pairs(models, pairs)
    return found


def _of(frame: pl.DataFrame, task: str) -> list[dict[str, Any]]:
    return [row for row in frame.to_dicts() if row["task"] == task]


def _size(row: Row) -> str:
    return f"{row['width']}, {row['size']}".removesuffix(", ")


_NAMED = {"model": cells.name("model"), "width, options": _size}
_OF_MODEL = {
    **_NAMED,
    "state bytes": cells.number("state_bytes"),
    "accuracy": cells.share("accuracy"),
    "at rate": lambda row: f"{row['learning_rate']:.2g}{'*' if row['at_edge'] else ''}",
    "Pareto": lambda row: "yes" if row["pareto"] else "",
}


def _models(rows: Sequence[Row], task: str) -> Table:
    at_edge = " * the lowest or highest rate that was tried." if any(row["at_edge"] for row in rows) else ""
    pareto = "none is more accurate with as small a state (float32, after the longest test), or as accurate with a smaller one"
    caption = f"Pareto: {pareto}.{at_edge}"
    return Table.of(f"{task}: accuracy at the best learning rate", _OF_MODEL, rows, caption)


def _accuracies(rows: Sequence[Row], *by: str) -> list[tuple[tuple[Any, ...], Cell]]:
    """A column of accuracies for each value of the columns `by`, in their order."""
    found = {(row["model"], _size(row), *(row[name] for name in by)): row["accuracy"] for row in rows}

    def column(place: tuple[Any, ...]) -> Cell:
        return lambda row: percent(found.get((row["model"], _size(row), *place)))

    return [(place, column(place)) for place in sorted({tuple(row[name] for name in by) for row in rows})]


def _rates(models: Sequence[Row], rows: Sequence[Row]) -> Table:
    columns = [(f"{rate:.2g}", cell) for (rate,), cell in _accuracies(rows, "learning_rate")]
    return Table.of("Accuracy at each learning rate", [*_NAMED.items(), *columns], models)


def _pairs(models: Sequence[Row], rows: Sequence[Row]) -> Table:
    columns = _accuracies(rows, "length", "pairs")
    pairs, lengths = ([place[end] for place, _ in columns] for end in (1, 0))
    headers = [f"{n:,}" if len(set(lengths)) == 1 else f"{n:,} in {length:,}" for length, n in zip(lengths, pairs, strict=True)]
    headed = [(header, cell) for header, (_, cell) in zip(headers, columns, strict=True)]
    few, many = min(pairs), max(pairs)
    if not _is_of_values(models[0]["task"]):
        return Table.of("Accuracy by number of pairs, at the best rate", [*_NAMED.items(), *headed], models)
    guess = f"Guessing among a sequence's values: {percent(1 / few)} at {counted(few, 'pair')}"
    guess += "." if few == many else f", {percent(1 / many)} at {many:,}."
    return Table.of("Accuracy by number of pairs, at the best rate", [*_NAMED.items(), *headed], models, guess)


# ------------------------------------------------------------------------------------------------------------- charts


def tradeoff_figures(tables: TradeoffTables) -> list[Figure]:
    """The charts that the sweep has something to show in, first that of Based's Figure 2."""
    rows, rates, pairs = (frame.to_dicts() for frame in (tables.tradeoff, tables.by_rate, tables.by_pairs))
    best, models = "at the best of its learning rates", list(dict.fromkeys(row["model"] for row in rows))
    tasks = tables.tradeoff["task"].unique().to_list()
    where = f" on {tasks[0]}" if len(tasks) == 1 else ""
    caption = f"Accuracy{where} by bytes of state in float32, each model {best}; grey: the Pareto front."
    found = [Figure("tradeoff", "Recall by bytes of state", caption, _drawn(rows, "state_bytes", "bytes of state", models), models)]
    for name, shown, title, axis in (
        ("width", rows, "Recall by width", "width"),
        ("learning_rate", _of_best(rates, rows), "Recall by learning rate", "learning rate"),
        ("pairs", _of_best(pairs, rows), "Recall by number of pairs", "number of key-value pairs"),
    ):
        if len({row[name] for row in shown}) > 1:
            what = f"each model {best}" if name == "width" else "of the most accurate of each line"
            drawn = _drawn(_highest(shown, name), name, axis, models)
            found.append(Figure(f"tradeoff_by_{name}", title, f"Accuracy{where} by {axis}, {what}.", drawn, models))
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
    before = [front_layer(y)] if x == "state_bytes" else []
    places = log_number("x", title, [point["x"] for point in points], base=base, **axis)
    return line_chart(points, models, places, y, *before, panels=tasks if len(tasks) > 1 else ())
