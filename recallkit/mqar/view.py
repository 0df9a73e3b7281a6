"""Prints multi-query associative recall and other synthetic tasks: accuracies, perplexities and
differences by number of pairs."""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

from recallkit.display.cells import (
    abbreviate,
    counted,
    difference_phrase,
    interval_phrase,
    nearest_and_farthest,
    percent,
    sparkline,
)
from recallkit.display.exports import bare
from recallkit.display.tables import Table
from recallkit.display.views import ResultView
from recallkit.mqar.charts import mqar_figures
from recallkit.mqar.tables import MqarTables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.display.cells import Row
    from recallkit.display.charts import Figure

_MOST_COLUMNS = 5
"""Numbers of pairs per table in a terminal, beside names, a label and a curve; others follow in
further tables."""

_CURVES_WIDTH = 48
"""Columns of a terminal that curves by distance may take; names are folded if too few remain."""

_LEAST_QUERIES = 10
"""Fewest queries of a block by distance: a share of fewer is too uncertain to show."""


class MqarView(ResultView):
    """An evaluation of a synthetic task: values recalled by number of pairs."""

    kind, tables_type = "mqar", MqarTables

    def answer(self) -> str:
        """See `answer`."""
        return answer(self.tables)

    @cached_property
    def display_tables(self) -> dict[str, Table]:
        """See `mqar_tables`."""
        return mqar_tables(self.tables)

    def terminal_tables(self) -> list[Table]:
        """The same with few columns each, accuracies also as curves, and by distance."""
        return _terminal_tables(self.tables)

    def draw(self, tables: Any) -> list[Figure]:
        """See `mqar_figures`."""
        return mqar_figures(tables.mqar, tables.by_distance)

    def notes(self) -> list[str]:
        """The vocabulary of the sequences."""
        return _worth_knowing(self.manifest["of_models"])

    def places(self) -> dict[str, Path]:
        """The rows of all queries."""
        return {"queries": self.folder.parent.parent / "queries"}

    def method(self) -> dict[str, str]:
        """The sequences, their vocabularies, the intervals."""
        manifest = self.manifest
        return {
            "Sequences": f"{manifest['num_samples']:,} of {manifest['length']:,} ids for each "
            f"number of pairs, from seed {manifest['seed']}{_places(manifest)}; nothing is trained",
            "Vocabulary": " ".join(self.notes()),
            "Intervals": (
                "95 %, with sequences as units; differences are paired over the same sequences"
            ),
        }


def answer(tables: MqarTables) -> str:
    """How much the first model recalls with the most pairs, and the others beside it."""
    rows = tables.mqar.filter(pairs=tables.mqar["pairs"].max()).to_dicts()
    first, *others = rows
    most = f"with the most pairs, {first['pairs']:,}"
    if tables.mqar["pairs"].n_unique() == 1:
        most = f"with {counted(first['pairs'], 'pair')}"
    most = most.capitalize() if first["task"] == "mqar" else f"In {_title(first)}, {most}"
    guess, low = first["guess"], first["accuracy_low"]
    within = (
        f"{percent(first['accuracy'])} of the values "
        f"({interval_phrase(low, first['accuracy_high'])})"
    )
    there = f"guessing among the values read so far gives {percent(guess)}"
    recalls = (
        "recalls" if low is not None and low > guess else "is not shown to do better than guessing:"
    )
    clauses = [f"{most} in {first['length']:,} ids, {first['model']} {recalls} {within}; {there}"]
    for row in nearest_and_farthest(others, "accuracy_difference"):
        ends = (row[f"accuracy_difference{end}"] for end in ("", "_low", "_high"))
        clauses.append(f"{row['model']} {percent(row['accuracy'])} ({difference_phrase(*ends)})")
    return f"{'; '.join(clauses)}."


def _title(row: Row) -> str:
    """The task as tables name it."""
    return "MQAR" if row["task"] == "mqar" else bare(row["task"]).replace("_", " ")


def _places(facts: Mapping[str, Any]) -> str:
    """Where the task's questions are, if a power law says it."""
    return (
        "" if facts["power"] is None else f", query positions by a power law ({facts['power']:g})"
    )


def mqar_tables(tables: MqarTables) -> dict[str, Table]:
    """What is printed, without curves: accuracies, perplexities and, for more than one model,
    differences."""
    rows = tables.mqar.to_dicts()
    tables_of_all = _tables(rows, _distinct(rows, "pairs"))
    return {name: table for name, table in tables_of_all.items() if table.rows}


def _terminal_tables(tables: MqarTables) -> list[Table]:
    """The tables of a terminal: the same with few columns each, accuracies also as curves, and
    by distance."""
    rows = tables.mqar.to_dicts()
    pairs = _distinct(rows, "pairs")
    starts = range(0, len(pairs), _MOST_COLUMNS)
    parts = [_tables(rows, pairs[start : start + _MOST_COLUMNS]) for start in starts]
    if len(pairs) > 1:
        parts = [
            {**part, "accuracy": _with_curves(part["accuracy"], rows, pairs)} for part in parts
        ]
    return [
        *(part[kind] for kind in parts[0] for part in parts if part[kind].rows),
        *_distance_tables(tables.by_distance),
    ]


def _distinct(rows: Sequence[Row], name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))


