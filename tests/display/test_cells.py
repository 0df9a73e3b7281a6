"""Figures as text: numbers, intervals, curves, cells of columns, and parts of sentences."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallkit.display import cells
from recallkit.display.cells import (
    DASH,
    Struck,
    difference_phrase,
    interval_phrase,
    nearest_and_farthest,
    powers_of_two,
    sparkline,
)
from recallkit.display.tables import Table

BLOCKS = "▁▂▃▄▅▆▇█"
VALUES = st.lists(
    st.one_of(st.none(), st.floats(-1e300, 1e300), st.just(math.inf), st.just(math.nan)),
    max_size=12,
)


def test_columns_make_the_cells_of_their_rows():
    columns = """
        model tokens
        tokens     | about     | amount optional2
        loss_share | share
        gap_share  | void/dash
        retained
        loss       | loss      | z.2f optional1
        loss       | ends      | z.2f to
        state_bytes
    """
    ends = {
        "loss_ci_low": -0.5,
        "loss_ci_high": 0.5,
        "retained_ci_low": 0.2,
        "retained_ci_high": None,
    }
    known = {"loss": -0.001, "retained": 0.251, "state_bytes": 1234567, **ends}
    rows = [
        {
            "model": "a",
            "tokens": 1234567,
            "loss_share": 0.3,
            "gap_share": 0.3,
            "void": False,
            **known,
        },
        {
            "model": "b",
            "tokens": 7,
            "loss_share": -2.5,
            "gap_share": -2.5,
            "void": True,
            **known,
            "retained_ci_high": 0.4,
        },
        {
            "model": "c",
            "tokens": None,
            "loss_share": None,
            "gap_share": None,
            "void": True,
            **dict.fromkeys(known),
        },
    ]
    table = Table.from_rows("t", columns, rows, hidden=2)
    assert table.headers == [
        "model",
        "tokens",
        "about",
        "share",
        "void\ndash",
        "retained, %",
        "loss",
        "ends",
        "state",
    ]
    assert table.optional == ["loss", "about"]
    assert table.rows == [
        ["a", "1,234,567", "1.23M", "30.0 %", "30", "25", "0.00", "-0.50 to 0.50", "1.23 MB"],
        ["b", "7", "7", "-250.0 %", DASH, "25 (20 to 40)", "0.00", "-0.50 to 0.50", "1.23 MB"],
        ["c", *[DASH] * 8],
        ["and 2 more", *[""] * 8],
    ]
    assert [
        [isinstance(cell, Struck) for cell in row].index(True)
        for row in table.rows
        if any(isinstance(c, Struck) for c in row)
    ] == [3]


@given(VALUES)
def test_a_sparkline_has_a_block_a_value_the_higher_the_larger(values):
    line = sparkline(values)
    assert len(line) == len(values)
    known = [
        (value, block)
        for value, block in zip(values, line, strict=True)
        if value is not None and math.isfinite(value)
    ]
    assert all(
        block == " "
        for value, block in zip(values, line, strict=True)
        if value is None or not math.isfinite(value)
    )
    heights = [(value, BLOCKS.index(block)) for value, block in known]
    for value, height in heights:
        assert all(height <= other for larger, other in heights if larger >= value)
    if len({value for value, _ in known}) > 1:
        assert {BLOCKS[0], BLOCKS[-1]} <= {block for _, block in known}


def test_curves_with_given_ends_compare_and_leave_no_bucket_out():
    assert sparkline([0.0, 0.5, 1.0], 0.0, 1.0) == "▁▅█"
    assert sparkline([-1.0, 2.0, None], 0.0, 1.0) == "▁█ "
    assert sparkline([3.0, 3.0]) == "▅▅"
    assert powers_of_two([2, 16]) == [2, 4, 8, 16]
    assert powers_of_two([8, 0]) == [0, 1, 2, 4, 8]
    assert powers_of_two([]) == []


def test_intervals_and_differences_in_words():
    assert interval_phrase(0.07, 0.08) == "95 % interval 7.0 to 8.0 %"
    assert interval_phrase(None, 0.08) == interval_phrase(0.07, None) == "no interval"
    assert difference_phrase(-0.3, -0.4, -0.2) == "30.0 points fewer, 95 % interval 20.0 to 40.0"
    assert difference_phrase(0.3, None, None) == "30.0 points more, no interval"
    told = "30.0 points fewer, not significant: 95 % interval -40.0 to +0.0"
    assert difference_phrase(-0.3, -0.4, 0.0) == told
    assert difference_phrase(0.0, -0.01, 0.01) == "as many: 95 % interval -1.0 to +1.0"
    assert difference_phrase(0.0, None, None) == "as many, no interval"


def test_of_many_models_the_nearest_and_the_farthest_are_named():
    rows = [
        {"name": name, "gap": gap}
        for name, gap in (("a", -0.3), ("b", 0.1), ("c", 0.2), ("d", -0.9))
    ]
    assert [row["name"] for row in nearest_and_farthest(rows, "gap")] == ["b", "d"]
    assert [row["name"] for row in nearest_and_farthest(rows[:2], "gap")] == ["b", "a"]


@pytest.mark.parametrize("documents", [5, 20, 49, 50])
def test_few_documents_may_lack_what_is_rarer_than_is_said(documents):
    """Of a kind as rare as that, or rarer, more than one sample in twenty has no document; of one a
    little more frequent, fewer."""
    told = cells.resampled(
        {"documents": documents, "effective_documents": documents}, "document", "document"
    )
    assert told.startswith(
        f"a bootstrap over {documents} documents (effective number {documents}.0)"
    )
    if documents < 50:
        rare = int(
            re.search(r"; kinds of text rarer than one document in (\d+) may be missing$", told)[1]
        )
        assert (1 - 1 / rare) ** documents > 0.05 > (1 - 1 / (rare - 1)) ** documents
    else:
        assert told.endswith(")")


def test_of_fewer_than_five_documents_there_are_no_intervals():
    told = cells.resampled(
        {"documents": 40, "effective_documents": 4.96},
        "document",
        "document",
        which=" with AR hits",
    )
    assert told == "none (effectively 4.9 documents with AR hits; 5 are needed)"
