"""Which ids are changed, counted by hand and checked by labelling the changed sequence; what takes
their place: ids of like frequency."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recallkit.intervening.changes import (
    BY_ASSOCIATION,
    CHANGES,
    END_TOKEN,
    MARGIN,
    MOST_RANKS,
    NO_PLACEBO,
    NO_REPLACEMENT,
    NO_ROOM,
    OVERLAP,
    NotChangedError,
    Replacements,
    borrow_places,
    find_places,
)
from recallkit.slicing.label_kernels import NO_DISTANCE, label_bigrams, longest_matches

END = 0


REPLACED = ("completion", "key", "span", "placebo")


def places_of(ids: list[int]):
    """The places of the last id."""
    return find_places(np.array(ids, np.uint32), len(ids) - 1, END)


def changed(ids: list[int], change: str) -> dict[int, int]:
    """The new id at each position that a change for the last id concerns; a replacement is 100
    more."""
    return CHANGES[change](
        np.array(ids, np.uint32),
        places_of(ids),
        {number: number + 100 for number in ids},
    )


def test_places_are_those_counted_by_hand():
    """The bigram (2, 3) ends at positions 3 and 7; the ids 1 2 3 match at the first, only 2 3 at
    the second."""
    places = places_of([9, 1, 2, 3, 8, 5, 2, 3, 11, 12, 13, 14, 15, 1, 2, 3])
    assert places.spans == ((1, 4), (6, 8))
    assert places.query == 13
    where = {
        name: sorted(
            changed([9, 1, 2, 3, 8, 5, 2, 3, 11, 12, 13, 14, 15, 1, 2, 3], name),
        )
        for name in REPLACED
    }
    # There is no room for a margin: two ids for the second span, three for the first, as near as
    # possible, none of them 2 or 3.
    assert where == {
        "completion": [3, 7],
        "key": [2, 6],
        "span": [1, 2, 3, 6, 7],
        "placebo": [4, 5, 8, 9, 10],
    }
    assert places_of(
        [1, 2, 50, 1, 2, 60, 61, 62, 63, 1, 2],
    ).placebo == ((5, 7), (7, 9)), "placebos are apart"
    assert places_of(
        [7, END, 1, 2, 30, 31, 32, 33, 34, 7, END, 1, 2],
    ).spans == ((2, 4),), "a match ends at an end token"


def test_a_placebo_keeps_its_distance_where_there_is_room():
    places = places_of([*range(100, 130), 1, 2, *range(130, 160), 1, 2])
    assert places.spans == ((30, 32),)
    assert places.placebo == ((30 - MARGIN - 2, 30 - MARGIN),)


def test_moves_are_those_counted_by_hand():
    """Of the match 1 2 3 at 1 to 3, the ids 3 and 1 trade places with the nearest that fit."""
    ids = [9, 1, 2, 3, 8, 5, 7, 6, 11, 12, 1, 2, 3]
    # 3 may not come to where 2 is before it, 1 not before 2; there is no room for a margin.
    assert changed(ids, "moved") == {3: 8, 4: 3, 1: 9, 0: 1}
    assert places_of(ids).placebo == ((4, 7),)
    assert changed(
        ids,
        "moved_placebo",
    ) == {6: 6, 7: 7, 4: 9, 0: 8}, "8 and 7 have traded places with 9 and 6"
    far = [*range(100, 130), 1, 2, *range(130, 160), 1, 2]
    assert changed(
        far,
        "moved",
    ) == {31: far[32 + MARGIN], 32 + MARGIN: 2}, "the nearest that is a margin away from the match"


@given(ids=st.lists(st.integers(0, 12), min_size=12, max_size=120))
@example(ids=[0, 0, 0, 0, 2, 2, 3, 1, 1, 2, 1, 1])  # a placebo made the match longer
def test_moves_keep_every_id_and_part_all_neighbours(ids):
    sequence, before = np.array(ids, np.uint32), label(np.array(ids, np.uint32))
    if before[0] == NO_DISTANCE:
        return
    for name in BY_ASSOCIATION:
        try:
            new = changed(ids, name)
        except NotChangedError:
            return
        places, after = places_of(ids), sequence.copy()
        after[list(new)] = list(new.values())
        assert (after[places.query :] == sequence[places.query :]).all()
        assert sorted(after) == sorted(sequence), "every id is still there"
        assert (after[list(new)] != sequence[list(new)]).all()
        assert END not in new.values()
        assert label(after) == (before if name == "moved_placebo" else (NO_DISTANCE, 0))
        spans = places.spans if name == "moved" else places.placebo
        assert len(new) == 2 * sum((stop - start + 1) // 2 for start, stop in spans)
        joined = set(pairwise(ids[places.query :]))
        for start, stop in spans if name == "moved" else ():
            assert not joined & set(pairwise(after[start:stop].tolist()))
        for place in new:  # nor has a move joined what the query joins
            assert not joined & set(pairwise(after[max(0, place - 1) : place + 2].tolist()))


def test_where_nothing_can_trade_places_it_is_said():
    ids = [1, 2, 5, 6, 1, 2, 7, 8, 1, 2]  # all that is no match is the placebo
    assert len(changed(ids, "moved")) == 4
    with pytest.raises(NotChangedError, match=NO_ROOM):
        changed(ids, "moved_placebo")


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([4, 4, 4, 5, 6, 7, 8, 9, 4, 4], OVERLAP),  # the two earlier occurrences share an id
        # the match 5 6 5 of the latest occurrence reaches into the query 5 6 5
        (
            [5, 6, 5, 6, 5, 6],
            OVERLAP,
        ),
        ([1, END, 2, 3, 4, 1, END], END_TOKEN),
        ([END, 1, 7, 8, 9, END, 1], END_TOKEN),
        ([1, 2, END, END, 1, 2], NO_PLACEBO),
        ([1, 2, 2, 1, 1, 2], NO_PLACEBO),  # ids of the bigram itself are left alone
    ],
)
def test_what_cannot_be_changed_is_left_out_with_a_reason(ids, reason):
    with pytest.raises(NotChangedError, match=reason):
        places_of(ids)


def test_places_are_borrowed_equally_far():
    lender = places_of([9, 1, 2, *range(20, 60), 1, 2])
    ids = np.arange(100, 160, dtype=np.uint32)
    assert borrow_places(
        ids,
        50,
        END,
        lender,
    ).spans == ((7, 9),), "43 ids before the token, as those of the lender"
    with pytest.raises(NotChangedError):
        borrow_places(ids, 40, END, lender)  # it would begin before the sequence
    ids[8] = ids[49]
    with pytest.raises(NotChangedError):
        borrow_places(ids, 50, END, lender)  # it would change an id of the token's own bigram


def label(ids: np.ndarray) -> tuple[int, int]:
    """Distance and match of the last id."""
    offsets = np.array([0, len(ids)])
    distance, *_ = label_bigrams(ids, offsets)
    return int(distance[-1]), int(longest_matches(ids, offsets)[-1])


@given(ids=st.lists(st.integers(0, 6), min_size=3, max_size=80))
def test_changes_remove_every_occurrence_and_a_placebo_none(ids):
    sequence = np.array(ids, np.uint32)
    before = label(sequence)
    try:
        places = places_of(ids) if before[0] != NO_DISTANCE else None
    except NotChangedError:
        places = None
    if places is None:
        return
    where = {name: list(changed(ids, name)) for name in REPLACED}
    assert len(where["completion"]) == len(where["key"]) == len(places.spans)
    assert (
        len(
            set(where["placebo"]),
        )
        == len(where["placebo"])
        == len(set(where["span"]))
        == len(where["span"])
    )
    assert set(where["placebo"]).isdisjoint([*where["span"], *range(places.query, len(ids))])
    assert not {END, ids[-2], ids[-1]} & {ids[place] for place in where["placebo"]}
    for name, places_changed in where.items():
        after = sequence.copy()
        after[places_changed] += 100  # as replacements: the same for the same id, no two alike
        assert (after[places.query :] == sequence[places.query :]).all()
        assert label(after) == (before if name == "placebo" else (NO_DISTANCE, 0))
    # the query is the longest match, cut at end tokens
    assert (
        places.query
        == len(
            ids,
        )
        - 1
        - min(before[1], len(ids))
        or END in ids
    )


VOCAB = 200
COUNTS = np.arange(VOCAB)[::-1].astype(np.uint64)
"""Id 0 is the most frequent one; the last id never occurs."""


def draw(
    replacements: Replacements,
    ids: list[int],
    where: list[int],
    seed: int = 0,
) -> dict[int, int]:
    return replacements.draw(np.array(ids, np.uint32), np.array(where), np.random.default_rng(seed))


def test_replacements_are_near_in_rank_absent_and_no_two_alike():
    replacements = Replacements(COUNTS, end_id=7)
    ids = [100, 101, 102, 100, 30]
    for seed in range(40):
        new = draw(replacements, ids, [0, 1, 3, 4], seed)
        assert list(new) == [30, 100, 101]
        assert len(set(new.values())) == 3
        assert not set(new.values()) & {*ids, 7}
        # an end token has no rank
        assert all(
            abs(
                original - other,
            )
            <= MOST_RANKS + 1
            for original, other in new.items()
        )
    drawn = {draw(replacements, [100, 99], [0], seed)[100] for seed in range(2000)}
    assert drawn == set(
        range(100 - MOST_RANKS, 101 + MOST_RANKS),
    ) - {99, 100}, "every near one can be drawn"


def test_a_replacement_is_far_where_it_has_to_be_and_none_left_is_said():
    replacements = Replacements(COUNTS, end_id=199)
    assert draw(replacements, [100, *range(60, 140)], [0])[100] not in range(60, 140)
    with pytest.raises(NotChangedError, match=NO_REPLACEMENT):
        draw(replacements, list(range(VOCAB)), [0])
    rare = Replacements(np.where(np.arange(VOCAB) < 100, COUNTS, 0), end_id=0)
    assert draw(rare, [150], [0])[150] in range(
        100 - MOST_RANKS,
        100,
    ), "an id that never occurs gets a rare one"
