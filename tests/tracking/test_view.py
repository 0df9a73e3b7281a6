"""The curve of a run: every checkpoint and interval, in points and nats, and the reference's
gain."""

from __future__ import annotations

import pytest

from recallkit.storage.schemas import LAYOUTS, frame_of
from recallkit.tracking.tables import TrackTables
from recallkit.tracking.view import answer, track_figures, track_tables
from tests.display.drawings import data, svg, texts

FIGURES = {"ar_nll": 6.0, "first_nll": 7.0, "other_nll": 4.0, "gain": 0.3}


def made_tables(steps: list[int], *, reference: bool) -> TrackTables:
    """Checkpoints whose figures are those above; a reference has twice the gain."""
    rows = []
    for step in [*([None] if reference else []), *steps]:
        row = dict.fromkeys(LAYOUTS["track/track"]) | {
            "model": "ref" if step is None else f"m-{step}",
            "step": step,
            "tokens": 900,
            "ar_hits": 90,
        }
        row |= {
            "reference": "ref" if reference else None,
            "documents": 60,
            "effective_documents": 50.0,
        }
        for name, value in FIGURES.items():
            row |= {name: value, f"{name}_ci_low": value - 0.1, f"{name}_ci_high": value + 0.1}
        if step is None:
            row["gain"] = 0.6
        elif reference:
            row |= {"retained": 0.5, "retained_ci_low": 0.4, "retained_ci_high": 0.6}
        rows.append(row)
    verdict = {
        "verdict": "appears",
        "step": steps[-1],
        "step_ci_low": steps[0],
        "step_ci_high": steps[-1],
    }
    return TrackTables(frame_of("track/track", rows), frame_of("track/verdict", [verdict]))


def test_every_checkpoint_is_drawn_with_its_intervals_and_the_reference_beside_it():
    [figure] = track_figures(made_tables([0, 10, 1000], reference=True))
    points = {}
    for row in data(figure):
        points.setdefault((row["panel"], row["model"]), []).append(
            (row["x"], row["y"], row["low"], row["high"])
        )
    assert points["recall gain, points", "recall gain"] == [
        (step, 30, pytest.approx(20), 40) for step in (0, 10, 1000)
    ]
    assert points["recall gain, points", "the reference's"] == [
        (step, 60, None, None) for step in (0, 10, 1000)
    ]
    assert points["NLL, nats per token", "AR hits"] == [
        (step, 6, 5.9, 6.1) for step in (0, 10, 1000)
    ]
    assert len(points) == 5
    assert figure.caption.endswith(" Dashed: ref.")
    shown = set(texts(svg(figure)))
    assert {
        "AR hits, step 1,000: 6.00 nats",
        "recall gain, step 10: 30.00 points",
        "training step",
        "0",
        "10",
        "1k",
    } <= shown
    [alone] = track_figures(made_tables([0, 10], reference=False))
    assert "Dashed" not in alone.caption
    assert {row["model"] for row in data(alone)} == {
        "recall gain",
        "AR hits",
        "their first occurrences",
        "other tokens",
    }
    assert track_figures(made_tables([0], reference=True)) == []


def test_what_is_retained_is_told_and_shown_where_there_is_a_reference():
    both = [made_tables([0, 10], reference=reference) for reference in (True, False)]
    assert answer(both[0]).endswith(
        "Recall appears at step 10 (95 % interval 0 to 10): at step 10 the recall gain on AR hits "
        "is 30.0 points (20.0 to 40.0), 50 % of ref's."
    )
    assert answer(both[1]).endswith("30.0 points (20.0 to 40.0).")
    tables = [track_tables(tables)["track"] for tables in both]
    assert tables[0].rows[-2:] == [
        ["10", "6.00", "7.00", "4.00", "30.0 (20.0 to 40.0)", "50 (40 to 60)"],
        ["ref", "6.00", "7.00", "4.00", "60.0 (20.0 to 40.0)", "–"],
    ]
    assert "retained, %" not in tables[1].headers
    assert [str(table.caption).endswith(" Last row: the reference.") for table in tables] == [
        True,
        False,
    ]
