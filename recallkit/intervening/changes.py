"""What is changed in the text before a token to see whether it is recalled from there: which ids, and what takes their place.

Ids are replaced by others that are not in the sequence, or moved: they are swapped with ids elsewhere, so that every id is still in the
context, but with other neighbours.

The token at position i completes the bigram (ids[i - 1], ids[i]), which also ends at earlier positions j. The match at j is the id there
and the ids before it that agree with those before i: with ids 1 2 3 9 1 2 3 and i = 6, the bigram (2, 3) ends at j = 2, and its match is
the ids 1 2 3 at positions 0 to 2. The query, the ids before i that take part in a match, is never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Change = Callable[[np.ndarray, "Places", Mapping[int, int]], dict[int, int]]

MARGIN = 8
"""Ids between a placebo and whatever else is changed or read, where there is room."""

MOST_RANKS = 25
"""How far a replacement's rank by frequency may be from that of the id it replaces, while there is one in reach."""

OVERLAP = "occurrences overlap each other or the query"
END_TOKEN = "the bigram contains an end token"  # noqa: S105 - not a password
NO_PLACEBO = "no other ids, equally far, to change"
NO_ROOM = "no ids to swap with"
NO_REPLACEMENT = "no entry of the vocabulary that is not in the sequence"
NO_PARTNER = "no first occurrence that is as rare"


class NotChangedError(Exception):
    """Why a sampled token is left out."""


@dataclass(frozen=True, slots=True)
class Places:
    """The matches at a token's earlier occurrences, and the ids changed in their stead as a placebo: spans [start, stop), ascending.

    `target`: the token's position; `query`: where the longest match before it begins, up to the target; `end_id`: of end tokens.
    """

    end_id: int
    target: int
    query: int
    spans: tuple[tuple[int, int], ...]
    placebo: tuple[tuple[int, int], ...]

    def before_ends(self, back: int) -> np.ndarray:
        """The position so many ids before the end of each match, int64 (k,)."""
        return np.array([stop - back for _, stop in self.spans])


