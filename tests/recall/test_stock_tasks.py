"""Sets of lm-eval's tasks: their names and metrics are lm-eval's, their averages those of Based's
tables."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from recallkit.papers import arithmetic as published
from recallkit.recall.stock_tasks import SETS, averages, lm_eval_names

COLUMNS = {
    "commonsense": (
        "based:2",
        {
            "lambada_openai": "lambada",
            "arc_easy": "arc_e",
            "arc_challenge": "arc_c",
            "hellaswag": "hellaswag",
            "piqa": "piqa",
        }
        | {"winogrande": "winogrande"},
    ),
    "superglue": (
        "based:3",
        {name: name for name in ("boolq", "cb", "copa", "multirc", "record", "wic", "wsc")}
        | {"sglue_rte": "rte"},
    ),
}
"""Set -> the paper's table, and its column of each task; ReCoRD and CB have one for each metric."""


def test_tasks_and_metrics_are_those_of_lm_evals_files():
    assert lm_eval_names(["superglue", "piqa"]) == [*SETS["superglue"], "piqa"]
    assert [len(tasks) for tasks in SETS.values()] == [6, 8]
    import yaml
    from lm_eval.tasks import manager

    class Loader(yaml.SafeLoader):
        """Reads what a task's file says of functions as text."""

    Loader.add_constructor("!function", lambda loader, node: str(node.value))
    root, metrics_of = Path(manager.__file__).parent, {}
    for folder in ("super_glue", "lambada", "hellaswag", "piqa", "arc", "winogrande"):
        for path in (root / folder).rglob("*.yaml"):
            config = yaml.load(path.read_text(), Loader)
            while "include" in config:
                included = yaml.load((path.parent / config.pop("include")).read_text(), Loader)
                config = included | config
            if isinstance(config.get("task"), str):
                metrics_of[config["task"]] = {
                    metric["metric"] for metric in config.get("metric_list", [])
                }
    for tasks in SETS.values():
        for task, metrics in tasks.items():
            assert set(metrics) <= metrics_of[task], task


@pytest.mark.parametrize("name", COLUMNS)
def test_averages_are_the_papers(name):
    """Of each row that the paper prints; the three that its own columns contradict are those of
    tests/attribution/test_papers.py."""
    table, columns = COLUMNS[name]
    rows, expected = [], {}
    for number, row in enumerate(published.read_table(table).iter_rows(named=True)):
        model = f"m{number}"
        expected[model] = row["average"]
        for task, metrics in SETS[name].items():
            for metric in metrics:
                value = row.get(f"{columns[task]}_{metric}", row.get(columns[task]))
                rows.append(
                    {
                        "model": model,
                        "task": task,
                        "metric": metric,
                        "filter": "none",
                        "value": value,
                        "shots": 0,
                    },
                )
            rows.append(
                {
                    "model": model,
                    "task": task,
                    "metric": "other",
                    "filter": "none",
                    "value": 1e9,
                    "shots": 0,
                },
            )
    rows_of_sets = averages(pl.DataFrame(rows))
    assert rows_of_sets.columns == ["model", "task", "metric", "filter", "value", "shots"]
    assert set(rows_of_sets["metric"]) == {"average"}
    assert set(rows_of_sets["task"]) == {name}
    far = [
        model
        for model, value in zip(rows_of_sets["model"], rows_of_sets["value"], strict=True)
        if abs(value - expected[model]) > 0.11
    ]
    assert far == (["m4", "m5", "m13"] if name == "commonsense" else [])
    incomplete = pl.DataFrame(rows).filter(pl.col("task") != "piqa", pl.col("task") != "copa")
    assert averages(incomplete).is_empty()
