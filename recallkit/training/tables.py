"""Tables of a sweep: every model at its best learning rate, all rates, and accuracy by number of pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit.display.charts import on_front
from recallkit.display.notebook import Shown
from recallkit.storage import schemas

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import polars as pl

    from recallkit.training.jobs import Job, Part, Task

    Run = tuple[Job, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, repr=False)
class TradeoffTables(Shown):
    """A sweep of models trained on a synthetic task.

    `tradeoff`: a row per model and task, at the best of its learning rates. `accuracy` and `loss_nats` are means over the tests, each of
    which counts the same; `state_bytes` are of float32 after the longest test sequence; `lowest_accuracy`: at the worst rate;
    `at_edge`: whether a rate at the end of those tried is the best; `pareto`: whether no model of the task is
    more accurate with as small a state, or as accurate with a smaller one.
    `by_rate`: a row per run. `by_pairs`: a row per model, task and test, at the best rate.
    """

    tradeoff: pl.DataFrame
    by_rate: pl.DataFrame
    by_pairs: pl.DataFrame


def make_tables(runs: Sequence[Run]) -> TradeoffTables:
    """The tables of runs and their outcomes, in the order of the runs."""
    groups: dict[Any, list[Run]] = {}
    for job, found in runs:
        groups.setdefault((job.task, job.architecture), []).append((job, found))
    best = [(_best(of_model), of_model) for of_model in groups.values()]
    models = [{**_row(run), **_beside(run[0].learning_rate, of_model)} for run, of_model in best]
    for row in models:
        of_task = [other for other in models if other["task"] == row["task"]]
        row["pareto"] = on_front(of_task, "state_bytes", "accuracy")[of_task.index(row)]
    rates = [{**_row(run), "best": run is chosen} for chosen, of_model in best for run in of_model]
    pairs = [row for run, _ in best for row in _pair_rows(run)]
    made = {"tradeoff": models, "by_rate": rates, "by_pairs": pairs}
    return TradeoffTables(**{name: schemas.frame_of(f"tradeoff/{name}", rows) for name, rows in made.items()})


def _best(runs: Sequence[Run]) -> Run:
    """The run with the highest accuracy; among equals, the lowest loss. A loss that is not a number is the worst."""
    return max(runs, key=lambda run: (run[1]["accuracy"], -run[1]["loss_nats"] if math.isfinite(run[1]["loss_nats"]) else -math.inf))


def _row(run: Run) -> dict[str, Any]:
    """A run's columns in the tables."""
    job, found = run
    made = job.architecture
    named = {"task": task_name(job.task), "model": made.model, "width": made.width, "size": made.size}
    facts = {name: found[name] for name in ("parameters", "state_bytes", "num_steps", "accuracy", "loss_nats")}
    return {**named, "mixer": made.mixer, "convolution": made.convolution, "learning_rate": job.learning_rate, "batch": job.batch, **facts}


def _beside(rate: float, runs: Sequence[Run]) -> dict[str, Any]:
    """The best learning rate of a model compared with the others."""
    rates = [job.learning_rate for job, _ in runs]
    at_edge = len(rates) > 1 and rate in (min(rates), max(rates))
    return {"num_rates": len(rates), "lowest_accuracy": min(found["accuracy"] for _, found in runs), "at_edge": at_edge}


def _pair_rows(run: Run) -> Iterator[dict[str, Any]]:
    """A row for each test of a run."""
    job, found = run
    for part, (accuracy, loss, num_queries) in zip(job.task.test, found["by_pairs"], strict=True):
        shape = {"length": part.length, "pairs": part.pairs, "num_queries": num_queries}
        yield {**_row(run), **shape, "accuracy": accuracy, "loss_nats": loss}


def task_name(task: Task) -> str:
    """The task, what it trains on, and what it is tested on where that differs."""
    named = ", ".join([task.name, *(f"{option} {value}" for option, value in task.options)])
    trained, tested = (_shape(parts) for parts in (task.training, task.test))
    return f"{named}: {trained}" if trained == tested else f"{named}: trained on {trained}, tested on {tested}"


def _shape(parts: Sequence[Part]) -> str:
    lengths = " ".join(f"{length:,}" for length in sorted({part.length for part in parts}))
    pairs = sorted({part.pairs for part in parts})
    return f"{lengths} ids with {pairs[0]}{f' to {pairs[-1]}' if len(pairs) > 1 else ''} pairs"
