"""lm-eval's own tasks, unchanged, on the models of ours: found again, gone on with, or made."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from recallkit import __version__, config
from recallkit.display import console
from recallkit.errors import UsageError, UserError
from recallkit.recall.evaluated import EvaluatedModel, EvaluationOptions, check_named_once, telling_what_is_kept
from recallkit.storage import artifacts
from recallkit.storage.journal import PartsJournal, is_finished

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

COMMONSENSE = ("lambada_openai", "hellaswag", "piqa", "arc_easy", "arc_challenge", "winogrande")
"""lm-eval's names of the tasks of Based, table 1."""


def task_names(given: str | Sequence[str]) -> list[str]:
    """Names of tasks, one or many, also joined with commas. Raises UserError where there is none."""
    names = [name.strip() for name in (given.split(",") if isinstance(given, str) else given) if name.strip()]
    if not names:
        raise UsageError("no task is named", where="--tasks", remedy="name one (see `recallkit tasks`)")
    return names


def lm_eval_names(names: Sequence[str]) -> list[str]:
    """What lm-eval calls the tasks: `commonsense` is six of them."""
    return [each for name in names for each in (COMMONSENSE if name == "commonsense" else (name,))]


def metrics_path(out: Path, model: str, task: str) -> Path:
    """Where a model's metrics of one of lm-eval's tasks lie."""
    return out / "metrics" / artifacts.file_slug(model) / f"{artifacts.file_slug(task)}.parquet"


@dataclass(frozen=True, slots=True)
class StockPlan:
    """Tasks of lm-eval, loaded, and the models that they are for."""

    models: dict[str, EvaluatedModel]
    tasks: dict[str, dict[str, Any]]
    """What lm-eval loaded, by the name that was asked for."""
    asked: dict[str, dict[str, Any]]
    """What each task asks: it decides the numbers."""
    files: dict[tuple[str, str], Path]
    out: Path
    options: EvaluationOptions

    def run(self) -> pl.DataFrame:
        """Makes what is missing of the metrics tables and lm-eval's files: a row a model, task and metric."""
        import polars as pl

        with telling_what_is_kept(list(self.files.values())):
            for model, evaluated in self.models.items():
                for task in self.tasks:
                    if not self.is_there(model, task):
                        self._evaluate(model, task, self.files[model, task])
                evaluated.unload()
        return pl.concat([pl.read_parquet(path, glob=False) for path in self.files.values()])

    def is_there(self, model: str, task: str) -> bool:
        """Whether a metrics table is whole. Raises UserError where it is of other options."""
        path, force = self.files[model, task], self.options.force
        return is_finished(artifacts.manifest_options(path, force=force), self._identity(model, task), path, force=force)

    def _identity(self, model: str, task: str) -> dict[str, Any]:
        return {**self.models[model].identity, **self.asked[task]}

    def _evaluate(self, model: str, task: str, path: Path) -> None:
        import polars as pl

        from recallkit.recall.lm_eval_run import run_tasks, write_results

        identity, force = self._identity(model, task), self.options.force
        key = {**identity, "batch_size": self.options.batch_size}
        with PartsJournal(path, key, force=force) as journal, console.progress(f"{task}: {model}", unit="requests") as show:
            lm = self.models[model].behind_lm_eval(journal.parts, show)
            results = run_tasks(lm, self.tasks[task], model=model, limit=self.options.limit)
            write_results(results, self.out / "lm-eval", model)
            table = pl.DataFrame(list(_metrics(model, results)), infer_schema_length=None).to_arrow()
            facts = {"recallkit_version": __version__, "schema_version": config.SCHEMA_VERSION, "kind": "metrics", "options": identity}
            artifacts.write_parquet(path, [table], table.schema, {**facts, "model": model})
            journal.finish()


def plan_stock(models: Sequence[str], tasks: Sequence[str], out: Path, options: EvaluationOptions = EvaluationOptions()) -> StockPlan:
    """Loads tasks of lm-eval (names, or paths of YAML files) and finds models and what is done already, before any work.

    Raises UserError for everything a user can mend.
    """
    from recallkit.recall.lm_eval_run import digest_requests, load_tasks

    check_named_once(model=models, task=tasks)
    evaluated = {model: EvaluatedModel(model, options) for model in models}
    for each in evaluated.values():
        if each.copies_text:
            raise UserError("it copies text and has no likelihoods", where=each.spec, remedy="leave it out of lm-eval's own tasks")
    loaded = {task: load_tasks([task]) for task in tasks}
    asked = {
        task: {"task": task, "requests": digest_requests(of, options.limit), "lm_eval": version("lm_eval")} for task, of in loaded.items()
    }
    files = {(model, task): metrics_path(out, model, task) for model in models for task in tasks}
    plan = StockPlan(evaluated, loaded, asked, files, out, options)
    for model, task in files:
        if not plan.is_there(model, task):
            _ = evaluated[model].tokenizer
    return plan


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
                "num_documents": results["n-samples"].get(task, {}).get("effective"),
            }
