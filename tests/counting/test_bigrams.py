"""Counts equal a Counter, wherever chunks are cut, however often the count is interrupted."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recallkit.counting import bigrams
from recallkit.counting.bigrams import (
    CountedShardRange,
    CountedStream,
    Counters,
    Counting,
    count_shard_range,
    counting_state,
    join_shard_ranges,
    plan_shard_ranges,
)
from recallkit.counting.make_table import export_counts, read_foreign_counts, write_counts
from recallkit.counting.ngram_hash import ngram_hash
from recallkit.counting.sorted_runs import HASHES
from recallkit.counting.table import open_counts
from recallkit.errors import UserError
from recallkit.storage.journal import Journal
from tests.text.test_sequences import END, batches, documents_strategy

VOCAB = END + 1


def ended(counting):
    """The shard range that a counter returns at its end."""
    while True:
        try:
            next(counting)
        except StopIteration as end:
            return end.value


def expected(
    documents: list[list[int]],
    boundary: str,
    limit: int | None = None,
    order: int = 2,
) -> tuple[Counter, Counter]:
    """N-grams and unigrams by the definition."""
    streams = (
        [[i for d in documents for i in [*d, END]]]
        if boundary == "pack"
        else [[END, *d] for d in documents]
    )
    left, pairs, singles = (limit if limit is not None else 10**9), Counter(), Counter()
    for stream in streams:
        stream_ids = stream[:left]
        left -= len(stream_ids)
        pairs.update(tuple(stream_ids[i : i + order]) for i in range(len(stream_ids) - order + 1))
        singles.update(stream_ids)
    return pairs, singles


def as_counters(counted) -> tuple[Counter, Counter]:
    pairs = {
        (int(k) >> 32, int(k) & 0xFFFFFFFF): int(c) for k, c in zip(*counted.bigrams, strict=True)
    }
    assert np.all(np.diff(counted.bigrams.keys.astype(object)) > 0)
    return Counter(pairs), Counter(
        {int(i): int(c) for i, c in zip(counted.tokens, counted.token_counts, strict=True)},
    )


def counted_by(
    documents: list[list[int]],
    parts: Path,
    number: int,
    counting: Counting,
    limit: int | None,
    chunk: int,
) -> CountedShardRange:
    with Journal(parts / f"part-{number}", {}) as journal:
        return ended(
            count_shard_range(
                batches(documents, [2, 1]),
                journal,
                Counters(counting, chunk_tokens=chunk),
                limit_tokens=limit,
            )
        )


def counted_in(
    folder: Path,
    shard_ranges: list[list[list[int]]],
    *,
    boundary: str = "pack",
    only: np.ndarray | None = None,
    limit: int | None = None,
    chunk: int = 1000,
    num_hashes: int = 0,
) -> CountedStream:
    """The count of documents, given shard range by shard range."""
    counting = Counting(END, VOCAB, boundary, only, num_hashes)
    counted = []
    for number, documents in enumerate(shard_ranges):
        left = (
            None
            if limit is None
            else limit - sum(shard_range.num_tokens for shard_range in counted)
        )
        if left != 0:
            counted.append(counted_by(documents, folder, number, counting, left, chunk))
    return join_shard_ranges(counted, folder, counting)


@pytest.fixture
def short_hashed(monkeypatch):
    """Hashes of 3- and 7-grams, of which short texts have some."""
    monkeypatch.setitem(HASHES, "hashes13", 3)
    monkeypatch.setitem(HASHES, "hashes50", 7)


def hashed(
    documents: list[list[int]],
    boundary: str,
    limit: int | None,
    num_hashes: int,
) -> dict[int, list[int]]:
    """The smallest hashes by size, from the set of all n-grams."""
    ngrams = {size: expected(documents, boundary, limit, size)[0] for size in (3, 7)}
    return {size: sorted(map(ngram_hash, ngrams[size]))[:num_hashes] for size in ngrams}


@pytest.mark.parametrize("boundary", ["pack", "document"])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    documents=documents_strategy,
    cuts=st.sets(st.integers(1, 14)),
    chunk=st.integers(1, 40),
    limit=st.none() | st.integers(1, 60),
    num_hashes=st.sampled_from([0, 1, 5, 1000]),
)
def test_counts_are_exact_and_hashes_the_smallest_wherever_the_text_is_cut(
    tmp_path_factory,
    short_hashed,
    boundary,
    documents,
    cuts,
    chunk,
    limit,
    num_hashes,
):
    places = [0, *sorted(cut for cut in cuts if cut < len(documents)), len(documents)]
    shard_ranges = [documents[start:stop] for start, stop in itertools.pairwise(places)]
    folder = tmp_path_factory.mktemp("count")
    counted = counted_in(
        folder,
        shard_ranges,
        boundary=boundary,
        limit=limit,
        chunk=chunk,
        num_hashes=num_hashes,
    )
    hashes = {size: run.hashes.tolist() for size, run in counted.hashes.items()}
    wanted = hashed(documents, boundary, limit, num_hashes) if num_hashes else {}
    assert hashes == wanted
    assert as_counters(counted) == expected(documents, boundary, limit)
    assert counted.num_tokens == counted.token_counts.sum()


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("boundary", ["pack", "document"])
def test_an_interrupted_count_goes_on(tmp_path, boundary, short_hashed):
    rng = np.random.default_rng(3)
    documents = [rng.integers(0, 20, rng.integers(0, 30)).tolist() for _ in range(60)]
    counting = Counting(END, VOCAB, boundary, num_hashes=30)

    def until(number: int, start: int):
        for batch in batches(documents, [1], start):
            if batch.positions[0].record == number:
                raise Interrupted
            yield batch

    def place(journal: Journal) -> int:
        state = counting_state(journal)
        return 0 if state is None else state.position.record

    target = tmp_path / "part-0"
    for stop in (3, 17, 18, 40):
        with Journal(target, {}) as journal, pytest.raises(Interrupted):
            ended(
                count_shard_range(
                    until(stop, place(journal)),
                    journal,
                    Counters(counting, chunk_tokens=50),
                )
            )
    with Journal(target, {}) as journal:
        start = place(journal)
        assert start > 20, "the journal kept nothing"
        counted = ended(
            count_shard_range(
                batches(documents, [1], start),
                journal,
                Counters(counting, chunk_tokens=50),
            )
        )
    joined = join_shard_ranges([counted], tmp_path, counting)
    assert as_counters(joined) == expected(documents, boundary)
    assert {size: run.hashes.tolist() for size, run in joined.hashes.items()} == hashed(
        documents,
        boundary,
        None,
        30,
    )


def test_a_journal_whose_runs_are_gone_begins_again(tmp_path):
    documents = [[1, 2, 3]] * 30
    counting = Counting(END, VOCAB, "pack")
    with Journal(tmp_path / "part-0", {}) as journal:
        shard_range = count_shard_range(
            batches(documents, [1]),
            journal,
            Counters(counting, chunk_tokens=10),
        )
        for _ in range(20):
            next(shard_range)
        shard_range.close()
        next(journal.folder.glob("bigrams-*.keys")).unlink()
        assert counting_state(journal) is None
        counted = ended(
            count_shard_range(
                batches(documents, [1]),
                journal,
                Counters(counting, chunk_tokens=10),
            ),
        )
    assert as_counters(join_shard_ranges([counted], tmp_path, counting)) == expected(
        documents,
        "pack",
    )


def test_shard_ranges_follow_sizes(monkeypatch):
    monkeypatch.setattr(bigrams, "SHARD_RANGE_BYTES", 100)
    assert plan_shard_ranges([60, 30, 20, 80, 300, 10, None, 5, 5]) == [
        range(2),
        range(2, 4),
        range(4, 5),
        range(5, 6),
        range(6, 7),
        range(7, 9),
    ]
    assert len(plan_shard_ranges([10**9] * 10_000)) <= 2 * bigrams.MAX_SHARD_RANGES
    assert plan_shard_ranges([]) == []


def test_hashes_are_read_back_and_do_not_change_the_id(tmp_path, short_hashed):
    documents = [[1, 2, 3, 1, 2, 3, 1, 4, 5], [4, 4, 4, 4, 4, 4]]
    metas = {}
    for num_hashes in (0, 4, 1000):
        (tmp_path / str(num_hashes)).mkdir()
        counted = counted_in(tmp_path / str(num_hashes), [documents], num_hashes=num_hashes)
        metas[num_hashes] = write_counts(tmp_path / f"{num_hashes}.duckdb", counted, {})
        table = open_counts(tmp_path / f"{num_hashes}.duckdb")
        wanted = hashed(documents, "pack", None, num_hashes) if num_hashes else {}
        assert {known.size: known.hashes.tolist() for known in table.ngram_hashes} == wanted
        for known in table.ngram_hashes:
            is_whole = num_hashes == 1000
            assert known.largest == (2**64 - 1 if is_whole else wanted[known.size][-1])
            assert known.fraction == (1 if is_whole else (wanted[known.size][-1] + 1) / 2**64)
    assert len({meta["id"] for meta in metas.values()}) == 1
    assert metas[4]["ngram_hashes"]["digest"] != metas[1000]["ngram_hashes"]["digest"]
    assert "ngram_hashes" not in metas[0]


def test_a_table_survives_export_and_import(tmp_path):
    counted = counted_in(tmp_path, [[[1, 2, 3, 1, 2], [4, 4, 4]]])
    write_counts(tmp_path / "counts.duckdb", counted, {})
    export_counts(open_counts(tmp_path / "counts.duckdb"), tmp_path / "bigrams.parquet")
    again = read_foreign_counts(tmp_path / "bigrams.parquet")
    assert np.array_equal(again.bigrams.keys, counted.bigrams.keys)
    assert np.array_equal(again.bigrams.counts, counted.bigrams.counts)


HEADER = "first,second,count\n"


@pytest.mark.parametrize(
    "content",
    [
        "first,second\n1,2\n",
        f"{HEADER}1,2,-3\n",
        f"{HEADER}x,2,3\n",
        HEADER,
        f"{HEADER},2,3\n4,5,6\n",
        f"{HEADER}1,2,1.5\n",
    ],
)
def test_a_bad_table_is_one_line(tmp_path, content):
    file = tmp_path / "bad.csv"
    file.write_text(content)
    with pytest.raises(UserError, match=r"bad\.csv") as caught:
        read_foreign_counts(file)
    assert "first, second, count" in caught.value.line()
