"""Labels and lookups equal a dictionary, on random sequences of every shape."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.counting.lookup_kernels import build_index, index_rows, lookup_counts, lookup_indexed
from recallkit.slicing.label_kernels import CONTEXT_CLASSES, NO_DISTANCE, label_bigrams
from tests.slicing.references import label_bigrams_reference

id_lists = st.sampled_from([3, 20, 50_000, 2**32 - 1]).flatmap(lambda top: st.lists(st.integers(0, top), min_size=1, max_size=80))


@settings(max_examples=80)
@given(st.lists(id_lists, min_size=1, max_size=9), st.integers(1, 3))
def test_labels_equal_the_reference(sequences, num_threads):
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in sequences])])
    found = label_bigrams(np.concatenate(sequences).astype(np.uint32), offsets, num_threads=num_threads)
    expected = [label_bigrams_reference(s) for s in sequences]
    for labels, of_sequences in zip(found, zip(*expected, strict=True), strict=True):
        assert labels.tolist() == [label for one in of_sequences for label in one]


def test_labels_counted_by_hand():
    """The second (a, a) of "aaa" is repeated: a literal reading of the definition. 5 6 5 7 5 6: 7 has overwritten 6."""
    found = label_bigrams(np.array([7, 7, 7, 7, 5, 6, 5, 7, 5, 6, 5, 6], np.uint16), np.array([0, 4, 12]))
    n = NO_DISTANCE
    assert found.distance.tolist() == [n, 1, 1, n, n, n, n, 4, 4, 2]
    assert found.first_distance.tolist() == [n, 1, 2, n, n, n, n, 4, 4, 6]
    assert found.occurrences.tolist() == [0, 1, 2, 0, 0, 0, 0, 1, 1, 2]
    assert [CONTEXT_CLASSES[number] for number in found.context_class.tolist()] == (
        ["token", "bigram", "bigram", "new", "token", "new", "token", "bigram", "bigram", "bigram"]
    )
    assert np.flatnonzero(found.overwritten).tolist() == [7]


def test_nothing_is_remembered_from_the_sequence_before():
    found = label_bigrams(np.array([1, 2, 1, 2], np.uint16), np.array([0, 2, 4]))
    assert found.distance.tolist() == [NO_DISTANCE, NO_DISTANCE]
    assert found.context_class.tolist() == [2, 2]


def test_sequences_that_do_not_begin_at_the_first_id():
    ids = np.array([9, 9, 1, 2, 1, 2, 5, 5, 5], np.uint32)
    ids.flags.writeable = False
    distance, _, occurrences, *_ = label_bigrams(ids, np.array([2, 6, 7, 9]), num_threads=3)
    assert distance.tolist() == [NO_DISTANCE, NO_DISTANCE, 2, NO_DISTANCE]
    assert occurrences.tolist() == [0, 0, 1, 0]


def test_long_sequences_and_one_full_table():
    """Every bigram distinct: the hash table is as full as it gets."""
    ids = np.arange(5000, dtype=np.uint32)
    distance = label_bigrams(np.concatenate([ids, ids]), np.array([0, 10_000])).distance
    assert (distance[:4999] == NO_DISTANCE).all()
    assert distance[4999] == NO_DISTANCE
    assert (distance[5000:] == 5000).all()


pairs = st.sampled_from([5, 70_000, 2**32 - 1]).flatmap(lambda top: st.tuples(st.integers(0, top), st.integers(0, top)))


@settings(max_examples=80)
@given(st.lists(pairs, min_size=1, max_size=60), st.lists(pairs, min_size=1, max_size=30), st.sampled_from([4, 1 << 22]))
def test_lookups_equal_a_counter(table, asked, max_rows):
    counted = Counter(table)
    keys = np.array(sorted(first << 32 | second for first, second in counted), np.uint64)
    counts = np.array([counted[(int(k) >> 32, int(k) & 0xFFFFFFFF)] for k in keys], np.uint64)
    starts, shift = index_rows(keys, max_rows=max_rows)
    assert len(starts) <= 2 * max_rows + 1
    asked = [*asked, *table[:5]]
    first, second = (np.array(column, np.uint32) for column in zip(*asked, strict=True))
    assert lookup_counts(keys, counts, starts, shift, first, second).tolist() == [counted[pair] for pair in asked]


# Ids small enough for a hash index: its rows are first tokens.
indexed_pairs = st.sampled_from([(5, 5), (70_000, 40), (3, 2**32 - 1)]).flatmap(
    lambda tops: st.tuples(st.integers(0, tops[0]), st.integers(0, tops[1]))
)
table_counts = st.sampled_from([0, 1, 9, 2**32 - 2, 2**32 - 1, 2**32, 2**40])


@settings(max_examples=100)
@given(st.dictionaries(indexed_pairs, table_counts, min_size=1, max_size=90), st.lists(indexed_pairs, max_size=200), st.integers(1, 3))
def test_the_index_gives_the_table_s_counts(table, asked, num_threads):
    keys = np.array(sorted(first << 32 | second for first, second in table), np.uint64)
    counts = np.array([table[(int(k) >> 32, int(k) & 0xFFFFFFFF)] for k in keys], np.uint64)
    starts, _ = index_rows(keys)
    slots = build_index(keys, counts, starts, num_threads=num_threads)
    asked = [*asked, *table, (2**32 - 1, 0), (0, 2**32 - 1)]
    first, second = (np.array(column, np.uint32) for column in zip(*asked, strict=True))
    found = lookup_indexed(keys, counts, starts, slots, first, second, num_threads=num_threads)
    assert found.tolist() == [table.get(pair, 0) for pair in asked]


def test_the_index_holds_rows_of_every_density():
    """Every second token follows 0, none follows 1, one follows 2: neighbouring rows do not leak into each other."""
    seconds = np.arange(20_000, dtype=np.uint64)
    keys = np.concatenate([seconds, [np.uint64(2 << 32 | 7)], np.uint64(3 << 32) | seconds[::3]])
    counts = np.arange(1, len(keys) + 1, dtype=np.uint64)
    starts, _ = index_rows(keys)
    slots = build_index(keys, counts, starts)
    expected = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    for first in range(5):
        asked = np.arange(20_100, dtype=np.uint32)
        found = lookup_indexed(keys, counts, starts, slots, np.full(len(asked), first, np.uint32), asked)
        assert found.tolist() == [expected.get(first << 32 | second, 0) for second in range(20_100)]


def test_an_empty_table_has_no_counts():
    keys = counts = np.empty(0, np.uint64)
    starts, shift = index_rows(keys)
    asked = np.array([0, 9]), np.array([1, 2])
    assert lookup_counts(keys, counts, starts, shift, *asked).tolist() == [0, 0]
    assert lookup_indexed(keys, counts, starts, build_index(keys, counts, starts), *asked).tolist() == [0, 0]
