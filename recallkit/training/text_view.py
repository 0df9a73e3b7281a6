"""A training on text as text and a chart: the loss by tokens read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import cells
from recallkit.display.charts import Figure, line_chart, number
from recallkit.display.exports import Look, command_line
from recallkit.display.tables import Table
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables
from recallkit.training.text import TRAINING, TrainingTables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SHOWN = 10
"""Points of the curve that are printed, the last one among them."""


def look(folder: Path, tables: TrainingTables | None = None) -> Look:
    """The training in a folder as people see it: its table is read unless it is given."""
    tables, manifest = tables or read_tables(TrainingTables, folder), artifacts.read_manifest(folder / f"{TRAINING}.parquet")
    return Look(
        folder, TRAINING, tables, shown(tables), figures, answer(tables), method(manifest), command(manifest), [checkpoint(manifest)]
    )


def answer(tables: TrainingTables) -> str:
    """One sentence: the loss at the end."""
    last = tables.training.row(-1, named=True)
    said = f"After {last['tokens']:,} tokens {last['model']} predicts text that it has not read at {last['loss_nats']:.3f} nats per token"
    if last["lists_4"] is not None:
        said += f", and {cells.percent(last['lists_4'])} of the values in lists of 4 pairs"
    return f"{said}."


def checkpoint(manifest: Mapping[str, Any]) -> str:
    """Where the model is."""
    return f"The model is checkpoint-{manifest['num_steps']} in that folder: `gap`, `track` and every other command take it by its path."


def shown(tables: TrainingTables) -> dict[str, Table]:
    """Points of the curve, equally far apart."""
    rows = tables.training.to_dicts()
    step = max(1, len(rows) // _SHOWN)
    kept = rows[::-1][::step][::-1]
    columns = {
        "step": lambda row: f"{row['step']:,}",
        "tokens": lambda row: f"{row['tokens']:,}",
        "loss (nats)": cells.number("loss_nats", ".3f"),
        "learning rate": lambda row: f"{row['learning_rate']:.2g}",
    }
    if rows[0]["lists_4"] is not None:
        columns |= {"lists of 4": cells.share("lists_4"), "of 16 pairs": cells.share("lists_16")}
    caption = "Loss: the mean over the steps since the point before. Every sequence is read once, so it is of text not read before."
    return {TRAINING: Table.of(f"Training of {rows[0]['model']}", columns, kept, caption)}


def figures(tables: TrainingTables) -> list[Figure]:
    """The curve."""
    rows = tables.training.to_dicts()
    model = rows[0]["model"]
    points = [
        {"model": model, "x": row["tokens"], "y": row["loss_nats"], "at": f"{row['tokens']:,} tokens", "shown": f"{row['loss_nats']:.3f}"}
        for row in rows
    ]
    drawn = line_chart(points, [model], number("x", "tokens read"), number("y", "loss (nats per token)", zero=False))
    return [Figure(TRAINING, "Loss by tokens read", f"Loss of {model} on text that it has not read yet, by tokens read.", drawn, [model])]


def method(manifest: Mapping[str, Any]) -> dict[str, str]:
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


def command(manifest: Mapping[str, Any]) -> str:
    """The command that makes it again."""
    options, asked = manifest["options"], manifest["asked"]
    tokens = options["text"]["limit_tokens"]
    chosen = {"tokens": tokens, "seq_len": options["seq_len"], "seed": options["seed"] or None, "batch": options["recipe"]["batch"]}
    rate, alone = options["recipe"]["learning_rate"], options["model"].startswith("zoo:") and not options["recipe"]["lists"]
    more = {"learning_rates": rate, "no_lists": alone, "tokenizer": asked["tokenizer"]}
    return command_line("train", asked["model"], "TEXT", **chosen, **more, o="DIR")
