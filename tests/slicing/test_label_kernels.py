"""Labels and lookups equal a dictionary, on random sequences of every shape."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.slicing.definitions import CONTEXT_CLASSES
from recallkit.slicing.label_kernels import NO_DISTANCE, label_bigrams
from tests.slicing.references import label_bigrams_reference

id_lists = st.sampled_from([3, 20, 50_000, 2**32 - 1]).flatmap(
    lambda top: st.lists(st.integers(0, top), min_size=1, max_size=80),
)


@settings(max_examples=80)
@given(st.lists(id_lists, min_size=1, max_size=9), st.integers(1, 3))
def test_labels_equal_the_reference(sequences, num_threads):
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in sequences])])
    labelled = label_bigrams(
        np.concatenate(sequences).astype(np.uint32),
        offsets,
        num_threads=num_threads,
    )
    rows = itertools.chain.from_iterable(map(label_bigrams_reference, sequences))
    assert list(zip(*(labels.tolist() for labels in labelled), strict=True)) == list(rows)


def test_labels_counted_by_hand():
    """The second (a, a) of "aaa" is repeated: a literal reading of the definition.

    5 6 5 7 5 6: 7 has overwritten 6.
    """
    labelled = label_bigrams(
        np.array([7, 7, 7, 7, 5, 6, 5, 7, 5, 6, 5, 6], np.uint16),
        np.array([0, 4, 12]),
    )
    n = NO_DISTANCE
    assert labelled.distance.tolist() == [n, 1, 1, n, n, n, n, 4, 4, 2]
    assert labelled.first_distance.tolist() == [n, 1, 2, n, n, n, n, 4, 4, 6]
    assert labelled.occurrences.tolist() == [0, 1, 2, 0, 0, 0, 0, 1, 1, 2]
    assert [CONTEXT_CLASSES[number] for number in labelled.context_class.tolist()] == (
        ["token", "bigram", "bigram", "new", "token", "new", "token", "bigram", "bigram", "bigram"]
    )
    assert np.flatnonzero(labelled.overwritten).tolist() == [7]


def test_long_sequences_and_one_full_table():
    """Every bigram distinct: the hash table is as full as it gets."""
    ids = np.arange(5000, dtype=np.uint32)
    distance = label_bigrams(np.concatenate([ids, ids]), np.array([0, 10_000])).distance
    assert (distance[:4999] == NO_DISTANCE).all()
    assert distance[4999] == NO_DISTANCE
    assert (distance[5000:] == 5000).all()


def test_bigrams_of_one_token_in_one_slot_are_kept_apart():
    """Slots are the upper bits of (first << 32 | second) times an odd number: two first ids that are
    its inverse modulo 2^32 apart have the same ones with any second id."""
    first, other = 5, 5 + pow(0x9E3779B97F4A7C15, -1, 1 << 32)
    ids = [first, 7, 8, other, 7, 9, first, 7, other, 7]
    labels = label_bigrams(np.array(ids, np.uint32), np.array([0, len(ids)]))
    rows = list(zip(*(column.tolist() for column in labels), strict=True))
    assert rows == label_bigrams_reference(ids)
    assert rows[3][0] == NO_DISTANCE
