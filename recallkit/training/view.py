"""A sweep as text: accuracy beside bytes of state, at every learning rate, by number of pairs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.display.again import command_line
from recallkit.display.cells import counted, percent
from recallkit.display.exports import Look
from recallkit.display.tables import Table
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables
from recallkit.storage.timings import read_timings
from recallkit.training.tables import TradeoffTables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    Row = Mapping[str, Any]

_MOST_SAID = 3
_NEAR = 0.05
"""Models whose accuracy is within this of the best are about as accurate."""


def look(folder: Path) -> Look:
    """A sweep as a page, an export and pictures show it."""
    from recallkit.training.charts import tradeoff_figures

    tables, manifest = read_tables(TradeoffTables, folder), artifacts.read_manifest(folder / "tradeoff.parquet")
    return Look(tables, shown_tradeoff(tables), tradeoff_figures(tables), answer(tables), method(manifest), command(manifest))


def answer(tables: TradeoffTables) -> str:
    """A sentence for each of the first tasks: the most accurate model, and the smallest state of one nearly as accurate."""
    tasks = tables.tradeoff["task"].unique(maintain_order=True).to_list()
    return " ".join(_task_answer(_of(tables.tradeoff, task), f" on {task}" * (len(tasks) > 1)) for task in tasks[:_MOST_SAID])


def _task_answer(rows: Sequence[Row], where: str) -> str:
    best = min(rows, key=lambda row: (-row["accuracy"], row["state_bytes"]))
    near = min((row for row in rows if row["accuracy"] >= best["accuracy"] - _NEAR), key=lambda row: (row["state_bytes"], -row["accuracy"]))
    said = (
        f"Of {len(rows):,} models{where}, {_named(best)} recalls most, {percent(best['accuracy'])} of the values with "
        f"{best['state_bytes']:,} bytes of state"
    )
    if near is best:
        return f"{said}; none with less is within {100 * _NEAR:.0f} points of it."
    return (
        f"{said}; the smallest state within {100 * _NEAR:.0f} points of that is {near['state_bytes']:,} bytes, of {_named(near)} "
        f"({percent(near['accuracy'])})."
    )


def _named(row: Row) -> str:
    """`mamba (width 64, state 16)`."""
    model, size = _key(row)
    return f"{model} (width {size})"


def method(manifest: Mapping[str, Any]) -> dict[str, str]:
    """How it was measured: the runs, their rates, the machines."""
    runs = manifest["options"]["runs"]
    rates = ", ".join(f"{rate:.2g}" for rate in manifest["learning_rates"])
    return {
        "Runs": f"{counted(len(runs), 'run')} at learning rates {rates}, of which each model's best counts; vocabulary of "
        f"{manifest['vocab']:,} ids, places of queries by a power law ({manifest['power']:g}), seed {manifest['seed']}",
        "State": "bytes in float32 after the longest test",
        "Machines": ", ".join(manifest["machines"]),
        "Program": f"recallkit {manifest['recallkit_version']}",
    }


def command(manifest: Mapping[str, Any]) -> str:
    """The command that makes it again, with the options that are not those of the preset, if they are known."""
    named = {"length": "seq_len", "test_length": "test_seq_len"}
    chosen = {named.get(name, name): value for name, value in manifest.get("choices", {}).items()}
    no_mlp = chosen.pop("mlp", None) is False
    return command_line("train-mqar", preset=manifest["preset"], **chosen, no_mlp=no_mlp, o="DIR")


def tradeoff_json(tables: TradeoffTables, folder: Path) -> dict[str, Any]:
    """All tables row by row."""
    rows = {field.name: getattr(tables, field.name).to_dicts() for field in dataclasses.fields(tables)}
    return {"path": str(folder), **rows, "timings": read_timings(folder / "manifest.json", kind="tradeoff")}


def print_tradeoff(tables: TradeoffTables, folder: Path) -> None:
    """The tables, and where they are."""
    console.print_tables(shown_tradeoff(tables).values())
    console.print_line(f"Tables (Parquet): {folder}", is_path=True)


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


_NAMED = ("model", "width, options")


def _key(row: Row) -> tuple[str, str]:
    return row["model"], f"{row['width']}, {row['size']}".removesuffix(", ")


def _models(rows: Sequence[Row], task: str) -> Table:
    cells = [
        [
            *_key(row),
            f"{row['state_bytes']:,}",
            percent(row["accuracy"]),
            f"{row['learning_rate']:.2g}{'*' if row['at_edge'] else ''}",
            "yes" if row["pareto"] else "",
        ]
        for row in rows
    ]
    notes = ["Pareto: no model with as small a state (float32, after the longest test) is as accurate."]
    if any(row["at_edge"] for row in rows):
        notes.append("* the lowest or highest rate that was tried.")
    headers = [*_NAMED, "state bytes", "accuracy", "at rate", "Pareto"]
    return Table(f"MQAR, {task}: accuracy at the best learning rate", headers, cells, caption=" ".join(notes))


def _rates(models: Sequence[Row], rows: Sequence[Row]) -> Table:
    found = {(_key(row), row["learning_rate"]): row["accuracy"] for row in rows}
    rates = sorted({row["learning_rate"] for row in rows})
    cells = [[*_key(row), *(percent(found.get((_key(row), rate))) for rate in rates)] for row in models]
    return Table("Accuracy at each learning rate", [*_NAMED, *(f"{rate:.2g}" for rate in rates)], cells)


def _pairs(models: Sequence[Row], rows: Sequence[Row]) -> Table:
    found = {(_key(row), row["length"], row["pairs"]): row["accuracy"] for row in rows}
    tests = sorted({(row["length"], row["pairs"]) for row in rows})
    cells = [[*_key(row), *(percent(found.get((_key(row), *test))) for test in tests)] for row in models]
    lengths = sorted({length for length, _ in tests})
    headers = [f"{pairs:,}" if len(lengths) == 1 else f"{pairs:,} in {length:,}" for length, pairs in tests]
    few, many = min(tests, key=lambda test: test[1])[1], max(tests, key=lambda test: test[1])[1]
    guess = f"Guessing among a sequence's values: {percent(1 / few)} at {few:,} pairs, {percent(1 / many)} at {many:,}."
    return Table("Accuracy by number of pairs, at the best rate", [*_NAMED, *headers], cells, caption=guess)
