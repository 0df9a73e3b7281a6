"""Tables of a sweep: every model at its best learning rate, all rates, and accuracy by number of pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit.display.notebook import Shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from recallkit.training.jobs import Job
    from recallkit.training.sequences import Part, Task

    Run = tuple[Job, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class TradeoffTables(Shown):
    """A sweep of models trained on MQAR.

    `tradeoff`: a row per model and task, at the best of its learning rates. `accuracy` and `loss_nats` are means over the tests, each of
    which counts the same; `state_bytes` are of float32 after the longest test sequence; `lowest_accuracy`: at the worst rate;
    `at_edge`: whether a rate at the end of those tried is the best; `pareto`: whether no model of the task with as small a state
    is as accurate.
    `by_rate`: a row per run. `by_pairs`: a row per model, task and test, at the best rate.
    """

    tradeoff: pl.DataFrame
    by_rate: pl.DataFrame
    by_pairs: pl.DataFrame


def make_tables(runs: Sequence[Run]) -> TradeoffTables:
    """The tables of runs and their outcomes, in the order of the runs."""
    import polars as pl

    groups: dict[Any, list[Run]] = {}
    for job, found in runs:
        groups.setdefault((job.task, job.architecture), []).append((job, found))
    best = {key: _best(of_model) for key, of_model in groups.items()}
    models = [_model_row(best[key], of_model) for key, of_model in groups.items()]
    _mark_pareto(models)
    rates = [_rate_row(run, is_best=run is best[key]) for key, of_model in groups.items() for run in of_model]
    pairs = [row for run in best.values() for row in _pair_rows(run)]
    return TradeoffTables(*(pl.DataFrame(rows, infer_schema_length=None) for rows in (models, rates, pairs)))


def _best(runs: Sequence[Run]) -> Run:
    """The run with the highest accuracy; among equals, the lowest loss. A loss that is not a number is the worst."""
    return max(runs, key=lambda run: (run[1]["accuracy"], -run[1]["loss_nats"] if math.isfinite(run[1]["loss_nats"]) else -math.inf))


def _named(job: Job) -> dict[str, Any]:
    return {"task": task_name(job.task), "model": job.architecture.model, "width": job.architecture.width, "size": job.architecture.size}


def _model_row(best: Run, runs: Sequence[Run]) -> dict[str, Any]:
    job, found = best
    rates = [each.learning_rate for each, _ in runs]
    return {
        **_named(job),
        "mixer": job.architecture.mixer,
        "convolution": job.architecture.convolution,
        **{name: found[name] for name in ("parameters", "state_bytes")},
        **{name: float(found[name]) for name in ("accuracy", "loss_nats")},
        "learning_rate": job.learning_rate,
        "num_rates": len(rates),
        "lowest_accuracy": float(min(each["accuracy"] for _, each in runs)),
        "at_edge": len(rates) > 1 and job.learning_rate in (min(rates), max(rates)),
        "num_steps": found["num_steps"],
        "batch": job.batch,
        "pareto": False,
    }


def _mark_pareto(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        rivals = [other for other in rows if other["task"] == row["task"] and other["state_bytes"] <= row["state_bytes"]]
        row["pareto"] = not any(
            (other["accuracy"], -other["state_bytes"]) > (row["accuracy"], -row["state_bytes"]) for other in rivals if other is not row
        )


def _rate_row(run: Run, *, is_best: bool) -> dict[str, Any]:
    job, found = run
    outcome = {"accuracy": float(found["accuracy"]), "loss_nats": float(found["loss_nats"]), "num_steps": found["num_steps"]}
    return {**_named(job), "learning_rate": job.learning_rate, **outcome, "best": is_best}


def _pair_rows(run: Run) -> list[dict[str, Any]]:
    job, found = run
    return [
        {
            **_named(job),
            "learning_rate": job.learning_rate,
            "length": part.length,
            "pairs": part.pairs,
            "num_queries": part.examples * part.pairs,
            "accuracy": float(accuracy),
            "loss_nats": float(loss),
        }
        for part, (accuracy, loss) in zip(job.task.test, found["by_pairs"], strict=True)
    ]


def task_name(task: Task) -> str:
    """What a task trains on, and what it is tested on where that differs."""
    trained, tested = (_shape(parts) for parts in (task.training, task.test))
    return trained if trained == tested else f"trained on {trained}, tested on {tested}"


def _shape(parts: Sequence[Part]) -> str:
    lengths = " ".join(f"{length:,}" for length in sorted({part.length for part in parts}))
    pairs = sorted({part.pairs for part in parts})
    return f"{lengths} ids with {pairs[0]}{f' to {pairs[-1]}' if len(pairs) > 1 else ''} pairs"
