"""What is shown of a sweep: accuracy by bytes of state, number of pairs, distance; and of a
training on text: its loss."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from recallkit.display import cells
from recallkit.display.cells import counted, percent, span
from recallkit.display.charts import Figure, log_number, number, share
from recallkit.display.tables import Table
from recallkit.display.templates import front_layer, line_chart
from recallkit.display.views import ResultView
from recallkit.training.tables import TradeoffTables, TrainingTables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recallkit.display.cells import Row
    from recallkit.display.charts import Spec

_MOST_SAID = 3
_NEAR = 0.05
"""Models whose accuracy is within this of the best are about as accurate."""
_MODEL = ("task", "model", "width", "size")


class SweepView(ResultView):
    """A sweep of training: accuracy beside bytes of state."""

    kind, tables_type = "tradeoff", TradeoffTables

    def answer(self) -> str:
        """See `answer`."""
        return answer(self.tables)

    @cached_property
    def display_tables(self) -> dict[str, Table]:
        """See `tradeoff_tables`."""
        return tradeoff_tables(self.tables)

    def draw(self, tables: Any) -> list[Figure]:
        """See `tradeoff_figures`."""
        return tradeoff_figures(tables)

    def method(self) -> dict[str, str]:
        """The runs, their rates, the machines."""
        runs = self.manifest["options"]["runs"]
        learning_rates = sorted({run["learning_rate"] for run in runs})
        rates = ", ".join(f"{rate:.2g}" for rate in learning_rates)
        return {
            "Runs": f"{counted(len(runs), 'run')} at learning rates {rates}, of which each model's "
            f"best counts; vocabulary of {runs[0]['task']['vocab']:,} ids, seed {runs[0]['seed']}",
            "State": "bytes in float32 after the longest test",
            "Machines": ", ".join(self.manifest["machines"]),
        }


def answer(tables: TradeoffTables) -> str:
    """A sentence for each of the first tasks: the most accurate model, and the smallest state of
    one nearly as accurate."""
    sentences, tasks = [], _tasks(tables)
    for task in tasks[:_MOST_SAID]:
        rows = tables.tradeoff.filter(task=task).to_dicts()
        best = min(rows, key=lambda row: (-row["accuracy"], row["state_bytes"]))
        near = min(
            (row for row in rows if row["accuracy"] >= best["accuracy"] - _NEAR),
            key=lambda row: row["state_bytes"],
        )
        where = f" on {task}" * (len(tasks) > 1)
        state = f"{best['state_bytes']:,} bytes of state"
        share = f"{percent(best['accuracy'])} of the answers{where} with {state}"
        most = f", the most of {len(rows):,} models" if len(rows) > 1 else ""
        smaller = ""
        if near["state_bytes"] < best["state_bytes"]:
            other = f"the {near['state_bytes']:,} bytes of {_with_size(near)}"
            other += f", with {percent(near['accuracy'])}"
            smaller = f"; the smallest state within {100 * _NEAR:.0f} points of that is {other}"
        sentences.append(f"{_with_size(best)} gives {share}{most}{smaller}.")
    return " ".join(sentences)


def _tasks(tables: TradeoffTables) -> list[str]:
    return tables.tradeoff["task"].unique(maintain_order=True).to_list()


def _size(row: Row) -> str:
    return f"{row['width']}, {row['size']}".removesuffix(", ")


def _with_size(row: Row) -> str:
    """`mamba (width 64, state 16)`."""
    return f"{row['model']} (width {_size(row)})"


# ------------------------------------------------------------------------------------------- tables


_NAMED = """
    model
    size | width, options
"""
_OF_MODEL = f"""
    {_NAMED}
    state_bytes | state bytes | ,
    accuracy
    learning_rate | at rate
    pareto | Pareto
