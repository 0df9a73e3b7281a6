"""Bigram counts equal the readable reference's on both paths, for any split, thread count and reuse of buffers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.counting import bigram_kernels
from recallkit.counting.bigram_kernels import BigramCounter, BigramRun, merge_runs

ONE_SEGMENT = np.zeros(1, np.int64)
NO_LIMIT = 1 << 60


def count_bigrams_reference(ids: np.ndarray, segment_starts: np.ndarray) -> BigramRun:
    """A plain Python version of `BigramCounter.count`."""
    starts = set(segment_starts.tolist())
    tokens = ids.tolist()
    counts = Counter((tokens[i - 1] << 32) | tokens[i] for i in range(len(tokens)) if i not in starts)
    keys = sorted(counts)
    return BigramRun(np.array(keys, np.uint64), np.array([counts[key] for key in keys], np.uint64))


def assert_same(run: BigramRun, expected: BigramRun) -> None:
    for column, expected_column in zip(run, expected, strict=True):
        assert column.dtype == np.uint64
        np.testing.assert_array_equal(column, expected_column)


@st.composite
def chunks(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Ids of one of many vocabularies, often repeated, with any segment starts, some of empty segments."""
    dtype = draw(st.sampled_from([np.uint16, np.uint32]))
    largest = draw(st.sampled_from([0, 1, 15, 16, 31, 32, 33, 255, 4095, 50256, 65535, 100_000, 1 << 20, (1 << 32) - 1]))
    largest = min(largest, int(np.iinfo(dtype).max))
    near_largest = st.integers(max(0, largest - 2), largest)
    ids = draw(st.lists(st.integers(0, largest) | near_largest | st.integers(0, min(2, largest)), max_size=120))
    starts = draw(st.lists(st.integers(0, len(ids)), max_size=20))
    return np.array(ids, dtype), np.array(sorted([0, *starts]), np.int64)


@pytest.fixture(params=["radix", "sorting"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Forces one of the two ways to count where both are possible: small chunks would otherwise all be sorted."""
    monkeypatch.setattr(bigram_kernels, "_MAX_CELLS_PER_TOKEN", NO_LIMIT if request.param == "radix" else 0)
    monkeypatch.setattr(bigram_kernels, "_SORTED_TOKENS", 50)
    return str(request.param)


@given(data=st.data())
@settings(max_examples=100)
def test_counts_equal_the_reference_whatever_was_counted_before(data: st.DataObject) -> None:
    counter = BigramCounter(num_threads=data.draw(st.integers(1, 3)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bigram_kernels, "_SORTED_TOKENS", 50)
        for ids, starts in data.draw(st.lists(chunks(), min_size=1, max_size=3)):
            patch.setattr(bigram_kernels, "_MAX_CELLS_PER_TOKEN", data.draw(st.sampled_from([0, NO_LIMIT])))
            assert_same(counter.count(ids, starts), count_bigrams_reference(ids, starts))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 15, 16, 17, 18, 31, 32, 33, 34, 48, 49, 50])
def test_every_length_around_a_line_of_gathered_bigrams(path: str, length: int, num_threads: int) -> None:
    ids = np.full(length, 7, np.uint16)
    run = BigramCounter(num_threads=num_threads).count(ids, np.zeros(min(1, length), np.int64))
    assert run.keys.tolist() == [(7 << 32) + 7][: max(0, length - 1)]
    assert run.counts.tolist() == [length - 1][: max(0, length - 1)]


def corner_ids(vocab: int) -> np.ndarray:
    """Ids at the ends and at the borders of partitions of 32, every one before every other, several times."""
    corners = np.array([0, 31, 32, vocab // 2, vocab - 1], np.uint32).clip(0, vocab - 1)
    return np.append(corners[np.random.default_rng(vocab).integers(0, corners.size, 300)], corners)


@pytest.mark.parametrize("vocab", [1, 2, 31, 32, 33, 2048, 2049, 50257, 65536, 150_000])
def test_every_size_of_vocabulary_reaches_its_first_and_last_cells(path: str, vocab: int) -> None:
    ids = corner_ids(vocab)
    assert_same(BigramCounter().count(ids, ONE_SEGMENT), count_bigrams_reference(ids, ONE_SEGMENT))


def test_vocabularies_around_the_largest_tables(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With limits so small that the number of partitions, then their tables, then both no longer suffice."""
    monkeypatch.setattr(bigram_kernels, "_MAX_PARTITIONS", 8)
    monkeypatch.setattr(bigram_kernels, "_MAX_CELLS", 1 << 10)
    layouts = {}
    for vocab in range(1, 300):
        ids = corner_ids(vocab)
        layouts[vocab] = bigram_kernels._Layout.of(vocab)
        assert_same(BigramCounter().count(ids, ONE_SEGMENT), count_bigrams_reference(ids, ONE_SEGMENT))
    assert layouts[100] is not None
    assert layouts[299] is None


def zipf_ids(num_ids: int, vocab: int, seed: int) -> np.ndarray:
    """Skewed ids: the most frequent bigrams take a large share, most are rare."""
    return (np.random.default_rng(seed).zipf(1.3, num_ids) % vocab).astype(np.uint16)


def test_both_paths_are_taken_by_themselves() -> None:
    """A large chunk of small ids (tables) and the same ids scaled beyond the tables (sorting) agree."""
    ids = zipf_ids(300_000, 1_000, seed=3)
    small = BigramCounter().count(ids, ONE_SEGMENT)
    large = BigramCounter().count(ids.astype(np.uint32) * np.uint32(4_000_000), ONE_SEGMENT)
    np.testing.assert_array_equal(small.counts, large.counts)
    np.testing.assert_array_equal((small.keys >> np.uint64(32)) * np.uint64(4_000_000), large.keys >> np.uint64(32))
    assert int(small.counts.sum()) == ids.size - 1


@pytest.mark.parametrize("num_chunks", [2, 3, 7])
def test_chunks_merge_to_the_whole(path: str, num_chunks: int) -> None:
    ids = zipf_ids(20_000, 3_000, seed=4)
    bounds = np.linspace(0, ids.size, num_chunks + 1).astype(int).tolist()
    counter = BigramCounter()
    # Each chunk begins with the last id of the one before, whose bigram with the next it counts.
    runs = [counter.count(ids[max(0, begin - 1) : end], ONE_SEGMENT) for begin, end in pairwise(bounds)]
    assert_same(merge_runs(runs), count_bigrams_reference(ids, ONE_SEGMENT))


def run_of(table: dict[int, int]) -> BigramRun:
    return BigramRun(np.array(sorted(table), np.uint64), np.array([table[key] for key in sorted(table)], np.uint64))


@given(st.lists(st.dictionaries(st.integers(0, 30) | st.integers(2**63 - 2, 2**64 - 1), st.integers(1, 2**61)), max_size=5))
@settings(max_examples=150)
def test_merged_runs_add_exactly(tables: list[dict[int, int]]) -> None:
    total: dict[int, int] = {}
    for table in tables:
        for key, count in table.items():
            total[key] = total.get(key, 0) + count
    assert_same(merge_runs([run_of(table) for table in tables]), run_of(total))
