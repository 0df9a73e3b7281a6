"""Sampled tokens with the places to change and what to put there, or the reason why a token is left out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.intervening.places import CHANGES, NO_PARTNER, NotChangedError, Places, borrow_places, find_places
from recallkit.measure.classes import log2_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from recallkit.intervening.replacements import Replacements
    from recallkit.intervening.sampling import Sample

_TRIED = 16
"""First occurrences that are tried as the partner of a token."""


@dataclass(frozen=True, slots=True)
class AskedToken:
    """One sampled token of a slice, by its number, and how many tokens of the slice it represents: its `weight`.

    A partner has the `distance`, `occurrences`, `match_length` and `weight` of the token whose places it borrows. `changes`: of each of
    CHANGES the positions and their new ids; none where the token is left out, which `excluded` explains.
    """

    slice: int
    row: int
    sequence: int
    position: int
    document: int
    distance: int
    occurrences: int
    match_length: int
    train_count: int
    weight: float
    places: Places | None = None
    changes: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None
    excluded: str = ""


class Asker:
    """Finds places and replacements for samples of the sequences `ids`, by number; draws are decided by `seed` and a token's place."""

    def __init__(self, ids: Mapping[int, np.ndarray], end_id: int, replacements: Replacements, seed: int) -> None:
        self._ids, self._end_id, self._replacements, self._seed = ids, end_id, replacements, seed

    def repeated(self, number: int, sample: Sample) -> list[AskedToken]:
        """The tokens of slice `number`, each with the places of its own earlier occurrences."""
        tokens = (_token(number, sample, place) for place in range(len(sample)))
        return [self._asked(token, partial(find_places, target=token.position, end_id=self._end_id)) for token in tokens]

    def partners(self, number: int, lenders: Sequence[AskedToken], pool: Sample) -> list[AskedToken]:
        """For each of `lenders` that is not left out, a token of `pool` of like training count, with its places and its weight.

        Tokens of the pool repeat no bigram. Each is taken once, the nearest by position first. Lenders without a partner are left out,
        too.
        """
        buckets, is_free = log2_bucket(pool.train_count), np.ones(len(pool), bool)
        found = []
        for lender, lent in ((token, token.places) for token in lenders if token.places is not None):
            is_alike = is_free & (buckets == log2_bucket(np.array([lender.train_count]))[0])
            candidates = np.flatnonzero(is_alike)
            nearest = candidates[np.argsort(np.abs(pool.position[candidates] - lender.position), kind="stable")[:_TRIED]]
            partner = replace(lender, slice=number, places=None, changes=None, excluded=NO_PARTNER)
            for place in nearest.tolist():
                asked = self._borrow(_token(number, pool, place, lender), lent)
                if not asked.excluded:
                    is_free[place], partner = False, asked
                    break
            found.append(partner)
        return found

    def _borrow(self, token: AskedToken, lent: Places) -> AskedToken:
        return self._asked(token, partial(borrow_places, target=token.position, lender=lent, end_id=self._end_id))

    def _asked(self, token: AskedToken, find: Callable[[np.ndarray], Places]) -> AskedToken:
        """The token with its changes, or the reason why it is left out."""
        ids = self._ids[token.sequence]
        try:
            places = find(ids)
            each = [places.of(change) for change in CHANGES]
            drawn = self._replacements.draw(ids, each, np.random.default_rng((self._seed, token.sequence, token.position)))
        except NotChangedError as reason:
            return replace(token, excluded=str(reason))
        return replace(token, places=places, changes=dict(zip(CHANGES, zip(each, drawn, strict=True), strict=True)))


def _token(number: int, sample: Sample, place: int, like: AskedToken | None = None) -> AskedToken:
    """A sampled token; with the distance, occurrences, match and weight of the token that it is `like`."""

    own: dict[str, Any] = {name: int(getattr(sample, name)[place]) for name in ("row", "sequence", "position", "document", "train_count")}
    for name, kind in {"distance": int, "occurrences": int, "match_length": int, "weight": float}.items():
        own[name] = kind(getattr(sample, name)[place] if like is None else getattr(like, name))
    return AskedToken(number, **own)
