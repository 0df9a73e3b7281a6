"""Labels and lookups equal a dictionary, on random sequences of every shape."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.compiled.labels import NO_DISTANCE, label_bigrams, label_bigrams_reference
from recallkit.compiled.lookup import index_rows, lookup_counts

id_lists = st.sampled_from([3, 20, 50_000, 2**32 - 1]).flatmap(lambda top: st.lists(st.integers(0, top), min_size=1, max_size=80))


@settings(max_examples=200, deadline=None)
@given(st.lists(id_lists, min_size=1, max_size=9), st.integers(1, 3))
def test_labels_equal_the_reference(sequences, num_threads):
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in sequences])])
    distance, occurrences = label_bigrams(np.concatenate(sequences).astype(np.uint32), offsets, num_threads=num_threads)
    expected = [label_bigrams_reference(s) for s in sequences]
    assert distance.tolist() == [d for one, _ in expected for d in one]
    assert occurrences.tolist() == [o for _, one in expected for o in one]


def test_overlapping_repetition_counts():
    """The second (a, a) of "aaa" is repeated: a literal reading of the definition."""
    distance, occurrences = label_bigrams(np.array([7, 7, 7, 7], np.uint16), np.array([0, 4]))
    assert distance.tolist() == [NO_DISTANCE, 1, 1]
    assert occurrences.tolist() == [0, 1, 2]


def test_nothing_is_remembered_from_the_sequence_before():
    distance, _ = label_bigrams(np.array([1, 2, 1, 2], np.uint16), np.array([0, 2, 4]))
    assert distance.tolist() == [NO_DISTANCE, NO_DISTANCE]


def test_long_sequences_and_one_full_table():
    """Every bigram distinct: the hash table is as full as it gets."""
    ids = np.arange(5000, dtype=np.uint32)
    distance, _ = label_bigrams(np.concatenate([ids, ids]), np.array([0, 10_000]))
    assert (distance[:4999] == NO_DISTANCE).all()
    assert distance[4999] == NO_DISTANCE
    assert (distance[5000:] == 5000).all()


pairs = st.sampled_from([5, 70_000, 2**32 - 1]).flatmap(lambda top: st.tuples(st.integers(0, top), st.integers(0, top)))


@settings(max_examples=200, deadline=None)
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


def test_an_empty_table_has_no_counts():
    starts, shift = index_rows(np.empty(0, np.uint64))
    assert lookup_counts(np.empty(0, np.uint64), np.empty(0, np.uint64), starts, shift, np.array([0, 9]), np.array([1, 2])).tolist() == [
        0,
        0,
    ]
