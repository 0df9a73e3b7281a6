"""N-gram counts equal the readable reference's for orders 3 to 5, any widths of ids, segments, splits, threads and reuse of buffers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.counting import ngram_kernels
from recallkit.counting.ngram_kernels import (
    NgramCounter,
    NgramRun,
    id_bits,
    merge_two_ngrams,
    pack_ngrams,
    unpack_ngrams,
)

ONE_SEGMENT = np.zeros(1, np.int64)
ORDERS = [3, 4, 5]


def count_ngrams_reference(ids: np.ndarray, segment_starts: np.ndarray, order: int) -> NgramRun:
    """A plain Python version of `NgramCounter.count`."""
    tokens = ids.tolist()
    counts: Counter[tuple[int, ...]] = Counter()
    for begin, end in pairwise([*segment_starts.tolist(), len(tokens)]):
        counts.update(tuple(tokens[i : i + order]) for i in range(begin, end - order + 1))
    ngrams = sorted(counts)
    keys = [sum(token << id_bits(order) * place for place, token in enumerate(reversed(ngram))) for ngram in ngrams]
    columns = ([key >> 64 for key in keys], [key % (1 << 64) for key in keys], [counts[ngram] for ngram in ngrams])
    return NgramRun(*(np.array(column, np.uint64) for column in columns))


def assert_same(run: NgramRun, expected: NgramRun) -> None:
    for column, expected_column in zip(run, expected, strict=True):
        assert column.dtype == np.uint64
        np.testing.assert_array_equal(column, expected_column)


@st.composite
def chunks(draw: st.DrawFn, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids of one of many vocabularies, often repeated, in segments of many lengths, some empty or too short for an n-gram."""
    dtype = draw(st.sampled_from([np.uint16, np.uint32]))
    widths = [1, 2, 5, 12, 13, 15, 16, 17, 18, 19, 21, 22, 23, 25, 26, 31, 32]
    width = draw(st.sampled_from([w for w in widths if w <= min(id_bits(order), 8 * np.dtype(dtype).itemsize)]))
    largest = draw(st.sampled_from([0, (1 << width) - 1, 1 << (width - 1)]))
    ids = draw(
        st.lists(st.integers(0, largest) | st.integers(max(0, largest - 1), largest) | st.integers(0, min(1, largest)), max_size=120)
    )
    lengths = draw(st.lists(st.integers(0, order + 2) | st.just(20), max_size=30))
    return np.array(ids, dtype), np.array([0, *np.cumsum(lengths).clip(0, len(ids)).tolist()], np.int64)


