"""Exports: every value comes back from every file, nothing of a user's is replaced, and no name
runs in a spreadsheet."""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recallkit.display.exports import FORMATS, bare, export, parse_formats
from recallkit.display.tables import Table
from recallkit.errors import UserError

UNSEEN = (
    " "
    "\t\n\r\x00\x1b\x7f\x85\xa0\xad\u034f\u061c\u115f\u180e\u200b\u200d\u200f\u2028\u202e\u2060\u2067\u2800\u3000\u3164\ufe0f\ufeff"
)
"""Spaces, control characters, those that change the direction of text, marks and what else nobody
sees."""
SIGNS = "=+-@＝＋－＠﹦﹢﹣﹫"
"""What formulas begin with, also in the forms of East Asian keyboards."""
NAMES = st.one_of(
    st.none(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.text(f"{SIGNS}{UNSEEN}',\"\\\\nxa", max_size=5),
)
NUMBERS = st.one_of(st.none(), st.floats(width=64))
ROWS = st.lists(
    st.tuples(
        NAMES,
        NUMBERS,
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        st.one_of(st.none(), st.booleans()),
    ),
    max_size=5,
)
SCHEMA = {"name": pl.String, "nll": pl.Float64, "tokens": pl.Int64, "repeated": pl.Boolean}


@dataclass(frozen=True)
class Tables:
    gap: pl.DataFrame
    by_count: pl.DataFrame


SHOWN = {"gap": Table("Title", ["model", "all"], [["a", "1"]])}


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))


def restored(cell: str) -> str:
    """The name of a cell, as the module says it is found again: without an apostrophe, escapes read
    as Python reads them."""
    name = cell.removeprefix("'")
    escape = r"\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"
    return re.sub(escape, lambda found: ast.literal_eval(f"'{found[0]}'"), name)


def assert_no_formula(cell: str) -> None:
    seen = cell.lstrip(UNSEEN)
    assert not seen or seen[0] not in SIGNS, cell
    assert all(character.isprintable() for character in cell), ascii(cell)


def frame(rows) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=SCHEMA, orient="row")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS)
def test_csv_gives_every_value_back(tmp_path, rows):
    """Read by Python's csv, whose floats are exact."""
    [path] = export({"t": frame(rows)}, {}, tmp_path, ["csv"])
    header, *lines = csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline=""))
    assert header == list(SCHEMA)
    assert len(lines) == len(rows)
    for (name, nll, tokens, repeated), line in zip(rows, lines, strict=True):
        assert_no_formula(line[0])
        assert restored(line[0]) == (name or "")
        assert (
            (line[1] == "")
            if nll is None
            else float(line[1]) == nll or (math.isnan(nll) and math.isnan(float(line[1])))
        )
        assert line[2:] == [
            "" if tokens is None else str(tokens),
            "" if repeated is None else str(repeated).lower(),
        ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(UNSEEN, max_size=3), st.sampled_from(SIGNS), NAMES)
def test_a_formula_behind_what_nobody_sees_is_text_too_and_so_is_a_columns_name(
    tmp_path, unseen, sign, name
):
    text = f"{unseen}{sign}{name or ''}"
    table = pl.DataFrame(
        {text: [text, "a", None], "x": [-1, 2, 3]}, schema_overrides={text: pl.Categorical}
    )
    [path] = export({"t": table}, {}, tmp_path, ["csv"])
    (header, _), (cell, number), *_ = csv.reader(
        io.StringIO(path.read_text(encoding="utf-8"), newline="")
    )
    for each in (header, cell):
        assert each.startswith("'")
        assert_no_formula(each)
        assert restored(each) == text
    assert number == "-1"


@pytest.mark.parametrize("ending", ["csv", "json", "md", "tex"])
def test_no_format_has_raw_what_a_terminal_obeys_or_what_turns_text_around(tmp_path, ending):
    misleading = [
        *map(
            chr,
            [
                *range(32),
                *range(127, 160),
                0x61C,
                0x200E,
                0x200F,
                *range(0x2028, 0x202F),
                *range(0x2066, 0x206A),
                0xFEFF,
            ],
        )
    ]
    name = f"a{''.join(misleading)}b"
    shown = {"t": Table(name, [name, "x"], [[name, "1"]], name)}
    [path] = export({"t": pl.DataFrame({"name": [name], "x": [1]})}, shown, tmp_path, [ending])
    assert set(path.read_text(encoding="utf-8")) & set(misleading) <= {"\n"}


