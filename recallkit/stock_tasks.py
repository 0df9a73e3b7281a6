"""lm-eval's own tasks, unchanged, on the models of ours: found again, gone on with, or made."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from recallkit import __version__, artifacts, config, console
from recallkit.evaluated import EvaluatedModel, EvaluationOptions, check_named_once
from recallkit.journal import PartsJournal, is_finished

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

COMMONSENSE = ("lambada_openai", "hellaswag", "piqa", "arc_easy", "arc_challenge", "winogrande")
"""lm-eval's names of the tasks of Based, table 1."""


def metrics_path(out: Path, model: str, task: str) -> Path:
    """Where a model's metrics of one of lm-eval's tasks lie."""
    return out / "metrics" / artifacts.file_slug(model) / f"{artifacts.file_slug(task)}.parquet"


def evaluate_stock(
    models: Sequence[str], tasks: Sequence[str], out: Path, options: EvaluationOptions = EvaluationOptions()
) -> pl.DataFrame:
    """Evaluates each model on each of lm-eval's tasks (names, or paths of YAML files): a row a model, task and metric.

    Writes metrics tables (`metrics_path`) and lm-eval's own files (`out`/lm-eval). Raises UserError for everything a
    user can mend.
    """
    import polars as pl

    check_named_once(model=models, task=tasks)
    frames = []
    for model in models:
        evaluated = EvaluatedModel(model, options)
        for task in tasks:
            path = metrics_path(out, model, task)
            _evaluate(evaluated, task, path, out / "lm-eval", options)
            frames.append(pl.read_parquet(path))
    return pl.concat(frames)


def _evaluate(evaluated: EvaluatedModel, task: str, path: Path, lm_eval_folder: Path, options: EvaluationOptions) -> None:
    import polars as pl

    from recallkit.evals.harness import digest_requests, load_tasks, run_tasks, write_results

    loaded = load_tasks([task])
    asked = {"task": task, "requests": digest_requests(loaded, options.limit), "lm_eval": version("lm_eval"), "limit": options.limit}
    identity = {**evaluated.identity, **asked}
    if is_finished(artifacts.manifest_options(path, force=options.force), identity, path, force=options.force):
        return
    key = {**identity, "batch_size": options.batch_size}
    with PartsJournal(path, key, force=options.force) as journal, console.progress(f"{task}: {evaluated.spec}", unit="requests") as show:
        results = run_tasks(evaluated.behind_lm_eval(journal.parts, show), loaded, model=evaluated.spec, limit=options.limit)
        write_results(results, lm_eval_folder, evaluated.spec)
        table = pl.DataFrame(list(_metrics(evaluated.spec, results)), infer_schema_length=None).to_arrow()
        facts = {"recallkit_version": __version__, "schema_version": config.SCHEMA_VERSION, "kind": "metrics", "options": identity}
        artifacts.write_parquet(path, [table], table.schema, {**facts, "model": evaluated.spec})
        journal.finish()


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
                "version": str(results["versions"].get(task)),
                "metric": metric,
                "filter": kind,
                "value": float(value),
                "standard_error": float(error) if isinstance(error, int | float) else None,
                "num_documents": results["n-samples"].get(task, {}).get("effective"),
            }
