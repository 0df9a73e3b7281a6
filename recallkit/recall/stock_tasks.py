"""lm-eval's own tasks, unchanged, on our models: finished results are reused, interrupted runs
resumed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from recallkit.errors import UsageError, UserError
from recallkit.models.evaluated import check_named_once, make_missing, missing_results
from recallkit.recall.answering import Answering, open_prompted
from recallkit.storage import hashing, parquet_files
from recallkit.storage.result import Result
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.models.evaluated import EvaluatedModel
    from recallkit.models.spec import ModelSpec
    from recallkit.options import PromptOptions

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
"""Tasks of lm-eval that have a name together, and those of their metrics that an average is of
(Based, tables 2 and 3)."""


def task_names(tasks: str | Sequence[str]) -> list[str]:
    """Names of tasks, one or many, also joined with commas. Raises UserError if there is none."""
    words = tasks.split(",") if isinstance(tasks, str) else tasks
    names = [word.strip() for word in words if word.strip()]
    if not names:
        remedy = "name one (see `recallkit tasks`)"
        raise UsageError("no task is named", where="--tasks", remedy=remedy)
    return names


def lm_eval_names(names: Sequence[str]) -> list[str]:
    """lm-eval's names of the tasks: `commonsense` is six of them, `superglue` eight."""
    return [task for name in names for task in SETS.get(name, (name,))]


def metrics_path(out: Path, model: str, task: str, shots: int | None = None) -> Path:
    """The metrics table of a model and one of lm-eval's tasks, with a number of examples of one's
    own or the task's."""
    name = hashing.file_slug(task)
    if shots is not None:
        name = f"{name}-{shots}-shot"
    return out / "metrics" / hashing.file_slug(model) / f"{name}.parquet"


def averages(metrics: pl.DataFrame) -> pl.DataFrame:
    """A row (metric `average`) for each model and each of `SETS` whose tasks are all there: metrics
    averaged by task, then across tasks."""
    import polars as pl

    frames = [metrics.clear()]
    for name, tasks in SETS.items():
        pairs = [(task, metric) for task, names in tasks.items() for metric in names]
        averaged = pl.DataFrame(pairs, schema=["task", "metric"], orient="row")
        rows = metrics.join(averaged, on=["task", "metric"])
        by_task = rows.group_by("model", "task", maintain_order=True).agg(pl.mean("value"))
        by_model = by_task.group_by("model", maintain_order=True)
        means = by_model.agg(pl.mean("value"), num_tasks=pl.len()).filter(num_tasks=len(tasks))
        label = {"task": pl.lit(name), "metric": pl.lit("average"), "filter": pl.lit("none")}
        frames.append(means.select("model", "value", **label))
    return pl.concat(frames, how="diagonal")


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

    def run(self) -> pl.DataFrame:
        """Makes the missing metrics tables and lm-eval's files: one row per model, task and
        metric."""
        import polars as pl

        make_missing(self.models, self.metrics, self._evaluate)
        frames = []
        for (model, _), result in self.metrics.items():
            frame = pl.read_parquet(result.path, glob=False)
            frames.append(frame.with_columns(model=pl.lit(model)))
        metrics = pl.concat(frames)
        return pl.concat([metrics, averages(metrics)])

    def _evaluate(self, model: EvaluatedModel, task: str, result: Result) -> None:
        """Makes one metrics table, with lm-eval's files."""
        import polars as pl

        from recallkit.recall.lm_eval_model import ModelLM
        from recallkit.recall.lm_eval_run import run_tasks, write_results

        options, loaded = self.options, self.tasks[task]
        with result.parts(batch_size=options.batch_size) as journal:
            answering = Answering(model, task, journal, options, Timings())
            results = run_tasks(
                ModelLM(answering),
                loaded,
                model=model.shown,
                limit=options.limit,
                shots=self.shots,
            )
            write_results(results, self.out / "lm-eval", model.key, model.shown)
            rows = list(_metrics(model.shown, results))
            table = pl.DataFrame(rows, infer_schema_length=None).to_arrow()
            manifest = {**result.stamp(), "model": model.shown}
            parquet_files.write_parquet(result.path, [table], table.schema, manifest)
            journal.finish()


def plan_stock(
    models: Sequence[str | ModelSpec],
    tasks: Sequence[str],
    out: Path,
    options: PromptOptions,
    *,
    shots: int | None = None,
) -> StockPlan:
    """Loads tasks of lm-eval (names, or paths of YAML files) and finds models and finished results,
    before any work.

    `shots`: examples before each question, in place of the number that a task says.

    Raises UserError for everything a user can correct.
    """
    from recallkit.recall.lm_eval_run import digest_requests, load_task

    check_named_once("task", tasks)
    evaluated = open_prompted(models, options)
    for model in evaluated.values():
        if model.copies_text:
            problem = "it copies text and has no likelihoods"
            remedy = "leave it out of lm-eval's own tasks"
            raise UserError(problem, where=model.location, remedy=remedy)
    loaded = {task: load_task(task) for task in tasks}
    requests = {task: digest_requests(loaded[task], options.limit, shots) for task in tasks}

    def result(model: EvaluatedModel, task: str) -> Result:
        question = {"task": task, "requests": requests[task], "lm_eval": version("lm_eval")}
        path = metrics_path(out, model.key, task, shots)
        identity = {**model.identity, **question}
        return Result(path, "metrics", identity, force=options.force, remedy=model.remedy)

    pairs = [(name, task) for name in evaluated for task in tasks]
    metrics = {(name, task): result(evaluated[name], task) for name, task in pairs}
    missing_results(evaluated, metrics)
    return StockPlan(evaluated, loaded, metrics, out, options, shots)


def _metrics(model: str, results: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of lm-eval's results: `acc,none` with its `acc_stderr,none`."""
    for task, values in results["results"].items():
        stated = results["versions"].get(task)
        version_text = None if stated in (None, "Yaml") else str(stated)
        facts = {"model": model, "task": task, "version": version_text}
        for name, value in values.items():
            metric, _, kind = name.partition(",")
            if not isinstance(value, int | float) or metric.endswith("_stderr") or not kind:
                continue
            error = values.get(f"{metric}_stderr,{kind}")
            yield {
                **facts,
                "metric": metric,
                "filter": kind,
                "value": float(value),
                "standard_error": float(error) if isinstance(error, int | float) else None,
                "shots": results["n-shot"].get(task),
                "num_documents": results["n-samples"].get(task, {}).get("effective"),
            }
