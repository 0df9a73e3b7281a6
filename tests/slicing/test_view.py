"""The table of slices: what it counts, and how far back repeated bigrams last occurred."""

from __future__ import annotations

import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.display import console
from recallkit.slicing.labels import summarise_slices
from recallkit.slicing.view import look, slices_table, with_distances
from recallkit.storage import artifacts, db

BLOCKS = "▁▂▃▄▅▆▇█"


def bucketed(rows) -> pl.DataFrame:
    """The query's result for tokens of (source, distance)."""
    tokens = pl.DataFrame(rows, schema={"source": pl.String, "distance": pl.Int32}, orient="row")
    with db.connect(threads=1) as connection:
        connection.register("tokens", tokens.to_arrow())
        return db.frame(connection, "slices/bucket_distances")


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.one_of(st.none(), st.integers(1, 5000), st.sampled_from([1, 2, 3, 4, 2048, 2049]))),
        max_size=30,
    )
)
def test_every_distance_is_in_its_bucket(rows):
    expected: dict[tuple[str, int], int] = {}
    for source, distance in rows:
        if distance is not None:
            for name in ("ALL", source):
                high = 1 << max(0, math.ceil(math.log2(distance)))
                expected[name, high] = expected.get((name, high), 0) + 1
    found = bucketed(rows)
    assert {(row["source"], row["high"]): row["tokens"] for row in found.iter_rows(named=True)} == expected
    assert all(row["low"] == row["high"] // 2 + 1 for row in found.iter_rows(named=True))
    for source in found["source"].unique():
        assert found.filter(source=source)["share"].sum() == pytest.approx(1)
    assert found["source"].to_list() == sorted(found["source"], key=lambda source: (source != "ALL", source))


@pytest.fixture
def table(small_slices):
    path = small_slices / "tokens.parquet"
    return slices_table(summarise_slices(path), artifacts.read_manifest(path))


def test_the_table_counts_what_the_labels_say(table, small_slices):
    tokens = pl.read_parquet(small_slices / "tokens.parquet")
    by_source = {row[0]: row for row in table.rows}
    assert list(by_source) == ["ALL", "books", "letters"]
    for source, row in by_source.items():
        of = tokens if source == "ALL" else tokens.filter(source=source)
        hits = int(of["ar_hit"].sum())
        assert row == [source, f"{len(of):,}", f"{100 * of['repeated'].mean():.1f} %", f"{hits:,}", f"{100 * hits / len(of):.2f} %"]


def test_curves_have_one_scale_and_one_width(table):
    distances = bucketed([("books", 1), ("books", 4), ("books", 4), ("books", 3), ("letters", 1), ("letters", 2)])
    shown = with_distances(table, distances)
    # Of ALL 2 of 6 lie at 1, 1 at 2, 3 at 3 and 4; the largest share is three quarters, of books at 3 and 4.
    assert [row[-1] for row in shown.rows] == ["▄▂▆", "▃▁█", "▆▆▁"]
    assert shown.headers[-1] == "distance\n1 to 4"
    assert "75.0 %" in shown.caption
    assert [row[:-1] for row in shown.rows] == table.rows
    assert with_distances(table, bucketed([("books", 1), ("letters", 1)])) is table, "a single bucket is no curve"


def test_slices_are_printed_within_80_columns(small_slices, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    console.terminal.cache_clear()
    path = small_slices / "tokens.parquet"
    look(small_slices, artifacts.read_manifest(path), summarise_slices(path)).print()
    console.terminal.cache_clear()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"Tables (Parquet): {small_slices}"
    assert max(map(len, lines[:-1])) <= 80
    assert any(set(line.split()[-1]) <= set(BLOCKS) for line in lines if line.strip().startswith("books"))