def test_a_name_is_no_formula(tmp_path):
    name = "=cmd|' /C calc'!A0"
    files = export(
        Tables(frame([(name, -1.5, -2, True)]), frame([])), {}, tmp_path, ["csv", "json"]
    )
    assert [path.name for path in files] == ["gap.csv", "by_count.csv", "gap.json", "by_count.json"]
    [line] = list(csv.reader(io.StringIO(files[0].read_text(), newline="")))[1:]
    assert line == [f"'{name}", "-1.5", "-2", "true"], "numbers are numbers"
    infinite = frame([(name, math.inf, -(2**63), None)])
    [row] = json.loads(
        export({"t": infinite}, {}, tmp_path, ["json"])[0].read_text(), parse_constant=pytest.fail
    )["rows"]
    assert row == {"name": name, "nll": None, "tokens": -(2**63), "repeated": None}, (
        "JSON has neither infinity nor formulas"
    )
    [path] = export({"t": pl.DataFrame({"name": ["", None], "x": [1, 2]})}, {}, tmp_path, ["csv"])
    assert path.read_text() == 'name,x\n"",1\n,2\n', "null and no name differ"


def test_each_format_holds_what_it_is_for(tmp_path):
    tables = Tables(frame([("a", 0.1 + 0.2, 1, True)]), frame([]))
    files = export(tables, SHOWN, tmp_path / "new", list(FORMATS))
    assert sorted(path.name for path in files) == [
        "by_count.csv",
        "by_count.json",
        "gap.csv",
        "gap.json",
        "gap.md",
        "gap.tex",
    ]
    assert "0.30000000000000004" in (tmp_path / "new/gap.csv").read_text()
    assert (tmp_path / "new/gap.md").read_text() == SHOWN["gap"].markdown()
    assert (tmp_path / "new/gap.tex").read_text() == SHOWN["gap"].latex("gap")
    assert sorted(tmp_path.glob("new/*")) == sorted([*files, tmp_path / "new/manifest.json"]), (
        "nothing is left beside"
    )
    before = {path: path.read_bytes() for path in files}
    assert export(tables, SHOWN, tmp_path / "new", list(FORMATS)) == files, (
        "our own files are replaced"
    )
    assert {path: path.read_bytes() for path in files} == before
    assert export(tables, SHOWN, tmp_path / "none", []) == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["gap.csv", "gap.tex"])
def test_a_users_file_is_kept_and_nothing_is_written(tmp_path, name):
    (tmp_path / name).write_text("name,mine\n")
    with pytest.raises(UserError, match="did not write"):
        export(Tables(frame([]), frame([])), SHOWN, tmp_path, list(FORMATS))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "name,mine\n"


def test_formats_are_read_once_each():
    assert parse_formats(" CSV,tex,,csv ") == ["csv", "tex"]
    for wrong in ("", ",", "csv,xlsx", "csv;tex"):
        with pytest.raises(ValueError, match="csv, json, md, tex"):
            parse_formats(wrong)


def test_commands_export_beside_their_tables(run, few_slices, tmp_path):
    out = tmp_path / "gap"
    done = run(
        "gap",
        "control:recall",
        "control:bigram",
        "--slices",
        few_slices,
        "-o",
        out,
        "--export",
        "csv,json,md,tex",
    )
    assert done.returncode == 0, done.stderr
    names = {path.name for path in out.iterdir()}
    tables = (
        "gap",
        "by_count",
        "by_distance",
        "by_match",
        "by_position",
        "by_threshold",
        "by_partition",
    )
    assert {f"{name}.{ending}" for name in tables for ending in ("parquet", "csv", "json")} <= names
    assert {name for name in names if name.startswith("by_document")} == {"by_document.parquet"}, (
        "it grows with the text"
    )
    assert {"gap.md", "gap.tex", "by_source.md", "by_source.tex"} <= names
    written = [
        path
        for path in out.iterdir()
        if path.suffix in (".csv", ".json", ".md", ".tex") and path.name != "manifest.json"
    ]
    assert f"{len(written)} files written to {out}\n" in done.stdout
    for name in tables:
        table = pl.read_parquet(out / f"{name}.parquet")
        assert json.loads((out / f"{name}.json").read_text())["rows"] == table.to_dicts()
        read = read_csv(out / f"{name}.csv")
        assert [float(row["delta_nll"]) if row["delta_nll"] else None for row in read] == table[
            "delta_nll"
        ].to_list()
    assert (
        r"\cmidrule(lr){2-4} \cmidrule(lr){6-7} \cmidrule(lr){8-9}" in (out / "gap.tex").read_text()
    )
    assert (
        run(
            "gap",
            "control:recall",
            "control:bigram",
            "--slices",
            few_slices,
            "-o",
            out,
            "--export",
            "xlsx",
        ).returncode
        == 2
    )


def test_folders_are_left_out_of_names():
    assert [bare(name) for name in ("/home/me/a b.txt", "./x.json", "../y/z", "~/w")] == [
        "a b.txt",
        "x.json",
        "z",
        "w",
    ]
    others = ["owner/name", "https://host/f.json", "demo:validation", "plain.txt"]
    assert [bare(name) for name in others] == others