@pytest.fixture(params=["as it is", "small parts"])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small parts even the chunks of a test have many partitions, and several for a frequent first id."""
    if request.param == "small parts":
        monkeypatch.setattr(ngram_kernels, "_PARTITION_TOKENS", 8)


@given(data=st.data())
@settings(max_examples=100)
def test_counts_equal_the_reference_whatever_was_counted_before(data: st.DataObject) -> None:
    order = data.draw(st.sampled_from(ORDERS))
    counter = NgramCounter(order, num_threads=data.draw(st.integers(1, 3)))
    with pytest.MonkeyPatch.context() as patch:
        for ids, starts in data.draw(st.lists(chunks(order), min_size=1, max_size=3)):
            patch.setattr(ngram_kernels, "_PARTITION_TOKENS", data.draw(st.sampled_from([1, 8, 1 << 13])))
            patch.setattr(ngram_kernels, "_SAMPLE", data.draw(st.sampled_from([7, 1 << 20])))
            assert_same(counter.count(ids, starts), count_ngrams_reference(ids, starts, order))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("order", ORDERS)
def test_every_length_around_a_line_of_gathered_keys(order: int, num_threads: int) -> None:
    for length in range(22):
        check_one_repeated_ngram(length, order, num_threads)


def check_one_repeated_ngram(length: int, order: int, num_threads: int) -> None:
    ids = np.full(length, 65_535, np.uint16)
    run = NgramCounter(order, num_threads=num_threads).count(ids, np.zeros(min(1, length), np.int64))
    num_ngrams = max(0, length - order + 1)
    assert run.counts.tolist() == [num_ngrams][:num_ngrams]
    assert [column.tolist() for column in unpack_ngrams(run.high, run.low, order)] == [[65_535][:num_ngrams]] * order


@pytest.mark.parametrize("order", ORDERS)
def test_an_ngram_stands_in_one_segment(order: int) -> None:
    """Segments of 0 to N + 2 ids: each gives its length less N - 1, and nothing across a border."""
    lengths = [*range(order + 3), 0, 0, order, 1, order - 1, order + 1]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.repeat(np.arange(len(lengths)), lengths).astype(np.uint16)
    run = NgramCounter(order, num_threads=3).count(ids, starts)
    expected = {i: length - order + 1 for i, length in enumerate(lengths) if length >= order}
    for column in unpack_ngrams(run.high, run.low, order):
        assert column.tolist() == list(expected)
    assert run.counts.tolist() == list(expected.values())


def zipf_ids(num_ids: int, vocab: int, seed: int) -> np.ndarray:
    """Skewed ids: the most frequent n-grams take a large share, most are rare."""
    return (np.random.default_rng(seed).zipf(1.3, num_ids) % vocab).astype(np.uint16)


@pytest.mark.parametrize(("order", "scale"), [(3, 1), (3, 60_000), (4, 1), (4, 5_000), (5, 1), (5, 600)])
def test_a_large_skewed_chunk_in_many_partitions(order: int, scale: int) -> None:
    """Ids of 16 to 32 bits, in one word and in two; frequent first ids have many partitions."""
    ids = zipf_ids(80_000, 50_000, seed=order).astype(np.uint32) * np.uint32(scale)
    starts = np.unique(np.append(0, np.random.default_rng(2).integers(0, ids.size, 4_000)))
    runs = [NgramCounter(order, num_threads=num_threads).count(ids, starts) for num_threads in (1, 2, 3)]
    expected = count_ngrams_reference(ids, starts, order)
    for run in runs:
        assert_same(run, expected)


@pytest.mark.parametrize("order", ORDERS)
def test_a_chunk_of_one_repeated_ngram(order: int) -> None:
    run = NgramCounter(order).count(np.full(1_000_000 + order - 1, 65_535, np.uint16), ONE_SEGMENT)
    assert [column.tolist() for column in unpack_ngrams(run.high, run.low, order)] == [[65_535]] * order
    assert run.counts.tolist() == [1_000_000]


@pytest.mark.parametrize("order", ORDERS)
def test_ngrams_that_differ_in_one_id_alone(order: int) -> None:
    """All share a partition, so that hints collide and every digit of the one id decides; each is seen twice."""
    values = np.random.default_rng(1).permutation(65_536)
    for place in range(1, order):
        ids = np.zeros((values.size, order), np.uint16)
        ids[:, place] = values
        run = NgramCounter(order).count(np.concatenate([ids, ids]).ravel(), np.arange(0, 2 * ids.size, order))
        np.testing.assert_array_equal(unpack_ngrams(run.high, run.low, order)[place], np.arange(65_536))
        assert (run.counts == 2).all()


def merged(runs: list[NgramRun]) -> NgramRun:
    """All of them, two at a time."""
    whole = NgramRun(*(np.empty(0, np.uint64) for _ in NgramRun._fields))
    for run in runs:
        outputs = np.empty((3, whole.counts.size + run.counts.size), np.uint64)
        num_rows = merge_two_ngrams(whole, run, *outputs)
        whole = NgramRun(*(column[:num_rows] for column in outputs))
    return whole


@pytest.mark.parametrize("num_chunks", [2, 3, 7])
@pytest.mark.parametrize("order", ORDERS)
def test_chunks_merge_to_the_whole(limits: None, order: int, num_chunks: int) -> None:
    ids = zipf_ids(20_000, 3_000, seed=4)
    bounds = np.linspace(0, ids.size, num_chunks + 1).astype(int).tolist()
    counter = NgramCounter(order)
    # Each chunk begins with the last ids of the one before: the n-grams that reach across are counted here.
    runs = [counter.count(ids[max(0, begin - order + 1) : end], ONE_SEGMENT) for begin, end in pairwise(bounds)]
    assert_same(merged(runs), count_ngrams_reference(ids, ONE_SEGMENT, order))


def test_runs_of_narrow_and_wide_ids_merge() -> None:
    """Keys do not depend on a chunk's vocabulary: one of few ids and one of many, in different words, add up."""
    narrow, wide = zipf_ids(5_000, 50, seed=5), zipf_ids(5_000, 50, seed=6)
    wide[::7] = 65_535
    both = np.concatenate([narrow, wide])
    runs = [NgramCounter(5).count(part, ONE_SEGMENT) for part in (narrow, wide)]
    assert_same(merged(runs), count_ngrams_reference(both, np.array([0, narrow.size]), 5))


