"""The queries of measure/ on tokens few enough to count by hand."""

from __future__ import annotations

import pyarrow as pa

from recallkit.storage import db

TOKENS = {
    "cluster": [0, 0, 0, 0, 1, 1],
    "document": [0, 0, 0, 0, 2, 2],
    "source": ["a", "a", "a", "a", "b", "b"],
    "position": [1, 2, 3, 4, 1, 8],
    "repeated": [False, True, True, False, True, True],
    "ar_hit": [False, True, True, False, False, False],
    "context_class": ["new", "bigram", "bigram", "token", "bigram", "bigram"],
    "train_count": pa.array([0, 0, 3, 1, 9, 1251], pa.int64()),
    "distance": pa.array([None, 1, 2, None, 5, 3], pa.int32()),
    "match_length": [0, 1, 5, 0, 3, 8],
    "slices": [1, 3, 3, 1, 1, 1],
    "nll_0": pa.array([1, 2, 4, 8, 16, 32], pa.float32()),
    "first_nll_0": pa.array([1, 1, 1, 8, 1, 2], pa.float32()),
    "p_0": [0.5, 0.25, 0.125, 0.5, 0.25, 0.125],
    "first_p_0": [0.5, 0.5, 0.5, 0.5, 0.0, 0.0],
}
VALUES = ("tokens", "nll_0", "first_nll_0", "p_0", "first_p_0")


def sums(query: str, *keys: str, **parameters: float) -> dict[tuple, tuple]:
    """By `keys` what is added up, of the rows that have all of them."""
    with db.connect(threads=1) as database:
        database.register("tokens", pa.table(TOKENS))
        rows = (
            database.sql(db.query(f"measure/{query}"), params=parameters)
            .to_arrow_table()
            .to_pylist()
        )
    rows = [row for row in rows if row[keys[-1]] is not None]
    return {tuple(row[key] for key in keys): tuple(row[value] for value in VALUES) for row in rows}


def test_counts_are_classed_by_the_smallest_cut_that_they_do_not_exceed():
    cuts = {"papers": 1250, "quarter": 2, "half": 5, "most": 10, "double": 20, "fourfold": 40}
    assert sums("sum_by_count", "cluster", "context_class", "largest_count", **cuts) == {
        (0, "new", 0): (1, 1, 1, 0.5, 0.5),
        (0, "bigram", 0): (1, 2, 1, 0.25, 0.5),
        (0, "bigram", 4): (1, 4, 1, 0.125, 0.5),
        (0, "token", 1): (1, 8, 8, 0.5, 0.5),
        (1, "bigram", 10): (1, 16, 1, 0.25, 0),
        (1, "bigram", 2048): (1, 32, 2, 0.125, 0),
    }


def test_places_are_classed_apart_and_ar_hits_from_other_tokens():
    places = {"buckets": 4, "seq_len": 8}
    nlls = {
        column: {
            key: values[:2]
            for key, values in sums("sum_by_place", "cluster", "ar_hit", column, **places).items()
        }
        for column in ("distance", "match_length", "position")
    }
    assert nlls == {
        "distance": {
            (0, True, 1): (1, 2),
            (0, True, 2): (1, 4),
            (1, False, 8): (1, 16),
            (1, False, 4): (1, 32),
        },
        "match_length": {
            (0, False, 0): (2, 9),
            (0, True, 1): (1, 2),
            (0, True, 4): (1, 4),
            (1, False, 3): (1, 16),
            (1, False, 8): (1, 32),
        },
        "position": {
            (0, False, 0): (1, 1),
            (0, True, 0): (1, 2),
            (0, True, 1): (1, 4),
            (0, False, 1): (1, 8),
            (1, False, 0): (1, 16),
            (1, False, 3): (1, 32),
        },
    }
    assert sums("sum_by_place", "cluster", "ar_hit", "distance", **places)[0, True, 2] == (
        1,
        4,
        1,
        0.125,
        0.5,
    )


def test_sets_of_slices_are_kept_apart():
    assert sums("sum_by_slice", "cluster", "document", "source", "slices") == {
        (0, 0, "a", 1): (2, 9, 9, 1, 1),
        (0, 0, "a", 3): (2, 6, 2, 0.375, 1),
        (1, 2, "b", 1): (2, 48, 3, 0.375, 0),
    }
