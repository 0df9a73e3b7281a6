"""What captions say is drawn is drawn: intervals, bands, fitted lines, hollow points, sources."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from recallkit.display.charts import Figure
from recallkit.intervening.charts import intervene_figures
from recallkit.intervening.tables import InterveneTables
from recallkit.mqar.charts import mqar_figures
from recallkit.profiling.charts import profile_figures
from recallkit.recall.charts import figures as recall_figures
from recallkit.recall.tables import RecallTables
from recallkit.slicing.view import slice_figures
from recallkit.tracking.tables import TrackTables
from recallkit.tracking.view import track_figures
from tests.display.drawings import data
from tests.mqar.test_charts import comparison
from tests.profiling.test_tables import synthetic, tables_of
from tests.tracking.test_view import made_tables


def profiles(*, much: bool) -> list[Figure]:
    return profile_figures(
        tables_of(synthetic(np.random.default_rng(0), 60 if much else 1, 128)), 128
    )[::3]


def evaluations(*, much: bool) -> list[Figure]:
    ends = (
        {"standard_error": 0.1, "ci_low": 0.4, "ci_high": 0.6}
        if much
        else dict.fromkeys(("standard_error", "ci_low", "ci_high"))
    )
    row = {"reference": "m", "model": "m", "task": "fda", "num_rows": 90, "accuracy": 0.5, **ends}
    buckets = pl.DataFrame([{**row, "low": 9, "high": 16, "num_rows": 90 if much else 19}])
    return recall_figures(
        RecallTables(
            pl.DataFrame([row]),
            buckets,
            buckets.clear(),
            buckets.clear(),
            pl.DataFrame(schema=["task"]),
        )
    )


def pairs(*, much: bool) -> list[Figure]:
    rows, distances = comparison(
        ["m"], [4, 8], **({} if much else dict.fromkeys(("accuracy_low", "accuracy_high")))
    )
    return mqar_figures(rows, distances.with_columns(num_queries=pl.lit(500 if much else 5)))[::2]


def runs(*, much: bool) -> list[Figure]:
    tables = made_tables([0, 10], reference=False)
    ends = [pl.lit(None, pl.Float64).alias(name) for name in tables.track.columns if "_ci_" in name]
    return track_figures(
        tables if much else TrackTables(tables.track.with_columns(ends), tables.verdict)
    )


def changes(*, much: bool) -> list[Figure]:
    ends = (
        {"points_ci_low": 0.4, "points_ci_high": 0.6}
        if much
        else dict.fromkeys(("points_ci_low", "points_ci_high"))
    )
    frame = pl.DataFrame(
        [
            {
                "model": "m",
                "slice": "ar_hit",
                "points": 0.5,
                **ends,
                "low": 1,
                "high": 2,
                "samples": 20 if much else 19,
            }
        ]
    )
    return intervene_figures(InterveneTables(frame, frame, frame, frame))


INTERVALS = ("ith 95 % intervals", "with its 95 % interval", "bands")


@pytest.mark.parametrize("made", [profiles, evaluations, pairs, runs, changes])
def test_intervals_lines_and_hollow_points_are_spoken_of_where_they_are_drawn(
    made: Callable[..., list[Figure]],
):
    captions = {much: [figure.caption for figure in made(much=much)] for much in (True, False)}
    assert captions[True] != captions[False]
    for much in captions:
        for figure in made(much=much):
            rows = data(figure)
            has = {
                INTERVALS: any(
                    row[name] is not None
                    for row in rows
                    for name in row
                    if name == "low" or name.endswith("_ci_low")
                ),
                ("power laws",): any(row.get("law") for row in rows),
                ("Hollow",): any(row.get("few") for row in rows),
            }
            for words, is_drawn in has.items():
                assert any(word in figure.caption for word in words) == is_drawn, (
                    much,
                    figure.caption,
                )


@pytest.mark.parametrize(
    ("sources", "has_counts", "title", "caption"),
    [
        (
            ["a", "b"],
            True,
            "Repeated tokens and AR hits by source",
            ", and of AR hits, which are repeated and rare in training, by source.",
        ),
        (["a"], True, "Repeated tokens and AR hits", ", which are repeated and rare in training."),
        (
            ["a", "b"],
            False,
            "Repeated tokens by source",
            " that repeat a bigram of their context, by source.",
        ),
        (["a"], False, "Repeated tokens", " that repeat a bigram of their context."),
    ],
)
def test_slices_are_by_source_and_of_ar_hits_where_they_are(sources, has_counts, title, caption):
    hits = 0.1 if has_counts else None
    rows = [
        {"source": name, "tokens": 100, "repeated_share": 0.3, "ar_hit_share": hits}
        for name in ("ALL", *sources)
    ]
    [figure] = slice_figures(pl.DataFrame(rows))
    assert figure.title == title
    assert figure.caption.endswith(caption)
