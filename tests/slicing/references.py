"""What the kernels compute, written as it is defined: the references of the tests."""

from __future__ import annotations

import itertools

from recallkit.counting.hash_kernels import ngram_hash
from recallkit.slicing.label_kernels import NO_DISTANCE


def label_bigrams_reference(ids: list[int]) -> tuple[list[int], list[int]]:
    """`label_bigrams` of one sequence, with a dictionary."""
    places: dict[tuple[int, int], list[int]] = {}
    distance, occurrences = [], []
    for place in range(1, len(ids)):
        earlier = places.setdefault((ids[place - 1], ids[place]), [])
        distance.append(place - earlier[-1] if earlier else NO_DISTANCE)
        occurrences.append(len(earlier))
        earlier.append(place)
    return distance, occurrences


def longest_matches_reference(ids: list[int]) -> list[int]:
    """`longest_matches` of one sequence, by comparing every pair of positions."""
    found = []
    for place in range(1, len(ids)):
        longest = 0
        for earlier in range(place):
            same = 0
            while same <= earlier and ids[earlier - same] == ids[place - same]:
                same += 1
            longest = max(longest, same)
        found.append(max(0, longest - 1))
    return found


def new_tokens_reference(ids: list[int]) -> list[bool]:
    """`new_tokens` of the ids of one sequence."""
    return [token not in ids[:place] for place, token in enumerate(ids) if place]


def first_occurrences_reference(ids: list[int]) -> list[int]:
    """`first_occurrences` of the ids of one sequence, which has a row for every id but the first."""
    bigrams = list(itertools.pairwise(ids))
    return [bigrams.index(bigram) for bigram in bigrams]


def copies_reference(
    ids: list[int], in_training: dict[int, set[tuple[int, ...]]], largest: int
) -> tuple[list[int], dict[int, tuple[int, int]]]:
    """The mark of each id (see `CopyFinder`), and of the n-grams of each size how many are sampled, and how many of these in training."""
    marks, counts = [0] * len(ids), {}
    for size in sorted(in_training):
        sampled = [at for at in range(len(ids) - size + 1) if ngram_hash(ids[at : at + size]) <= largest]
        found = [at for at in sampled if tuple(ids[at : at + size]) in in_training[size]]
        for at in found:
            marks[at : at + size] = [size] * size
        counts[size] = (len(sampled), len(found))
    return marks, counts
