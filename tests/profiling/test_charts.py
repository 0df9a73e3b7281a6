"""Figures of a profile have the tables' own numbers, and take names for nothing but names."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest

from recallkit.display.charts import MOST_SOURCES
from recallkit.profiling.charts import profile_figures
from recallkit.profiling.tables import ProfileTables
from tests.display.drawings import data, svg, texts
from tests.profiling.test_tables import synthetic, tables_of

EVIL = "<script>alert('1')</script>&\"\x1b[31m datum.x + [1]"


def made_tables(names: list[str], *, knows_hits: bool = True) -> ProfileTables:
    parts = [
        synthetic(np.random.default_rng(number), 120 - 10 * number, 128, name)
        for number, name in enumerate(names)
    ]
    return tables_of(*parts, knows_hits=knows_hits)


@pytest.fixture(scope="module")
def tables() -> ProfileTables:
    return made_tables(["books", "letters", "code"])


def by_name(tables: ProfileTables) -> dict:
    return {figure.name: figure for figure in profile_figures(tables, 128)}


def test_bars_are_the_figures_by_source(tables):
    rows = data(by_name(tables)["repeated_bigrams"])
    assert (
        [row["source"] for row in rows]
        == tables.profile["source"].to_list()
        == ["ALL", "books", "letters", "code"]
    )
    for name in ("repeated_bigrams", "distinct_bigrams", "repeated_bigrams_ci_low"):
        assert [row[name] for row in rows] == tables.profile[name].to_list()


def test_points_are_shares_at_each_distance(tables):
    own = tables.distances.filter(pl.col("source") == "books")
    total = own["content"].sum()
    drawn = {
        row["x"]: row["y"]
        for row in data(by_name(tables)["distances"])
        if row["source"] == "books" and not row["law"]
    }
    assert drawn[1.0] == pytest.approx(
        own.filter(pl.col("distance") == 1)["content"].item() / total
    )
    # 16..22 is the half octave from 2^4 to 2^4.5 = 22.6, rounded to 23.
    half_octave = own.filter(pl.col("distance").is_between(16, 22))["content"].sum()
    assert drawn[np.sqrt(16 * 22)] == pytest.approx(half_octave / 7 / total)


def test_lines_go_through_the_tails(tables):
    rows = data(by_name(tables)["distances"])
    for source in ("ALL", "books"):
        fit = tables.fits.filter((pl.col("source") == source) & (pl.col("kind") == "content")).row(
            0, named=True
        )
        line = sorted(
            (row["x"], row["y"])
            for row in rows
            if row["source"] == source and row["panel"] in (source, "books") and row["law"]
        )
        assert (line[0][0], line[-1][0]) == (fit["x_min"], fit["x_max"]) == (fit["x_min"], 127)
        slopes = [np.log(b[1] / a[1]) / np.log(b[0] / a[0]) for a, b in itertools.pairwise(line)]
        assert slopes == pytest.approx([-fit["alpha"]] * len(slopes))
        x, y = zip(*line, strict=True)
        for row in rows:
            if (
                row["source"] == source
                and row["panel"] in (source, "books")
                and not row["law"]
                and fit["x_min"] <= row["x"] < 100
            ):
                assert np.exp(np.interp(np.log(row["x"]), np.log(x), np.log(y))) == pytest.approx(
                    row["y"], rel=0.35
                )


def test_curves_are_shares_by_position(tables):
    table = tables.positions.filter(pl.col("source") == "code")
    for name, column in (
        ("repeated_by_position", "repeated_share"),
        ("ar_hits_by_position", "ar_hit_share"),
    ):
        own = [row for row in data(by_name(tables)[name]) if row["source"] == "code"]
        assert [row["y"] for row in own] == table[column].to_list()
        assert [row["x"] for row in own] == ((table["low"] + table["high"]) / 2).to_list()


def test_the_largest_are_drawn_and_the_rest_named_and_names_are_text():
    tables = made_tables([EVIL, *(f"source {number}" for number in range(1, 10))])
    for figure in profile_figures(tables, 128):
        assert figure.caption.endswith(
            " Not drawn, being smaller: source 6, source 7, source 8 and source 9."
        )
        assert len({row["source"] for row in data(figure)}) == 1 + MOST_SOURCES
        drawing = svg(figure)
        assert "<script" not in drawing
        assert {f"source {number}" for number in range(1, MOST_SOURCES)} <= set(texts(drawing))


def test_one_source_is_all_and_hits_need_counts():
    figures = by_name(made_tables(["books"], knows_hits=False))
    assert list(figures) == ["repeated_bigrams", "repeated_by_position", "distances"]
    assert {row["source"] for figure in figures.values() for row in data(figure)} == {"ALL"}
