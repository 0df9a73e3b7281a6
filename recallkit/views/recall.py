"""Recall evaluations, and tasks of lm-eval."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from recallkit import console
from recallkit.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import polars as pl

    from recallkit.stages.recall import RecallTables


def recall_json(tables: RecallTables, folder: Path) -> dict[str, Any]:
    """Every table of the comparison, row by row."""
    return {"path": str(folder), **{field.name: getattr(tables, field.name).to_dicts() for field in dataclasses.fields(tables)}}


def print_recall(tables: RecallTables, folder: Path, out: Path) -> None:
    """Accuracy of each model on each task with its standard error, the differences to the reference, and what was cut."""
    rows = tables.recall.to_dicts()
    tasks, models = (list(dict.fromkeys(row[name] for row in rows)) for name in ("task", "model"))
    cells = {(row["model"], row["task"]): row for row in rows}
    console.print_table(
        Table(
            f"Recall: generations with the value in % (standard error); {_manner(rows[0])}",
            ["model", *tasks],
            [[model, *(_accuracy(cells[model, task]) for task in tasks)] for model in models],
            caption="\n".join(
                [*(_what_was_asked(cells[models[0], task]) for task in tasks), "Greedy, 48 tokens, cut at the first newline."]
            ),
        )
    )
    if len(models) > 1:
        console.print_table(
            Table(
                f"Difference to {models[0]}",
                ["model", "task", "points", "95 % interval"],
                [[row["model"], row["task"], f"{100 * row['difference']:+.1f}", _points(row)] for row in rows if row["model"] != models[0]],
            )
        )
    console.print_table(
        Table(
            "NLL of the answer after the prompt, in nats a token",
            ["model", *tasks],
            [[model, *(_nats(cells[model, task]["answer_nll"]) for task in tasks)] for model in models],
        )
    )
    for line in filter(None, map(_worth_knowing, rows)):
        console.stdout().print(line, markup=False, soft_wrap=True)
    for what, where in (("Tables (Parquet)", folder), ("a row a prompt", out / "documents"), ("lm-eval's files", out / "lm-eval")):
        console.stdout().print(f"{what}: {where}", markup=False, soft_wrap=True)


def _manner(row: Mapping[str, Any]) -> str:
    twice, cut = ", document read twice" * (row["prompt"] == "twice"), ", cut around the answer" * (row["cut"] == "answer")
    return f"task version {row['version']}{twice}{cut}"


def _accuracy(row: Mapping[str, Any]) -> str:
    error = row["standard_error"]
    return f"{100 * row['accuracy']:.1f}" + ("" if error is None else f" ({100 * error:.1f})")


def _points(row: Mapping[str, Any]) -> str:
    low, high = row["difference_low"], row["difference_high"]
    return "–" if low is None else f"{100 * low:+.1f} to {100 * high:+.1f}"


def _nats(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _what_was_asked(row: Mapping[str, Any]) -> str:
    """Numbers of prompts and documents; never without those that were dropped."""
    dropped = f", {_counted(row['dropped'], 'row')} without a value dropped" if row["dropped"] else ""
    published = "" if row["comparable"] else "; comparable with no published figures"
    return f"{row['task']}: {_counted(row['num_rows'], 'prompt')} of {_counted(row['num_documents'], 'document')}{dropped}{published}."


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)


def _worth_knowing(row: Mapping[str, Any]) -> str:
    """What explains a low accuracy otherwise than by the model: "" where nothing does."""
    facts = {
        "cut on the left to fit its context": row["truncated"],
        "whose answer stood only in what was cut": row["answer_cut"],
        "in which the value does not stand": row["absent"],
        "whose value holds a newline, which no generation does": row["multiline"],
        "answered with nothing": row["empty"],
    }
    found = ", ".join(f"{number:,} {fact}" for fact, number in facts.items() if number)
    return f"{row['model']}, {row['task']}: of {_counted(row['num_rows'], 'prompt')} {found}" if found else ""


def print_metrics(metrics: pl.DataFrame, out: Path) -> None:
    """lm-eval's own metrics, a row each."""
    rows = [
        [
            row["model"],
            row["task"] if row["version"] is None else f"{row['task']} v{row['version']}",
            row["metric"] if row["filter"] == "none" else f"{row['metric']},{row['filter']}",
            f"{row['value']:.4f}",
            "–" if row["standard_error"] is None else f"{row['standard_error']:.4f}",
        ]
        for row in metrics.iter_rows(named=True)
    ]
    console.print_table(Table("Tasks of lm-eval, unchanged", ["model", "task", "metric", "value", "std. error"], rows))
    console.stdout().print(f"lm-eval's files (JSON): {out / 'lm-eval'}", markup=False, soft_wrap=True)
