"""Tables of counts made by someone else, and names that look like SQL: nothing but tables is read,
and nothing but ours is run."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import polars as pl
import pytest

from recallkit import attribution, counting, slicing
from recallkit.config import SCHEMA_VERSION
from recallkit.counting.table import open_counts, read_meta
from recallkit.errors import UserError
from recallkit.options import TextOptions
from recallkit.storage import artifacts, db
from tests.conftest import made_up_texts

INJECTIONS = [
    "'; DROP TABLE bigrams; --",
    "$1",
    '"',
    "%s",
    "$source",
    "{0}",
    "\\'",
    "a'b\"c",
    "?",
    "`x`",
    "/* */",
]


def made(path: Path, *statements: str) -> Path:
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


@pytest.mark.parametrize("name", ["meta", "bigrams", "unigrams"])
def test_a_view_in_place_of_a_table_reads_nothing(small_slices, tmp_path, name):
    secret = tmp_path / "secret.csv"
    secret.write_text("key,value\nsecret,1\n")
    path = tmp_path / "evil.duckdb"
    path.write_bytes((small_slices.parent / "counts.duckdb").read_bytes())
    made(path, f"DROP TABLE {name}", f"CREATE VIEW {name} AS SELECT * FROM read_csv('{secret}')")
    with pytest.raises(
        UserError, match=f"it contains a view, {name}, which recallkit never writes"
    ) as caught:
        open_counts(path)
    assert "secret,1" not in caught.value.line()


def test_a_macro_in_a_table_of_counts_is_refused(small_slices, tmp_path):
    path = tmp_path / "evil.duckdb"
    path.write_bytes((small_slices.parent / "counts.duckdb").read_bytes())
    read_meta(path)  # a file that was checked once and has changed since is checked again
    made(path, "CREATE MACRO sum(a) AS 7")
    with pytest.raises(UserError, match="it contains a macro, sum"):
        read_meta(path)


@pytest.mark.parametrize(
    "reading",
    [
        "SELECT * FROM read_text($path)",
        "SELECT * FROM read_csv($path)",
        "SELECT * FROM read_blob($path)",
        "SELECT * FROM glob($path)",
    ],
)
def test_a_connection_reads_no_file(tmp_path, reading):
    path = tmp_path / "secret.csv"
    path.write_text("a,b\n1,2\n")
    for where in (None, made(tmp_path / "x.duckdb", "CREATE TABLE t (a INTEGER)")):
        with (
            db.connect(where, read_only=where is not None) as connection,
            pytest.raises(duckdb.Error, match="disabled by configuration"),
        ):
            connection.execute(reading, {"path": str(path)}).fetchall()


@pytest.mark.parametrize("name", ["a[b]*?", "{x,y}=1", "it's $1", "..", "s3:", "back\\slash"])
def test_a_connection_reads_the_file_that_it_is_given_and_no_other(tmp_path, name):
    """Whatever its folder and itself are called, and though its name taken for a pattern is that of
    another file."""
    folder = tmp_path / "place" / name.replace("[b]", "")
    folder.mkdir(parents=True, exist_ok=True)
    given, other = (
        folder / f"{name}.parquet",
        folder.resolve() / f"{name.replace('[b]*', 'bc')}d.parquet",
    )
    for path, value in ((given, 1), (other, 2)):
        pl.DataFrame({"a": [value]}).write_parquet(path)
    with db.connect(views={"given": given}) as connection:
        assert connection.execute("SELECT * FROM given").fetchall() == [(1,)]
        for path in (str(other), str(other.parent / "*.parquet"), "/etc/hostname"):
            with pytest.raises(duckdb.Error, match="disabled by configuration"):
                connection.execute("SELECT * FROM read_blob($path)", {"path": path}).fetchall()
        for statement in (
            "SET enable_external_access = true",
            "SET allowed_paths = ['/']",
            "SET lock_configuration = false",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SET threads = 1",
        "COPY (SELECT 1) TO 'out.csv'",
        "ATTACH 'other.duckdb'",
    ],
)
def test_a_connection_fetches_writes_and_changes_nothing(tmp_path, monkeypatch, statement):
    monkeypatch.chdir(tmp_path)
    with db.connect() as connection, pytest.raises(duckdb.Error):
        connection.execute(statement)
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_is_missing_is_no_variable_of_ours():
    frame = pl.DataFrame({"a": [1]})
    with db.connect() as connection, pytest.raises(duckdb.Error, match="does not exist"):
        connection.execute("SELECT * FROM frame").fetchall()
    assert len(frame) == 1


@pytest.mark.parametrize("name", ["md:x", "it's", 'quo"te', "%s", "sqlite:x"])
def test_a_database_may_be_called_anything(tmp_path, monkeypatch, name):
    """Also where its name begins as that of a service does: DuckDB would load an extension for
    it."""
    monkeypatch.chdir(tmp_path)
    with db.connect(Path(name)) as connection:
        connection.execute(db.query("counts/create_tables"))
        numbers = dict.fromkeys(("num_tokens", "num_documents", "num_bigrams"), 0)
        facts = {"schema_version": SCHEMA_VERSION, "id": "0", **numbers, "unseen": None}
        for key, value in artifacts.with_digest(facts).items():
            connection.execute(
                db.query("counts/insert_fact"), {"key": key, "value": json.dumps(value)}
            )
        connection.execute("CHECKPOINT")
    assert read_meta(Path(name)) == facts
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_names_like_sql_are_names(home, tmp_path):
    """As sources, as text, as the name of a file, of a field and of an output, through every query
    of the pipeline."""
    folder = tmp_path / "it's; DROP"
    folder.mkdir()
    field = "'; --"
    lines = [
        json.dumps({"text": f"{name} {text}", "meta": {field: name}})
        for name in INJECTIONS
        for text in made_up_texts(2, 60, seed=len(name))
    ]
    shard = folder / "'; DROP TABLE bigrams; --.jsonl"
    shard.write_text("\n".join(lines) + "\n")
    options = TextOptions([str(shard)], "train", source_field=f"meta.{field}")
    counts = folder / '"$1.duckdb'
    counting.count(options, counts)
    slices = folder / "%s"
    text = TextOptions([str(shard)], "validation", source_field=f"meta.{field}")
    slicing.slice_text(text, slices, counts=counts, rare=slicing.RareCount(20), seq_len=32)
    made = attribution.gap("control:recall", ["control:bigram"], slices)
    del made
    [gap] = slices.rglob("gap.parquet")
    assert set(INJECTIONS) <= set(pl.read_parquet(gap)["source"])
    assert len(open_counts(counts).keys) > 0
