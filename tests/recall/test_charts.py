"""Pictures of recall evaluations: every bar and point is a figure of the tables, to scale."""

from __future__ import annotations

import random
import re

import numpy as np
import polars as pl
import pytest

from recallkit.display.chart_theme import svg
from recallkit.recall.charts import figures
from recallkit.recall.tables import RecallTables
from tests.display.drawings import marks, shapes

MODELS, TASKS = ["zoo:attention", "a.b[c]", "<script>"], ["fda", "swde"]


def buckets(lows: list[int], seed: int) -> pl.DataFrame:
    rng = random.Random(seed)
    return pl.DataFrame(
        [
            {
                "model": m,
                "task": t,
                "low": low,
                "high": 1 << (low - 1).bit_length() if low else 0,
                "num_rows": rng.randint(5, 90),
                "accuracy": rng.random(),
            }
            for t in TASKS
            for m in MODELS
            for low in lows
        ]
    )


@pytest.fixture(scope="module")
def tables() -> RecallTables:
    rng = random.Random(0)
    rows = []
    for task in TASKS:
        for model in MODELS:
            accuracy = rng.random()
            known = {"standard_error": 0.04, "ci_low": max(0.0, accuracy - 0.08), "ci_high": min(1.0, accuracy + 0.07)}
            unknown = dict.fromkeys(known)
            of = unknown if (model, task) == ("<script>", "swde") else known
            rows.append({"reference": MODELS[0], "model": model, "task": task, "num_rows": 100, "accuracy": accuracy, **of})
    return RecallTables(
        pl.DataFrame(rows, infer_schema_length=None), buckets([9, 17, 33], 1), buckets([0, 1, 2, 3, 5], 2), buckets([65, 129], 3)
    )


@pytest.fixture(scope="module")
def drawn(tables) -> dict[str, str]:
    return {figure.name: svg(figure) for figure in figures(tables)}


def test_every_picture_is_there(tables, drawn):
    assert list(drawn) == ["recall_accuracy", "recall_by_distance", "recall_by_occurrences", "recall_by_length"]
    assert all("<script" not in text and len(text) < 60_000 for text in drawn.values())
    assert drawn == {figure.name: svg(figure) for figure in figures(tables)}
    for text in drawn.values():
        assert {"<script>", "a.b[c]"} <= {s.text for s in shapes(text)}


def test_bars_and_whiskers_are_to_scale(tables, drawn):
    bars = marks(drawn["recall_accuracy"])
    rows = tables.recall.to_dicts()
    assert len(bars) == len(rows)
    boxes = {}
    for row in rows:
        [label] = [label for label in bars if label.startswith(f"{row['model']}, {row['task']}: {100 * row['accuracy']:.1f} %")]
        assert label.endswith(", 100 prompts")
        assert ("95 % interval" in label) is (row["ci_low"] is not None)
        boxes[label] = (bars[label].box, row)
    wide = [right - left for (left, _, right, _), _ in boxes.values()]
    unit = np.polyfit([row["accuracy"] for _, row in boxes.values()], wide, 1)
    np.testing.assert_allclose(wide, np.polyval(unit, [row["accuracy"] for _, row in boxes.values()]), atol=0.2)
    assert abs(unit[1]) < 0.2
    whiskers = [s for s in shapes(drawn["recall_accuracy"]) if s.kind == "line" and s.paint.get("stroke-width") == "1.4"]
    known = [(box, row) for box, row in boxes.values() if row["ci_low"] is not None]
    assert len(whiskers) == len(known)
    for (left, top, _, bottom), row in known:
        [mine] = [s for s in whiskers if top < s.y < bottom]
        ends = sorted((mine.x, mine.x + float(mine.attributes["x2"])))
        assert ends == pytest.approx([left + row[end] * unit[0] for end in ("ci_low", "ci_high")], abs=0.6)


@pytest.mark.parametrize(("name", "what"), [("by_distance", "distance"), ("by_occurrences", "occurrences"), ("by_length", "length")])
def test_points_are_the_tables(tables, drawn, name, what):
    expected = {(r["model"], r["task"], r["low"]): r for r in getattr(tables, name).to_dicts()}
    found = {}
    for label, shape in marks(drawn[f"recall_{name}"]).items():
        model, task, low, accuracy, rows = re.fullmatch(
            rf"(\S+), (\S+), {what} (\d+)(?: to \d+)?: ([\d.]+) %, (\d+) prompts?", label
        ).groups()
        found[model, task, int(low)] = shape
        row = expected[model, task, int(low)]
        assert float(accuracy) == pytest.approx(100 * row["accuracy"], abs=0.06)
        assert int(rows) == row["num_rows"]
        assert (shape.paint["fill"] == "var(--page)") is (row["num_rows"] < 20)
    assert found.keys() == expected.keys()
    for task in TASKS:
        mine = {key: shape for key, shape in found.items() if key[1] == task}
        heights = [expected[key]["accuracy"] for key in mine]
        fit = np.polyfit(heights, [s.y for s in mine.values()], 1)
        assert fit[0] < 0
        np.testing.assert_allclose([s.y for s in mine.values()], np.polyval(fit, heights), atol=0.15)


def test_what_is_empty_is_left_out(tables):
    empty = RecallTables(tables.recall, tables.by_distance.clear(), tables.by_occurrences, tables.by_length.clear())
    assert [figure.name for figure in figures(empty)] == ["recall_accuracy", "recall_by_occurrences"]
    assert (
        figures(RecallTables(*(getattr(tables, name).clear() for name in ("recall", "by_distance", "by_occurrences", "by_length")))) == []
    )
