"""A table of counts answers as a dictionary does, and one that is not as `count` wrote it is
refused when it is opened, in one line."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recallkit import counting
from recallkit.counting.table import index_rows, open_counts, read_meta, search_counts
from recallkit.errors import UserError
from recallkit.options import TextOptions
from tests.conftest import made_up_texts, write_jsonl

pairs = st.tuples(st.integers(0, 5), st.integers(0, 5) | st.just(2**32 - 1))


@settings(max_examples=50)
@given(
    table=st.dictionaries(pairs, st.sampled_from([0, 1, 9, 2**32, 2**40]), max_size=30),
    looked_up=st.lists(pairs, max_size=60),
)
@example(table={}, looked_up=[(0, 1), (5, 2)])
def test_counts_are_those_of_a_dictionary(table, looked_up):
    rows = sorted((first << 32 | second, count) for (first, second), count in table.items())
    keys, counts = np.array(rows, np.uint64).reshape(-1, 2).T
    looked_up = [*looked_up, *table, (2**32 - 1, 0), (0, 2**32 - 1)]
    for pairs_asked in (looked_up, [pair for pair in looked_up if max(pair) <= 5]):
        given_ids = np.array(pairs_asked, np.uint32).reshape(-1, 2).T
        assert search_counts(keys, counts, *given_ids).tolist() == [
            table.get(pair, 0) for pair in pairs_asked
        ]
    starts = index_rows(keys)
    for first, bounds in enumerate(itertools.pairwise(starts)):
        of_first = [place for place, (key, _) in enumerate(rows) if key >> 32 == first]
        assert list(range(*bounds)) == of_first
    assert starts[-1] == len(rows)


@pytest.fixture(scope="module")
def counted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("counted")
    text = write_jsonl(folder / "text.jsonl", made_up_texts(5, 60))
    counting.count(TextOptions([str(text)], "training"), folder / "counts.duckdb")
    return folder / "counts.duckdb"


def changed(counted: Path, folder: Path, statement: str) -> Path:
    path = folder / "counts.duckdb"
    path.write_bytes(counted.read_bytes())
    with duckdb.connect(str(path)) as connection:
        connection.execute(statement)
    return path


def refused(path: Path, reader=open_counts) -> str:
    with pytest.raises(UserError) as caught:
        reader(path)
    assert "\n" not in caught.value.line()
    return caught.value.line()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", 7),
        ("id", "0" * 32),
        ("num_tokens", 77),
        ("num_tokens", None),
        ("tokenizer", {"name": 3}),
        ("boundary", "document"),
    ],
    ids=str,
)
def test_a_fact_that_was_changed(counted, tmp_path, name, value):
    path = changed(
        counted,
        tmp_path,
        f"UPDATE meta SET value = '{json.dumps(value)}' WHERE key = '{name}'",
    )
    assert "damaged (changed since it was written)" in refused(path, read_meta)
    assert "make it again with --force" in refused(path)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM meta WHERE key = 'id'", "changed since it was written"),
        ("DELETE FROM meta WHERE key = 'digest'", "changed since it was written"),
        ("UPDATE meta SET value = 'x{' WHERE key = 'sources'", "its meta is damaged"),
        ("INSERT INTO bigrams SELECT * FROM bigrams LIMIT 1", "damaged ("),
        ("DELETE FROM bigrams WHERE rowid = 3", "damaged ("),
        ("UPDATE bigrams SET count = count + 1 WHERE rowid = 3", "damaged ("),
        ("UPDATE unigrams SET count = count + 1 WHERE rowid = 3", "damaged ("),
    ],
)
def test_rows_that_are_missing_changed_or_there_twice(counted, tmp_path, statement, said):
    assert said in refused(changed(counted, tmp_path, statement))


def test_hashes_that_were_changed(counted, tmp_path):
    assert len(open_counts(counted).ngram_hashes) == 2
    table = open_counts(
        changed(counted, tmp_path, "UPDATE ngram_hashes SET hash = hash + 1 WHERE rowid = 3"),
    )
    with pytest.raises(UserError, match="the digest of its hashes of n-grams differs"):
        _ = table.ngram_hashes
