"""The tables of recall evaluations: accuracies, differences, and curves that show where answers are
no longer found."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import polars as pl
import pytest

from recallkit.display import console
from recallkit.recall.tables import RecallTables
from recallkit.recall.view import (
    RecallView,
    accuracy_table,
    answer,
    answers_table,
    curves_table,
    recall_tables,
)


def made_tables(
    models=("attention", "mamba"), tasks=("swde", "fda"), highs=(2, 4, 16)
) -> RecallTables:
    """Model m finds 1 - m / 2 of the answers, half as many of the farthest ones."""
    facts = {
        "version": 1,
        "prompt": "standard",
        "cut": "left",
        "num_rows": 10,
        "num_documents": 2,
        "dropped": 0,
        "comparable": True,
    }
    recall = [
        {
            **facts, "task": task, "model": model, "accuracy": 1 - m / 2, "answer_nll": 0.5 + m,
            "ci_low": 0.948 - m / 2, "ci_high": 1 - m / 4,
            "difference": -m / 2, "difference_low": None if not m else -0.6, "difference_high": None if not m else -0.4,
            "reference": models[0], "answer_nats": 2.0 + m, "answer_nats_difference": float(m), "disagree": None if not m else True,
            "answer_nats_difference_low": None if not m else -0.5, "answer_nats_difference_high": None if not m else 2.5,
        }
        for task in tasks for m, model in enumerate(models)
    ]  # fmt: skip
    by_distance = [
        {"model": model, "task": task, "low": high // 2 + 1, "high": high, "accuracy": (1 - m / 2) / (1 + (high == highs[-1]))}
        for task in tasks for m, model in enumerate(models) for high in highs
    ]  # fmt: skip
    buckets = pl.DataFrame(by_distance)
    by_depth = pl.DataFrame(
        schema={
            "model": pl.String,
            "task": pl.String,
            "length": pl.Int64,
            "depth": pl.Float64,
            "accuracy": pl.Float64,
        }
    )
    return RecallTables(
        pl.DataFrame(recall, schema_overrides={"disagree": pl.Boolean}),
        buckets,
        buckets,
        buckets,
        by_depth,
    )


def test_accuracies_stand_by_task_with_their_intervals():
    table = accuracy_table(made_tables())
    assert table.headers == ["model", "swde", "fda"]
    assert table.rows == [
        ["attention", *["100.0 (95 to 100)"] * 2],
        ["mamba", *["50.0 (45 to 75)"] * 2],
    ]
    assert table.groups == [("", 1), ("accuracy (%)", 2)]


def test_many_tasks_are_printed_three_abreast(capsys):
    """Whole models and tasks in 80 columns; an export has one table."""
    tasks = ("swde", "fda", "squad", "nq_512", "nq_1024", "nq_2048", "triviaqa", "drop")
    tables = made_tables(tasks=tasks)
    counts = {
        name: pl.lit(0) for name in ("truncated", "answer_cut", "absent", "multiline", "empty")
    }
    recall = tables.recall.with_columns(**counts, f1=0.5, prompt=pl.lit("once"), cut=pl.lit("left"))
    tables = dataclasses.replace(tables, recall=recall)
    console.print_tables(RecallView(Path("evals"), tables).terminal_tables())
    lines = capsys.readouterr().out.splitlines()
    heads = [
        line.split()[1:] for line in lines if line.strip().startswith("model") and "100" not in line
    ]
    assert heads[1:4] == [
        ["swde", "fda"],
        ["squad", "nq_512", "nq_1024"],
        ["nq_2048", "triviaqa", "drop"],
    ]
    assert [line.split()[0] for line in lines if "(95 to 100)" in line] == ["attention"] * 3
    assert recall_tables(tables)["recall"].headers == ["model", *tasks]
    caption = " ".join(" ".join(lines).split())
    assert "swde, fda, squad: 10 prompts of 2 documents. nq_512, " in caption
    assert (
        "triviaqa, drop: 10 prompts of 2 documents; any of several answers is right. Greedy"
        in caption
    )


def test_generation_and_likelihood_are_side_by_side():
    table = answers_table(made_tables())
    assert table.headers == [
        "model",
        "task",
        "right\n(%)",
        "points\n(95 % interval)",
        "NLL",
        "nats\n(95 % interval)",
    ]
    mamba = ["50.0", "-50.0 (-60 to -40)", "3.00", "+1.00 (-0.50 to 2.50)"]
    assert table.rows[1:] == [
        ["mamba", "swde", *mamba],
        ["attention", "fda", "100.0", "–", "2.00", "–"],
        ["mamba", "fda", *mamba],
    ]
    assert "swde, fda: 10 prompts of 2 documents." in table.caption
    assert "Points and nats are differences from attention." in table.caption
    alone = answers_table(made_tables(models=("attention",), tasks=("swde",)))
    assert (alone.headers, alone.rows) == (
        ["model", "right\n(%)", "NLL"],
        [["attention", "100.0", "2.00"]],
    )


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        ((-0.5, -0.6, -0.4), "50.0 points fewer, 95 % interval 40.0 to 60.0"),
        ((0.25, 0.1, 0.4), "25.0 points more, 95 % interval 10.0 to 40.0"),
        ((0.1, -0.1, 0.3), "10.0 points more, not significant: 95 % interval -10.0 to +30.0"),
        ((-0.1, -0.3, 0.1), "10.0 points fewer, not significant: 95 % interval -30.0 to +10.0"),
        ((0.0, -0.2, 0.2), "as many: 95 % interval -20.0 to +20.0"),
        ((0.1, None, None), "10.0 points more, no interval"),
    ],
)
def test_each_sign_of_a_difference_has_its_words(difference, said):
    tables = made_tables(tasks=("swde",))
    columns = dict(
        zip(("difference", "difference_low", "difference_high"), difference, strict=True)
    )
    recall = tables.recall.with_columns(
        **{name: pl.lit(value, pl.Float64) for name, value in columns.items()}
    )
    assert answer(dataclasses.replace(tables, recall=recall)).endswith(
        f"; mamba in 50.0 % ({said})."
    )


def test_curves_run_from_nothing_to_all():
    table = curves_table(made_tables())
    assert table.headers == ["model", "swde\n2 to 16", "fda\n2 to 16"]
    assert table.rows == [["attention", "██ ▅", "██ ▅"], ["mamba", "▅▅ ▃", "▅▅ ▃"]]
    assert curves_table(made_tables(highs=(4,))) is None


def test_the_answer_of_an_evaluation():
    tables = made_tables()
    swde, fda = answer(tables).split(". On ")
    assert swde == (
        "On swde, attention gives the value in 100.0 % of 10 prompts (95 % interval 94.8 to "
        "100.0 %); mamba in 50.0 % (50.0 points fewer, "
        "95 % interval 40.0 to 60.0)"
    )
    assert fda.startswith("fda, attention gives")
    assert answer(made_tables(tasks=("own",))).startswith("On your own rows, attention gives")
    several = answer(made_tables(tasks=("swde", "fda", "squad", "drop", "nq_512", "own")))
    assert several.count("On ") == several.count(" attention gives") == 4
    assert several.endswith(". The table also has nq_512, own.")
