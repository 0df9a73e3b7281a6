"""What is changed in the text before a token to see whether it comes from there: which ids, and
what takes their place.

Ids are replaced by others that are not in the sequence, or moved: they are swapped with ids
elsewhere, so that every id is still in the context, but with other neighbours.

The token at position i completes the bigram (ids[i - 1], ids[i]), which also ends at earlier
positions j. The match at j is the id there and the ids before it that agree with those before i:
with ids 1 2 3 9 1 2 3 and i = 6, the bigram (2, 3) ends at j = 2, and its match is the ids 1 2 3 at
positions 0 to 2. The query, the ids before i that take part in a match, is never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Change = Callable[[np.ndarray, "Places", Mapping[int, int]], dict[int, int]]
    Spans = tuple[tuple[int, int], ...]  # positions [start, stop), ascending

MARGIN = 8
"""Ids between a placebo and whatever else is changed or read, where there is room."""

MOST_RANKS = 25
"""How far a replacement's rank by frequency may be from that of the id it replaces, while there is
one in reach."""

OVERLAP = "occurrences overlap each other or the query"
END_TOKEN = "the bigram contains an end token"  # noqa: S105 - not a password
NO_PLACEBO = "no other ids, equally far, to change"
NO_ROOM = "no ids to swap with"
NO_REPLACEMENT = "no entry of the vocabulary that is not in the sequence"


class NotChangedError(Exception):
    """Why a sampled token is left out."""


@dataclass(frozen=True, slots=True)
class Places:
    """The matches at a token's earlier occurrences, and the ids changed in their stead as a
    placebo: spans [start, stop), ascending.

    `target`: the token's position; `query`: where the longest match before it begins, up to the
    target; `end_id`: of end tokens.
    """

    end_id: int
    target: int
    query: int
    spans: Spans
    placebo: Spans


def positions(spans: Spans) -> np.ndarray:
    """The positions in spans, int64 (k,), ascending."""
    return np.concatenate([np.arange(start, stop) for start, stop in spans])


def _replace(where: Callable[[Places], Iterable[int]]) -> Change:
    def change(ids: np.ndarray, places: Places, new: Mapping[int, int]) -> dict[int, int]:
        return {place: new[int(ids[place])] for place in where(places)}

    return change


CHANGES: Mapping[str, Change] = {
    "completion": _replace(lambda places: [stop - 1 for _, stop in places.spans]),
    "key": _replace(lambda places: [stop - 2 for _, stop in places.spans]),
    "span": _replace(lambda places: positions(places.spans).tolist()),
    "placebo": _replace(lambda places: positions(places.placebo).tolist()),
    "moved": lambda ids, places, _: move(ids, places, places.spans),
    "moved_placebo": lambda ids, places, _: move(ids, places, places.placebo),
}
"""What is changed of every earlier occurrence; the tables of `storage.schemas` have columns of
each.

