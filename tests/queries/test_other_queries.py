"""The queries of counts, slices and scores on tables small enough to count by hand."""

from __future__ import annotations

import math

import polars as pl
import pytest

from recallkit.storage import db


def test_import_adds_up_and_sorts():
    with db.connect() as connection:
        rows = pl.DataFrame(
            {
                "count": [2, 1, 4, 0],
                "second": [1, 1, 0, 9],
                "first": [7, 7, 3, 3],
                "more": ["a", "b", "c", "d"],
            }
        )
        connection.register("foreign_counts", rows.to_arrow())
        assert connection.execute(db.query("counts/import_table")).fetchall() == [
            (3, 0, 4),
            (7, 1, 3),
        ]


@pytest.mark.parametrize("hits", [[True, False, False, True, False], [None] * 5])
def test_summarise_slices(hits):
    known = hits[0] is not None
    frame = pl.DataFrame(
        {
            "source": ["b", "b", "a", "b", "a"],
            "repeated": [True, False, True, True, False],
            "ar_hit": pl.Series(hits, dtype=pl.Boolean),
        }
    )
    with db.connect() as connection:
        connection.register("tokens", frame.to_arrow())
        rows = db.frame(connection, "slices/summarise_slices").rows()
    of_counts = [(2, 2 / 5), (2, 2 / 3), (0, 0.0)] if known else [(None, None)] * 3
    sizes = [("ALL", 5, 3, 3 / 5), ("b", 3, 2, 2 / 3), ("a", 2, 1, 1 / 2)]
    assert rows == [(*of_all, *of_hits) for of_all, of_hits in zip(sizes, of_counts, strict=True)]


def test_sweep_thresholds():
    counts = [0, 0, 1, 2, 3, 4, 5, 2**40, 2**40 + 1, 2**62 + 1, 0, 7]
    repeated = [count != 5 for count in counts]
    with db.connect() as connection:
        connection.register(
            "tokens", pl.DataFrame({"repeated": repeated, "train_count": counts}).to_arrow()
        )
        rows = db.frame(connection, "slices/sweep_thresholds").rows()
    tokens = {0: 3, 1: 4, 2: 5, 4: 7, 8: 8, 2**40: 9, 2**41: 10, 2**62: 11}
    assert rows == [(threshold, pytest.approx(number / 12)) for threshold, number in tokens.items()]


def test_summarise_scores():
    def summarised(rank: list[int], argmax: list[int]) -> tuple:
        with db.connect() as connection:
            connection.register("tokens", pl.DataFrame({"token": [5, 6, 7, 8]}).to_arrow())
            connection.register(
                "scores",
                pl.DataFrame(
                    {"nll": [1.0, 2.0, 3.0, 6.0], "rank": rank, "argmax": argmax}
                ).to_arrow(),
            )
            return db.frame(connection, "scores/summarise_scores").row(0)

    assert summarised([0, 1, 0, 7], [5, 5, 7, 7]) == pytest.approx((3.0, math.exp(3.0), 0.5))
    assert summarised([0, -1, -1, 7], [-1] * 4)[2] == 0.5, (
        "what has no rank is neither right nor wrong"
    )
    assert summarised([0, 0, 0, 7], [5, 5, -1, 7])[2] == 0.5, (
        "of equal entries the lowest is the choice, where there is one"
    )


def test_count_inexact():
    with db.connect() as connection:
        connection.register(
            "tokens", pl.DataFrame({"ar_hit": [True, False, False, True, False]}).to_arrow()
        )
        connection.register(
            "scores", pl.DataFrame({"exact": [True, False, True, False, False]}).to_arrow()
        )
        assert db.frame(connection, "scores/count_inexact").rows() == [
            ("all", 5, 3, 0.6),
            ("ar_hit", 2, 1, 0.5),
            ("other", 3, 2, 2 / 3),
        ]


RECALLED = {
    "model": ["m", "m", "m", "copy", "m"],
    "task": ["fda", "fda", "fda", "fda", "swde"],
    "doc_id": ["a", "a", "b", "a", "a"],
    "contains": [True, False, False, True, True],
    "answer_nll": [1.0, 4.0, None, None, 0.5],
    "answer_tokens": [3, 1, None, None, 2],
    "truncated": [False, True, True, False, False],
    "answer_cut": [False, True, False, False, False],
    "contains_any": [True, True, False, None, None],
    "occurrences": [1, 0, 0, 3, 1],
    "value": ["v", "v\nw", "v", "v", "v"],
    "generation": ["v", "  ", "", "v", "v"],
}


def test_summarise_documents():
    schema = {"answer_nll": pl.Float64, "answer_tokens": pl.Int32}
    with db.connect() as connection:
        connection.register("documents", pl.DataFrame(RECALLED, schema_overrides=schema).to_arrow())
        rows = db.frame(connection, "recall/summarise_documents").rows()
    assert rows == [
        ("copy", "fda", 1, 1, 0, 0, 0, 0, 0, 1.0, None, None, None),
        (
            "m",
            "fda",
            3,
            2,
            2,
            1,
            2,
            1,
            2,
            pytest.approx(1 / 3),
            pytest.approx(2 / 3),
            pytest.approx(7 / 4),
            pytest.approx(3.5),
        ),
        ("m", "swde", 1, 1, 0, 0, 0, 0, 0, 1.0, None, pytest.approx(0.5), pytest.approx(1.0)),
    ]


def test_bucket_documents():
    numbers = {
        "answer_distance": [8, 5, 0, None, 1],
        "prompt_tokens": [1, 2, 3, 4, 5],
        "depth": [None] * 5,
    }
    schema = {"answer_nll": pl.Float64, "answer_tokens": pl.Int32, "depth": pl.Float64}
    frame = pl.DataFrame({**RECALLED, **numbers}, schema_overrides=schema)
    with db.connect() as connection:
        connection.register("documents", frame.to_arrow())
        found = db.frame(connection, "recall/bucket_documents")
    assert found.filter(bucketed="answer_distance").drop("bucketed").rows() == [
        ("m", "fda", 0, 0, 1, 0.0, None),
        ("m", "fda", 5, 8, 2, 0.5, pytest.approx(7 / 4)),
        ("m", "swde", 1, 1, 1, 1.0, pytest.approx(0.5)),
    ]
    lengths = (
        found.filter(bucketed="prompt_tokens").select("model", "low", "high", "num_rows").rows()
    )
    assert lengths == [
        ("m", 1, 1, 1),
        ("m", 2, 2, 1),
        ("copy", 3, 4, 1),
        ("m", 3, 4, 1),
        ("m", 5, 8, 1),
    ]
