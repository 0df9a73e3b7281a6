"""Counts equal a Counter, wherever chunks are cut, however often the count is interrupted."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.counts import open_counts
from recallkit.errors import UserError
from recallkit.journal import Journal
from recallkit.records import EncodedDocuments, Position
from recallkit.stages import bigrams
from recallkit.stages.bigrams import count_stream, counting_state, export_counts, read_foreign_counts, write_counts
from tests.stages.test_sequences import END, batches, documents_strategy

VOCAB = END + 1


def expected(documents: list[list[int]], boundary: str, limit: int | None = None) -> tuple[Counter, Counter]:
    """Bigrams and unigrams by the definition."""
    streams = [[i for d in documents for i in [*d, END]]] if boundary == "pack" else [[END, *d] for d in documents]
    left, pairs, singles = (limit if limit is not None else 10**9), Counter(), Counter()
    for stream in streams:
        kept = stream[:left]
        left -= len(kept)
        pairs.update(itertools.pairwise(kept))
        singles.update(kept)
    return pairs, singles


def as_counters(counted) -> tuple[Counter, Counter]:
    pairs = {(int(k) >> 32, int(k) & 0xFFFFFFFF): int(c) for k, c in zip(*counted.bigrams, strict=True)}
    assert np.all(np.diff(counted.bigrams.keys.astype(object)) > 0)
    return Counter(pairs), Counter({int(i): int(c) for i, c in zip(counted.tokens, counted.token_counts, strict=True)})


OPTIONS = {"end_token_id": END, "vocab_size": VOCAB}


@pytest.mark.parametrize("boundary", ["pack", "document"])
@settings(max_examples=40, deadline=None)
@given(documents=documents_strategy, chunk=st.integers(1, 40), limit=st.none() | st.integers(1, 60))
def test_counts_equal_a_counter_wherever_chunks_are_cut(tmp_path_factory, boundary, documents, chunk, limit):
    target = tmp_path_factory.mktemp("count") / "counts.duckdb"
    with Journal(target, {}) as journal:
        counted = count_stream(batches(documents, [2, 1]), journal, boundary=boundary, limit_tokens=limit, chunk_tokens=chunk, **OPTIONS)
        assert as_counters(counted) == expected(documents, boundary, limit)
        assert counted.num_tokens == counted.token_counts.sum()


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("boundary", ["pack", "document"])
def test_an_interrupted_count_goes_on(tmp_path, boundary):
    rng = np.random.default_rng(3)
    documents = [rng.integers(0, 20, rng.integers(0, 30)).tolist() for _ in range(60)]

    def until(number: int, start: int):
        for batch in batches(documents, [1], start):
            if batch.positions[0].record == number:
                raise Interrupted
            yield batch

    target = tmp_path / "counts.duckdb"
    for stop in (3, 17, 18, 40):
        with Journal(target, {}) as journal, pytest.raises(Interrupted):
            count_stream(until(stop, counting_state(journal).position.record), journal, boundary=boundary, chunk_tokens=50, **OPTIONS)
    with Journal(target, {}) as journal:
        start = counting_state(journal).position.record
        assert start > 20, "the journal kept nothing"
        counted = count_stream(batches(documents, [1], start), journal, boundary=boundary, chunk_tokens=50, **OPTIONS)
        assert as_counters(counted) == expected(documents, boundary)


def test_few_runs_stay_on_disk(tmp_path):
    documents = [[int(i)] * 3 for i in np.random.default_rng(0).integers(0, 50, 400)]
    with Journal(tmp_path / "counts.duckdb", {}) as journal:
        count_stream(batches(documents, [4]), journal, boundary="pack", chunk_tokens=16, **OPTIONS)
        assert len(list(journal.folder.glob("*.keys"))) == 1


def test_only_keeps_what_is_needed(tmp_path):
    needed = np.array([1 << 32 | 2, 5 << 32 | END], np.uint64)
    with Journal(tmp_path / "counts.duckdb", {}) as journal:
        counted = count_stream(batches([[1, 2, 1, 2, 3], [5]], [1]), journal, boundary="pack", only=needed, chunk_tokens=4, **OPTIONS)
        assert as_counters(counted) == (Counter({(1, 2): 2, (5, END): 1}), Counter({1: 2, 2: 2, 3: 1, 5: 1, END: 2}))


def test_the_table_holds_what_was_counted(tmp_path):
    documents = [[1, 2, 3, 1, 2], [4, 4, 4]]
    path = tmp_path / "counts.duckdb"
    with Journal(path, {}) as journal:
        counted = count_stream(batches(documents, [2]), journal, boundary="pack", **OPTIONS)
        meta = write_counts(path, counted, {"boundary": "pack", "tokenizer": None})
    table = open_counts(path)
    pairs, singles = expected(documents, "pack")
    assert table.num_tokens == meta["num_tokens"] == 10
    asked = [(1, 2), (2, 1), (4, 4), (END, 4), (9, 9)]
    assert table.lookup(*np.array(asked, np.uint32).T).tolist() == [pairs[pair] for pair in asked]
    assert {int(i): int(c) for i, c in zip(table.tokens, table.token_counts, strict=True)} == dict(singles)


def test_the_id_tells_tables_apart_and_nothing_else(tmp_path):
    ids = []
    for name, documents, chunk in (("a", [[1, 2, 3]], 4), ("b", [[1, 2, 3]], 100), ("c", [[1, 2, 4]], 100)):
        with Journal(tmp_path / name, {}) as journal:
            counted = count_stream(batches(documents, [1]), journal, boundary="pack", chunk_tokens=chunk, **OPTIONS)
            ids.append(write_counts(tmp_path / name, counted, {"boundary": "pack"})["id"])
    assert ids[0] == ids[1] != ids[2]


def test_a_table_survives_export_and_import(tmp_path):
    with Journal(tmp_path / "counts.duckdb", {}) as journal:
        counted = count_stream(batches([[1, 2, 3, 1, 2], [4, 4, 4]], [2]), journal, boundary="pack", **OPTIONS)
        write_counts(tmp_path / "counts.duckdb", counted, {})
    export_counts(open_counts(tmp_path / "counts.duckdb"), tmp_path / "bigrams.parquet")
    again = read_foreign_counts(tmp_path / "bigrams.parquet")
    assert np.array_equal(again.bigrams.keys, counted.bigrams.keys)
    assert np.array_equal(again.bigrams.counts, counted.bigrams.counts)


def test_csv_is_imported_sorted_and_added_up(tmp_path):
    file = tmp_path / "counts.csv"
    file.write_text("first,second,count\n7,1,2\n3,4,5\n7,1,1\n4294967295,4294967295,9\n")
    counted = read_foreign_counts(file)
    assert as_counters(counted)[0] == Counter({(7, 1): 3, (3, 4): 5, (2**32 - 1, 2**32 - 1): 9})


HEADER = "first,second,count\n"


@pytest.mark.parametrize(
    "content",
    ["first,second\n1,2\n", f"{HEADER}1,2,-3\n", f"{HEADER}x,2,3\n", HEADER, f"{HEADER},2,3\n4,5,6\n", f"{HEADER}1,2,1.5\n"],
)
def test_a_bad_table_is_one_line(tmp_path, content):
    file = tmp_path / "bad.csv"
    file.write_text(content)
    with pytest.raises(UserError, match=r"bad\.csv") as caught:
        read_foreign_counts(file)
    assert "first, second, count" in caught.value.line()


def test_a_slow_stream_commits_by_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(bigrams, "SECONDS_A_CHUNK", 0.0)
    with Journal(tmp_path / "counts.duckdb", {}) as journal:
        stream = batches([[1, 2]] * 5, [1])
        count_stream((next(stream) for _ in range(3)), journal, boundary="pack", **OPTIONS)
        assert counting_state(journal).position == Position(0, 3)
        assert journal.num_parts >= 3


def test_an_empty_stream_counts_nothing(tmp_path):
    with Journal(tmp_path / "counts.duckdb", {}) as journal:
        empty: list[EncodedDocuments] = []
        counted = count_stream(empty, journal, boundary="pack", **OPTIONS)
        assert counted.num_tokens == 0
        assert len(counted.bigrams.keys) == 0
