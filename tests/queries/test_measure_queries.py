"""The queries of measure/ on tokens few enough to count by hand."""

from __future__ import annotations

import pyarrow as pa

from recallkit.storage import db

TOKENS = {
    "cluster": [0, 0, 0, 0, 1, 1],
    "document": [0, 0, 0, 0, 1, 1],
    "source": [0, 0, 0, 0, 1, 1],
    "position": [1, 2, 3, 4, 1, 8],
    "repeated": [False, True, True, False, True, True],
    "ar_hit": [False, True, True, False, False, False],
    "context_class": ["new", "bigram", "bigram", "token", "bigram", "bigram"],
    "train_count": [0, 0, 3, 1, 9, 1251],
    "distance": pa.array([None, 1, 2, None, 5, 3], pa.int32()),
    "match_length": [0, 1, 5, 0, 3, 8],
    "slices": [0, 1, 3, 1, 3, 3],
    "nll_0": pa.array([1, 2, 4, 8, 16, 32], pa.float32()),
    "first_0": pa.array([1, 1, 1, 8, 1, 2], pa.float32()),
}


def ask(query: str, **parameters: float) -> list[dict]:
    with db.connect(threads=1) as database:
        database.register("tokens", pa.table(TOKENS))
        return database.sql(db.query(f"measure/{query}"), params=parameters).to_arrow_table().to_pylist()


def test_counts_are_classed_by_the_smallest_cut_that_they_do_not_exceed():
    rows = ask("sum_by_count", papers=1250, quarter=2, half=5, most=10, double=20, fourfold=40)
    found = {(row["cluster"], row["context_class"], row["largest_count"]): (row["tokens"], row["nll_0"], row["first_0"]) for row in rows}
    assert found == {
        (0, "new", 0): (1, 1, 1),
        (0, "bigram", 0): (1, 2, 1),
        (0, "bigram", 4): (1, 4, 1),
        (0, "token", 1): (1, 8, 8),
        (1, "bigram", 10): (1, 16, 1),
        (1, "bigram", 2048): (1, 32, 2),
    }


def test_places_are_classed_apart_and_ar_hits_from_other_tokens():
    rows = ask("sum_by_place", buckets=4, seq_len=8)
    found = {
        column: {(row["cluster"], row["ar_hit"], row[column]): row["nll_0"] for row in rows if row[column] is not None}
        for column in ("distance", "match_length", "position")
    }
    assert found["distance"] == {(0, True, 1): 2, (0, True, 2): 4, (1, False, 8): 16, (1, False, 4): 32}
    assert found["match_length"] == {(0, False, 0): 9, (0, True, 1): 2, (0, True, 4): 4, (1, False, 3): 16, (1, False, 8): 32}
    assert found["position"] == {(0, False, 0): 1, (0, True, 0): 2, (0, True, 1): 4, (0, False, 1): 8, (1, False, 0): 16, (1, False, 3): 32}


def test_sets_of_slices_are_kept_apart():
    rows = ask("sum_by_slice")
    found = {(row["cluster"], row["source"], row["ar_hit"], row["slices"]): (row["tokens"], row["nll_0"], row["first_0"]) for row in rows}
    assert found == {
        (0, 0, False, 0): (1, 1, 1),
        (0, 0, True, 1): (1, 2, 1),
        (0, 0, False, 1): (1, 8, 8),
        (0, 0, True, 3): (1, 4, 1),
        (1, 1, False, 3): (2, 48, 3),
    }
