"""Headline numbers: of every kind of result, of columns that exist, and what is left out, by hand."""

import math

import polars as pl

import recallkit
from recallkit.storage.result import KINDS
from recallkit.storage.schemas import LAYOUTS
from recallkit.trackers.headlines import HEADLINES, headline_numbers


def test_every_kind_of_result_has_headlines_of_columns_that_it_has():
    assert {table.partition("/")[0] for table in HEADLINES} >= set(KINDS)
    for table, headlines in HEADLINES.items():
        for headline in headlines if table in LAYOUTS else ():
            named = {*headline.keys, *headline.values, *headline.where, *headline.unless}
            assert named <= set(LAYOUTS[table]), table


def row(slice_, source="ALL", void=False, **numbers):
    usual = {"ppl_model": 2.0, "delta_nll": 0.5, "gap_share": 0.25, "ci_low": 0.2, "ci_high": 0.3}
    return {"model": "m/1", "source": source, "slice": slice_, "void": void, **usual, **numbers}


def test_published_shares_of_a_gap_that_rounding_hides_are_left_out(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("model,all,ar,other\nref,10.00,3.00,12.00\nclear,11.00,4.00,\nhidden,10.01,4.00,\n")
    logged = headline_numbers("published", {"published": recallkit.published(table).frame})
    assert set(logged) == {"published/clear/gap_share", "published/clear/enrichment"}


def test_what_is_void_missing_or_infinite_is_left_out():
    frame = pl.DataFrame(
        [
            row("all", gap_share=1.0),
            row("ar_hit", ci_high=None),
            row("other", void=True),
            row("far", delta_nll=math.inf, ppl_model=math.nan),
            row("ar_hit", source="books", delta_nll=7.0),
            row("ar_hit", delta_nll=9.0),  # of a source that is called ALL: the totals come first
        ]
    )
    assert headline_numbers("gap", {"gap": frame, "by_count": frame}) == {
        "gap/m/1/all/ppl_model": 2.0,
        "gap/m/1/all/delta_nll": 0.5,
        "gap/m/1/ar_hit/ppl_model": 2.0,
        "gap/m/1/ar_hit/delta_nll": 0.5,
        "gap/m/1/ar_hit/gap_share": 0.25,
        "gap/m/1/ar_hit/ci_low": 0.2,
        "gap/m/1/other/ppl_model": 2.0,
        "gap/m/1/other/delta_nll": 0.5,
        "gap/m/1/far/gap_share": 0.25,
        "gap/m/1/far/ci_low": 0.2,
        "gap/m/1/far/ci_high": 0.3,
    }