def positions(spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """The positions in spans, int64 (k,), ascending."""
    return np.concatenate([np.arange(start, stop) for start, stop in spans])


def _replace(where: Callable[[Places], np.ndarray]) -> Change:
    return lambda ids, places, replacements: {place: replacements[int(ids[place])] for place in where(places).tolist()}


CHANGES: Mapping[str, Change] = {
    "completion": _replace(lambda places: places.before_ends(1)),
    "key": _replace(lambda places: places.before_ends(2)),
    "span": _replace(lambda places: positions(places.spans)),
    "placebo": _replace(lambda places: positions(places.placebo)),
    "moved": lambda ids, places, _: move(ids, places, places.spans),
    "moved_placebo": lambda ids, places, _: move(ids, places, places.placebo),
}
"""What is changed of every earlier occurrence; the tables of `storage.schemas` have columns of each.

Each gives the new id at each position that it concerns, of a sequence (n,), by a token's places and a replacement of each id in the spans
and placebos. Raises NotChangedError where there is no room for it.
"""

BY_ASSOCIATION = ("moved", "moved_placebo")
"""The two that tell what is recalled by association: what is lost by the first, less what is lost by the second."""


# ------------------------------------------------------------------------------------------------------------------ where


def find_places(ids: np.ndarray, target: int, end_id: int) -> Places:
    """The places of the token at position `target` of a sequence (n,), whose bigram occurs earlier in it.

    A match does not extend across an end token. Raises NotChangedError if the bigram contains one, if a match reaches into another one
    or the query, so that not all of it could be changed, and if there is no room for a placebo.
    """
    key, completion = ids[target - 1], ids[target]
    if end_id in (key, completion):
        raise NotChangedError(END_TOKEN)
    ends = np.flatnonzero((ids[: target - 1] == key) & (ids[1:target] == completion)) + 1
    spans = [_match(ids, int(end), target, end_id) for end in ends]
    query = target - max(stop - start - 1 for start, stop in spans)
    edges = [*(edge for span in spans for edge in span), query]
    if any(after < before for before, after in pairwise(edges)):
        raise NotChangedError(OVERLAP)
    return _with_placebo(ids, target, query, spans, end_id)


def _match(ids: np.ndarray, end: int, target: int, end_id: int) -> tuple[int, int]:
    """The match that ends at position `end`, as a span."""
    start = end - 1
    while start > 0 and ids[start - 1] == ids[target - (end - start) - 1] != end_id:
        start -= 1
    return start, end + 1


def borrow_places(ids: np.ndarray, target: int, end_id: int, lender: Places) -> Places:
    """Places for a token that is not repeated: those of another token, `lender`, equally far from this one.

    Raises NotChangedError where they do not fit, or contain an end token or either id of the token's own bigram.
    """
    ahead = target - lender.target
    spans = [(start + ahead, stop + ahead) for start, stop in lender.spans]
    if spans[0][0] < 0 or _is_kept(ids, target, end_id)[positions(spans)].any():
        raise NotChangedError(NO_PLACEBO)
    return _with_placebo(ids, target, lender.query + ahead, spans, end_id)


def _is_kept(ids: np.ndarray, target: int, end_id: int) -> np.ndarray:
    """Ids that a placebo must not change, bool (target,): end tokens, and those of the bigram, which may be of use by themselves."""
    kept: np.ndarray = np.isin(ids[:target], [end_id, ids[target - 1], ids[target]])
    return kept


def _with_placebo(ids: np.ndarray, target: int, query: int, spans: Sequence[tuple[int, int]], end_id: int) -> Places:
    """Adds for each span one of its length, as near to it as possible, but apart from all spans, the query and each other.

    They are MARGIN ids apart if there is room, because a model may mix neighbouring ids.
    """
    for margin in (MARGIN, 0):
        if (placebo := _elsewhere(_is_kept(ids, target, end_id), [*spans, (query, target)], margin)) is not None:
            return Places(end_id, target, query, tuple(spans), placebo)
    raise NotChangedError(NO_PLACEBO)


def _elsewhere(is_taken: np.ndarray, spans: Sequence[tuple[int, int]], margin: int) -> tuple[tuple[int, int], ...] | None:
    """A span for each of `spans` but the last, of its length, among the ids that are not taken; None if there is no room."""
    for start, stop in spans:
        is_taken[max(0, start - margin) : stop + margin] = True
    found = []
    for start, stop in reversed(spans[:-1]):  # the latest first, because it has the least room
        length = stop - start
        taken = np.concatenate([[0], np.cumsum(is_taken)])  # before each place: a span is free where it does not grow
        free = np.flatnonzero(taken[length:] == taken[:-length])
        if not len(free):
            return None
        chosen = int(free[np.argmin(np.abs(free - start))])
        is_taken[chosen : chosen + length] = True
        found.append((chosen, chosen + length))
    return tuple(sorted(found))


def move(ids: np.ndarray, places: Places, spans: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Breaks up spans of a sequence (n,): the last id of each and every second one before it are swapped with ids elsewhere.

    Those are the nearest that are in no match, and are neither end tokens nor ids of the bigram. Wherever an id goes, none comes
    next to one that it is next to in the query or the token: no two neighbours of a match stay neighbours, and the token's bigram
    occurs nowhere new. With the query 1 2, the token 3 and 9 1 2 3 8 5 7 6 before them, 3 and 1 go, say, to where 7 and 5 were:
    9 5 2 7 8 1 3 6. Raises NotChangedError where no such ids are left.
    """
    for margin in (MARGIN, 0):
        if (new := _moved(ids, places, spans, margin)) is not None:
            return new
    raise NotChangedError(NO_ROOM)


def _moved(ids: np.ndarray, places: Places, spans: Sequence[tuple[int, int]], margin: int) -> dict[int, int] | None:
    """See `move`; the ids that spans trade with are `margin` away from all matches and the query."""
    pairs = set(pairwise(ids[places.query : places.target + 1].tolist()))
    changed = np.concatenate([[-1], ids[: places.target + 1].astype(np.int64)])  # at i + 1, so that the first id, too, has one before it
    is_taken, new = _is_kept(ids, places.target, places.end_id), dict[int, int]()
    for start, stop in (*places.spans, *spans, (places.query, places.target)):
        is_taken[max(0, start - margin) : stop + margin] = True
    for place in (place for start, stop in reversed(spans) for place in range(stop - 1, start - 1, -2)):
        free = np.flatnonzero(~is_taken)
        before, moved, after = changed[place : place + 3].tolist()
        left, there, right = changed[free], changed[free + 1], changed[free + 2]
        fits = there != moved
        for one, other in pairs:
            if one == before:
                fits &= there != other
            if other == after:
                fits &= there != one
            if other == moved:
                fits &= left != one
            if one == moved:
                fits &= right != other
        if not fits.any():
            return None
        free = free[fits]
        other_place = int(free[np.argmin(np.abs(free - place))])
        is_taken[other_place] = True
        changed[[place + 1, other_place + 1]] = changed[[other_place + 1, place + 1]]
        new |= {place: int(changed[place + 1]), other_place: moved}
    return None if spans != places.spans and _is_longer(ids, changed[1:], places) else new


def _is_longer(ids: np.ndarray, changed: np.ndarray, places: Places) -> bool:
    """Whether a match that stays has become longer: the id before it, or before the query, has moved. Next to them there was no margin."""
    before = [(start - 1, places.target - (stop - start)) for start, stop in places.spans if start]
    return any(changed[one] == changed[other] and ids[one] != ids[other] for one, other in before)


# ------------------------------------------------------------------------------------------------------------------- what


class Replacements:
    """Draws ids that take the place of others, of like frequency in training and not in the sequence; those that never occur rank last.

    `num_far`: how many were drawn from further away than MOST_RANKS, because the sequence contained all that are nearer.
    """

    def __init__(self, unigram_counts: np.ndarray, end_id: int) -> None:
        """`unigram_counts`: occurrences in training of every id, (vocab,)."""
        counts = unigram_counts.astype(np.float64)
        counts[end_id] = 0
        self._ids = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        self._rank = np.full(len(counts), len(self._ids))
        self._rank[self._ids] = np.arange(len(self._ids))
        self.num_far = 0

    def draw(self, ids: np.ndarray, where: np.ndarray, rng: np.random.Generator) -> dict[int, int]:
        """A replacement of each id at the positions `where` of a sequence (n,): no two alike.

        Raises NotChangedError if the vocabulary has none left.
        """
        is_present = np.zeros(len(self._rank), bool)
        is_present[ids] = True
        found = {}
        for original in np.unique(ids[where]).tolist():
            found[original] = self._draw(int(self._rank[original]), is_present, rng)
            is_present[found[original]] = True
        return found

    def _draw(self, rank: int, is_present: np.ndarray, rng: np.random.Generator) -> int:
        reach = MOST_RANKS
        while True:
            near = self._ids[max(0, rank - reach) : rank + reach + 1]
            absent = near[~is_present[near]]
            if len(absent):
                self.num_far += reach > MOST_RANKS
                return int(rng.choice(absent))
            if reach >= len(self._ids):
                raise NotChangedError(NO_REPLACEMENT)
            reach *= 2