"""
_PARETO = (
    "no other model is more accurate with as small a state (float32, after the longest test), or "
    "as accurate with a smaller one"
)


def tradeoff_tables(tables: TradeoffTables) -> dict[str, Table]:
    """What is printed, for each task: models at their best rate, accuracy by number of pairs, by
    distance."""
    by_name: dict[str, Table] = {}
    tasks = _tasks(tables)
    for place, task in enumerate(tasks, 1):
        frames = (tables.tradeoff, tables.by_rate, tables.by_distance)
        of_task = TradeoffTables(*(frame.filter(task=task) for frame in frames))
        models = of_task.tradeoff.to_dicts()
        rows = []
        for row in models:
            rate = f"{row['learning_rate']:.2g}{'*' if row['at_edge'] else ''}"
            rows.append(
                {
                    **row,
                    "size": _size(row),
                    "learning_rate": rate,
                    "pareto": "yes" if row["pareto"] else "",
                }
            )
        ending = "" if len(tasks) == 1 else f"-{place}"
        at_edge = ""
        if any(row["at_edge"] for row in models):
            at_edge = " * the lowest or highest rate that was tried."
        by_name[f"tradeoff{ending}"] = Table.from_rows(
            f"{task}: accuracy at the best learning rate",
            _OF_MODEL,
            rows,
            f"Pareto: {_PARETO}.{at_edge}",
        )
        tests = _by_test(_summed(of_task, "length", "pairs"), "length", "pairs")
        if len(tests) > 1:
            sizes = sorted(pairs for _, pairs in tests)
            ends = (sizes[0], sizes[-1])
            guess = " and ".join(f"{percent(1 / pairs)} at {pairs:,}" for pairs in ends)
            is_of_one = len({length for length, _ in tests}) == 1
            headers = [f"{pairs:,} in {length:,}" for length, pairs in tests]
            if is_of_one:
                headers = [f"{pairs:,}" for _, pairs in tests]
            title, caption = (
                "Accuracy by number of pairs, at the best rate",
                f"Guessing among as many values as pairs: {guess}.",
            )
            by_name[f"pairs{ending}"] = _crossed(title, models, headers, tests, percent, caption)
        distances = _by_test(_summed(of_task, "high"), "high")
        title = "Accuracy by distance in %, at the best rate"
        caption = (
            "Columns: distance from an answer to its query, up to so many ids; over all numbers "
            "of pairs."
        )
        headers = [f"{high:,}" for (high,) in distances]
        by_name[f"distance{ending}"] = _crossed(
            title, models, headers, distances, _in_percent, caption
        )
    return by_name


def _in_percent(share: float | None) -> str:
    """A share in %, for a table of many columns."""
    return cells.or_dash(share and 100 * share, ".0f")


Accuracies = dict[tuple[Any, ...], dict[tuple[str, str], float]]
"""By test, in order, the accuracy of each model of a size."""


def _by_test(rows: Sequence[Row], *by: str) -> Accuracies:
    accuracies: Accuracies = {}
    for row in sorted(rows, key=lambda row: [row[name] for name in by]):
        of_test = accuracies.setdefault(tuple(row[name] for name in by), {})
        of_test[row["model"], _size(row)] = row["accuracy"]
    return accuracies


def _crossed(
    title: str,
    models: Sequence[Row],
    headers: Sequence[str],
    accuracies: Accuracies,
    form: Callable[[float | None], str],
    caption: str,
) -> Table:
    """A row per model, a column per test."""
    table = Table.from_rows(title, _NAMED, [{**row, "size": _size(row)} for row in models], caption)
    body = []
    for row, words in zip(models, table.rows, strict=True):
        body.append(
            [
                *words,
                *(form(of_test.get((row["model"], _size(row)))) for of_test in accuracies.values()),
            ]
        )
    return replace(table, headers=[*table.headers, *headers], rows=body)


def _summed(tables: TradeoffTables, *by: str) -> list[dict[str, Any]]:
    """Rows of `by_distance`, summed over all that is not the model or in `by`."""
    import polars as pl

    queries, low = pl.col("num_queries"), pl.col("low").min()
    of_all = tables.by_distance.group_by(*_MODEL, *by, maintain_order=True)
    return of_all.agg((pl.col("accuracy") * queries).sum() / queries.sum(), low).to_dicts()


# ------------------------------------------------------------------------------------------- charts


def tradeoff_figures(tables: TradeoffTables) -> list[Figure]:
    """The charts that the sweep has something to show in, first that of Based's Figure 2."""
    rows, tasks = tables.tradeoff.to_dicts(), _tasks(tables)
    models = list(dict.fromkeys(row["model"] for row in rows))
    where = f" on {tasks[0]}" if len(tasks) == 1 else ""
    caption = (
        f"Accuracy{where} by bytes of state in float32, each model at the best of its learning "
        "rates; grey: the Pareto front."
    )

    def is_of(row: Row, model: Row) -> bool:
        return all(row[column] == model[column] for column in _MODEL)

    figures = [
        Figure(
            "tradeoff",
            "Recall by bytes of state",
            caption,
            _drawn(rows, "state_bytes", "bytes of state", models),
            models,
        )
    ]
    # Of each line the most accurate model, the smallest among equals.
    best: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=lambda row: (row["accuracy"], -row["state_bytes"])):
        best[row["task"], row["model"]] = row
    for name, x, axis in (
        ("pairs", "pairs", "number of key-value pairs"),
        ("distance", "high", "distance in ids"),
    ):
        of_best = [row for row in _summed(tables, x) if is_of(row, best[row["task"], row["model"]])]
        if len({row[x] for row in of_best}) > 1:
            drawn = _drawn(of_best, x, axis, models)
            caption = f"Accuracy{where} by {axis}, for the most accurate model of each line."
            figures.append(
                Figure(f"tradeoff_by_{name}", f"Recall by {axis}", caption, drawn, models)
            )
    return figures


