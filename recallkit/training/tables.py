"""Tables of a training on text, which is its curve, and of a sweep: models at their best rate, all
rates, pairs, distances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit.display.notebook import NotebookResult
from recallkit.display.templates import on_front
from recallkit.storage import schemas

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import polars as pl

    from recallkit.training.runs import Run

    Done = tuple[Run, Mapping[str, Any]]
    """A run and its outcome."""


@dataclass(frozen=True, slots=True, repr=False)
class TradeoffTables(NotebookResult):
    """A sweep of models trained on a synthetic task.

    `tradeoff`: a row per model and task, at the best of its learning rates. `accuracy` and
    `loss_nats` are means over the tests, each of which counts the same; `state_bytes` are of
    float32 after the longest test sequence; `at_edge`: whether a rate at the end of those tried is
    the best; `pareto`: whether no model of the task is more accurate with as small a state, or as
    accurate with a smaller one.
    `by_rate`: a row per run. `by_distance`: a row per model, task, test and bucket, at the best
    rate: `low`..`high` ids from where an answer stands to where it is asked for, both included.
    """

    tradeoff: pl.DataFrame
    by_rate: pl.DataFrame
    by_distance: pl.DataFrame


@dataclass(frozen=True, slots=True, repr=False)
class TrainingTables(NotebookResult):
    """A model trained on text. `training`: a row per point of the curve; `loss_nats` is the mean
    over the steps since the point before.

    Every window of text is read once, so the loss is that of text which the model has not read yet.
    `lists_4`, `lists_16`: accuracy on test lists of so many pairs, of models that are trained on
    lists, too.
    """

    training: pl.DataFrame


def make_tables(runs: Sequence[Done]) -> TradeoffTables:
    """The tables of runs and their outcomes, in the order of the runs."""
    groups: dict[Any, list[Done]] = {}
    for run, outcome in runs:
        model = run.task, run.line, run.config.d_model, run.size
        groups.setdefault(model, []).append((run, outcome))
    tradeoff: list[dict[str, Any]] = []
    by_rate: list[dict[str, Any]] = []
    by_distance: list[dict[str, Any]] = []
    for of_model in groups.values():
        best = max(of_model, key=_goodness)
        rates = [run.learning_rate for run, _ in of_model]
        at_edge = len(rates) > 1 and best[0].learning_rate in (min(rates), max(rates))
        tradeoff.append({**_row(best), "at_edge": at_edge})
        by_rate += [{**_row(done), "best": done is best} for done in of_model]
        by_distance += _distances(best)
    for row in tradeoff:
        of_task = [other for other in tradeoff if other["task"] == row["task"]]
        row["pareto"] = on_front(of_task, "state_bytes", "accuracy")[of_task.index(row)]
    return TradeoffTables(
        schemas.frame_of("tradeoff/tradeoff", tradeoff),
        schemas.frame_of("tradeoff/by_rate", by_rate),
        schemas.frame_of("tradeoff/by_distance", by_distance),
    )


def _distances(done: Done) -> Iterator[dict[str, Any]]:
    """A run's rows by distance."""
    run, outcome = done
    for part, buckets in zip(run.task.test, outcome["by_distance"], strict=True):
        for high, number, right in buckets:  # up to 1, 2, 3 to 4, 5 to 8 ...
            low = high // 2 + 1 if high > 1 else 1
            place = {"length": part.length, "pairs": part.pairs, "low": low, "high": high}
            yield {**_row(done), **place, "num_queries": number, "accuracy": right / number}


def _goodness(done: Done) -> tuple[float, float]:
    """A run's accuracy; among equals the lower loss is better, and one that is not a number the
    worst."""
    _, outcome = done
    loss = outcome["loss_nats"]
    return outcome["accuracy"], -loss if math.isfinite(loss) else -math.inf


_OF_OUTCOME = ("parameters", "state_bytes", "num_steps", "accuracy", "loss_nats")


def _row(done: Done) -> dict[str, Any]:
    """A run's columns in the tables."""
    run, outcome = done
    return {
        "task": run.task.shown,
        "model": run.line,
        "width": run.config.d_model,
        "size": run.size,
        "learning_rate": run.learning_rate,
        "batch": run.batch,
        **{name: outcome[name] for name in _OF_OUTCOME},
    }