Each gives the new id at each position that it concerns, of a sequence (n,), by a token's places and
a replacement of each id in the spans and placebos. Raises NotChangedError where there is no room
for it.
"""

BY_ASSOCIATION = ("moved", "moved_placebo")
"""The two that causal recall is made of: what the first costs beyond the second."""


# ------------------------------------------------------------------------------------------ where


def find_places(ids: np.ndarray, target: int, end_id: int) -> Places:
    """The places of the token at position `target` of a sequence (n,), whose bigram occurs earlier
    in it.

    A match does not extend across an end token. Raises NotChangedError if the bigram contains one,
    if a match reaches into another one or the query, so that not all of it could be changed, and if
    there is no room for a placebo.
    """
    if end_id in ids[target - 1 : target + 1]:
        raise NotChangedError(END_TOKEN)
    spans = _matches(ids, target, end_id)
    query = target - max(stop - start - 1 for start, stop in spans)
    edges = [*chain(*spans), query]
    if edges != sorted(edges):
        raise NotChangedError(OVERLAP)
    return _with_placebo(ids, target, query, spans, end_id)


def _matches(ids: np.ndarray, target: int, end_id: int) -> Spans:
    """The earlier occurrences of the token's bigram, each with the ids before it that agree with
    those before the token."""
    is_match = (ids[: target - 1] == ids[target - 1]) & (ids[1:target] == ids[target])
    spans = []
    for key in np.flatnonzero(is_match).tolist():  # where the bigram begins
        start = key
        # With ids 1 2 3 9 1 2 3 and target 6: key 1, and ids[0] is ids[6 - (1 - 1) - 2].
        while start > 0 and ids[start - 1] == ids[target - (key - start) - 2] != end_id:
            start -= 1
        spans.append((start, key + 2))
    return tuple(spans)


def borrow_places(ids: np.ndarray, target: int, end_id: int, lender: Places) -> Places:
    """Places for a token that is not repeated: those of another token, `lender`, equally far from
    this one.

    Raises NotChangedError where they do not fit, or contain an end token or either id of the
    token's own bigram.
    """
    ahead = target - lender.target
    spans = tuple((start + ahead, stop + ahead) for start, stop in lender.spans)
    if spans[0][0] < 0 or _is_fixed(ids, target, end_id)[positions(spans)].any():
        raise NotChangedError(NO_PLACEBO)
    return _with_placebo(ids, target, lender.query + ahead, spans, end_id)


def _is_fixed(
    ids: np.ndarray,
    target: int,
    end_id: int,
    spans: Spans = (),
    margin: int = 0,
) -> np.ndarray:
    """Ids that a placebo must not change, bool (target,): end tokens, those of the bigram, which
    may be of use by themselves, and those within a `margin` of spans."""
    is_fixed: np.ndarray = np.isin(ids[:target], [end_id, ids[target - 1], ids[target]])
    for start, stop in spans:
        is_fixed[max(0, start - margin) : stop + margin] = True
    return is_fixed


def _with_placebo(ids: np.ndarray, target: int, query: int, spans: Spans, end_id: int) -> Places:
    """Adds for each span one of its length, as near to it as possible, but apart from all spans,
    the query and each other.

    They are MARGIN ids apart if there is room, because a model may mix neighbouring ids.
    """
    for margin in (MARGIN, 0):
        is_taken = _is_fixed(ids, target, end_id, (*spans, (query, target)), margin)
        placebo = []
        for start, stop in reversed(spans):  # the latest first, because it has the least room
            length = stop - start
            free = np.flatnonzero(~sliding_window_view(is_taken, length).any(axis=1))
            if len(free):
                nearest = int(free[np.argmin(np.abs(free - start))])
                is_taken[nearest : nearest + length] = True
                placebo.append((nearest, nearest + length))
        if len(placebo) == len(spans):
            return Places(end_id, target, query, spans, tuple(sorted(placebo)))
    raise NotChangedError(NO_PLACEBO)


def move(ids: np.ndarray, places: Places, spans: Spans) -> dict[int, int]:
    """Breaks up spans of a sequence (n,): the last id of each and every second one before it are
    swapped with ids elsewhere.

    Those are the nearest that are in no match, and are neither end tokens nor ids of the bigram.
    Wherever an id goes, none comes next to one that it is next to in the query or the token: no two
    neighbours of a match stay neighbours, and the token's bigram occurs nowhere new. With the query
    1 2, the token 3 and 9 1 2 3 8 5 7 6 before them, 3 and 1 go, say, to where 7 and 5 were: 9 5 2
    7 8 1 3 6. Raises NotChangedError where no such ids are left.
    """
    for margin in (MARGIN, 0):
        if (new := _moved(ids, places, spans, margin)) is not None:
            return new
    raise NotChangedError(NO_ROOM)


def _moved(ids: np.ndarray, places: Places, spans: Spans, margin: int) -> dict[int, int] | None:
    """See `move`; the ids that spans trade with are `margin` away from all matches and the
    query."""
    before = ids[: places.target + 1]
    after = before.copy()
    pairs: set[tuple[int, ...]] = set(pairwise(before[places.query :].tolist()))
    others = (*places.spans, *spans, (places.query, places.target))
    is_taken = _is_fixed(ids, places.target, places.end_id, others, margin)
    for start, stop in reversed(spans):
        for place in range(stop - 1, start - 1, -2):
            other = _partner(after, place, np.flatnonzero(~is_taken), pairs)
            if other is None:
                return None
            after[[place, other]] = after[[other, place]]
            is_taken[other] = True
    # Without a margin a match that stays can have become longer: an id before it, or before the
    # query, has moved.
    matches = [_matches(text, places.target, places.end_id) for text in (before, after)]
    if spans != places.spans and matches[0] != matches[1]:
        return None
    return {place: int(after[place]) for place in np.flatnonzero(after != before).tolist()}


def _partner(
    ids: np.ndarray,
    place: int,
    free: np.ndarray,
    pairs: set[tuple[int, ...]],
) -> int | None:
    """The nearest of the `free` positions that can trade its id with the one at a place: neither
    comes next to one of `pairs`."""
    for other in free[np.argsort(np.abs(free - place), kind="stable")].tolist():
        swapped = ids.copy()
        swapped[[place, other]] = ids[[other, place]]
        neighbours = around(swapped, place) | around(swapped, other)
        if ids[place] != ids[other] and pairs.isdisjoint(neighbours):
            return int(other)
    return None


def around(ids: np.ndarray, place: int) -> set[tuple[int, ...]]:
    """The pairs of neighbours that the id at a place is in."""
    return set(pairwise(ids[max(0, place - 1) : place + 2].tolist()))


# ------------------------------------------------------------------------------------------- what


class Replacements:
    """Draws ids that take the place of others, of like frequency in training and not in the
    sequence; those that never occur rank last."""

    def __init__(self, unigram_counts: np.ndarray, end_id: int) -> None:
        """`unigram_counts`: occurrences in training of every id, (vocab,)."""
        counts = unigram_counts.astype(np.float64)
        counts[end_id] = 0
        self._ids = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        self._rank = np.full(len(counts), len(self._ids))
        self._rank[self._ids] = np.arange(len(self._ids))

    def draw(self, ids: np.ndarray, where: np.ndarray, rng: np.random.Generator) -> dict[int, int]:
        """A replacement of each id at the positions `where` of a sequence (n,): no two alike.

        They are within MOST_RANKS of its rank, or as far away as they have to be. Raises
        NotChangedError if the vocabulary has none left.
        """
        is_present = np.zeros(len(self._rank), bool)
        is_present[ids] = True
        new = {}
        for original in np.unique(ids[where]).tolist():
            reach, absent = MOST_RANKS, self._ids[:0]
            rank = self._rank[original]
            while not len(absent):
                if reach >= 2 * len(self._ids):
                    raise NotChangedError(NO_REPLACEMENT)
                near = self._ids[max(0, rank - reach) : rank + reach + 1]
                absent = near[~is_present[near]]
                reach *= 2
            new[original] = int(rng.choice(absent))
            is_present[new[original]] = True
        return new
