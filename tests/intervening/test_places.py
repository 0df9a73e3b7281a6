"""Which ids are changed: counted by hand, and checked by labelling the changed sequence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallkit.intervening.places import (
    CHANGES,
    END_TOKEN,
    MARGIN,
    NO_PLACEBO,
    OVERLAP,
    NotChangedError,
    borrow_places,
    find_places,
)
from recallkit.slicing.label_kernels import NO_DISTANCE, label_bigrams
from recallkit.slicing.match_kernels import longest_matches

END = 0


def found(ids: list[int], target: int, **more: object):
    return find_places(np.array(ids, np.uint32), target, END, **more)


def test_counted_by_hand():
    """The bigram (2, 3) ends at positions 3 and 7; the ids 1 2 3 match at the first, only 2 3 at the second."""
    ids = [9, 1, 2, 3, 8, 5, 2, 3, 11, 12, 13, 14, 15, 1, 2, 3]
    places = found(ids, 15)
    assert places.spans == ((1, 4), (6, 8))
    assert places.query == 13
    assert [places.of(change).tolist() for change in CHANGES[:3]] == [[3, 7], [2, 6], [1, 2, 3, 6, 7]]
    # There is no room for a margin: two ids for the second span, three for the first, as near as possible, none of them 2 or 3.
    assert places.placebo == ((4, 6), (8, 11))


def test_a_placebo_keeps_its_distance_where_there_is_room():
    filler = list(range(100, 160))
    ids = [*filler[:30], 1, 2, *filler[30:], 1, 2]
    places = found(ids, len(ids) - 1)
    assert places.spans == ((30, 32),)
    assert places.placebo == ((30 - MARGIN - 2, 30 - MARGIN),)


def test_placebos_are_apart():
    places = found([1, 2, 50, 1, 2, 60, 61, 62, 63, 1, 2], 10)
    assert places.spans == ((0, 2), (3, 5))
    assert places.placebo == ((5, 7), (7, 9))


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([4, 4, 4, 5, 6, 7, 8, 9, 4, 4], OVERLAP),  # the two earlier occurrences share an id
        ([5, 6, 5, 6, 5, 6], OVERLAP),  # the match 5 6 5 of the latest occurrence reaches into the query 5 6 5
        ([1, END, 2, 3, 4, 1, END], END_TOKEN),
        ([END, 1, 7, 8, 9, END, 1], END_TOKEN),
        ([1, 2, 3, 1, 2], NO_PLACEBO),
        ([1, 2, END, END, 1, 2], NO_PLACEBO),
        ([1, 2, 2, 1, 1, 2], NO_PLACEBO),  # ids of the bigram itself are left alone
    ],
)
def test_what_cannot_be_changed_is_left_out_with_a_reason(ids, reason):
    with pytest.raises(NotChangedError, match=reason):
        found(ids, len(ids) - 1)


def test_a_match_ends_at_an_end_token():
    ids = [7, END, 1, 2, 30, 31, 32, 33, 34, 7, END, 1, 2]
    assert found(ids, 12).spans == ((2, 4),)


def test_places_are_borrowed_equally_far():
    lender = found([9, 1, 2, *range(20, 60), 1, 2], 44)
    ids = np.arange(100, 160, dtype=np.uint32)
    places = borrow_places(ids, 50, lender, END)
    assert places.spans == ((7, 9),)
    assert 44 - lender.spans[0][0] == 50 - 7
    with pytest.raises(NotChangedError):
        borrow_places(ids, 40, lender, END)  # it would begin before the sequence
    ids[8] = ids[49]
    with pytest.raises(NotChangedError):
        borrow_places(ids, 50, lender, END)  # it would change an id of the token's own bigram


def label(ids: np.ndarray) -> tuple[int, int]:
    """Distance and match of the last id."""
    offsets = np.array([0, len(ids)])
    distance, *_ = label_bigrams(ids, offsets)
    return int(distance[-1]), int(longest_matches(ids, offsets)[-1])


@given(ids=st.lists(st.integers(0, 6), min_size=3, max_size=80))
def test_changes_remove_every_occurrence_and_a_placebo_none(ids):
    sequence = np.array(ids, np.uint32)
    before = label(sequence)
    if before[0] == NO_DISTANCE:
        return
    try:
        places = find_places(sequence, len(ids) - 1, END)
    except NotChangedError:
        return
    sizes = {change: len(places.of(change)) for change in CHANGES}
    assert sizes["completion"] == sizes["key"] == len(places.spans)
    assert sizes["placebo"] == sizes["span"] == len(set(places.of("span").tolist()))
    placebo = set(places.of("placebo").tolist())
    assert len(placebo) == sizes["placebo"]
    assert placebo.isdisjoint([*places.of("span").tolist(), *range(places.query, len(ids))])
    assert not {END, ids[-2], ids[-1]} & {ids[place] for place in placebo}
    for change in CHANGES:
        changed = sequence.copy()
        changed[places.of(change)] = 99
        assert (changed[places.query :] == sequence[places.query :]).all()
        assert label(changed) == (before if change == "placebo" else (NO_DISTANCE, 0))
    assert places.query == len(ids) - 1 - min(before[1], len(ids)) or END in ids  # the query is the longest match, cut at end tokens
