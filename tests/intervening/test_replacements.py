"""Replacements are of like frequency and not in the sequence."""

from __future__ import annotations

import numpy as np
import pytest

from recallkit.intervening.places import NO_REPLACEMENT, NotChangedError
from recallkit.intervening.replacements import MOST_RANKS, Replacements

VOCAB = 200
COUNTS = np.arange(VOCAB)[::-1].astype(np.uint64)
"""Id 0 is the most frequent one; the last id never occurs."""


def draw(replacements: Replacements, ids: list[int], *places: list[int], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [new.tolist() for new in replacements.draw(np.array(ids, np.uint32), [np.array(each) for each in places], rng)]


def test_near_in_rank_absent_and_consistent():
    replacements = Replacements(COUNTS, end_id=7)
    ids = [100, 101, 102, 100, 30]
    for seed in range(40):
        one, two = draw(replacements, ids, [0, 1], [3, 4], seed=seed)
        assert one[0] == two[0]  # both are id 100
        new = [*one, two[1]]
        assert len(set(new)) == 3
        assert not set(new) & {*ids, 7}
        assert all(abs(a - b) <= MOST_RANKS + 1 for a, b in zip(new, [100, 101, 30], strict=True))  # an end token has no rank
    assert replacements.num_far == 0


def test_every_near_id_can_be_drawn():
    replacements = Replacements(COUNTS, end_id=98)
    drawn = {draw(replacements, [100, 99], [0], seed=seed)[0][0] for seed in range(2000)}
    assert drawn == set(range(99 - MOST_RANKS, 100 + MOST_RANKS + 1)) - {98, 99, 100}  # an end token has no rank


def test_further_ids_are_counted_and_none_left_is_said():
    replacements = Replacements(COUNTS, end_id=199)
    assert draw(replacements, [100, *range(60, 140)], [0])[0][0] not in range(60, 140)
    assert replacements.num_far == 1
    with pytest.raises(NotChangedError, match=NO_REPLACEMENT):
        draw(replacements, list(range(VOCAB)), [0])
    draw(replacements, [100], [0])  # what an earlier sequence contained is forgotten


def test_an_id_that_never_occurs_gets_a_rare_one():
    replacements = Replacements(np.where(np.arange(VOCAB) < 100, COUNTS, 0), end_id=0)
    assert draw(replacements, [150], [0])[0][0] in range(100 - MOST_RANKS, 100)
