"""The query of the gap on tables small enough to count by hand."""

from __future__ import annotations

import math

import pyarrow as pa

from recallkit.storage import db


def attribute(**columns):
    with db.connect(threads=1) as database:
        database.register("sums", pa.table(columns))
        parameters = {"reference": "attention", "model": "conv"}
        return database.sql(db.query("gap/attribute"), params=parameters).to_arrow_table().to_pylist()


def test_attribute_gives_means_and_shares_of_each_row_in_their_order():
    rows = attribute(
        slice=["all", "ar_hit", "none"],
        tokens=[8, 2, 0],
        sum_reference=[8.0, 1.0, 0.0],
        sum_model=[12.0, 4.0, 0.0],
        whole_tokens=[8.0, 8.0, 8.0],
        whole_gap=[4.0, 4.0, 4.0],
    )
    names = ("slice", "tokens", "share_of_tokens", "nll_reference", "nll_model", "delta_nll", "gap_share")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("all", 8, 1, 1, 1.5, 0.5, 1),
        ("ar_hit", 2, 0.25, 0.5, 2, 1.5, 0.75),
        ("none", 0, 0, None, None, None, None),
    ]
    assert [row["ppl_model"] for row in rows] == [math.exp(1.5), math.exp(2), None]
    assert [row["ppl_reference"] for row in rows] == [math.e, math.exp(0.5), None]
    assert {(row["reference"], row["model"]) for row in rows} == {("attention", "conv")}
    assert not {"sum_reference", "sum_model", "whole_tokens", "whole_gap"} & rows[0].keys()


def test_attribute_has_no_share_of_no_gap_and_none_that_is_not_finite():
    rows = attribute(
        low=[1, 2], tokens=[3, 1], sum_reference=[3.0, 2.0], sum_model=[4.0, 1.0], whole_tokens=[4.0, 4.0], whole_gap=[0.0, 0.0]
    )
    assert [row["gap_share"] for row in rows] == [None, None]
    assert [row["delta_nll"] for row in rows] == [1 / 3, -1]
    large = attribute(tokens=[1], sum_reference=[1.0], sum_model=[1e4], whole_tokens=[1.0], whole_gap=[9_999.0])
    assert large[0]["ppl_model"] == math.inf
