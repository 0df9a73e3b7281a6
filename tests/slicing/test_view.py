"""The table of slices: what it counts."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from recallkit.display import console
from recallkit.slicing.labels import summarise_slices
from recallkit.slicing.view import SlicesView, slices_table
from recallkit.storage import parquet_files


@pytest.fixture
def table(small_slices):
    path = small_slices / "tokens.parquet"
    return slices_table(summarise_slices(path), parquet_files.read_manifest(path))


def test_the_table_counts_what_the_labels_say(table, small_slices):
    tokens = pl.read_parquet(small_slices / "tokens.parquet")
    by_source = {row[0]: row for row in table.rows}
    assert list(by_source) == ["ALL", "books", "letters"]
    for source, row in by_source.items():
        of_source = tokens if source == "ALL" else tokens.filter(source=source)
        hits = int(of_source["ar_hit"].sum())
        assert row == [
            source,
            f"{len(of_source):,}",
            f"{100 * of_source['repeated'].mean():.1f} %",
            f"{hits:,}",
            f"{100 * hits / len(of_source):.2f} %",
        ]


def test_slices_are_printed_within_80_columns(small_slices, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    console.terminal.cache_clear()
    path = small_slices / "tokens.parquet"
    packs = [Path("own"), Path("changed")]
    SlicesView(
        small_slices, parquet_files.read_manifest(path), summarise_slices(path), packs
    ).print()
    console.terminal.cache_clear()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"Tables (Parquet): {small_slices}"
    assert {"Ids as arrays: own", "Ids of the changed text: changed"} < set(lines)
    assert max(map(len, lines[:-1])) <= 80
