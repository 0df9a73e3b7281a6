"""Each query of the gap on a table small enough to count by hand."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from recallkit.storage import db

PAIR = {"reference": "attention", "model": "conv"}


def run(name, params=None, **tables):
    with db.connect(threads=1) as database:
        for table, columns in tables.items():
            database.register(table, pa.table(columns))
        return database.sql(db.query(f"gap/{name}"), params=params or {}).to_arrow_table().to_pylist()


def totals(rows):
    """Cells of a pair from (source, repeated, ar_hit, count_class, the three buckets of places, tokens, reference, model)."""
    places = ("position_bucket", "distance_bucket", "match_bucket")
    names = ("source", "repeated", "ar_hit", "count_class", *places, "tokens", "nll_reference", "nll_model")
    types = (pa.string(), pa.bool_(), pa.bool_(), *[pa.uint8()] * 4, pa.int64(), pa.float64(), pa.float64())
    return {name: pa.array([row[i] for row in rows], kind) for i, (name, kind) in enumerate(zip(names, types, strict=True))}


def label(source, repeated, ar_hit, count_class, *sums):
    return (source, repeated, ar_hit, count_class, None, None, None, *sums)


def place(position_bucket, distance_bucket, ar_hit, *sums, match_bucket=0):
    return (None, None, ar_hit, None, position_bucket, distance_bucket, match_bucket, *sums)


LABELS = [
    label("web", True, True, 2, 2, 2.0, 6.0),  # class 2: counts of 2
    label("web", True, False, 4, 1, 1.0, 1.0),  # class 4: counts of 5 to 8
    label("web", False, False, 0, 4, 8.0, 9.0),  # never seen in training
    label("code", False, False, 2, 3, 3.0, 6.0),
]


def test_aggregate_cells_sums_each_model_by_label_and_by_place():
    rows = run(
        "aggregate_cells",
        aligned={
            "sequence": pa.array([7, 7, 7, 8], pa.int32()),
            # Source 3; repeated and an AR hit of count class 5, or neither and class 0.
            "label": pa.array([3 * 256 + 128 + 64 + 5] * 2 + [3 * 256, 3 * 256 + 128 + 64 + 5], pa.uint32()),
            # Position bucket 0 or 31, distance bucket 2 or none, match bucket 63 or none.
            "place": pa.array([2 * 128 + 63 * 2 + 1, 31 * 8192 + 2 * 128 + 1, 31 * 8192, 2 * 128 + 63 * 2 + 1], pa.uint32()),
            "nll_0": pa.array([1, 2, 4, 8], pa.float32()),
            "nll_1": pa.array([10, 20, 40, 80], pa.float32()),
            "nll_2": pa.array([0, 0, 0, 0.5], pa.float32()),
        },
    )
    sums = ("tokens", "nll_0", "nll_1", "nll_2")
    keys = ("sequence", "source", "repeated", "ar_hit", "count_class", "position_bucket", "distance_bucket", "match_bucket")
    assert {tuple(r[k] for k in keys): tuple(r[s] for s in sums) for r in rows} == {
        (7, 3, True, True, 5, None, None, None): (2, 3, 30, 0),
        (7, 3, False, False, 0, None, None, None): (1, 4, 40, 0),
        (8, 3, True, True, 5, None, None, None): (1, 8, 80, 0.5),
        (None, None, None, True, None, 0, 2, 63): (2, 9, 90, 0.5),
        (None, None, None, True, None, 31, 2, 0): (1, 2, 20, 0),
        (None, None, None, False, None, 31, 0, 0): (1, 4, 40, 0),
    }


def test_total_cells_adds_sequences_and_batches_up_and_keeps_the_kinds_apart():
    rows = run(
        "total_cells",
        cells={
            "sequence": pa.array([1, 2, None], pa.int32()),
            "source": ["web", "web", None],
            "repeated": [True, True, None],
            "ar_hit": [True, True, True],
            "count_class": pa.array([1, 1, None], pa.uint8()),
            "position_bucket": pa.array([None, None, 0], pa.uint8()),
            "distance_bucket": pa.array([None, None, 1], pa.uint8()),
            "match_bucket": pa.array([None, None, 2], pa.uint8()),
            "tokens": [2, 3, 5],
            "nll_0": [1.0, 2.0, 3.0],
            "nll_1": [4.0, 5.0, 9.0],
        },
    )
    assert [(r["source"], r["position_bucket"], r["tokens"], r["nll_0"], r["nll_1"]) for r in rows] == [
        ("web", None, 5, 3.0, 9.0),
        (None, 0, 5, 3.0, 9.0),
    ]


def test_attribute_gap_splits_all_and_each_source():
    rows = run("attribute_gap", PAIR, totals=totals([*LABELS, place(0, 1, True, 10, 99.0, 99.0)]))
    assert [(r["source"], r["slice"], r["tokens"]) for r in rows] == [
        ("ALL", "all", 10),
        ("ALL", "ar_hit", 2),
        ("ALL", "other", 8),
        ("code", "all", 3),
        ("code", "ar_hit", 0),
        ("code", "other", 3),
        ("web", "all", 7),
        ("web", "ar_hit", 2),
        ("web", "other", 5),
    ]
    # Overall 14 nats against 22: a gap of 8, of which the AR hits hold 6 - 2 = 4.
    assert [r["gap_share"] for r in rows] == [1, 0.5, 0.5, 1, None, 1, 1, 4 / 5, 1 / 5]
    hits = rows[1]
    assert (hits["reference"], hits["model"], hits["share_of_tokens"]) == ("attention", "conv", 0.2)
    assert (hits["nll_reference"], hits["nll_model"], hits["delta_nll"]) == (1, 3, 2)
    assert (hits["ppl_reference"], hits["ppl_model"]) == pytest.approx((math.e, math.e**3), rel=1e-15)
    empty = rows[4]
    assert empty["share_of_tokens"] == 0
    assert {empty[name] for name in ("nll_reference", "nll_model", "ppl_reference", "ppl_model", "delta_nll")} == {None}


def test_attribute_gap_matches_thousands_of_sources_at_once():
    num_sources = 20_000
    cells = [label(f"{i:05d}", True, i % 2 == 0, 1, 1, 1.0, 2.0 + i) for i in range(num_sources)]
    rows = run("attribute_gap", PAIR, totals=totals(cells))
    assert len(rows) == 3 * (num_sources + 1)
    assert [r["tokens"] for r in rows[:6]] == [num_sources, num_sources // 2, num_sources // 2, 1, 1, 0]
    assert [(r["source"], r["delta_nll"]) for r in rows[-3:]] == [("19999", 20_000), ("19999", None), ("19999", 20_000)]


LARGE = [label("web", True, True, 2, 2, 2.0, 2000.0), place(0, 1, True, 2, 2.0, 2000.0)]
CLASSES = {"count_class": pa.array([2], pa.int64()), "threshold": [2], "low": [2], "high": [2]}


@pytest.mark.parametrize(
    ("name", "params", "tables"),
    [
        ("attribute_gap", {}, {}),
        ("bucket_counts", {}, {"count_classes": CLASSES}),
        ("bucket_distances", {}, {}),
        ("bucket_matches", {}, {}),
        ("bucket_positions", {"seq_len": 10, "num_buckets": 4}, {}),
        ("sweep_thresholds", {}, {"thresholds": {"threshold": [2], "count_class": [2]}}),
    ],
)
def test_a_perplexity_beyond_floats_is_infinite(name, params, tables):
    rows = run(name, PAIR | params, totals=totals(LARGE), **tables)
    assert (rows[0]["nll_model"], rows[0]["ppl_model"], rows[0]["gap_share"]) == (1000, math.inf, 1)


def test_attribute_gap_has_no_share_without_a_gap():
    rows = run("attribute_gap", PAIR, totals=totals([label("web", True, True, 1, 2, 2.0, 2.0)]))
    assert [(r["delta_nll"], r["gap_share"]) for r in rows] == [(0, None), (0, None), (None, None)] * 2


def test_bucket_counts_by_log2_bucket_and_repetition():
    classes = {
        "count_class": pa.array([0, 1, 2, 3, 4], pa.int64()),
        "threshold": [0, 1, 2, 3, 4],
        "low": [0, 1, 2, 3, 3],
        "high": [0, 1, 2, 4, 4],
    }
    rows = run("bucket_counts", PAIR, totals=totals([*LABELS, label("web", True, False, 3, 1, 1.0, 2.0)]), count_classes=classes)
    assert [(r["repeated"], r["low"], r["high"], r["tokens"], r["delta_nll"]) for r in rows] == [
        (True, 2, 2, 2, 2.0),
        (True, 3, 4, 2, 0.5),
        (False, 0, 0, 4, 0.25),
        (False, 2, 2, 3, 1.0),
    ]
    assert [r["share_of_tokens"] for r in rows] == [2 / 11, 2 / 11, 4 / 11, 3 / 11]
    assert [r["gap_share"] for r in rows] == [4 / 9, 1 / 9, 1 / 9, 3 / 9]


def test_bucket_distances_of_repeated_tokens_only():
    cells = [
        place(0, 0, False, 6, 6.0, 6.0),
        place(0, 1, True, 1, 1.0, 2.0),
        place(3, 1, True, 1, 1.0, 3.0),
        place(1, 4, False, 2, 0.0, 1.0),
    ]
    rows = run("bucket_distances", PAIR, totals=totals([*cells, *LABELS]))
    assert [(r["ar_hit"], r["low"], r["high"], r["tokens"], r["delta_nll"]) for r in rows] == [
        (True, 1, 1, 2, 1.5),
        (False, 5, 8, 2, 0.5),
    ]
    assert [(r["share_of_tokens"], r["gap_share"]) for r in rows] == [(0.2, 0.75), (0.2, 0.25)]


def test_bucket_matches_of_all_tokens():
    cells = [
        place(0, 0, False, 6, 6.0, 6.0),
        place(0, 1, True, 1, 1.0, 2.0, match_bucket=3),
        place(3, 4, True, 1, 1.0, 3.0, match_bucket=3),
        place(1, 4, True, 1, 0.0, 0.5, match_bucket=26),
        place(1, 4, False, 1, 0.0, 0.5, match_bucket=4),
    ]
    rows = run("bucket_matches", PAIR, totals=totals([*cells, *LABELS]))
    assert [(r["ar_hit"], r["low"], r["high"], r["tokens"], r["delta_nll"]) for r in rows] == [
        (True, 3, 3, 2, 1.5),
        (True, 2**24, 2**25 - 1, 1, 0.5),
        (False, 0, 0, 6, 0.0),
        (False, 4, 7, 1, 0.5),
    ]
    assert [(r["share_of_tokens"], r["gap_share"]) for r in rows] == [(0.2, 0.75), (0.1, 0.125), (0.6, 0), (0.1, 0.125)]


def test_bucket_positions_cover_the_sequence_without_overlap():
    # Ten positions in four buckets: 1-3, 4-5, 6-8, 9-10.
    cells = [place(b, 0, False, 1, 1.0, 2.0) for b in range(4)] + [place(1, 1, True, 1, 1.0, 1.0), place(1, 2, True, 1, 0.0, 4.0)]
    rows = run("bucket_positions", {**PAIR, "seq_len": 10, "num_buckets": 4}, totals=totals([*cells, *LABELS]))
    assert [(r["slice"], r["low"], r["high"], r["tokens"]) for r in rows] == [
        ("ar_hit", 4, 5, 2),
        ("other", 1, 3, 1),
        ("other", 4, 5, 1),
        ("other", 6, 8, 1),
        ("other", 9, 10, 1),
    ]
    assert [r["gap_share"] for r in rows] == [0.5, 0.125, 0.125, 0.125, 0.125]
    assert rows[0]["nll_model"] == 2.5


def test_sweep_thresholds_counts_repeated_tokens_up_to_each():
    thresholds = {"threshold": [0, 2, 8], "count_class": [0, 2, 4]}
    rows = run("sweep_thresholds", PAIR, totals=totals([*LABELS, place(0, 1, True, 10, 99.0, 99.0)]), thresholds=thresholds)
    assert [(r["threshold"], r["tokens"], r["nll_reference"], r["nll_model"]) for r in rows] == [
        (0, 0, None, None),
        (2, 2, 1, 3),
        (8, 3, 1, 7 / 3),
    ]
    assert [(r["share_of_tokens"], r["gap_share"]) for r in rows] == [(0, None), (0.2, 0.5), (0.3, 0.5)]
