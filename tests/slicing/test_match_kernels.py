"""Longest earlier matches against their definition and a suffix automaton of dictionaries, also on
long sequences of few distinct ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recallkit.slicing.label_kernels import longest_matches
from tests.slicing.references import longest_matches_reference

ids_of = st.one_of(
    st.lists(st.integers(0, top), min_size=1, max_size=40) for top in (0, 1, 2, 5, 2**32 - 1)
)


def by_automaton(ids: list[int]) -> list[int]:
    """The same in linear time: in a suffix automaton (Blumer et al.

    1985) it is the length behind the newest state's link.
    """
    edges: list[dict[int, int]] = [{}]
    length, link, last, longest = [0], [-1], 0, []
    for token in ids:
        newest, state = len(edges), last
        edges.append({})
        length.append(length[last] + 1)
        link.append(0)
        while state >= 0 and token not in edges[state]:
            edges[state][token] = newest
            state = link[state]
        if state >= 0:
            target = edges[state][token]
            link[newest] = target
            if length[target] > length[state] + 1:
                clone = link[newest] = len(edges)
                edges.append(dict(edges[target]))
                length.append(length[state] + 1)
                link.append(link[target])
                link[target] = clone
                while state >= 0 and edges[state].get(token) == target:
                    edges[state][token] = clone
                    state = link[state]
        last = newest
        longest.append(max(0, length[link[newest]] - 1))
    return longest[1:]


def matched(sequences: list[list[int]], *, num_threads: int = 2) -> list[int]:
    offsets = np.cumsum([0, *map(len, sequences)])
    lengths = longest_matches(
        np.concatenate(sequences).astype(np.uint32),
        offsets,
        num_threads=num_threads,
    )
    assert lengths.dtype == np.int32
    return lengths.tolist()


def test_an_example_by_hand():
    # the cat sat . the cat ran . a cat sat . the cat
    ids = [0, 1, 2, 3, 0, 1, 4, 3, 5, 1, 2, 3, 0, 1]
    #          "the cat" stood there; "cat sat": not after "a"; "cat sat .": 2 before; then 3, then
    # 4
    expected = [0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 3, 4]
    assert matched([ids]) == longest_matches_reference(ids) == expected


@settings(max_examples=150)
@given(st.lists(ids_of, min_size=1, max_size=6), st.integers(1, 3))
@example([[5]], 1)
@example([[5], [5, 5, 5], [5], [2**32 - 1, 2**31, 2**32 - 1, 2**31, 2**32 - 1]], 2)
def test_any_sequences_are_the_reference(sequences, num_threads):
    expected = [longest_matches_reference(ids) for ids in sequences]
    assert matched(sequences, num_threads=num_threads) == [
        length for lengths in expected for length in lengths
    ]
    assert [by_automaton(ids) for ids in sequences] == expected


@pytest.mark.parametrize("name", ["equal", "runs", "zipf"])
def test_long_sequences_are_the_automaton(name):
    size, rng = 20_000, np.random.default_rng(0)
    ids = {
        "equal": np.zeros(size, int),
        "runs": np.repeat(rng.integers(0, 2, size // 10), 10),
        "zipf": np.minimum(rng.zipf(1.3, size), 50_000),
    }[name].tolist()
    parts = ids[:50], ids, ids[:1], ids[7:]
    assert matched(list(parts)) == [length for part in parts for length in by_automaton(part)]
