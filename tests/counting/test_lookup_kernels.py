"""Counts of many bigrams at once equal a dictionary's, by the index and by searching the table."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recallkit.counting.lookup_kernels import build_index, index_rows, lookup_indexed, search_counts

# Ids small enough for a hash index: its rows are first tokens.
pairs = st.sampled_from([(5, 5), (70_000, 40), (3, 2**32 - 1)]).flatmap(
    lambda tops: st.tuples(st.integers(0, tops[0]), st.integers(0, tops[1]))
)
table_counts = st.sampled_from([0, 1, 9, 2**32 - 2, 2**32 - 1, 2**32, 2**40])


def arrays(table: dict[tuple[int, int], int]) -> tuple[np.ndarray, np.ndarray]:
    rows = sorted((first << 32 | second, count) for (first, second), count in table.items())
    keys, counts = np.array(rows, np.uint64).reshape(-1, 2).T
    return keys.copy(), counts.copy()


@settings(max_examples=100)
@given(table=st.dictionaries(pairs, table_counts, max_size=90), asked=st.lists(pairs, max_size=200), num_threads=st.integers(1, 3))
@example(table={}, asked=[(0, 1), (9, 2)], num_threads=2)
def test_both_ways_give_the_table_s_counts(table, asked, num_threads):
    keys, counts = arrays(table)
    starts = index_rows(keys)
    slots = build_index(keys, counts, starts, num_threads=num_threads)
    asked = [*asked, *table, (2**32 - 1, 0), (0, 2**32 - 1)]
    first, second = np.array(asked, np.uint32).T
    expected = [table.get(pair, 0) for pair in asked]
    assert lookup_indexed(keys, counts, starts, slots, first, second, num_threads=num_threads).tolist() == expected
    assert search_counts(keys, counts, first, second).tolist() == expected


def test_the_index_holds_rows_of_every_density():
    """Every second token follows 0, none follows 1, one follows 2: neighbouring rows do not leak into each other."""
    table = {(0, i): i + 1 for i in range(20_000)} | {(2, 7): 5} | {(3, i): i + 2 for i in range(0, 20_000, 3)}
    keys, counts = arrays(table)
    starts = index_rows(keys)
    slots, asked = build_index(keys, counts, starts), np.arange(20_100, dtype=np.uint32)
    for first in range(5):
        found = lookup_indexed(keys, counts, starts, slots, np.full(len(asked), first, np.uint32), asked)
        assert found.tolist() == [table.get((first, second), 0) for second in range(20_100)]
