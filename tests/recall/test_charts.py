"""Figures of recall evaluations: every bar and point is a figure of the tables."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from recallkit.display.cells import span
from recallkit.display.charts import PAPER
from recallkit.recall.charts import figures
from recallkit.recall.tables import RecallTables
from recallkit.recall.view import RecallView
from tests.display.drawings import data, marks, svg

MODELS, TASKS = ["zoo:attention", "a.b[c]", "<script>"], ["fda", "swde"]


def buckets(lows: list[int], seed: int) -> pl.DataFrame:
    rng = random.Random(seed)
    rows = [
        {"model": m, "task": t, "low": low, "high": 1 << (low - 1).bit_length() if low else 0}
        for t in TASKS
        for m in MODELS
        for low in lows
    ]
    return pl.DataFrame(
        [{**row, "num_rows": rng.randint(5, 90), "accuracy": rng.random()} for row in rows]
    )


@pytest.fixture(scope="module")
def tables() -> RecallTables:
    rng = random.Random(0)
    rows = []
    for task in TASKS:
        for model in MODELS:
            accuracy = rng.random()
            known = {
                "standard_error": 0.04,
                "ci_low": max(0.0, accuracy - 0.08),
                "ci_high": min(1.0, accuracy + 0.07),
            }
            of = dict.fromkeys(known) if (model, task) == ("<script>", "swde") else known
            rows.append(
                {
                    "reference": MODELS[0],
                    "model": model,
                    "task": task,
                    "num_rows": 100,
                    "accuracy": accuracy,
                    **of,
                }
            )
    frames = (buckets([9, 17, 33], 1), buckets([0, 1, 2, 3, 5], 2), buckets([65, 129], 3))
    needles = [
        {"model": m, "task": "niah_single_1", "length": n, "depth": d, "num_rows": 4, "accuracy": float(n * (1 - d) > 400)}
        for m in MODELS for n in (256, 1024) for d in (0.0, 0.5, 1.0)
    ]  # fmt: skip
    return RecallTables(
        pl.DataFrame(rows, infer_schema_length=None), *frames, pl.DataFrame(needles)
    )


def test_bars_have_accuracies_and_their_intervals(tables):
    figure = figures(tables)[0]
    for row, bar in zip(tables.recall.to_dicts(), data(figure), strict=True):
        assert [bar[name] for name in ("panel", "accuracy", "low", "high")] == [
            row[n] for n in ("task", "accuracy", "ci_low", "ci_high")
        ]
        assert bar["model"].removesuffix(" (ref.)") == row["model"].removeprefix("zoo:")
        assert bar["tip"].startswith(
            f"{row['model']}, {row['task']}: {100 * row['accuracy']:.1f} %"
        )
        assert ("95 % interval" in bar["tip"]) is (row["ci_low"] is not None)
        assert bar["tip"] in marks(svg(figure))


@pytest.mark.parametrize(("place", "what"), [(1, "distance"), (2, "occurrences"), (3, "length")])
def test_points_are_the_tables_and_hollow_where_prompts_are_few(tables, place, what):
    figure = figures(tables)[place]
    drawn = marks(svg(figure))
    for row, point in zip(getattr(tables, f"by_{what}").to_dicts(), data(figure), strict=True):
        assert (point["panel"], point["x"], point["y"]) == (
            row["task"],
            row["high"],
            row["accuracy"],
        )
        bucket = f"{row['model']}, {row['task']}, {what} {span(row['low'], row['high'])}"
        told = f"{bucket}: {100 * row['accuracy']:.1f} %, {row['num_rows']} prompts"
        assert point["tip"] == told
        assert (drawn[told].paint["fill"] == PAPER["page"]) is (row["num_rows"] < 20)


def test_what_is_empty_is_left_out(tables):
    cleared = {
        name: getattr(tables, name).clear() for name in ("by_distance", "by_length", "by_depth")
    }
    empty = replace(tables, **cleared)
    assert [figure.name for figure in figures(empty)] == [
        "recall_accuracy",
        "recall_by_occurrences",
    ]
    assert (
        figures(
            replace(
                empty, recall=tables.recall.clear(), by_occurrences=tables.by_occurrences.clear()
            )
        )
        == []
    )


def test_a_heat_map_has_a_cell_for_each_length_and_depth(tables):
    figure = figures(tables)[-1]
    assert figure.name == "recall_depth_niah_single_1"
    drawn = marks(svg(figure))
    for row, cell in zip(tables.by_depth.to_dicts(), data(figure), strict=True):
        assert (cell["length"], cell["depth"]) == (
            f"{row['length']:,}",
            f"{100 * row['depth']:.0f} %",
        )
        assert cell["tip"] == (
            f"{row['model']}, niah_single_1, {cell['length']} ids, depth {cell['depth']}: "
            f"{100 * row['accuracy']:.1f} % of 4 prompts"
        )
        assert float(drawn[cell["tip"]].paint["opacity"]) == pytest.approx(
            1.0 if row["accuracy"] else 0.04
        )


def test_of_some_models_there_are_the_same_figures_with_only_these(tables):
    known = replace(tables, by_distance=tables.by_distance.clear())
    view = RecallView(Path("evals"), known)
    some = [MODELS[0], MODELS[2]]
    drawn, every = view.figures(some), view.figures()
    assert [figure.name for figure in drawn] == [figure.name for figure in every] != []
    for few, many in zip(drawn, every, strict=True):
        assert few.models == some
        assert data(few) == [row for row in data(many) if row["model"] != MODELS[1]] != data(many)
    assert view.figures(["another"]) == []
