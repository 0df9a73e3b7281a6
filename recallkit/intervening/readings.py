"""Sampled tokens with the changes of the text before them, and the sequences with changed ids in
which they are read again.

Exact: every change of every token has a sequence of its own, which ends with the token.

Joint: changes that leave each other alone share a sequence, so that many tokens are read in it, at
most once each. A change leaves another one alone if it changes neither the ids before that one's
token that take part in its match (the query), nor the matches themselves, nor what that one
changes, and makes no occurrence of its bigram. Which changes meet is drawn at random, so what they
do to each other depends on nothing else that is changed. At most one of MOST_CHANGED ids is
changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.intervening.changes import (
    CHANGES,
    NotChangedError,
    Places,
    around,
    borrow_places,
    find_places,
    positions,
)
from recallkit.measure.rows import log2_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import polars as pl

    from recallkit.intervening.changes import Replacements

MOST_CHANGED = 6
"""The joint design changes at most one id in so many before the last token that is read."""

_MOST_TRIED = 16  # first occurrences, as the partner of a token

# Columns that a partner has of the token whose places it borrows.
_LENT = ("distance", "occurrences", "match_length", "weight")

Bigram = tuple[int, ...]

# Columns of a token's row before it is known where it is read again.
_UNREAD = {"excluded": "", **{f"{change}_row": -1 for change in CHANGES}}


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A sampled token: its row of `samples`, with the places to change, or, without places, the
    reason why it is left out.

    `changes`: of each change, the new id at each position that it concerns.
    """

    row: dict[str, Any]
    places: Places | None = None
    changes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @property
    def position(self) -> int:
        """Where it is in its sequence."""
        return int(self.row["position"])


@dataclass(frozen=True, slots=True)
class Sampler:
    """Finds places and `changes` for samples of the sequences `ids`, by number; draws are decided
    by `seed` and a token's place."""

    ids: Mapping[int, np.ndarray]
    end_id: int
    replacements: Replacements
    seed: int
    changes: Sequence[str]

    def repeated(self, slice_: str, tokens: pl.DataFrame) -> list[SampledToken]:
        """The tokens of a slice, each with the places of its own earlier occurrences."""
        rows = tokens.iter_rows(named=True)
        return [self._sampled({**row, "slice": slice_}, find_places) for row in rows]

    def partners(
        self,
        slice_: str,
        lenders: Sequence[SampledToken],
        pool: pl.DataFrame,
    ) -> list[SampledToken]:
        """For each of `lenders` that is not left out, a token of `pool` of like training count,
        with its places and its weight.

        Tokens of the pool repeat no bigram. Each is taken once, the nearest by position first.
        Lenders without a partner are left out, too.
        """
        position, buckets = pool["position"].to_numpy(), log2_bucket(pool["train_count"].to_numpy())
        is_free, partners = np.ones(len(pool), bool), []
        for lender in lenders:
            if lender.places is None:
                continue
            is_like = buckets == log2_bucket(lender.row["train_count"])
            candidates = np.flatnonzero(is_free & is_like)
            distance = np.abs(position[candidates] - lender.position)
            nearest = candidates[np.argsort(distance, kind="stable")]
            lent = {"slice": slice_, **{name: lender.row[name] for name in _LENT}}
            for place in nearest[:_MOST_TRIED].tolist():
                row = {**pool.row(place, named=True), **lent}
                token = self._sampled(row, partial(borrow_places, lender=lender.places))
                if token.places is not None:
                    is_free[place] = False
                    partners.append(token)
                    break
        return partners

    def _sampled(
        self,
        row: dict[str, Any],
        find: Callable[[np.ndarray, int, int], Places],
    ) -> SampledToken:
        """A token with its changes, or the reason why it is left out."""
        ids, position = self.ids[row["sequence"]], row["position"]
        try:
            places = find(ids, position, self.end_id)
            rng = np.random.default_rng((self.seed, row["sequence"], position))
            where = positions((*places.spans, *places.placebo))
            replacements = self.replacements.draw(ids, where, rng)
            changes = {name: CHANGES[name](ids, places, replacements) for name in self.changes}
        except NotChangedError as reason:
            return SampledToken({**row, **_UNREAD, "excluded": str(reason)})
        return SampledToken({**row, **_UNREAD}, places, changes)


