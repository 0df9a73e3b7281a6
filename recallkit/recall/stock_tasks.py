"""lm-eval's own tasks, unchanged, on our models: finished results are reused, interrupted runs resumed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from recallkit.errors import UsageError, UserError
from recallkit.models.evaluated import check_named_once, make_missing, missing_results
from recallkit.recall.answering import open_prompted
from recallkit.storage import artifacts
from recallkit.storage.result import Result
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.models.evaluated import EvaluatedModel
    from recallkit.models.spec import ModelSpec
    from recallkit.options import PromptOptions
    from recallkit.parallel.parts import Share

SETS: dict[str, dict[str, tuple[str, ...]]] = {
    "commonsense": {
        "lambada_openai": ("acc",),
        "hellaswag": ("acc_norm",),
        "piqa": ("acc",),
        "arc_easy": ("acc",),
        "arc_challenge": ("acc_norm",),
        "winogrande": ("acc",),
    },
    "superglue": {
        "boolq": ("acc",),
        "cb": ("acc", "f1"),
        "copa": ("acc",),
        "multirc": ("acc",),
        "record": ("f1", "em"),
        "sglue_rte": ("acc",),
        "wic": ("acc",),
        "wsc": ("acc",),
    },
}
"""Tasks of lm-eval that have a name together, and those of their metrics that an average is of (Based, tables 2 and 3)."""


def task_names(given: str | Sequence[str]) -> list[str]:
    """Names of tasks, one or many, also joined with commas. Raises UserError if there is none."""
    names = [name.strip() for name in (given.split(",") if isinstance(given, str) else given) if name.strip()]
    if not names:
        raise UsageError("no task is named", where="--tasks", remedy="name one (see `recallkit tasks`)")
    return names


def lm_eval_names(names: Sequence[str]) -> list[str]:
    """lm-eval's names of the tasks: `commonsense` is six of them, `superglue` eight."""
    return [each for name in names for each in SETS.get(name, (name,))]


def metrics_path(out: Path, model: str, task: str, shots: int | None = None) -> Path:
    """The metrics table of a model and one of lm-eval's tasks, with a number of examples of one's own or the task's."""
    own = "" if shots is None else f"-{shots}-shot"
    return out / "metrics" / artifacts.file_slug(model) / f"{artifacts.file_slug(task)}{own}.parquet"


def averages(metrics: pl.DataFrame) -> pl.DataFrame:
    """A row (metric `average`) for each model and each of `SETS` whose tasks are all there: metrics averaged by task, then across tasks."""
    import polars as pl

    found = []
    for name, tasks in SETS.items():
        wanted = pl.DataFrame([(task, metric) for task, of in tasks.items() for metric in of], schema=["task", "metric"], orient="row")
        by_task = metrics.join(wanted, on=["task", "metric"]).group_by("model", "task", maintain_order=True).agg(pl.mean("value"))
        of_models = by_task.group_by("model", maintain_order=True).agg(pl.mean("value"), num_tasks=pl.len()).filter(num_tasks=len(tasks))
        found.append(of_models.select("model", "value", task=pl.lit(name), metric=pl.lit("average"), filter=pl.lit("none")))
    return pl.concat([metrics.clear(), *found], how="diagonal")


@dataclass(frozen=True, slots=True)
class StockPlan:
    """Tasks of lm-eval, loaded, and the models to evaluate on them."""

    models: dict[str, EvaluatedModel]
    """By the names that results show."""
    tasks: dict[str, dict[str, Any]]
    """What lm-eval loaded, by the name requested."""
    metrics: dict[tuple[str, str], Result]
    """The metrics table of each model and task."""
    out: Path
    options: PromptOptions
    shots: int | None = None
    """Examples before each question; None: as the task says, else none."""

    def run_share(self, share: Share) -> dict[str, dict[str, Any]]:
        """Answers a share of the requests; see `lm_eval_model.answer_share`."""
        from recallkit.recall.lm_eval_model import answer_share
        from recallkit.recall.lm_eval_run import requests_of

        asked = {task: requests_of(loaded, self.options.limit, self.shots) for task, loaded in self.tasks.items()}
        return answer_share(self.models, self.metrics, lambda _, task: asked[task], self.options, share)

    def run(self) -> pl.DataFrame:
        """Makes the missing metrics tables and lm-eval's files: one row per model, task and metric."""
        import polars as pl

        make_missing(self.models, self.metrics, self._evaluate)
        frames = [pl.read_parquet(result.path, glob=False).with_columns(model=pl.lit(model)) for (model, _), result in self.metrics.items()]
        metrics = pl.concat(frames)
        return pl.concat([metrics, averages(metrics)])

    def _evaluate(self, evaluated: EvaluatedModel, task: str, result: Result) -> None:
        import polars as pl

        from recallkit.recall.lm_eval_model import lm_eval_model
        from recallkit.recall.lm_eval_run import run_tasks, write_results

        model = evaluated.shown
        with result.parts(batch_size=self.options.batch_size) as journal:
            lm = lm_eval_model(evaluated, task, journal, self.options, Timings())
            results = run_tasks(lm, self.tasks[task], model=model, limit=self.options.limit, shots=self.shots)
            write_results(results, self.out / "lm-eval", evaluated.key, model)
            table = pl.DataFrame(list(_metrics(model, results)), infer_schema_length=None).to_arrow()
            artifacts.write_parquet(result.path, [table], table.schema, {**result.stamp(), "model": model})
            journal.finish()


def plan_stock(
    models: Sequence[str | ModelSpec],
    tasks: Sequence[str],
    out: Path,
    options: PromptOptions,
    *,
    shots: int | None = None,
) -> StockPlan:
    """Loads tasks of lm-eval (names, or paths of YAML files) and finds models and finished results, before any work.

    `shots`: examples before each question, in place of the number that a task says.

    Raises UserError for everything a user can correct.
    """
    from recallkit.recall.lm_eval_run import digest_requests, load_tasks

    check_named_once("task", tasks)
    evaluated = open_prompted(models, options)
    for each in evaluated.values():
        if each.copies_text:
            raise UserError("it copies text and has no likelihoods", where=each.spec, remedy="leave it out of lm-eval's own tasks")
    loaded = {task: load_tasks([task]) for task in tasks}
    asked = {
        task: {"task": task, "requests": digest_requests(of, options.limit, shots), "lm_eval": version("lm_eval")}
        for task, of in loaded.items()
    }
    metrics = {
        (model, task): Result(
            metrics_path(out, each.key, task, shots), "metrics", {**each.identity, **asked[task]}, force=options.force, remedy=each.remedy
        )
        for model, each in evaluated.items()
        for task in tasks
    }
    missing_results(evaluated, metrics)
    return StockPlan(evaluated, loaded, metrics, out, options, shots)


def _metrics(model: str, results: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of lm-eval's results: `acc,none` with its `acc_stderr,none`."""
    for task, values in results["results"].items():
        for name, value in values.items():
            metric, _, kind = name.partition(",")
            if not isinstance(value, int | float) or metric.endswith("_stderr") or not kind:
                continue
            error = values.get(f"{metric}_stderr,{kind}")
            yield {
                "model": model,
                "task": task,
                "version": str(number) if (number := results["versions"].get(task)) not in (None, "Yaml") else None,
                "metric": metric,
                "filter": kind,
                "value": float(value),
                "standard_error": float(error) if isinstance(error, int | float) else None,
                "shots": results["n-shot"].get(task),
                "num_documents": results["n-samples"].get(task, {}).get("effective"),
            }
