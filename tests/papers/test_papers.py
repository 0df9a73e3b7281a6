"""The papers' tables: what one printed figure says of another is recomputed, and held within what
rounding explains."""

from __future__ import annotations

import polars as pl
import pytest

from recallkit.errors import UserError
from recallkit.papers import arithmetic as published
from recallkit.papers.arithmetic import MISSTATED, attribute_published

GAPS = ["zoology:1", "zoology:2", "zoology:3", "zoology:4", "zoology:5", "based:1", "based:6"]
"""The tables that have perplexities of AR hits and of other tokens."""


def test_each_table_has_a_file_and_each_file_a_line():
    folder = published.table_path("zoology:1").parent
    assert sorted(path.stem for path in folder.iterdir()) == sorted(
        name.replace(":", "-") for name in published.TABLES
    )
    for name in published.TABLES:
        frame = published.read_table(name)
        texts = [column for column, kind in frame.schema.items() if kind == pl.String]
        assert set(texts) <= {"group", "model", "params", "tokens", "convolutions", "decay"}, name
        numbers = frame.drop(texts).unpivot()["value"].drop_nulls()
        assert numbers.min() >= 0, name
        assert len(frame) > 1


@pytest.mark.parametrize(
    ("name", "stated"),
    [("zoology:1", 8), ("zoology:3", 1), ("zoology:4", 15), ("zoology:5", 1)],
)
def test_stated_shares_follow_from_the_perplexities_beside_them(name, stated):
    """All but one within rounding: Hyena at 360M parameters, where 98.2 % is stated and 70.2 to
    73.0 % follow."""
    frame = attribute_published(published.table_path(name)).frame.filter(
        pl.col("printed").is_not_null(),
    )
    assert len(frame) == stated
    missed = frame.filter(pl.col("note").str.contains(MISSTATED, literal=True))
    is_hyena = (frame["group"] == "360M") & (frame["model"] == "Hyena")
    assert missed.equals(frame.filter(is_hyena))
    ours = frame.filter(~is_hyena)
    assert (
        100 * (ours["printed"] - ours["gap_share_clipped"])
    ).abs().max() < 0.65  # H3 at 125M: 88.4 stated, 87.8 computed
    for row in missed.iter_rows(named=True):
        shares = [
            round(100 * row[key], 1)
            for key in ("printed", "gap_share_low", "gap_share", "gap_share_high")
        ]
        assert shares == [98.2, 70.2, 71.6, 73.0]


@pytest.mark.parametrize("name", GAPS)
def test_the_share_of_ar_hits_is_nearly_that_of_every_row(name):
    """7 % of tokens, or 6 in models of 30B tokens and more, which have seen more bigrams often;
    11.3 % in Zoology's largest."""
    result = attribute_published(published.table_path(name))
    expected = {"zoology:5": {11.3}, "based:1": {7.1, 5.8, 7.2}, "based:6": {7.0, 7.1}}.get(
        name,
        {7.0, 7.1},
    )
    assert {round(100 * group.ar_share, 1) for group in result.groups} <= expected
    odd = result.frame.filter(pl.col("note").str.contains("its own"))
    assert {
        (group, model): round(100 * share, 1)
        for group, model, share in odd.select("group", "model", "implied_ar_share").rows()
    } == ODD.get(name, {})


ODD = {
    "zoology:1": {("125M", "Hyena"): 6.3, ("360M", "Hyena"): 6.3},
    "zoology:2": {
        ("125M", "BaseConv + Random selection"): 6.4,
        ("125M", "BaseConv + Programmatic selection"): 6.5,
        ("360M", "BaseConv + Random selection"): 6.5,
        ("360M", "BaseConv + Programmatic selection"): 6.4,
        ("360M", "BaseConv + Full attention"): 2.4,
    },
    "zoology:4": {
        ("125M", "RetNet (128)"): 7.8,
        ("125M", "Hyena"): 6.3,
        ("125M", "Hyena + Slide Attn. (256)"): 6.5,
        ("360M", "Hyena"): 6.3,
    },
    "based:1": {("360M, 10B", "GLA"): 10.5, ("360M, 10B", "H3"): 6.9},
    "based:6": {("feature map", "Performer 16"): 79.8},
}
"""Rows whose three perplexities imply another share of AR hits than the reference's, in percent,
however they were rounded."""


def test_averages_follow_from_their_columns_but_for_three():
    tasks = ["lambada", "hellaswag", "piqa", "arc_e", "arc_c", "winogrande"]
    table = published.read_table("based:2").with_columns(mean=pl.mean_horizontal(tasks))
    odd = table.filter((pl.col("mean") - pl.col("average")).abs() > 0.015)
    assert odd["average"].to_list() == [53.81, 53.50, 45.62]
    assert odd["mean"].round(2).to_list() == [53.95, 53.67, 45.29]
    pairs = [pl.mean_horizontal("cb", "cb_f1"), pl.mean_horizontal("record_f1", "record_em")]
    glue = published.read_table("based:3")
    tasks = ["boolq", "copa", "multirc", "rte", "wic", "wsc", *pairs]
    assert glue.select((pl.mean_horizontal(tasks) - pl.col("average")).abs().max()).item() < 0.06


def test_a_gap_of_two_hundredths_has_no_share():
    frame = attribute_published(published.table_path("based:1")).frame
    row = frame.filter(group="1.3B, 50B", model="Based").row(0, named=True)
    assert [round(100 * row[f"gap_share_{end}"]) for end in ("low", "high")] == [36, 152]


def test_a_table_that_is_not_there_is_named():
    with pytest.raises(
        UserError,
        match=r"zoology:9: no such table; give one of zoology:1, .*, or a file",
    ):
        published.table_path("zoology:9")
    with pytest.raises(UserError, match="no column model"):
        attribute_published(published.table_path("yun:1"))
    assert not published.is_name("tables/zoology:4")
    assert not published.is_name("zoology.csv")
