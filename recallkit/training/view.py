"""What is shown of a sweep: accuracy by bytes of state, number of pairs, distance; and of a training on text: its loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import cells
from recallkit.display.cells import counted, percent, span
from recallkit.display.charts import Figure, front_layer, line_chart, log_number, number, share
from recallkit.display.exports import Look, command_line
from recallkit.display.tables import Table
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables
from recallkit.training.tables import TradeoffTables, TrainingTables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from recallkit.display.cells import Cell, Row
    from recallkit.display.charts import Spec

_MOST_SAID = 3
_NEAR = 0.05
"""Models whose accuracy is within this of the best are about as accurate."""
_MODEL = ("task", "model", "width", "size")


def look_at_sweep(folder: Path, tables: TradeoffTables | None = None) -> Look:
    """The sweep in a folder as people see it: its tables are read unless they are given."""
    tables, manifest = tables or read_tables(TradeoffTables, folder), artifacts.read_manifest(folder / "tradeoff.parquet")
    shown = shown_tradeoff(tables)
    return Look(folder, "tradeoff", tables, shown, tradeoff_figures, answer(tables), method(manifest), command(manifest))


def answer(tables: TradeoffTables) -> str:
    """A sentence for each of the first tasks: the most accurate model, and the smallest state of one nearly as accurate."""
    said, tasks = [], _tasks(tables)
    for task in tasks[:_MOST_SAID]:
        rows = tables.tradeoff.filter(task=task).to_dicts()
        best = min(rows, key=lambda row: (-row["accuracy"], row["state_bytes"]))
        near = min((row for row in rows if row["accuracy"] >= best["accuracy"] - _NEAR), key=lambda row: row["state_bytes"])
        where = f" on {task}" * (len(tasks) > 1)
        shown = f"{_named(best)} gives {percent(best['accuracy'])} of the answers{where} with {best['state_bytes']:,} bytes of state"
        if len(rows) > 1:
            shown += f", the most of {len(rows):,} models"
        if near["state_bytes"] < best["state_bytes"]:
            other = f"the {near['state_bytes']:,} bytes of {_named(near)}, with {percent(near['accuracy'])}"
            shown += f"; the smallest state within {100 * _NEAR:.0f} points of that is {other}"
        said.append(f"{shown}.")
    return " ".join(said)


def _tasks(tables: TradeoffTables) -> list[str]:
    return tables.tradeoff["task"].unique(maintain_order=True).to_list()


def _size(row: Row) -> str:
    return f"{row['width']}, {row['size']}".removesuffix(", ")


def _named(row: Row) -> str:
    """`mamba (width 64, state 16)`."""
    return f"{row['model']} (width {_size(row)})"


def method(manifest: Mapping[str, Any]) -> dict[str, str]:
    """How it was measured: the runs, their rates, the machines."""
    runs = manifest["options"]["runs"]
    rates = ", ".join(f"{rate:.2g}" for rate in sorted({run["learning_rate"] for run in runs}))
    return {
        "Runs": f"{counted(len(runs), 'run')} at learning rates {rates}, of which each model's best counts; vocabulary of "
        f"{runs[0]['task']['vocab']:,} ids, seed {runs[0]['seed']}",
        "State": "bytes in float32 after the longest test",
        "Machines": ", ".join(manifest["machines"]),
    }


def command(manifest: Mapping[str, Any]) -> str:
    """The command that makes it again, with the options that are not those of the preset."""
    return command_line("train", task=manifest["task"], preset=manifest["options"]["preset"], **manifest["choices"], o="DIR")


# ------------------------------------------------------------------------------------------------------------- tables


_NAMED = {"model": cells.name("model"), "width, options": _size}
_OF_MODEL = {
    **_NAMED,
    "state bytes": cells.number("state_bytes"),
    "accuracy": cells.share("accuracy"),
    "at rate": lambda row: f"{row['learning_rate']:.2g}{'*' if row['at_edge'] else ''}",
    "Pareto": lambda row: "yes" if row["pareto"] else "",
}
_PARETO = "no other model is more accurate with as small a state (float32, after the longest test), or as accurate with a smaller one"


def shown_tradeoff(tables: TradeoffTables) -> dict[str, Table]:
    """What is printed, for each task: models at their best rate, accuracy by number of pairs, by distance."""
    found: dict[str, Table] = {}
    tasks = _tasks(tables)
    for place, task in enumerate(tasks, 1):
        of_task = TradeoffTables(*(frame.filter(task=task) for frame in (tables.tradeoff, tables.by_rate, tables.by_distance)))
        models = of_task.tradeoff.to_dicts()
        ending = "" if len(tasks) == 1 else f"-{place}"
        at_edge = " * the lowest or highest rate that was tried." if any(row["at_edge"] for row in models) else ""
        found[f"tradeoff{ending}"] = Table.of(
            f"{task}: accuracy at the best learning rate", _OF_MODEL, models, f"Pareto: {_PARETO}.{at_edge}"
        )
        tests = _accuracies(_summed(of_task, "length", "pairs"), "length", "pairs", form=percent)
        if len(tests) > 1:
            sizes = sorted(pairs for (_, pairs), _ in tests)
            guess = " and ".join(f"{percent(1 / pairs)} at {pairs:,}" for pairs in (sizes[0], sizes[-1]))
            is_of_one = len({length for (length, _), _ in tests}) == 1
            columns = [(f"{pairs:,}" if is_of_one else f"{pairs:,} in {length:,}", cell) for (length, pairs), cell in tests]
            title, caption = "Accuracy by number of pairs, at the best rate", f"Guessing among as many values as pairs: {guess}."
            found[f"pairs{ending}"] = Table.of(title, [*_NAMED.items(), *columns], models, caption)
        columns = [(f"{high:,}", cell) for (high,), cell in _accuracies(_summed(of_task, "high"), "high", form=_whole)]
        caption = "Columns: distance from an answer to its query, up to so many ids; over all numbers of pairs."
        found[f"distance{ending}"] = Table.of("Accuracy by distance in %, at the best rate", [*_NAMED.items(), *columns], models, caption)
    return found


def _whole(share: float | None) -> str:
    """A share in %, for a table of many columns."""
    return cells.or_dash(share and 100 * share, ".0f")


def _accuracies(rows: Sequence[Row], *by: str, form: Callable[[float | None], str]) -> list[tuple[tuple[Any, ...], Cell]]:
    """A column of accuracies for each value of the columns `by`, in their order."""
    found = {(row["model"], _size(row), *(row[name] for name in by)): row["accuracy"] for row in rows}

    def column(place: tuple[Any, ...]) -> Cell:
        return lambda row: form(found.get((row["model"], _size(row), *place)))

    return [(place, column(place)) for place in sorted({tuple(row[name] for name in by) for row in rows})]


def _summed(tables: TradeoffTables, *by: str) -> list[dict[str, Any]]:
    """Rows of `by_distance`, summed over all that is not the model or in `by`."""
    import polars as pl

    asked, low = pl.col("num_queries"), pl.col("low").min()
    of_all = tables.by_distance.group_by(*_MODEL, *by, maintain_order=True)
    return of_all.agg((pl.col("accuracy") * asked).sum() / asked.sum(), low).to_dicts()


# ------------------------------------------------------------------------------------------------------------- charts


def tradeoff_figures(tables: TradeoffTables) -> list[Figure]:
    """The charts that the sweep has something to show in, first that of Based's Figure 2."""
    rows, tasks = tables.tradeoff.to_dicts(), _tasks(tables)
    models = list(dict.fromkeys(row["model"] for row in rows))
    where = f" on {tasks[0]}" if len(tasks) == 1 else ""
    caption = f"Accuracy{where} by bytes of state in float32, each model at the best of its learning rates; grey: the Pareto front."
    found = [Figure("tradeoff", "Recall by bytes of state", caption, _drawn(rows, "state_bytes", "bytes of state", models), models)]
    best: dict[tuple[str, str], Row] = {}  # of each line the most accurate model, the smallest among equals
    for row in sorted(rows, key=lambda row: (row["accuracy"], -row["state_bytes"])):
        best[row["task"], row["model"]] = row
    for name, x, axis in (("pairs", "pairs", "number of key-value pairs"), ("distance", "high", "distance in ids")):
        shown = [row for row in _summed(tables, x) if all(row[column] == best[row["task"], row["model"]][column] for column in _MODEL)]
        if len({row[x] for row in shown}) > 1:
            drawn = _drawn(shown, x, axis, models)
            caption = f"Accuracy{where} by {axis}, for the most accurate model of each line."
            found.append(Figure(f"tradeoff_by_{name}", f"Recall by {axis}", caption, drawn, models))
    return found


