"""Prints recall evaluations and tasks of lm-eval."""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.display.cells import (
    DASH,
    counted,
    difference_phrase,
    interval_phrase,
    nearest_and_farthest,
    percent,
    powers_of_two,
    sparkline,
)
from recallkit.display.exports import bare
from recallkit.display.tables import Table
from recallkit.display.views import Measured, ResultView
from recallkit.recall.charts import figures
from recallkit.recall.prompts import GENERATED_TOKENS
from recallkit.recall.tables import RecallTables, direction
from recallkit.recall.tasks import NEEDLE_TASKS, OWN, QUESTION_TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.display.charts import Figure
    from recallkit.recall.building import BuiltRows

_TASKS_ABREAST = 3
_MOST_SAID = 4


def _of_few_tasks(tables: RecallTables) -> Iterator[RecallTables]:
    """The same tables of at most three tasks each, as many as fit into 80 columns."""
    import polars as pl

    tasks = tables.recall["task"].unique(maintain_order=True).to_list()
    number = math.ceil(len(tasks) / _TASKS_ABREAST)
    for part in range(number):
        few = tasks[part * len(tasks) // number : (part + 1) * len(tasks) // number]
        is_one = pl.col("task").is_in(few)
        names = [field.name for field in dataclasses.fields(tables)]
        frames = {name: getattr(tables, name).filter(is_one) for name in names}
        yield dataclasses.replace(tables, **frames)


class RecallView(ResultView):
    """A recall evaluation: how often models give the value that a document has."""

    kind, tables_type = "recall", RecallTables

    @property
    def out(self) -> Path:
        """The folder of the whole evaluation."""
        return self.folder.parent.parent

    def answer(self) -> str:
        """See `answer`."""
        return answer(self.tables)

    @cached_property
    def display_tables(self) -> dict[str, Table]:
        """See `recall_tables`."""
        return recall_tables(self.tables)

    def terminal_tables(self) -> list[Table]:
        """Those of all tasks in parts of few, and the curves."""
        few = list(_of_few_tasks(self.tables))
        tables: list[Table] = []
        for name, table in self.display_tables.items():
            tables += map(accuracy_table, few) if name == "recall" else [table]
        curves = [table for table in map(curves_table, few) if table is not None]
        return [*tables, *curves, *depth_tables(self.tables)]

    def draw(self, tables: Any) -> list[Figure]:
        """See `figures`."""
        return figures(tables)

    def notes(self) -> list[str]:
        """Of which tasks the rows are not those of the published figures, and why an accuracy
        may be low."""
        published = []
        for task, rows in self.manifest.get("rows", {}).items():
            if rows["note"]:
                published.append(f"{task}: {bare(rows['origin'])} has {rows['note']}")
        return [*published, *filter(None, map(_worth_knowing, self.tables.recall.to_dicts()))]

    def places(self) -> dict[str, Path]:
        """Prompts."""
        return {"prompts": self.out / "documents"}

    def files(self) -> list[str]:
        """Prompts: a model's folder may have its path's name."""
        names = [f"documents/*/{variant}.parquet" for variant in self.manifest.get("tasks", [])]
        return [name for name in names if any(self.out.glob(name))]

    def measured(self) -> list[Measured]:
        """Accuracies."""
        measured = []
        for row in self.tables.recall.to_dicts():
            what = f"{row['task']}: value in the generation, share of prompts"
            origin = bare(self.manifest["rows"][row["task"]]["origin"]).partition("@")[0]
            measured.append(Measured(row["model"], "accuracy", what, row["accuracy"], origin))
        return measured

    def method(self) -> dict[str, str]:
        """The prompts, what counts as right, the intervals."""
        rows, models, tasks = _cells(self.tables)
        known = self.manifest.get("rows", {})
        origins = list(
            dict.fromkeys(bare(known[task]["origin"]) for task in tasks if task in known)
        )
        of_rows = [f"Rows: {', '.join(origins)}."] if origins else []
        right = f"the generation (greedy, {_generated(tasks)}) contains the value, ignoring case"
        return {
            "Prompts": " ".join([*_what_was_asked(rows, models[0], tasks), *of_rows]),
            "Right": f"{right}; {_variation(rows[models[0], tasks[0]])}",
            "Intervals": (
                "95 %, with documents as units; differences are paired over the same prompts"
            ),
        }


def answer(tables: RecallTables) -> str:
    """A sentence for each of the first tasks: how often the first model gives the value, and the
    others beside it; which more there are."""
    rows, models, tasks = _cells(tables)

    def of_task(task: str) -> str:
        return _task_answer([rows[model, task] for model in models])

    sentences = list(map(of_task, tasks[:_MOST_SAID]))
    if tasks[_MOST_SAID:]:
        sentences.append(f"The table also has {', '.join(tasks[_MOST_SAID:])}.")
    return " ".join(sentences)


def _task_answer(rows: Sequence[Mapping[str, Any]]) -> str:
    first, *others = rows
    where = "your own rows" if first["task"] == OWN else first["task"]
    clauses = [
        f"On {where}, {first['model']} gives the value in {percent(first['accuracy'])} of "
        f"{counted(first['num_rows'], 'prompt')} "
        f"({interval_phrase(first['ci_low'], first['ci_high'])})"
    ]
    for row in nearest_and_farthest(others, "difference"):
        difference = difference_phrase(*(row[f"difference{end}"] for end in ("", "_low", "_high")))
        clauses.append(f"{row['model']} in {percent(row['accuracy'])} ({difference})")
    return f"{'; '.join(clauses)}."


def recall_tables(tables: RecallTables) -> dict[str, Table]:
    """The printed tables, by the names of their files in an export."""
    by_name = {
        "answers": answers_table(tables),
        "recall": accuracy_table(tables),
        "f1": overlap_table(tables),
    }
    return {name: table for name, table in by_name.items() if table is not None}


def accuracy_table(tables: RecallTables) -> Table:
    """One row per model, one column per task: accuracy in per cent with its 95 % interval."""
    tasks = _cells(tables)[2]
    title = "Generations that contain the value, % (95 % interval)"
    return _by_task(title, tables, tasks, _accuracy, groups=[("", 1), ("accuracy (%)", len(tasks))])


def _by_task(
    title: str,
    tables: RecallTables,
    tasks: Sequence[str],
    cell: Callable[[Mapping[str, Any]], str],
    **more: Any,
) -> Table:
    """One row per model, one column per task."""
    rows, models, _ = _cells(tables)

    def line(model: str) -> list[str]:
        return [model, *(cell(rows[model, task]) for task in tasks)]

    return Table(title, ["model", *tasks], list(map(line, models)), **more)


def answers_table(tables: RecallTables) -> Table:
    """What was generated and the NLL of what should have been, side by side, with paired
    differences; one row per model and task."""
    known, models, tasks = _cells(tables)
    rows = [known[model, task] for task in tasks for model in models]
    is_compared = any(row["disagree"] is not None for row in rows)
    columns = f"""
        model {"task" if len(tasks) > 1 else ""}
        right       | right/(%)
        {"points    | points/(95 % interval)" if len(models) > 1 else ""}
        answer_nats | NLL | .2f {"optional1" if is_compared else ""}
        {"nats      | nats/(95 % interval)" if is_compared else ""}
    """
    body = []
    for row in rows:
        figures = {
            "right": f"{100 * row['accuracy']:.1f}",
            "points": _points(row),
            "nats": _nats(row),
        }
        body.append({**row, **figures})
    title = (
        "Answers generated, and their NLL in nats per answer; "
        f"{_variation(known[models[0], tasks[0]])}"
    )
    to = f" Points{' and nats' * is_compared} are differences from {models[0]}." * (len(models) > 1)
    how = f"Greedy, {_generated(tasks)}.{to}"
    caption = "\n".join([*_what_was_asked(known, models[0], tasks), how, *disagreements(tables)])
    return Table.from_rows(title, columns, body, caption)


def overlap_table(tables: RecallTables) -> Table | None:
    """Mean F1 of the words of generation and value, in tasks that ask questions; None where none
    does."""
    asking = [task for task in _cells(tables)[2] if task.startswith("squad")]
    title = "Words that generation and answer share (SQuAD's F1), in %"
    return _by_task(title, tables, asking, lambda row: f"{100 * row['f1']:.1f}") if asking else None


def curves_table(tables: RecallTables) -> Table | None:
    """Accuracy by the answer's distance from the prompt's end as curves, one block per bucket;
    None if every task has at most one."""
    _, models, tasks = _cells(tables)
    headers, columns = ["model"], [models]
    for task in tasks:
        curves = _curves(tables.by_distance.filter(task=task), models)
        if curves is not None:
            first, last, lines = curves
            headers.append(f"{task}\n{first:,} to {last:,}")
            columns.append([lines[model] for model in models])
    if len(columns) == 1:
        return None
    return Table(
        "Accuracy by distance of the answer from the prompt's end, in tokens",
        headers,
        list(map(list, zip(*columns, strict=True))),
        caption=(
            "From 0 % (▁) to 100 % (█), in powers of two; blank if no answer is at that distance."
        ),
    )


def _curves(buckets: pl.DataFrame, models: Sequence[str]) -> tuple[int, int, dict[str, str]] | None:
    """The shortest distance, the longest, and each model's curve, of one task; None if there is
    at most one bucket."""
    highs = powers_of_two(buckets["high"].to_list())
    if len(highs) < 2:
        return None
    known = {(row["model"], row["high"]): row["accuracy"] for row in buckets.iter_rows(named=True)}
    curves = {}
    for model in models:
        accuracies = [known.get((model, high)) for high in highs]
        curves[model] = sparkline(accuracies, 0.0, 1.0)
    lows: list[int] = buckets["low"].to_list()
    return min(lows), highs[-1], curves


def depth_tables(tables: RecallTables) -> Iterator[Table]:
    """Accuracy by the depth of the needle as curves, a table for each task of needles, one
    column for each length."""
    for (task,), frame in tables.by_depth.group_by("task", maintain_order=True):
        known = {
            (row["model"], row["length"], row["depth"]): row["accuracy"] for row in frame.to_dicts()
        }
        names = ("model", "length", "depth")
        models, lengths, depths = (
            frame[name].unique(maintain_order=True).to_list() for name in names
        )
        lines = []
        for model in models:
            lines.append([model])
            for length in lengths:
                accuracies = [known.get((model, length, depth)) for depth in depths]
                lines[-1].append(sparkline(accuracies, 0.0, 1.0))
        yield Table(
            f"{task}: accuracy by depth of the needle, for each length in ids",
            ["model", *(f"{number:,}" for number in lengths)],
            lines,
            caption=(
                f"Depths from {100 * depths[0]:.0f} to {100 * depths[-1]:.0f} % of the context; "
                "from 0 % (▁) to 100 % (█)."
            ),
        )


def _cells(
    tables: RecallTables,
) -> tuple[dict[tuple[str, str], dict[str, Any]], list[str], list[str]]:
    """(model, task) -> row of the table, and the models and tasks in their order."""
    rows = {(row["model"], row["task"]): row for row in tables.recall.to_dicts()}
    models = list(dict.fromkeys(model for model, _ in rows))
    tasks = list(dict.fromkeys(task for _, task in rows))
    return rows, models, tasks


def _variation(row: Mapping[str, Any]) -> str:
    prompt = {
        "standard": "",
        "once": ", prompts of Just Read Twice",
        "twice": ", document read twice",
    }[row["prompt"]]
    return (
        "task version "
        f"{row['version']}{prompt}{', cut around the answer' * (row['cut'] == 'answer')}"
    )


def _accuracy(row: Mapping[str, Any]) -> str:
    low, high = row["ci_low"], row["ci_high"]
    return f"{100 * row['accuracy']:.1f}" + (
        "" if low is None else f" ({100 * low:.0f} to {100 * high:.0f})"
    )


def _points(row: Mapping[str, Any]) -> str:
    low, high = row["difference_low"], row["difference_high"]
    return (
        DASH
        if low is None
        else f"{100 * row['difference']:+.1f} ({100 * low:.0f} to {100 * high:.0f})"
    )


def disagreements(tables: RecallTables) -> list[str]:
    """Where the accuracy of models and the likelihood of their answers tell different things: a
    line for each way, with its tasks."""
    by_task: dict[tuple[str, int, int], list[str]] = {}
    for row in tables.recall.filter("disagree").to_dicts():
        of_nats = {end: row[f"answer_nats_{end}"] for end in ("difference_low", "difference_high")}
        way = (row["task"], direction(row) or 0, direction(of_nats) or 0)
        by_task.setdefault(way, []).append(row["model"])
    ways: dict[tuple[int, int, str], list[str]] = {}
    for (task, accuracy, nats), models in by_task.items():
        who = f"{_listed(models)} {'has' if len(models) == 1 else 'have'}"
        ways.setdefault((accuracy, nats, who), []).append(task)
    reference = tables.recall["reference"][0]
    return [
        f"On {_listed(tasks)}, generation and likelihood disagree: {models} {_LIKE[accuracy]} "
        f"accuracy {_TO[accuracy]} {reference}, "
        f"but {_LIKE[nats]} NLL of the answers."
        for (accuracy, nats, models), tasks in ways.items()
    ]


def _nats(row: Mapping[str, Any]) -> str:
    ends = [row[f"answer_nats_difference{end}"] for end in ("", "_low", "_high")]
    if None in ends:
        return DASH
    digits = 1 if abs(ends[0]) >= 10 else 2
    return f"{ends[0]:+.{digits}f} ({ends[1]:.{digits}f} to {ends[2]:.{digits}f})"


def _listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


_LIKE = {1: "a significantly higher", -1: "a significantly lower", 0: "no significantly different"}
_TO = {1: "than", -1: "than", 0: "from"}


def _what_was_asked(
    rows: Mapping[tuple[str, str], Mapping[str, Any]],
    model: str,
    tasks: Sequence[str],
) -> list[str]:
    """Numbers of prompts, documents and dropped rows, a line for all tasks of which the same is
    said."""
    alike: dict[str, list[str]] = {}
    for task in tasks:
        row = rows[model, task]
        dropped = ""
        if row["dropped"]:
            dropped = f", {counted(row['dropped'], 'row')} without a value were dropped"
        published = "" if row["comparable"] else "; not comparable with published figures"
        several = "; any of several answers is right" if task in QUESTION_TASKS else ""
        prompts = counted(row["num_rows"], "prompt")
        if task not in NEEDLE_TASKS:
            prompts += f" of {counted(row['num_documents'], 'document')}"
        alike.setdefault(f"{prompts}{dropped}{several}{published}.", []).append(task)
    return [f"{', '.join(names)}: {prompts}" for prompts, names in alike.items()]


def _generated(tasks: Sequence[str]) -> str:
    """How long a generation is."""
    others = [task for task in tasks if task not in NEEDLE_TASKS]
    exception = " (not of needles)" * (0 < len(others) < len(tasks))
    return f"{GENERATED_TOKENS} tokens" + f", cut at the first newline{exception}" * bool(others)


def _worth_knowing(row: Mapping[str, Any]) -> str:
    """Reasons for a low accuracy other than the model: "" if there are none."""
    facts = {
        "cut on the left to fit its context": row["truncated"],
        "whose answer was only in what was cut": row["answer_cut"],
        "that do not contain the value": row["absent"],
        "whose value contains a newline, which no generation does": row["multiline"],
        "answered with an empty generation": row["empty"],
    }
    some = ", ".join(f"{number:,} {fact}" for fact, number in facts.items() if number)
    prompts = counted(row["num_rows"], "prompt")
    return f"{row['model']}, {row['task']}: of {prompts}, {some}" if some else ""


def print_built(built: BuiltRows) -> None:
    """How many rows were made of what, and how to ask them."""
    made_of = f"{counted(built.chunks, 'chunk')} of {counted(built.documents, 'document')}"
    absent = f"; {counted(built.absent, 'value')} not in the document" if built.absent else ""
    console.print_line(f"{counted(built.rows, 'row')} from {made_of}{absent}")
    console.print_line(f"recallkit eval-recall MODEL --data {built.path}", is_path=True)


def built_json(built: BuiltRows) -> dict[str, Any]:
    """The same numbers."""
    return {**dataclasses.asdict(built), "path": str(built.path)}


def print_metrics(metrics: pl.DataFrame, out: Path) -> None:
    """lm-eval's own metrics, one row each."""
    console.print_table(metrics_table(metrics))
    console.print_line(f"{console.PLACES['lm_eval']}: {out / 'lm-eval'}", is_path=True)


def metrics_table(metrics: pl.DataFrame) -> Table:
    """One row per model, task and metric, with lm-eval's standard error."""
    rows = metrics.to_dicts()
    for row in rows:
        row["task"] += "" if row["version"] is None else f" v{row['version']}"
        row["metric"] += "" if row["filter"] == "none" else f",{row['filter']}"
    return Table.from_rows("Tasks of lm-eval, unchanged", _METRICS, rows)


_METRICS = """
    model task metric
    value          | value      | .4f
    standard_error | std. error | .4f
    shots          | shots      | ,
"""
