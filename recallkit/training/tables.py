"""Tables of a training on text, which is its curve, and of a sweep: models at their best rate, all rates, pairs, distances."""

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

    from recallkit.training.runs import Run

    Done = tuple[Run, Mapping[str, Any]]
    """A run and its outcome."""


@dataclass(frozen=True, slots=True, repr=False)
class TradeoffTables(Shown):
    """A sweep of models trained on a synthetic task.

    `tradeoff`: a row per model and task, at the best of its learning rates. `accuracy` and `loss_nats` are means over the tests, each of
    which counts the same; `state_bytes` are of float32 after the longest test sequence; `at_edge`: whether a rate at the end of those
    tried is the best; `pareto`: whether no model of the task is more accurate with as small a state, or as accurate with a smaller one.
    `by_rate`: a row per run. `by_pairs`: a row per model, task and test, at the best rate. `by_distance`: for each of these a row per
    bucket, `low`..`high` ids from where an answer stands to where it is asked for, both included.
    """

    tradeoff: pl.DataFrame
    by_rate: pl.DataFrame
    by_pairs: pl.DataFrame
    by_distance: pl.DataFrame


@dataclass(frozen=True, slots=True, repr=False)
class TrainingTables(Shown):
    """A model trained on text. `training`: a row per point of the curve; `loss_nats` is the mean over the steps since the point before.

    Every window of text is read once, so the loss is that of text which the model has not read yet. `lists_4`, `lists_16`: accuracy on
    test lists of so many pairs, of models that are trained on lists, too.
    """

    training: pl.DataFrame


def make_tables(runs: Sequence[Done]) -> TradeoffTables:
    """The tables of runs and their outcomes, in the order of the runs."""
    groups: dict[Any, list[Done]] = {}
    for run, found in runs:
        groups.setdefault((run.task, run.line, run.config.d_model, run.size), []).append((run, found))
    best = [(_best(of_model), of_model) for of_model in groups.values()]
    models = []
    for (run, found), of_model in best:
        rates = [other.learning_rate for other, _ in of_model]
        models.append({**_row((run, found)), "at_edge": len(rates) > 1 and run.learning_rate in (min(rates), max(rates))})
    for row in models:
        of_task = [other for other in models if other["task"] == row["task"]]
        row["pareto"] = on_front(of_task, "state_bytes", "accuracy")[of_task.index(row)]
    made = {
        "tradeoff": models,
        "by_rate": [{**_row(run), "best": run is chosen} for chosen, of_model in best for run in of_model],
        "by_pairs": [row for run, _ in best for row in _pair_rows(run)],
        "by_distance": [row for run, _ in best for row in _distance_rows(run)],
    }
    return TradeoffTables(**{name: schemas.frame_of(f"tradeoff/{name}", rows) for name, rows in made.items()})


def _best(runs: Sequence[Done]) -> Done:
    """The run with the highest accuracy; among equals, the lowest loss. A loss that is not a number is the worst."""
    return max(runs, key=lambda run: (run[1]["accuracy"], -run[1]["loss_nats"] if math.isfinite(run[1]["loss_nats"]) else -math.inf))


def _row(done: Done) -> dict[str, Any]:
    """A run's columns in the tables."""
    run, found = done
    named = {"task": run.task.shown, "model": run.line, "width": run.config.d_model, "size": run.size}
    facts = {name: found[name] for name in ("parameters", "state_bytes", "num_steps", "accuracy", "loss_nats")}
    return {**named, "learning_rate": run.learning_rate, "batch": run.batch, **facts}


def _pair_rows(done: Done) -> Iterator[dict[str, Any]]:
    """A row for each test of a run."""
    for part, (accuracy, loss, num_queries) in zip(done[0].task.test, done[1]["by_pairs"], strict=True):
        shape = {"length": part.length, "pairs": part.pairs, "num_queries": num_queries}
        yield {**_row(done), **shape, "accuracy": accuracy, "loss_nats": loss}


def _distance_rows(done: Done) -> Iterator[dict[str, Any]]:
    """A row for each test of a run and each bucket."""
    for part, buckets in zip(done[0].task.test, done[1]["by_distance"], strict=True):
        for high, num_queries, right in buckets:
            shape = {"length": part.length, "pairs": part.pairs, "low": high // 2 + 1 if high > 1 else 1, "high": high}
            yield {**_row(done), **shape, "num_queries": num_queries, "accuracy": right / num_queries}