def _drawn(rows: Sequence[Row], x: str, title: str, models: Sequence[str]) -> Spec:
    """A plot per task below each other, all with the same axes."""
    points = []
    for row in sorted(rows, key=lambda row: (row[x], row["accuracy"])):
        at = f"width {_size(row)}"
        if x == "high":
            at += f", {span(row['low'], row['high'])} ids"
        elif x == "pairs":
            at += f", {counted(row['pairs'], 'pair')}"
        point = {
            "model": row["model"],
            "x": row[x],
            "y": row["accuracy"],
            "panel": row["task"],
            "front": row.get("pareto", False),
        }
        points.append({**point, "at": at, "shown": percent(row["accuracy"])})
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    y = share("y", "accuracy", domain=[0, 1])
    before = [front_layer(y)] if x == "state_bytes" else []
    places = log_number("x", title, [point["x"] for point in points], base=2, labelOverlap=True)
    return line_chart(points, models, places, y, *before, panels=tasks if len(tasks) > 1 else ())


# ------------------------------------------------------------------------------- a training on text

_POINTS = 10
"""Points of the curve that are printed, the last one among them."""


class TrainingView(ResultView):
    """A training on text: its loss by tokens read."""

    kind, tables_type = "training", TrainingTables

    def answer(self) -> str:
        """The loss at the end."""
        last = self.tables.training.row(-1, named=True)
        loss = f"a loss of {last['loss_nats']:.3f} nats per token"
        lists = ""
        if last["lists_4"] is not None:
            lists = f", and gives {percent(last['lists_4'])} of the values in lists of 4 pairs"
        return (
            f"After {last['tokens']:,} tokens, {last['model']} predicts unread text with "
            f"{loss}{lists}."
        )

    @cached_property
    def display_tables(self) -> dict[str, Table]:
        """Points of the curve, equally far apart."""
        rows = self.tables.training.to_dicts()
        step = max(1, len(rows) // _POINTS)
        lists = "" if rows[0]["lists_4"] is None else "lists_4 lists_16"
        columns = f"step tokens loss_nats learning_rate {lists}"
        caption = (
            "Loss: the mean over the steps since the previous row. Every sequence is read once, "
            "so this is the loss on unread text."
        )
        some, title = rows[::-1][::step][::-1], f"Training of {rows[0]['model']}"
        return {"training": Table.from_rows(title, columns, some, caption)}

    def draw(self, tables: Any) -> list[Figure]:
        """The curve."""
        points = []
        for row in tables.training.to_dicts():
            words = {"at": f"{row['tokens']:,} tokens", "shown": f"{row['loss_nats']:.3f}"}
            points.append(
                {"model": row["model"], "x": row["tokens"], "y": row["loss_nats"], **words}
            )
        model = points[0]["model"]
        drawn = line_chart(
            points,
            [model],
            number("x", "tokens read"),
            number("y", "loss (nats per token)", zero=False),
        )
        return [
            Figure(
                "training",
                "Loss by tokens read",
                f"Loss of {model} on unread text, by tokens read.",
                drawn,
                [model],
            )
        ]

    def notes(self) -> list[str]:
        """Where the model is."""
        checkpoint = f"checkpoint-{self.manifest['num_steps']}"
        how = "`gap`, `track` and every other command take it by its path"
        return [f"The model is {checkpoint} in that folder: {how}."]

    def method(self) -> dict[str, str]:
        """The model, the text, the recipe, the machine."""
        options = self.manifest["options"]
        recipe = options["recipe"]
        optimiser = f"Muon at {recipe['muon']:g} for matrices, AdamW" if recipe["muon"] else "AdamW"
        lists = ", key-value lists before and among the text" if recipe["lists"] else ""
        return {
            "Model": (
                f"{options['model']}, {self.manifest['parameters']:,} parameters, seed "
                f"{options['seed']}"
            ),
            "Text": (
                f"{self.manifest['tokens']:,} tokens in sequences of {options['seq_len']:,}, "
                f"{recipe['batch']} a step"
            ),
            "Recipe": (
                f"{optimiser} at {recipe['learning_rate']:g}, {recipe['decay']} decay to "
                f"{recipe['lowest']:g}{lists}"
            ),
            "Machine": self.manifest["machine"],
        }