@dataclass(frozen=True, slots=True)
class Reading:
    """One token under one change: the new id at each position that it concerns, and the positions
    that no other change may concern."""

    token: SampledToken
    change: str
    new: Mapping[int, int]
    fixed: frozenset[int]


def changed_sequences(
    sampled: Sequence[SampledToken],
    ids: Mapping[int, np.ndarray],
    design: str,
    seed: int,
) -> Iterator[ChangedSequence]:
    """The sequences in which every token that is not left out is read once under each change, in
    the order of the text.

    `ids`: the text's sequences by number; `seed` decides which changes share a sequence. Each
    reading joins the first sequence that takes it: later targets first, otherwise at random.
    """
    usable = [token for token in sampled if token.places is not None]
    usable.sort(key=lambda token: token.row["sequence"])
    for number, tokens in groupby(usable, key=lambda token: token.row["sequence"]):
        readings = [reading for token in tokens for reading in _readings(token)]
        np.random.default_rng((seed, number)).shuffle(readings)
        readings.sort(key=lambda reading: -reading.token.position)
        changed: list[ChangedSequence] = []
        for reading in readings:
            candidates = changed if design == "joint" else []
            sequence = next((one for one in candidates if one.takes(reading)), None)
            if sequence is None:
                ids_read = ids[number][: reading.token.position + 1]
                sequence = ChangedSequence(number, ids_read)
                changed.append(sequence)
            sequence.add(reading)
        yield from changed


def _readings(token: SampledToken) -> Iterator[Reading]:
    """The readings of one token."""
    assert token.places is not None
    query = range(token.places.query, token.position + 1)
    matches = positions(token.places.spans).tolist()
    for change, new in token.changes.items():
        yield Reading(token, change, new, frozenset([*query, *matches, *new]))


class ChangedSequence:
    """A sequence of the text with changed ids, up to the last token that is read in it, and what is
    read."""

    def __init__(self, sequence: int, ids: np.ndarray) -> None:
        self.sequence, self.ids, self.readings = sequence, ids, list[Reading]()
        self._changed, self._fixed = set[int](), set[int]()
        self._read, self._new = set[Bigram](), set[Bigram]()

    def takes(self, reading: Reading) -> bool:
        """Whether a reading leaves all others alone, and they it: two readings of one token do
        not."""
        touches = self._changed & reading.fixed or self._fixed & reading.new.keys()
        number = len(self._changed) + len(reading.new)
        if touches or number * MOST_CHANGED >= len(self.ids):
            return False
        new = self._new | self._new_bigrams(reading)
        return new.isdisjoint(self._read) and self._bigram(reading) not in new

    def add(self, reading: Reading) -> None:
        """Adds a reading that it takes."""
        self._new |= self._new_bigrams(reading)
        self.ids = self._with(reading)
        self.readings.append(reading)
        self._changed.update(reading.new)
        self._fixed.update(reading.fixed)
        self._read.add(self._bigram(reading))

    def _with(self, reading: Reading) -> np.ndarray:
        ids = self.ids.copy()
        ids[[*reading.new]] = [*reading.new.values()]
        return ids

    def _new_bigrams(self, reading: Reading) -> set[Bigram]:
        """The bigrams that its change makes here."""
        ids = self._with(reading)
        return {pair for place in reading.new for pair in around(ids, place)}

    def _bigram(self, reading: Reading) -> Bigram:
        return tuple(self.ids[reading.token.position - 1 : reading.token.position + 1].tolist())
