"""What is printed: within the terminal's width whatever names are, figures whole, nothing that a
terminal obeys."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from recallkit.display import console
from recallkit.display.cells import Struck
from recallkit.display.console import print_line, print_page, print_table
from recallkit.display.tables import Table


@pytest.fixture
def printed(monkeypatch, capsys):
    """What a function prints in a pipe, or in a terminal of so many columns."""

    def call(function, *arguments, columns: int | str = 80, force_color: bool = False) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
            monkeypatch.delenv(name, raising=False)
        if force_color:
            monkeypatch.setenv("FORCE_COLOR", "1")
            monkeypatch.setenv("TERM", "xterm")
        console.terminal.cache_clear()
        capsys.readouterr()
        function(*arguments)
        console.terminal.cache_clear()
        return capsys.readouterr().out.splitlines()

    return call


NAMES = st.text(string.ascii_letters + "/-.:[]*界é ", min_size=1, max_size=120)
FIGURES = st.floats(-9e5, 9e5).map(lambda value: f"{value:,.2f}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(NAMES, st.lists(NAMES, min_size=1, max_size=5), st.data())
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_cut(printed, name, headers, data):
    figures = data.draw(st.lists(FIGURES, min_size=len(headers), max_size=len(headers)))
    table = Table(
        name * 2, ["model", *headers], [[name, *figures], ["short", *figures]], caption=name * 3
    )
    lines = printed(print_table, table)
    assert max(map(cell_len, lines)) <= 80
    assert not [line for line in lines if "…" in line]
    row = next(line for line in lines if line.strip().startswith("short"))
    assert row.split()[1:] == figures


@pytest.mark.parametrize("columns", [0, -5, "abc", "", 1, 19, 10**9, "²", "0080", "9" * 5000])
@pytest.mark.parametrize("lines", ["0", "-1", "²", "1000000000"])
def test_a_size_that_no_terminal_has_is_as_none(printed, monkeypatch, columns, lines):
    monkeypatch.setenv("LINES", lines)
    table = Table(
        "title",
        ["model", *"abcdefg"],
        [["name " * 30, *["123,456.78"] * 7]],
        caption="caption " * 30,
    )
    assert printed(print_table, table, columns=columns) == printed(print_table, table)
    console.stderr.cache_clear()
    assert (console.stderr().width, console.stderr().height) == (80, 25)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(NAMES)
def test_long_names_fold_and_none_of_their_letters_is_lost(printed, name):
    lines = printed(print_table, Table("title", ["model", "other model"], [[name, "1.00"]]))
    shown = "".join("".join(line.split()) for line in lines[3:]).replace("1.00", "")
    assert shown == "".join(name.split())


def test_names_are_never_obeyed_nor_replaced(printed):
    hostile = "\x1b[31m:fire: [bold]x[/bold] \u202e"
    for lines in (
        printed(print_table, Table(hostile, ["model", hostile], [[hostile, "1"]], caption=hostile)),
        printed(print_line, hostile),
    ):
        text = "\n".join(lines)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert ":fire:" in text, "no emoji"
        assert "[bold]x[/bold]" in text, "no markup"
    assert printed(lambda: console.stdout().print("a:fire:b", markup=False)) == ["a:fire:b"]


@pytest.mark.parametrize("columns", range(20, 30))
def test_a_percent_sign_stays_with_its_figure(printed, columns):
    lines = printed(
        print_line,
        "of what they lose 2.33 % lies here, with `recallkit gap` to the end",
        columns=columns,
    )
    assert " ".join(lines) == "of what they lose 2.33 % lies here, with `recallkit gap` to the end"
    assert not [line for line in lines if line.startswith(("%", "gap`")) or len(line) > columns]


def test_paths_are_lines_that_can_be_copied(printed):
    path = "/a b/" + "c" * 200
    assert printed(print_line, f"Tables: {path}", columns=80)[0] != f"Tables: {path}"
    console.terminal.cache_clear()
    assert printed(lambda: print_line(f"Tables: {path}", is_path=True)) == [f"Tables: {path}"]


def test_the_path_of_a_page_is_a_link_on_a_line_of_its_own(printed):
    path = Path("/a b/é" + "c" * 200) / "page.html"
    assert printed(print_page, path, columns=80) == [f"Page: {path}"], "no link in a pipe"
    [line] = printed(print_page, path, columns=80, force_color=True)
    opened, shown, closed = re.fullmatch(
        r"Page: \x1b\]8;id=\d+;(.*?)\x1b\\(.*?)\x1b\]8;(.*?)\x1b\\", line
    ).groups()
    assert (opened, shown, closed) == (path.as_uri(), str(path), ";")
    assert "\x1b]0;x" not in printed(print_page, Path("/\x1b]0;x\x07.html"), force_color=True)[0]


def test_names_fold_between_words_and_optional_columns_go_first(printed):
    rows = [["base-conv-selective", "22.26", "22.89"], ["rwkv", "37.15", "34.55"]]
    table = Table("t", ["model", "perplexity", "of others"], rows, optional=["of others"])
    wide, narrow, least = (printed(print_table, table, columns=columns) for columns in (60, 34, 24))
    assert [line.split() for line in wide if "base" in line] == [rows[0]]
    assert [line.split() for line in narrow if "base" in line] == [rows[0][:2]], (
        "no name folds while a column can be left out"
    )
    assert [
        line.split()[0] for line in least if line.strip().startswith(("base", "selective"))
    ] == ["base-conv-", "selective"]


def test_a_figure_that_means_nothing_is_struck_out_and_in_brackets_where_text_is_plain(printed):
    table = Table("t", ["model", "share"], [["a", Struck("-252.7 %")], ["b", "3.1 %"]])
    plain = printed(print_table, table)
    assert [line.split()[1:] for line in plain if line.startswith(("a", "b"))] == [
        ["[-252.7", "%]"],
        ["3.1", "%"],
    ]
    wide = Table(
        "t",
        ["model", "share", "of others"],
        [["a", Struck("-252.7 %"), "1"]],
        optional=["of others"],
    )
    heads = [
        line.split()
        for columns in (27, 30)
        for line in printed(print_table, wide, columns=columns)
        if "model" in line
    ]
    assert heads == [["model", "share"], ["model", "share", "of", "others"]], "marks need room, too"
    coloured = "\n".join(printed(print_table, table, force_color=True))
    assert re.search(r"\x1b\[9m *-252\.7 %\x1b\[0m", coloured)
    assert coloured.count("\x1b[9m") == 1
