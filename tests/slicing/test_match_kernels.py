"""Longest earlier matches against their definition, against a suffix automaton, and on sequences made to be slow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recallkit.slicing import match_kernels
from recallkit.slicing.label_kernels import label_bigrams
from recallkit.slicing.match_kernels import longest_matches
from tests.slicing.references import longest_matches_reference

LARGE = 1_000_000
ids_of = st.one_of(st.lists(st.integers(0, top), min_size=1, max_size=40) for top in (0, 1, 2, 5, 2**32 - 1))


def by_definition(ids: list[int]) -> list[int]:
    """The longest run that ends at i and at some earlier j, less one: every run at every place."""
    found = []
    for i in range(1, len(ids)):
        runs = (n for n in range(1, i + 1) if any(ids[j - n + 1 : j + 1] == ids[i - n + 1 : i + 1] for j in range(n - 1, i)))
        found.append(max(0, max(runs, default=0) - 1))
    return found


def by_automaton(ids: list[int]) -> list[int]:
    """The same in linear time: in a suffix automaton (Blumer et al. 1985) it is the length behind the newest state's link."""
    edges: list[dict[int, int]] = [{}]
    length, link, last, found = [0], [-1], 0, []
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
        found.append(max(0, length[link[newest]] - 1))
    return found[1:]


def matched(sequences: list[list[int]], *, num_threads: int = 2) -> list[int]:
    offsets = np.cumsum([0, *map(len, sequences)])
    ids = np.concatenate(sequences).astype(np.uint32)
    lengths = longest_matches(ids, offsets, label_bigrams(ids, offsets)[0], num_threads=num_threads)
    assert lengths.dtype == np.int32
    return lengths.tolist()


@pytest.fixture(params=[0, 3, match_kernels._STEPS_PER_ID], ids=["sorted", "some sorted", "walked"])
def steps(request, monkeypatch) -> int:
    """How many steps an id the quick path may take: with none, every sequence that repeats a bigram is sorted."""
    monkeypatch.setattr(match_kernels, "_STEPS_PER_ID", request.param)
    return request.param


def test_an_example_by_hand():
    # the cat sat . the cat ran . a cat sat . the cat
    ids = [0, 1, 2, 3, 0, 1, 4, 3, 5, 1, 2, 3, 0, 1]
    #          "the cat" stood there; "cat sat": not after "a"; "cat sat .": 2 before; then 3, then 4
    expected = [0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 3, 4]
    assert matched([ids]) == by_definition(ids) == longest_matches_reference(ids) == expected


@settings(max_examples=150)
@given(ids_of)
def test_reference_and_automaton_are_the_definition(ids):
    assert by_definition(ids) == longest_matches_reference(ids) == by_automaton(ids)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.usefixtures("steps")
def test_any_sequences_are_the_reference(num_threads):
    @settings(max_examples=100)
    @given(st.lists(ids_of, min_size=1, max_size=6))
    @example([[5]])
    @example([[5, 5]])
    @example([[5], [5, 5, 5], [5], [2**32 - 1, 2**31, 2**32 - 1, 2**31, 2**32 - 1]])
    def check(sequences):
        assert matched(sequences, num_threads=num_threads) == [n for ids in sequences for n in longest_matches_reference(ids)]

    check()


def fibonacci(size: int) -> np.ndarray:
    """0, 01, 010, 01001 ...: everywhere repeated, nowhere periodic."""
    shorter, longer = np.array([0]), np.array([0, 1])
    while longer.size < size:
        shorter, longer = longer, np.concatenate([longer, shorter])
    return longer[:size]


def hostile(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(size)
    half = rng.integers(0, 50, size // 2)
    return {
        "equal": np.zeros(size, int),
        "binary": rng.integers(0, 2, size),
        "period": np.arange(size) % 97,
        "long period": np.tile(rng.integers(0, 2, size // 7 + 1), 8)[:size],
        "fibonacci": fibonacci(size),
        "runs": np.repeat(rng.integers(0, 2, size // 10 + 1), 10)[:size],
        "spoiled": np.where(np.arange(size) % 100 == 99, rng.integers(0, 2, size), 0),
        "palindrome": np.concatenate([half, half[::-1]]),
        "zipf": np.minimum(rng.zipf(1.3, size), 50_000),
        "fresh": np.arange(size),
    }


@pytest.mark.parametrize("name", hostile(10))
@pytest.mark.usefixtures("steps")
def test_hostile_sequences_are_the_automaton(name):
    ids = hostile(3001)[name].tolist()
    assert matched([ids[:50], ids, ids[:1], ids[7:]]) == [n for part in (ids[:50], ids, ids[:1], ids[7:]) for n in by_automaton(part)]


@pytest.mark.parametrize("name", ["equal", "binary", "period", "fibonacci", "spoiled"])
def test_a_million_ids_with_few_distinct_ones(name):
    """In seconds, where comparing places with each other would take weeks; right at places that are looked at one by one."""
    ids = hostile(LARGE)[name]
    found = np.array(matched([ids.tolist()], num_threads=1))
    rows = np.arange(LARGE - 1)
    if name in ("equal", "period"):
        period = 97 if name == "period" else 1
        assert (found == np.maximum(0, rows - period + 1)).all()
    text = ids.astype(np.uint8).tobytes()
    for place in [1, 2, 3, 1000, LARGE // 3, LARGE // 2, LARGE - 2, LARGE - 1]:
        length = int(found[place - 1]) + 1
        repeated = text[place - length + 1 : place + 1] in text[:place]
        assert repeated or found[place - 1] == 0
        assert place < length or text[place - length : place + 1] not in text[:place], "there is a longer one"
    assert (np.diff(found) <= 1).all()


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_offsets_may_begin_anywhere_and_ids_be_of_either_width(dtype, num_threads):
    ids = np.array([9, 9, 1, 2, 1, 2, 3, 1, 1, 1, 1, 9, 9], dtype)
    offsets = np.array([2, 6, 7, 11])
    distance = label_bigrams(ids, offsets)[0]
    assert longest_matches(ids, offsets, distance, num_threads=num_threads).tolist() == [0, 0, 1, 0, 1, 2]