def _drawn(rows: Sequence[Row], x: str, title: str, models: Sequence[str]) -> Spec:
    """A plot per task below each other, all with the same axes."""
    points = []
    for row in sorted(rows, key=lambda row: (row[x], row["accuracy"])):
        at = f"width {_size(row)}"
        at += f", {span(row['low'], row['high'])} ids" if x == "high" else f", {counted(row['pairs'], 'pair')}" if x == "pairs" else ""
        point = {"model": row["model"], "x": row[x], "y": row["accuracy"], "panel": row["task"], "front": row.get("pareto", False)}
        points.append({**point, "at": at, "shown": percent(row["accuracy"])})
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    y = share("y", "accuracy", domain=[0, 1])
    before = [front_layer(y)] if x == "state_bytes" else []
    places = log_number("x", title, [point["x"] for point in points], base=2, labelOverlap=True)
    return line_chart(points, models, places, y, *before, panels=tasks if len(tasks) > 1 else ())


# ------------------------------------------------------------------------------------------------------ a training on text

_POINTS = 10
"""Points of the curve that are printed, the last one among them."""


def look_at_training(folder: Path, tables: TrainingTables | None = None) -> Look:
    """The training in a folder as people see it: its table is read unless it is given."""
    tables, manifest = tables or read_tables(TrainingTables, folder), artifacts.read_manifest(folder / "training.parquet")
    where = f"The model is checkpoint-{manifest['num_steps']} in that folder: `gap`, `track` and every other command take it by its path."
    shown, told = _training_table(tables), _training_answer(tables)
    return Look(folder, "training", tables, shown, _training_figures, told, _training_method(manifest), training_command(manifest), [where])


