"""What the kernels compute, written as it is defined: the references of the tests."""

from __future__ import annotations

import itertools

from recallkit.counting.ngram_hash import ngram_hash
from recallkit.slicing.label_kernels import NO_DISTANCE


def label_bigrams_reference(ids: list[int]) -> list[tuple[int, int, int, int, bool]]:
    """`label_bigrams` of one sequence, a row for every id but the first, with a dictionary."""
    places: dict[tuple[int, int], list[int]] = {}
    known, followers = set(ids[:1]), dict[int, int]()
    rows = []
    for place, (key, token) in enumerate(itertools.pairwise(ids), 1):
        earlier = places.setdefault((key, token), [])
        if earlier:
            distances = place - earlier[-1], place - earlier[0]
            rows.append((*distances, len(earlier), 0, followers[key] != token))
        else:
            rows.append((NO_DISTANCE, NO_DISTANCE, 0, 1 if token in known else 2, False))
        earlier.append(place)
        followers[key] = token
        known.add(token)
    return rows


def longest_matches_reference(ids: list[int]) -> list[int]:
    """`longest_matches` of one sequence, by comparing every pair of positions."""
    result = []
    for place in range(1, len(ids)):
        longest = 0
        for earlier in range(place):
            same = 0
            while same <= earlier and ids[earlier - same] == ids[place - same]:
                same += 1
            longest = max(longest, same)
        result.append(max(0, longest - 1))
    return result


def first_occurrences_reference(ids: list[int]) -> list[int]:
    """The row in which each bigram of one sequence occurs first; there is a row for every id but
    the first."""
    bigrams = list(itertools.pairwise(ids))
    return [bigrams.index(bigram) for bigram in bigrams]


def copies_reference(
    ids: list[int],
    in_training: dict[int, set[tuple[int, ...]]],
    largest: int,
) -> tuple[list[int], dict[int, tuple[int, int]]]:
    """The mark of each id (see `CopyFinder`), and of the n-grams of each size how many are sampled,
    and how many of these in training."""
    marks, counts = [0] * len(ids), {}
    for size in sorted(in_training):
        sampled = [
            at for at in range(len(ids) - size + 1) if ngram_hash(ids[at : at + size]) <= largest
        ]
        result = [at for at in sampled if tuple(ids[at : at + size]) in in_training[size]]
        for at in result:
            marks[at : at + size] = [size] * size
        counts[size] = (len(sampled), len(result))
    return marks, counts