def _tables(rows: Sequence[Row], pairs: Sequence[int]) -> dict[str, Table]:
    """The tables with these numbers of pairs as columns."""
    models, first = _distinct(rows, "model"), rows[0]
    known = {(row["model"], row["pairs"]): row for row in rows}
    headers = [f"{number:,}" for number in pairs]

    def line(label: str, model: str, cell: Callable[[Row], str]) -> list[str]:
        return [label, *(cell(known[model, number]) for number in pairs)]

    accuracies = [line(model, model, lambda row: _percent(row["accuracy"])) for model in models]
    perplexities = []
    for model in models:
        for name, label, kind in ((model, "values", "ar"), ("", "filler", "filler")):
            ppls = [_ppl(known[model, number][f"{kind}_ppl"]) for number in pairs]
            perplexities.append([name, label, *ppls])
    return {
        "accuracy": Table(
            f"{_title(first)}: values recalled, in %, by number of pairs",
            ["model", *headers],
            [
                *accuracies,
                line("a guess among them", models[0], lambda row: _percent(row["guess"])),
            ],
            f"{first['num_samples']:,} sequences of {first['length']:,} ids for each number of "
            f"pairs{_places(first)}. Last row: guessing among the values read so far.",
        ),
        "perplexity": Table(
            "Perplexity of the queried values, and of the filler",
            ["model", "of", *headers],
            perplexities,
        ),
        "difference": Table(
            f"Values recalled: difference from {models[0]}, in points",
            ["model", *headers],
            [line(model, model, _points) for model in models[1:]],
            "In brackets: the 95 % interval of the paired difference contains 0.",
        ),
    }


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _ppl(value: float | None) -> str:
    if value is None:
        return "–"
    return abbreviate(value) if math.isfinite(value) else "inf"


def _points(row: Row) -> str:
    low, high, points = (
        row["accuracy_difference_low"],
        row["accuracy_difference_high"],
        f"{100 * row['accuracy_difference']:+.1f}",
    )
    return f"({points})" if low is not None and low <= 0 <= high else points


def _with_curves(table: Table, rows: Sequence[Row], pairs: Sequence[int]) -> Table:
    """Adds a column of curves over all numbers of pairs, on one scale from 0 on."""
    known = {(row["model"], row["pairs"]): row["accuracy"] for row in rows}
    most = max(known.values()) or 1.0
    lines = []
    for row in table.rows:
        accuracies = [known.get((row[0], number)) for number in pairs]
        lines.append([*row, sparkline(accuracies, 0.0, most)])
    caption = f"{table.caption} Curves: from 0 to {percent(most)}."
    return dataclasses.replace(table, headers=[*table.headers, ""], rows=lines, caption=caption)


def _distance_tables(by_distance: pl.DataFrame) -> Iterator[Table]:
    """Curves of accuracy by distance, one column per number of pairs, on one scale, with equal
    distances aligned."""
    rows = by_distance.to_dicts()
    models, pairs, highs = (
        _distinct(rows, "model"),
        _distinct(rows, "pairs"),
        sorted(_distinct(rows, "high")),
    )
    if len(highs) == 1:
        return
    many = [row for row in rows if row["num_queries"] >= _LEAST_QUERIES]
    known = {(row["model"], row["pairs"], row["high"]): row["accuracy"] for row in many}
    most = max(known.values(), default=0.0) or 1.0
    most_columns = max(1, _CURVES_WIDTH // (len(highs) + 3))
    for start in range(0, len(pairs), most_columns):
        some = pairs[start : start + most_columns]
        lines = []
        for model in models:
            lines.append([model])
            for number in some:
                accuracies = [known.get((model, number, high)) for high in highs]
                lines[-1].append(sparkline(accuracies, 0.0, most).replace(" ", "·"))
        caption = (
            f"Distance from a value to its query: up to {highs[0]:,} ids, up to {highs[1]:,} ... "
            f"up to {highs[-1]:,}. Curves from 0 to {percent(most)}; a dot: fewer than "
            f"{_LEAST_QUERIES} queries."
        )
        title = "Values recalled by distance, by number of pairs"
        yield Table(title, ["model", *(f"{number:,}" for number in some)], lines, caption=caption)


def _worth_knowing(of_models: Mapping[str, Any]) -> list[str]:
    """The vocabulary of the sequences, and how models differ in it."""
    vocabularies = {model: facts["vocabulary"] for model, facts in of_models.items()}
    by_vocabulary: dict[str, list[str]] = {}
    for model, vocabulary in vocabularies.items():
        by_vocabulary.setdefault(vocabulary["digest"], []).append(model)
    lines = []
    for models in by_vocabulary.values():
        one = vocabularies[models[0]]
        before = f"; before every sequence {one['prefix']}" if one["prefix"] else ""
        whose = "" if len(by_vocabulary) == 1 else f"{', '.join(models)}: "
        lines.append(
            f"{whose or 'Sequences: '}{one['num_ids']:,} ids, of which the filler is "
            f"{one['filler_text']!r} ({one['filler']}){before}."
        )
    if len(by_vocabulary) > 1:
        lines.append(
            "Vocabularies differ: query positions are the same, but perplexities are only "
            "roughly comparable."
        )
    return lines
