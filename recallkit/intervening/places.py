"""Which ids of a context are changed to see whether a token is recalled from it: its earlier occurrences, and as many ids elsewhere.

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
    from collections.abc import Sequence

CHANGES = ("completion", "key", "span", "placebo")
"""What is changed of every earlier occurrence: its last id, the id before that, the whole match; or as many ids elsewhere, equally far."""

MARGIN = 8
"""Ids between a placebo and whatever else is changed or asked about, where there is room."""

OVERLAP = "occurrences overlap each other or the query"
END_TOKEN = "the bigram contains an end token"  # noqa: S105 - not a password
NO_PLACEBO = "no other ids, equally far, to change"
NO_REPLACEMENT = "no entry of the vocabulary that is not in the sequence"
NO_PARTNER = "no first occurrence that is as rare"


class NotChangedError(Exception):
    """Why a sampled token is left out."""


@dataclass(frozen=True, slots=True)
class Places:
    """The matches at a token's earlier occurrences, and the ids changed in their stead as a placebo: spans [start, stop), ascending.

    `target`: the token's position; `query`: where the longest match before it begins, up to the target.
    """

    target: int
    query: int
    spans: tuple[tuple[int, int], ...]
    placebo: tuple[tuple[int, int], ...]

    def of(self, change: str) -> np.ndarray:
        """The positions that a change of CHANGES concerns, int64 (k,), ascending."""
        if change in ("completion", "key"):
            back = CHANGES.index(change) + 1
            return np.array([stop - back for _, stop in self.spans])
        return _positions(self.placebo if change == "placebo" else self.spans)


def _positions(spans: Sequence[tuple[int, int]]) -> np.ndarray:
    return np.concatenate([np.arange(start, stop) for start, stop in spans])


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


def borrow_places(ids: np.ndarray, target: int, lender: Places, end_id: int) -> Places:
    """Places for a token that is not repeated: those of another token, `lender`, equally far from this one.

    Raises NotChangedError where they do not fit, or contain an end token or either id of the token's own bigram.
    """
    ahead = target - lender.target
    spans = [(start + ahead, stop + ahead) for start, stop in lender.spans]
    if spans[0][0] < 0 or _is_kept(ids, target, end_id)[_positions(spans)].any():
        raise NotChangedError(NO_PLACEBO)
    return _with_placebo(ids, target, lender.query + ahead, spans, end_id)


def _is_kept(ids: np.ndarray, target: int, end_id: int) -> np.ndarray:
    """Ids that a placebo must not change, bool (target,): end tokens, and those of the bigram, which may be of use by themselves."""
    before = ids[:target]
    kept: np.ndarray = (before == end_id) | (before == ids[target - 1]) | (before == ids[target])
    return kept


def _with_placebo(ids: np.ndarray, target: int, query: int, spans: Sequence[tuple[int, int]], end_id: int) -> Places:
    """Adds for each span one of its length, as near to it as possible, but apart from all spans, the query and each other.

    They are MARGIN ids apart if there is room, because a model may mix neighbouring ids.
    """
    for margin in (MARGIN, 0):
        if (placebo := _elsewhere(_is_kept(ids, target, end_id), [*spans, (query, target)], margin)) is not None:
            return Places(target, query, tuple(spans), placebo)
    raise NotChangedError(NO_PLACEBO)


def _elsewhere(is_taken: np.ndarray, spans: Sequence[tuple[int, int]], margin: int) -> tuple[tuple[int, int], ...] | None:
    """A span for each of `spans` but the last, of its length, among the ids that are not taken; None if there is no room."""
    for start, stop in spans:
        is_taken[max(0, start - margin) : stop + margin] = True
    found = []
    for start, stop in reversed(spans[:-1]):  # the latest first, because it has the least room
        length = stop - start
        taken = np.concatenate([[0], np.cumsum(is_taken)])
        free = np.flatnonzero(taken[length:] == taken[:-length])
        if not len(free):
            return None
        chosen = int(free[np.argmin(np.abs(free - start))])
        is_taken[chosen : chosen + length] = True
        found.append((chosen, chosen + length))
    return tuple(sorted(found))