def _training_answer(tables: TrainingTables) -> str:
    """One sentence: the loss at the end."""
    last = tables.training.row(-1, named=True)
    said = f"After {last['tokens']:,} tokens, {last['model']} predicts unread text with a loss of {last['loss_nats']:.3f} nats per token"
    if last["lists_4"] is not None:
        said += f", and gives {cells.percent(last['lists_4'])} of the values in lists of 4 pairs"
    return f"{said}."


def _training_table(tables: TrainingTables) -> dict[str, Table]:
    """Points of the curve, equally far apart."""
    rows = tables.training.to_dicts()
    step = max(1, len(rows) // _POINTS)
    kept = rows[::-1][::step][::-1]
    columns = {
        "step": lambda row: f"{row['step']:,}",
        "tokens": lambda row: f"{row['tokens']:,}",
        "loss (nats)": cells.number("loss_nats", ".3f"),
        "learning rate": lambda row: f"{row['learning_rate']:.2g}",
    }
    if rows[0]["lists_4"] is not None:
        columns |= {"lists of 4": cells.share("lists_4"), "of 16 pairs": cells.share("lists_16")}
    caption = "Loss: the mean over the steps since the previous row. Every sequence is read once, so this is the loss on unread text."
    return {"training": Table.of(f"Training of {rows[0]['model']}", columns, kept, caption)}


def _training_figures(tables: TrainingTables) -> list[Figure]:
    """The curve."""
    rows = tables.training.to_dicts()
    model = rows[0]["model"]
    points = [
        {"model": model, "x": row["tokens"], "y": row["loss_nats"], "at": f"{row['tokens']:,} tokens", "shown": f"{row['loss_nats']:.3f}"}
        for row in rows
    ]
    drawn = line_chart(points, [model], number("x", "tokens read"), number("y", "loss (nats per token)", zero=False))
    return [Figure("training", "Loss by tokens read", f"Loss of {model} on unread text, by tokens read.", drawn, [model])]


def _training_method(manifest: Mapping[str, Any]) -> dict[str, str]:
    """How it was trained."""
    options = manifest["options"]
    recipe = options["recipe"]
    optimiser = f"Muon at {recipe['muon']:g} for matrices, AdamW" if recipe["muon"] else "AdamW"
    return {
        "Model": f"{options['model']}, {manifest['parameters']:,} parameters, seed {options['seed']}",
        "Text": f"{manifest['tokens']:,} tokens in sequences of {options['seq_len']:,}, {recipe['batch']} a step",
        "Recipe": f"{optimiser} at {recipe['learning_rate']:g}, {recipe['decay']} decay to {recipe['lowest']:g}"
        + (", key-value lists before and among the text" if recipe["lists"] else ""),
        "Machine": manifest["machine"],
    }


def training_command(manifest: Mapping[str, Any]) -> str:
    """The command that makes it again."""
    options, asked = manifest["options"], manifest["asked"]
    tokens = options["text"]["limit_tokens"]
    chosen = {"tokens": tokens, "seq_len": options["seq_len"], "seed": options["seed"] or None, "batch": options["recipe"]["batch"]}
    rate, alone = options["recipe"]["learning_rate"], options["model"].startswith("zoo:") and not options["recipe"]["lists"]
    more = {"learning_rates": rate, "no_lists": alone, **{name: asked.get(name) for name in ("tokenizer", "checkpoint_every")}}
    return command_line("train", asked["model"], "TEXT", **chosen, **more, o="DIR")
