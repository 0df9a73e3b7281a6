"""Prints multi-query associative recall: accuracies, perplexities and differences by number of pairs."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.display.again import command_line
from recallkit.display.cells import abbreviate, difference_phrase, interval_phrase, nearest_and_farthest, percent, sparkline
from recallkit.display.exports import Look
from recallkit.display.tables import Table
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables
from recallkit.storage.timings import read_timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.mqar.tables import MqarTables

    Row = Mapping[str, Any]

_MOST_COLUMNS = 5
"""Numbers of pairs per table in a terminal, beside names, a label and a curve; others follow in further tables."""

_CURVES_WIDTH = 48
"""Columns of a terminal that curves by distance may take; names are folded if too few remain."""

_LEAST_QUERIES = 10
"""Fewest queries of a block by distance: a share of fewer is too uncertain to show."""


def mqar_json(tables: MqarTables, folder: Path) -> dict[str, Any]:
    """Both tables of the comparison, row by row."""
    rows = {field.name: getattr(tables, field.name).to_dicts() for field in dataclasses.fields(tables)}
    return {"path": str(folder), **rows, "timings": read_timings(folder / "manifest.json", kind="mqar")}


def look(folder: Path) -> Look:
    """A comparison as a page, an export and pictures show it."""
    from recallkit.mqar.charts import mqar_figures
    from recallkit.mqar.tables import MqarTables

    tables, manifest = read_tables(MqarTables, folder), artifacts.read_manifest(folder / "mqar.parquet")
    facts = {name: manifest[name] for name in ("pairs", "power", "seed")}
    command = command_line("mqar", *manifest["models"], seq_len=manifest["length"], **facts, samples=manifest["num_samples"], o="DIR")
    drawn = mqar_figures(tables.mqar, tables.by_distance)
    return Look(tables, shown_mqar(tables), drawn, answer(tables), method(tables, manifest), command)


def answer(tables: MqarTables) -> str:
    """How much the first model recalls with the most pairs, and the others beside it."""
    rows = tables.mqar.filter(pairs=tables.mqar["pairs"].max()).to_dicts()
    first, *others = rows
    most = "With" if tables.mqar["pairs"].n_unique() == 1 else "With the most pairs,"
    said = (
        f"{most} {first['pairs']:,} in {first['length']:,} ids, {first['model']} recalls {percent(first['accuracy'])} of the "
        f"values ({interval_phrase(first['accuracy_low'], first['accuracy_high'])})"
    )
    told = [
        f"{row['model']} {percent(row['accuracy'])} "
        f"({difference_phrase(*(row[f'accuracy_difference{end}'] for end in ('', '_low', '_high')))})"
        for row in nearest_and_farthest(others, "accuracy_difference")
    ]
    return f"{'; '.join([said, *told])}."


def method(tables: MqarTables, manifest: Mapping[str, Any]) -> dict[str, str]:
    """How it was measured: the sequences, their vocabularies, the intervals."""
    rows = tables.mqar.to_dicts()
    return {
        "Sequences": f"{manifest['num_samples']:,} of {manifest['length']:,} ids for each number of pairs, from seed {manifest['seed']}, "
        f"places of queries by a power law ({manifest['power']:g}) as in Zoology; nothing is trained",
        "Vocabulary": " ".join(_worth_knowing(rows, manifest["of_models"])),
        "Intervals": "95 %, sequences as units; differences are paired, of the same sequences",
        "Program": f"recallkit {manifest['recallkit_version']}",
    }


def shown_mqar(tables: MqarTables) -> dict[str, Table]:
    """What is printed, without curves: accuracies, perplexities and, for more than one model, differences."""
    rows = tables.mqar.to_dicts()
    return {kind: made for kind, made in _tables(rows, _distinct(rows, "pairs")).items() if made.rows}


def print_mqar(tables: MqarTables, folder: Path, out: Path) -> None:
    """Accuracy of each model by number of pairs and by distance, perplexities, differences to the reference, and the paths of the files."""
    rows = tables.mqar.to_dicts()
    pairs = _distinct(rows, "pairs")
    for kind in ("accuracy", "perplexity", "difference"):
        for start in range(0, len(pairs), _MOST_COLUMNS):
            table = _tables(rows, pairs[start : start + _MOST_COLUMNS])[kind]
            if table.rows:
                console.print_table(_with_curves(table, rows, pairs) if kind == "accuracy" and len(pairs) > 1 else table)
    _print_distances(tables.by_distance)
    for line in _worth_knowing(rows, artifacts.read_manifest(folder / "mqar.parquet")["of_models"]):
        console.stdout().print(line, markup=False, soft_wrap=True)
    for what, where in (("Tables (Parquet)", folder), ("a row a query", out / "queries")):
        console.stdout().print(f"{what}: {where}", markup=False, soft_wrap=True)


def _distinct(rows: Sequence[Row], name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))


def _tables(rows: Sequence[Row], pairs: Sequence[int]) -> dict[str, Table]:
    """The tables with these numbers of pairs as columns."""
    cells = {(row["model"], row["pairs"]): row for row in rows}
    models, first = _distinct(rows, "model"), rows[0]
    headers = [f"{number:,}" for number in pairs]

    def row_of(model: str, show: Any) -> list[str]:
        return [show(cells[model, number]) for number in pairs]

    perplexities = [
        [name, label, *row_of(model, lambda row, column=f"{kind}_ppl": _ppl(row[column]))]
        for model in models
        for name, label, kind in ((model, "values", "ar"), ("", "filler", "filler"))
    ]
    return {
        "accuracy": Table(
            "MQAR: values recalled, in %, by number of pairs",
            ["model", *headers],
            [[model, *row_of(model, lambda row: f"{100 * row['accuracy']:.1f}")] for model in models],
            caption=f"{first['num_samples']:,} sequences of {first['length']:,} ids for each number of pairs, "
            f"places of queries by a power law ({first['power']:g}).",
        ),
        "perplexity": Table("Perplexity of the values asked for, and of the filler", ["model", "of", *headers], perplexities),
        "difference": Table(
            f"Values recalled, points more than {models[0]}",
            ["model", *headers],
            [[model, *row_of(model, _points)] for model in models[1:]],
            caption="In brackets: the 95 % interval of the paired difference contains 0.",
        ),
    }


def _ppl(value: float | None) -> str:
    if value is None:
        return "–"
    return abbreviate(value) if math.isfinite(value) else "inf"


def _points(row: Row) -> str:
    low, high, points = row["accuracy_difference_low"], row["accuracy_difference_high"], f"{100 * row['accuracy_difference']:+.1f}"
    return f"({points})" if low is not None and low <= 0 <= high else points


def _with_curves(table: Table, rows: Sequence[Row], pairs: Sequence[int]) -> Table:
    """Adds a column of curves over all numbers of pairs, on one scale from 0 on."""
    cells = {(row["model"], row["pairs"]): row["accuracy"] for row in rows}
    most = max(cells.values())
    curves = [sparkline([cells[row[0], number] for number in pairs], 0.0, most) for row in table.rows]
    lines = [[*row, curve] for row, curve in zip(table.rows, curves, strict=True)]
    caption = f"{table.caption} Curves: from 0 to {percent(most)}."
    return dataclasses.replace(table, headers=[*table.headers, ""], rows=lines, caption=caption)


def _print_distances(by_distance: pl.DataFrame) -> None:
    """Curves of accuracy by distance, one column per number of pairs, on one scale, with equal distances aligned."""
    rows = by_distance.to_dicts()
    models, pairs, highs = _distinct(rows, "model"), _distinct(rows, "pairs"), sorted(_distinct(rows, "high"))
    if len(highs) == 1:
        return
    cells = {(row["model"], row["pairs"], row["high"]): row["accuracy"] for row in rows if row["num_queries"] >= _LEAST_QUERIES}
    most = max(cells.values(), default=0.0)
    most_columns = max(1, _CURVES_WIDTH // (len(highs) + 3))
    for start in range(0, len(pairs), most_columns):
        shown = pairs[start : start + most_columns]
        curves = [[sparkline([cells.get((model, n, high)) for high in highs], 0.0, most) for n in shown] for model in models]
        lines = [[model, *(curve.replace(" ", "·") for curve in of_model)] for model, of_model in zip(models, curves, strict=True)]
        caption = (
            f"From the pair's key to the query's: up to {highs[0]:,} ids, up to {highs[1]:,} ... up to {highs[-1]:,}; "
            f"curves from 0 to {percent(most)}, a dot for less than {_LEAST_QUERIES} queries."
        )
        title = "Values recalled by distance, by number of pairs"
        console.print_table(Table(title, ["model", *(f"{n:,}" for n in shown)], lines, caption=caption))


def _worth_knowing(rows: Sequence[Row], of_models: Mapping[str, Any]) -> list[str]:
    """The vocabulary of the sequences, and how models differ in it."""
    made = {model: facts["vocabulary"] for model, facts in of_models.items()}
    by_vocabulary: dict[str, list[str]] = {}
    for model, vocabulary in made.items():
        by_vocabulary.setdefault(vocabulary["digest"], []).append(model)
    lines = []
    for models in by_vocabulary.values():
        one = made[models[0]]
        before = f"; before every sequence {one['prefix']}" if one["prefix"] else ""
        whose = "" if len(by_vocabulary) == 1 else f"{', '.join(models)}: "
        lines.append(
            f"{whose or 'Sequences: '}keys are {one['num_keys']:,} ids, values {one['num_values']:,}, the filler is {one['filler_text']!r} "
            f"({one['filler']}){before}."
        )
    if len(by_vocabulary) > 1:
        lines.append("Vocabularies differ: places of queries are the same, perplexities of other vocabularies compare loosely.")
    return lines
