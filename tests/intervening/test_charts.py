"""The figures of an intervention: two shares of every gap that means something, in the order of the gaps, with their intervals."""

from __future__ import annotations

import polars as pl

from recallkit.intervening.charts import intervene_figures
from recallkit.intervening.tables import InterveneTables
from tests.display.drawings import data, marks, svg

GAPS = {"zoo:far": 0.5, "void": 0.3, "near": 0.1, "ahead": -0.2}


def made_tables() -> InterveneTables:
    """Models whose gap is given: of it 40 % lies in AR hits, and 60 % would be gone."""
    ends = {"gap_share_ci_low": 0.3, "gap_share_ci_high": 0.5, "recall_share_ci_low": 0.45, "recall_share_ci_high": 0.75}
    rows = [
        {"model": model, "slice": "ar_hit", "gap": gap, "gap_share": 0.4, "recall_share": 0.6, **ends, "void": model == "void"}
        for model, gap in GAPS.items()
    ]
    of_others = [{**row, "slice": "first_rare", "gap_share": 0.9} for row in rows]
    buckets = [
        {"model": model, "slice": "ar_hit", "low": high // 2 + 1, "high": high, "recall": 1.5, "samples": high}
        for model in ("ref", *GAPS)
        for high in (16, 32)
    ]
    frame = pl.DataFrame(buckets)
    return InterveneTables(frame, frame, frame.clear(), pl.DataFrame([*rows, *of_others]))


def test_the_answer_comes_first_a_row_for_each_model_by_its_gap():
    answer, by_distance = intervene_figures(made_tables())
    assert (answer.name, by_distance.name) == ("recall_share", "recalled_by_distance")
    assert answer.models == by_distance.models == ["ref", "ahead", "near", "void", "zoo:far"]
    kinds = {"lies in AR hits": (0.4, 0.3, 0.5), "gone if neither could recall there": (0.6, 0.45, 0.75)}
    assert [(row["model"], row["kind"], (row["share"], row["low"], row["high"])) for row in data(answer)] == [
        (model, *each) for model in ("ahead", "near", "far") for each in kinds.items()
    ]
    assert "Shares of a lead: ahead." in answer.caption
    drawn = marks(svg(answer))
    lies, gone = (
        drawn[f"zoo:far: {told}"]
        for told in (
            "40.0 % of the gap lies in AR hits (30.0 to 50.0 %)",
            "60.0 % of the gap gone if neither could recall there (45.0 to 75.0 %)",
        )
    )
    assert lies.x < gone.x
    assert 0 < gone.y - lies.y < 20, "in one row"
    assert [row["few"] for row in data(by_distance)] == [True] * 5 + [False] * 5


def test_shares_that_mean_nothing_are_not_drawn():
    tables = made_tables()
    void = tables.recall_share.with_columns(void=pl.lit(value=True))
    assert [figure.name for figure in intervene_figures(InterveneTables(tables.intervene, tables.by_distance, tables.by_count, void))] == [
        "recalled_by_distance"
    ]


def test_the_lead_is_not_spoken_of_where_there_is_none():
    tables = made_tables()
    behind = tables.recall_share.filter(pl.col("gap") > 0)
    [answer, _] = intervene_figures(InterveneTables(tables.intervene, tables.by_distance, tables.by_count, behind))
    assert "lead" not in answer.caption
