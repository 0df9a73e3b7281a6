"""Results as notebooks show them: the printed tables as escaped HTML, the figures as charts,
nothing of a copy."""

from __future__ import annotations

import copy
import re
from html.parser import HTMLParser
from pathlib import Path

import altair as alt
import pytest

import recallkit
from recallkit.display.cells import Struck
from recallkit.display.tables import Table
from recallkit.errors import printable
from recallkit.profiling.tables import ProfileTables
from recallkit.profiling.view import ProfileView
from recallkit.report.markup import tables_html

EVIL = "<script>alert('1')</script>&\"<b>"


class Cells(HTMLParser):
    """The texts of cells, and the elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.cells, self.tags = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not {"src", "href", "onclick", "onload"} & {name for name, _ in attrs}
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data):
        if self.tags and self.cells and self.tags[-1] in ("td", "th", "s"):
            self.cells[-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("profiled")


@pytest.fixture(scope="module")
def profiled(few_slices, folder) -> ProfileTables:
    return recallkit.profile(slices=few_slices, out=folder)


def test_a_result_shows_the_tables_that_the_command_exports(profiled, folder):
    html = profiled._repr_html_()
    found = Cells(html)
    tables = ProfileView(folder, profiled).display_tables
    assert [cell.strip() for cell in found.cells] == [
        printable(cell)
        for table in tables.values()
        for row in (table.headers, *table.rows)
        for cell in row
    ]
    assert found.tags.count("table") == len(tables) == 2
    assert found.tags.count("details") == 1
    assert html.startswith('<div class="recallkit-result"><style>')
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    selectors = [
        part.strip()
        for line in style.strip().splitlines()
        for part in line.split("{")[0].split(",")
    ]
    assert all(selector.startswith(".recallkit-result ") for selector in selectors), (
        "a style that reaches other cells"
    )


def test_charts_are_those_of_the_figures(profiled):
    charts = recallkit.figures(profiled)
    assert list(charts) == [figure.name for figure in profiled.figures()]
    first = profiled.chart()
    assert isinstance(first, alt.LayerChart)
    assert first.to_dict() == charts["repeated_bigrams"].to_dict()
    assert profiled.chart("distances").to_dict() == charts["distances"].to_dict()
    with pytest.raises(
        recallkit.UserError,
        match="no such figure; there are repeated_bigrams, repeated_by_position",
    ):
        profiled.chart("gap")


def test_a_comparison_read_back_shows_what_the_function_showed(few_slices, tmp_path):
    tables = recallkit.gap(
        "control:recall", ["control:bigram"], slices=few_slices, out=tmp_path / "gap"
    )
    read = recallkit.read_comparison(tmp_path / "gap", slices=few_slices)
    shown = Cells(tables._repr_html_()).cells
    assert "control:bigram" in shown
    assert Cells(read._repr_html_()).cells == shown
    assert (
        [figure.name for figure in read.figures()]
        == [figure.name for figure in tables.figures()]
        != []
    )
    for name, chart in recallkit.figures(read).items():
        chart.save(tmp_path / f"{name}.svg")
        assert "<path" in (tmp_path / f"{name}.svg").read_text()


def test_a_result_reads_as_what_its_command_prints(few_slices, tmp_path, run):
    models = ("control:recall", "control:bigram")
    printed = run("gap", *models, "--slices", few_slices, "-o", tmp_path / "gap").stdout
    tables = recallkit.gap(*models, slices=few_slices, out=tmp_path / "gap")
    answer, table = printed.partition("Perplexity, recall")[::2]
    assert str(tables).partition("Perplexity, recall")[0].split() == answer.split() != []
    assert table.splitlines()[-1] == str(tables).splitlines()[-1], (
        "between them columns for which there is room"
    )
    assert repr(recallkit.read_comparison(tmp_path / "gap", slices=few_slices)) == repr(tables)
    assert repr(copy.copy(tables)).startswith("GapTables(gap, "), "a copy does not know how"


def test_what_has_one_frame_or_none_reads_as_its_command_prints_it_too(few_slices, tmp_path, run):
    text, counts = few_slices.parent / "valid.jsonl", few_slices.parent / "counts.duckdb"
    documents, rows = tmp_path / "documents.jsonl", tmp_path / "rows.jsonl"
    documents.write_text('{"text": "The year is 1815.", "pairs": {"year": "1815"}}')
    made = {
        ("count", text, "-o", tmp_path / "own.duckdb"): lambda: recallkit.count(
            text, tmp_path / "own.duckdb"
        ),
        ("slice", text, "--counts", counts, "--seq-len", 64, "-o", tmp_path / "own"): lambda: (
            recallkit.slice(text, tmp_path / "own", counts=counts, seq_len=64)
        ),
        ("score", "control:bigram", "--slices", tmp_path / "own"): lambda: recallkit.score(
            "control:bigram", slices=tmp_path / "own"
        ),
        ("verify", tmp_path / "own"): lambda: recallkit.verify(tmp_path / "own"),
    }
    for words, call in made.items():
        call()  # so that both reuse it, and have the same times to tell
        printed = run(*words)
        assert printed.returncode == 0, printed.stderr
        assert repr(call()).split() == printed.stdout.split() != [], words
    printed = run("build-rows", documents, "-o", rows)
    assert (
        repr(recallkit.build_rows(documents, rows, force=True)).split()
        == printed.stdout.split()
        != []
    )
    checked = recallkit.check_scores("control:bigram", slices=tmp_path / "own")
    assert repr(checked).startswith("Difference from a float64 computation")
    assert f"{checked.frame['largest'][0]:.2e}" in repr(checked)


def test_names_are_text():
    html = tables_html([Table(EVIL, ["model", EVIL], [[EVIL, Struck("-1 %")]], caption=EVIL)])
    found = Cells(html)
    assert not {"script", "b", "details"} & set(found.tags)
    assert found.tags.count("s") == 1
    assert EVIL in found.cells
    assert "details" in Cells(tables_html([Table("t", ["a"], [["x"]])] * 3)).tags
    assert "2 more tables" in tables_html([Table("t", ["a"], [["x"]])] * 3)
    assert tables_html([]).startswith("<div")
