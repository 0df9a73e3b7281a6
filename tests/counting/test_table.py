"""A table of counts that is not as `count` wrote it is refused when it is opened, in one line."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from recallkit import counting
from recallkit.counting.table import open_counts, read_meta
from recallkit.errors import UserError
from recallkit.options import TextOptions
from tests.conftest import made_up_texts, write_jsonl


@pytest.fixture(scope="module")
def counted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("counted")
    text = write_jsonl(folder / "text.jsonl", made_up_texts(5, 60))
    counting.count(TextOptions([str(text)], "training"), folder / "counts.duckdb")
    return folder / "counts.duckdb"


def changed(counted: Path, folder: Path, *statements: str) -> Path:
    path = folder / "counts.duckdb"
    path.write_bytes(counted.read_bytes())
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


def refused(path: Path, reader=open_counts) -> str:
    with pytest.raises(UserError) as caught:
        reader(path)
    assert "\n" not in caught.value.line()
    return caught.value.line()


def test_a_table_as_it_was_written_is_read(counted):
    table = open_counts(counted)
    assert table.meta["id"] == table.recompute_id()
    assert len(table.ngram_hashes) == 2
    assert "digest" not in table.meta


FACTS = [
    ("id", 7),
    ("id", None),
    ("id", "0" * 32),
    ("num_tokens", -1),
    ("num_tokens", "many"),
    ("num_tokens", 1.5),
    ("num_tokens", None),
    ("num_tokens", 77),
    ("num_bigrams", 3),
    ("tokenizer", "gpt2"),
    ("tokenizer", {"name": 3}),
    ("tokenizer", None),
    ("boundary", "document"),
]


@pytest.mark.parametrize(("name", "value"), FACTS, ids=str)
def test_a_fact_that_was_changed(counted, tmp_path, name, value):
    path = changed(counted, tmp_path, f"UPDATE meta SET value = '{json.dumps(value)}' WHERE key = '{name}'")
    assert "damaged (it is not as it was written)" in refused(path, read_meta)
    assert "make it again with --force" in refused(path)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM meta WHERE key = 'id'", "not as it was written"),
        ("DELETE FROM meta WHERE key = 'digest'", "not as it was written"),
        ("UPDATE meta SET value = '\"\\ud800\"' WHERE key = 'sources'", "not as it was written"),
        ("UPDATE meta SET value = 'x{' WHERE key = 'sources'", "its meta is damaged"),
        ("UPDATE meta SET value = repeat('[', 100000) WHERE key = 'sources'", "its meta is damaged"),
    ],
)
def test_a_meta_that_is_not_as_it_was_written(counted, tmp_path, statement, said):
    assert said in refused(changed(counted, tmp_path, statement), read_meta)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO bigrams SELECT * FROM bigrams LIMIT 1",
        "INSERT INTO unigrams SELECT * FROM unigrams LIMIT 1",
        "DELETE FROM bigrams WHERE rowid = 3",
        "DELETE FROM unigrams WHERE rowid = 3",
        "UPDATE bigrams SET count = count + 1 WHERE rowid = 3",
        "UPDATE unigrams SET count = count + 1 WHERE rowid = 3",
        "UPDATE bigrams SET second = 4095 WHERE rowid = 3",
    ],
)
def test_rows_that_are_missing_changed_or_there_twice(counted, tmp_path, statement):
    assert "damaged (" in refused(changed(counted, tmp_path, statement))


def test_hashes_that_were_changed(counted, tmp_path):
    table = open_counts(changed(counted, tmp_path, "UPDATE ngram_hashes SET hash = hash + 1 WHERE rowid = 3"))
    with pytest.raises(UserError, match="its hashes of n-grams are not those that were written"):
        _ = table.ngram_hashes
