"""Pictures of a profile hold the tables' own figures, are drawn, and take names for nothing but names."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest

from recallkit.display.chart_theme import PAGE, PAPER, save_figures, svg, themed
from recallkit.profiling.charts import MOST_SOURCES, drawn_sources, profile_figures
from recallkit.profiling.tables import ProfileTables
from tests.profiling.test_tables import synthetic, tables_of

EVIL = "<script>alert('1')</script>&\"\x1b[31m datum.x + [1]"


def made_tables(names: list[str], *, knows_hits: bool = True) -> ProfileTables:
    parts = [synthetic(np.random.default_rng(number), 120 - 10 * number, 128, name) for number, name in enumerate(names)]
    return tables_of(*parts, knows_hits=knows_hits)


@pytest.fixture(scope="module")
def tables() -> ProfileTables:
    return made_tables(["books", "letters", "code"])


def values(figure) -> list[list[dict]]:
    """The data sets of a drawing."""
    return list(themed(figure.draw(PAPER), PAPER)["datasets"].values())


def layer(figure, mark: str) -> list[dict]:
    """The data of the layer drawn with a mark."""
    drawn = themed(figure.draw(PAPER), PAPER)
    [name] = [part["data"]["name"] for part in drawn["layer"] if part["mark"]["type"] == mark]
    return drawn["datasets"][name]


def by_name(tables: ProfileTables) -> dict:
    return {figure.name: figure for figure in profile_figures(tables, 128)}


def test_bars_are_the_figures_by_source(tables):
    [rows] = values(by_name(tables)["repeated_bigrams"])
    table = tables.profile
    assert [row["source"] for row in rows] == table["source"].to_list() == ["ALL", "books", "letters", "code"]
    for name, column in {"repeated": "repeated_bigrams", "distinct": "distinct_bigrams", "low": "repeated_bigrams_ci_low"}.items():
        assert [row[name] for row in rows] == pytest.approx(table[column].to_list())


def test_points_are_shares_at_each_distance(tables):
    points = layer(by_name(tables)["distances"], "circle")
    own = tables.distances.filter(pl.col("source") == "books")
    total = own["content"].sum()
    drawn = {row["distance"]: row["share"] for row in points if row["source"] == "books"}
    assert drawn[1.0] == pytest.approx(own.filter(pl.col("distance") == 1)["content"].item() / total)
    # 16..22 is the half octave from 2^4 to 2^4.5 = 22.6, rounded to 23.
    half_octave = own.filter(pl.col("distance").is_between(16, 22))["content"].sum()
    assert drawn[np.sqrt(16 * 22)] == pytest.approx(half_octave / 7 / total)


def test_lines_go_through_the_tails(tables):
    lines, points = (layer(by_name(tables)["distances"], mark) for mark in ("line", "circle"))
    for source in ("ALL", "books"):
        fit = tables.fits.filter((pl.col("source") == source) & (pl.col("kind") == "content")).row(0, named=True)
        line = sorted((row["distance"], row["share"]) for row in lines if row["source"] == source)
        assert line[0][0] == fit["x_min"]
        assert line[-1][0] == fit["x_max"] == 127
        slopes = [np.log(b[1] / a[1]) / np.log(b[0] / a[0]) for a, b in itertools.pairwise(line)]
        assert slopes == pytest.approx([-fit["alpha"]] * len(slopes))
        x, y = zip(*line, strict=True)
        near = [(row["distance"], row["share"]) for row in points if row["source"] == source and fit["x_min"] <= row["distance"] < 100]
        for distance, share in near:
            assert np.exp(np.interp(np.log(distance), np.log(x), np.log(y))) == pytest.approx(share, rel=0.35)


@pytest.mark.parametrize(("name", "column"), [("repeated_by_position", "repeated_share"), ("ar_hits_by_position", "ar_hit_share")])
def test_curves_are_shares_by_position(tables, name, column):
    [rows] = values(by_name(tables)[name])
    table = tables.positions.filter(pl.col("source") == "code")
    own = [row for row in rows if row["source"] == "code"]
    assert [row["share"] for row in own] == pytest.approx(table[column].to_list())
    assert [row["position"] for row in own] == ((table["low"] + table["high"]) / 2).to_list()


def test_the_largest_are_drawn_and_the_rest_counted():
    tables = made_tables([f"source {number}" for number in range(10)])
    assert drawn_sources(tables) == [f"source {number}" for number in range(MOST_SOURCES)]
    for figure in profile_figures(tables, 128):
        assert figure.caption.endswith(" Not drawn, being smaller: source 6, source 7, source 8 and source 9.")
        drawn = {row["source"] for rows in values(figure) for row in rows}
        assert drawn == {"ALL", *(f"source {number}" for number in range(MOST_SOURCES))}


def test_one_source_is_all_and_hits_need_counts():
    figures = by_name(made_tables(["books"], knows_hits=False))
    assert "ar_hits_by_position" not in figures
    for figure in figures.values():
        assert {row["source"] for rows in values(figure) for row in rows} == {"ALL"}
        assert "<svg" in svg(figure)


def test_nothing_repeated_is_drawn_all_the_same():
    rows = synthetic(np.random.default_rng(1), 20, 20)
    none = rows.with_columns(distance=pl.lit(None, pl.Int32), occurrences=pl.lit(0), repeated=pl.lit(False), ar_hit=pl.lit(False))
    figures = profile_figures(tables_of(none), 128)
    assert "distances" not in {figure.name for figure in figures}
    assert all("<svg" in svg(figure) for figure in figures)


def test_names_are_names(tmp_path):
    tables = made_tables([EVIL, "books"])
    for figure in profile_figures(tables, 128):
        drawn = svg(figure, PAGE)
        assert "<script" not in drawn
        assert "books" in drawn
    written = save_figures(profile_figures(tables, 128), tmp_path)
    assert len(written) == 12
    assert all(path.stat().st_size > 1000 for path in written)
