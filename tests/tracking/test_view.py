"""The curve of a run: every checkpoint and interval, the reference across the whole plot, the step at which recall appears."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import polars as pl

from recallkit.tracking.tables import TrackTables
from recallkit.tracking.view import track_figures
from tests.display.drawings import data, svg, texts

NLLS = {"ar_nll": 6.0, "first_nll": 7.0, "other_nll": 4.0}


def made_tables(steps: list[int], *, reference: bool) -> TrackTables:
    """Checkpoints whose NLLs are those above; recall of 3 nats from the second on."""
    rows = []
    for place, step in enumerate([*steps, None] if reference else steps):
        recall = 3.0 if place else 0.0
        ends = {f"{name}_ci_{end}": value + sign for name, value in NLLS.items() for end, sign in (("low", -0.5), ("high", 0.5))}
        known = {"recall": recall, "recall_ci_low": recall - 0.1, "recall_ci_high": recall + 0.1}
        rows.append({"model": "ref" if step is None else f"m-{step}", "step": step, **NLLS, **ends, **known})
    verdict = {"verdict": "appears", "step": steps[1], "step_ci_low": steps[1], "step_ci_high": steps[1]} if len(steps) > 1 else {}
    return TrackTables(pl.DataFrame(rows), pl.DataFrame([verdict] if verdict else []))


def test_every_checkpoint_is_drawn_with_its_intervals():
    [figure] = track_figures(made_tables([0, 10, 1000], reference=True))
    rows = data(figure)
    assert [(row["x"], row["y"]) for row in rows[:3]] == [(0, 0.0), (10, 3.0), (1000, 3.0)]
    assert [(row["x"], row["y"], row["low"], row["high"]) for row in rows[3:6]] == [(step, 6.0, 5.5, 6.5) for step in (0, 10, 1000)]
    assert {row["model"] for row in rows} == {"recalled", "AR hits", "their first occurrences", "other tokens"}
    assert "Dashed: ref." in figure.caption
    shown = texts(svg(figure))
    assert {"AR hits, step 1,000: 6.00 nats", "training step", "nats per token", "0", "10", "1k"} <= set(shown)
    upright = re.search(r"recall appears at step ([\d,]+)", " ".join(shown))
    assert upright
    assert f"step {upright[1]}." in figure.caption


def test_the_reference_is_a_line_across_the_whole_plot():
    def dashed(tables: TrackTables) -> list[ET.Element]:
        lines = ET.fromstring(svg(track_figures(tables)[0])).iter("{http://www.w3.org/2000/svg}line")
        return [line for line in lines if line.get("stroke-dasharray") == "3,3"]

    across = dashed(made_tables([0, 10, 1000], reference=True))
    assert [(float(line.get("x2", 0)), float(line.get("y2", 0))) for line in across] == [(330.0, 0.0)] * 4
    assert dashed(made_tables([0, 10, 1000], reference=False)) == []


def test_recall_that_is_there_from_the_first_step_on_has_no_step_at_which_it_appears():
    tables = made_tables([5, 10], reference=False)
    first = TrackTables(tables.track, tables.verdict.with_columns(step=pl.lit(5)))
    assert ["appears at step" in figure.caption for made in (tables, first) for figure in track_figures(made)] == [True, False]