def test_counting_a_small_chunk_after_a_large_one_leaks_nothing(limits: None) -> None:
    counter = NgramCounter(4)
    first = counter.count(zipf_ids(30_000, 60_000, seed=5), ONE_SEGMENT)
    kept = NgramRun(*(column.copy() for column in first))
    small = zipf_ids(999, 40, seed=6)
    assert_same(counter.count(small, ONE_SEGMENT), count_ngrams_reference(small, ONE_SEGMENT, 4))
    assert_same(first, kept)


@pytest.mark.parametrize("order", ORDERS)
def test_vocabularies_beyond_the_table_of_routes(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbouring first ids share an entry, and no entry may then be split by second ids."""
    monkeypatch.setattr(ngram_kernels, "_MAX_ROUTES", 64)
    monkeypatch.setattr(ngram_kernels, "_PARTITION_TOKENS", 8)
    for vocab in (63, 64, 65, 127, 129, 50_257):
        ids = zipf_ids(4_000, vocab, seed=vocab)
        assert_same(NgramCounter(order).count(ids, ONE_SEGMENT), count_ngrams_reference(ids, ONE_SEGMENT, order))


def test_frequent_first_ids_are_split_into_partitions_of_similar_size() -> None:
    """Half of all n-grams begin with one id; a core's cache would not hold them together."""
    ids = np.random.default_rng(1).integers(0, 30_000, 400_000).astype(np.uint16)
    ids[::2] = 7
    chunk = ngram_kernels._Chunk.of(ids, ONE_SEGMENT, 3, int(ids.max()))
    tally = np.zeros(chunk.num_partitions, np.int64)
    ngram_kernels._tally(*chunk.text, 0, ids.size, *chunk.routing, tally)
    assert tally.sum() == ids.size - 2
    assert tally.max() < 3 * ngram_kernels._PARTITION_TOKENS


@pytest.mark.parametrize("order", ORDERS)
def test_read_only_maps_and_strided_ids_count_alike(tmp_path: Path, order: int) -> None:
    ids = zipf_ids(5_000, 100, seed=7)
    ids.tofile(tmp_path / "ids")
    mapped = np.memmap(tmp_path / "ids", np.uint16, "r")
    frozen = ids.copy()
    frozen.flags.writeable = False
    expected = count_ngrams_reference(ids, ONE_SEGMENT, order)
    for given_ids in (mapped, frozen, np.repeat(ids, 2)[::2], ids.astype(np.uint32)):
        assert_same(NgramCounter(order).count(given_ids, ONE_SEGMENT), expected)
    assert ids.flags.writeable


def test_merging_mapped_runs_into_mapped_outputs(tmp_path: Path) -> None:
    halves = [zipf_ids(8_000, 700, seed=seed) for seed in (8, 9)]
    runs = [NgramCounter(5).count(half, ONE_SEGMENT) for half in halves]
    mapped = []
    for index, run in enumerate(runs):
        for name, column in run._asdict().items():
            column.tofile(tmp_path / f"{name}{index}")
        mapped.append(NgramRun(*(np.memmap(tmp_path / f"{name}{index}", np.uint64, "r") for name in run._fields)))
    room = sum(run.counts.size for run in runs)
    outputs = NgramRun(*(np.memmap(tmp_path / name, np.uint64, "w+", shape=(room,)) for name in NgramRun._fields))
    num_rows = merge_two_ngrams(*mapped, *outputs)
    expected = count_ngrams_reference(np.concatenate(halves), np.array([0, halves[0].size]), 5)
    assert_same(NgramRun(*(column[:num_rows] for column in outputs)), expected)


def run_of(table: dict[tuple[int, int], int]) -> NgramRun:
    keys = sorted(table)
    columns = ([high for high, _ in keys], [low for _, low in keys], [table[key] for key in keys])
    return NgramRun(*(np.array(column, np.uint64) for column in columns))


WORDS = st.integers(0, 4) | st.integers(2**63 - 2, 2**64 - 1)


@given(st.lists(st.dictionaries(st.tuples(WORDS, WORDS), st.integers(1, 2**61)), max_size=5))
@settings(max_examples=150)
def test_merged_runs_add_exactly(tables: list[dict[tuple[int, int], int]]) -> None:
    total: dict[tuple[int, int], int] = {}
    for table in tables:
        for key, count in table.items():
            total[key] = total.get(key, 0) + count
    assert_same(merged([run_of(table) for table in tables]), run_of(total))


@given(data=st.data())
@settings(max_examples=100)
def test_packing_keeps_ids_and_their_order(data: st.DataObject) -> None:
    order = data.draw(st.sampled_from(ORDERS))
    widest = (1 << id_bits(order)) - 1
    ids = st.integers(0, widest) | st.integers(widest - 1, widest) | st.integers(0, 2)
    rows = sorted(data.draw(st.lists(st.tuples(*[ids] * order), max_size=40)))
    columns = [np.array([row[k] for row in rows], np.uint32) for k in range(order)]
    high, low = pack_ngrams(columns)
    assert list(zip(high.tolist(), low.tolist(), strict=True)) == sorted(zip(high.tolist(), low.tolist(), strict=True))
    for column, expected in zip(unpack_ngrams(high, low, order), columns, strict=True):
        assert column.dtype == np.uint32
        np.testing.assert_array_equal(column, expected)


def test_where_ids_stand_in_a_key() -> None:
    high, low = pack_ngrams([np.array([k], np.uint16) for k in (1, 2, 3, 4, 5)])
    assert (int(high[0]) << 64) + int(low[0]) == (1 << 100) + (2 << 75) + (3 << 50) + (4 << 25) + 5
    high, low = pack_ngrams([np.array([k], np.uint32) for k in (1, 2, 3)])
    assert (high.tolist(), low.tolist()) == ([1], [(2 << 32) + 3])
    assert [id_bits(order) for order in ORDERS] == [32, 32, 25]


def test_ids_too_wide_are_refused() -> None:
    ids = np.full(9, (1 << 25) - 1, np.uint32)
    assert NgramCounter(5).count(ids, ONE_SEGMENT).counts.tolist() == [5]
    ids[4] = 1 << 25
    with pytest.raises(ValueError, match="the largest id is 33554432, must fit 25 bits"):
        NgramCounter(5).count(ids, ONE_SEGMENT)
    with pytest.raises(ValueError, match="fit 25 bits"):
        pack_ngrams([ids] * 5)
    with pytest.raises(ValueError, match="unsigned"):
        pack_ngrams([np.zeros(1, np.int64)] * 3)
    assert int(NgramCounter(4).count(ids, ONE_SEGMENT).counts.sum()) == 6


@pytest.mark.parametrize(
    ("ids", "starts"),
    [
        (np.zeros(9, np.int64), ONE_SEGMENT),
        (np.zeros((9, 1), np.uint16), ONE_SEGMENT),
        (np.zeros(9, np.uint16), np.zeros(0, np.int64)),
        (np.zeros(9, np.uint16), np.ones(1, np.int64)),
        (np.zeros(9, np.uint16), np.array([0, 2, 1])),
        (np.zeros(9, np.uint16), np.array([0, 10])),
    ],
)
def test_wrong_inputs_are_refused(ids: np.ndarray, starts: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"ids|segment_starts"):
        NgramCounter(3).count(ids, starts)


def test_wrong_orders_outputs_and_thread_counts_are_refused() -> None:
    run = run_of({(1, 1): 1, (1, 2): 1})
    with pytest.raises(ValueError, match="at least 4 rows"):
        merge_two_ngrams(run, run, np.empty(4, np.uint64), np.empty(3, np.uint64), np.empty(4, np.uint64))
    with pytest.raises(ValueError, match="num_threads"):
        NgramCounter(3, num_threads=0)
    for order in (2, 6):
        for call in (NgramCounter, id_bits, lambda order: unpack_ngrams(run.high, run.low, order)):
            with pytest.raises(ValueError, match=f"order is {order}"):
                call(order)
    with pytest.raises(ValueError, match="order is 2"):
        pack_ngrams([np.zeros(1, np.uint16)] * 2)
