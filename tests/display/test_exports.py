"""Exports: every value comes back from every file, nothing of a user's is replaced, and no name runs in a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recallkit.display.exports import FORMATS, export, parse_formats
from recallkit.display.tables import Table
from recallkit.errors import UserError

NAMES = st.one_of(
    st.none(),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), max_size=8),
    st.text("=+-@'\t,\"\n＝a", max_size=5),
)
NUMBERS = st.one_of(st.none(), st.floats(width=64))
ROWS = st.lists(
    st.tuples(NAMES, NUMBERS, st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), st.one_of(st.none(), st.booleans())), max_size=5
)
SCHEMA = {"name": pl.String, "nll": pl.Float64, "tokens": pl.Int64, "repeated": pl.Boolean}


@dataclass(frozen=True)
class Tables:
    gap: pl.DataFrame
    by_count: pl.DataFrame


SHOWN = {"gap": Table("Title", ["model", "all"], [["a", "1"]])}


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))


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
        assert not line[0] or line[0][0] not in "=+-@\t＝＋－＠"
        assert line[0].removeprefix("'") == (name or "")
        assert (line[1] == "") if nll is None else float(line[1]) == nll or (math.isnan(nll) and math.isnan(float(line[1])))
        assert line[2:] == ["" if tokens is None else str(tokens), "" if repeated is None else str(repeated).lower()]


def test_a_name_is_no_formula(tmp_path):
    name = "=cmd|' /C calc'!A0"
    files = export(Tables(frame([(name, -1.5, -2, True)]), frame([])), {}, tmp_path, ["csv", "json"])
    assert [path.name for path in files] == ["gap.csv", "by_count.csv", "gap.json", "by_count.json"]
    [line] = list(csv.reader(io.StringIO(files[0].read_text(), newline="")))[1:]
    assert line == [f"'{name}", "-1.5", "-2", "true"], "numbers are numbers"
    infinite = frame([(name, math.inf, -(2**63), None)])
    [row] = json.loads(export({"t": infinite}, {}, tmp_path, ["json"])[0].read_text(), parse_constant=pytest.fail)["rows"]
    assert row == {"name": name, "nll": None, "tokens": -(2**63), "repeated": None}, "JSON has neither infinity nor formulas"
    [path] = export({"t": pl.DataFrame({"name": ["", None], "x": [1, 2]})}, {}, tmp_path, ["csv"])
    assert path.read_text() == 'name,x\n"",1\n,2\n', "null and no name differ"


def test_each_format_holds_what_it_is_for(tmp_path):
    tables = Tables(frame([("a", 0.1 + 0.2, 1, True)]), frame([]))
    files = export(tables, SHOWN, tmp_path / "new", list(FORMATS))
    assert sorted(path.name for path in files) == ["by_count.csv", "by_count.json", "gap.csv", "gap.json", "gap.md", "gap.tex"]
    assert "0.30000000000000004" in (tmp_path / "new/gap.csv").read_text()
    assert (tmp_path / "new/gap.md").read_text() == SHOWN["gap"].markdown()
    assert (tmp_path / "new/gap.tex").read_text() == SHOWN["gap"].latex("gap")
    assert sorted(tmp_path.glob("new/*")) == sorted([*files, tmp_path / "new/manifest.json"]), "nothing is left beside"
    before = {path: path.read_bytes() for path in files}
    assert export(tables, SHOWN, tmp_path / "new", list(FORMATS)) == files, "our own files are replaced"
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
    done = run("gap", "control:recall", "control:bigram", "--slices", few_slices, "-o", out, "--export", "csv,json,md,tex")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in out.iterdir()}
    tables = ("gap", "by_count", "by_distance", "by_match", "by_position", "by_threshold", "by_partition")
    assert {f"{name}.{ending}" for name in tables for ending in ("parquet", "csv", "json")} <= names
    assert {name for name in names if name.startswith("by_document")} == {"by_document.parquet"}, "it grows with the text"
    assert {"gap.md", "gap.tex", "by_source.md", "by_source.tex"} <= names
    written = [path for path in out.iterdir() if path.suffix in (".csv", ".json", ".md", ".tex") and path.name != "manifest.json"]
    assert f"{len(written)} files written to {out}\n" in done.stdout
    for name in tables:
        table = pl.read_parquet(out / f"{name}.parquet")
        assert json.loads((out / f"{name}.json").read_text())["rows"] == table.to_dicts()
        read = read_csv(out / f"{name}.csv")
        assert [float(row["delta_nll"]) if row["delta_nll"] else None for row in read] == table["delta_nll"].to_list()
    assert r"\cmidrule(lr){2-4} \cmidrule(lr){6-7} \cmidrule(lr){8-9}" in (out / "gap.tex").read_text()
    assert run("gap", "control:recall", "control:bigram", "--slices", few_slices, "-o", out, "--export", "xlsx").returncode == 2
