"""Sampled tokens with the changes of the text before them, and the sequences with changed ids in which they are read again.

Exact: every change of every token has a sequence of its own, which ends with the token.

Joint: changes that leave each other alone share a sequence, so that many tokens are read in it, at most once each. A change
leaves another one alone if it changes neither the ids before that one's token that take part in its match (the query), nor the matches
themselves, nor what that one changes, and makes no occurrence of its bigram. Which changes meet is drawn at random, so what they do to
each other depends on nothing else that is changed. At most one of MOST_CHANGED ids is changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.intervening.changes import CHANGES, NO_PARTNER, NotChangedError, Places, borrow_places, find_places, positions
from recallkit.measure.classes import log2_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import polars as pl

    from recallkit.intervening.changes import Replacements

MOST_CHANGED = 6
"""The joint design changes at most one id in so many of those before the last token that is read."""

_TRIED = 16
"""First occurrences that are tried as the partner of a token."""

_LENT = ("distance", "occurrences", "match_length", "weight")
"""Columns that a partner has of the token whose places it borrows."""


@dataclass(slots=True)
class AskedToken:
    """A sampled token, its row of `samples` so far: with the places to change, or the reason why it is left out.

    `changes`: of each change, the new id at each position that it concerns. `read_in`: the row of the changed text in which the token
    is read again under each.
    """

    row: dict[str, Any]
    places: Places | None = None
    changes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    excluded: str = ""
    read_in: dict[str, int] = field(default_factory=dict)

    @property
    def sequence(self) -> int:
        """The number of its sequence."""
        return int(self.row["sequence"])

    @property
    def position(self) -> int:
        """Where it is in its sequence."""
        return int(self.row["position"])


class Asker:
    """Finds places and `changes` for samples of the sequences `ids`, by number; draws are decided by `seed` and a token's place."""

    def __init__(
        self, ids: Mapping[int, np.ndarray], end_id: int, replacements: Replacements, seed: int, changes: Sequence[str] = tuple(CHANGES)
    ) -> None:
        self._ids, self._end_id, self._replacements, self._seed, self._changes = ids, end_id, replacements, seed, changes

    def repeated(self, slice_: str, tokens: pl.DataFrame) -> list[AskedToken]:
        """The tokens of a slice, each with the places of its own earlier occurrences."""
        return [self._asked({**row, "slice": slice_}, find_places) for row in tokens.iter_rows(named=True)]

    def partners(self, slice_: str, lenders: Sequence[AskedToken], pool: pl.DataFrame) -> list[AskedToken]:
        """For each of `lenders` that is not left out, a token of `pool` of like training count, with its places and its weight.

        Tokens of the pool repeat no bigram. Each is taken once, the nearest by position first. Lenders without a partner are left out,
        too.
        """
        position, buckets = pool["position"].to_numpy(), log2_bucket(pool["train_count"].to_numpy())
        is_free, found = np.ones(len(pool), bool), []
        for lender in lenders:
            if lender.places is None:
                continue
            candidates = np.flatnonzero(is_free & (buckets == log2_bucket(lender.row["train_count"])))
            nearest = candidates[np.argsort(np.abs(position[candidates] - lender.position), kind="stable")[:_TRIED]]
            lent = {"slice": slice_, **{name: lender.row[name] for name in _LENT}}
            partner = AskedToken({**lender.row, **lent}, excluded=NO_PARTNER)
            for place in nearest.tolist():
                asked = self._asked({**pool.row(place, named=True), **lent}, partial(borrow_places, lender=lender.places))
                if not asked.excluded:
                    is_free[place], partner = False, asked
                    break
            found.append(partner)
        return found

    def _asked(self, row: dict[str, Any], find: Callable[[np.ndarray, int, int], Places]) -> AskedToken:
        """A token with its changes, or the reason why it is left out."""
        ids, position = self._ids[row["sequence"]], row["position"]
        try:
            places = find(ids, position, self._end_id)
            rng = np.random.default_rng((self._seed, row["sequence"], position))
            replacements = self._replacements.draw(ids, positions([*places.spans, *places.placebo]), rng)
            return AskedToken(row, places, {name: CHANGES[name](ids, places, replacements) for name in self._changes})
        except NotChangedError as reason:
            return AskedToken(row, excluded=str(reason))


@dataclass(frozen=True, slots=True)
class Reading:
    """One token under one change: the new id at each position that it concerns, and the positions that no other change may concern."""

    token: AskedToken
    change: str
    new: Mapping[int, int]
    kept: frozenset[int]


@dataclass(frozen=True, slots=True)
class ChangedSequence:
    """A sequence of the text with changed ids, up to the last token that is read in it, and what is read."""

    sequence: int
    ids: np.ndarray
    readings: Sequence[Reading]


def changed_sequences(asked: Sequence[AskedToken], ids: Mapping[int, np.ndarray], design: str, seed: int) -> Iterator[ChangedSequence]:
    """The sequences in which every token of `asked` that is not left out is read once under each change, in the order of the text.

    `ids`: the text's sequences by number; `seed` decides which changes share a sequence.
    """
    kept = sorted((token for token in asked if not token.excluded), key=lambda token: token.sequence)
    for sequence, tokens in groupby(kept, key=lambda token: token.sequence):
        readings, text = [reading for token in tokens for reading in _readings(token)], ids[sequence]
        groups = [_Group(text, [reading]) for reading in readings] if design == "exact" else _pack(readings, text, (seed, sequence))
        for group in groups:
            yield ChangedSequence(sequence, group.ids[: group.last + 1], group.readings)


def _readings(token: AskedToken) -> Iterator[Reading]:
    """The readings of one token."""
    assert token.places is not None
    query, matches = range(token.places.query, token.position + 1), positions(token.places.spans).tolist()
    for change, new in token.changes.items():
        yield Reading(token, change, new, frozenset([*query, *matches, *new]))


class _Group:
    """Readings that share a sequence, and its changed ids; the first has the last target."""

    def __init__(self, ids: np.ndarray, readings: Sequence[Reading]) -> None:
        self.ids, self.last = ids.copy(), readings[0].token.position
        self.readings: list[Reading] = []
        self._changed: set[int] = set()
        self._kept: set[int] = set()
        self._asked: set[tuple[int, int]] = set()
        self._made: set[tuple[int, int]] = set()
        for reading in readings:
            self.add(reading)

    def takes(self, reading: Reading) -> bool:
        """Whether a reading leaves all others alone, and they it: two readings of one token do not."""
        is_left_alone = self._changed.isdisjoint(reading.kept) and self._kept.isdisjoint(reading.new)
        if not is_left_alone or (len(self._changed) + len(reading.new)) * MOST_CHANGED > self.last:
            return False
        made = self._made | self._made_by(reading)
        return made.isdisjoint(self._asked) and self._bigram(reading) not in made

    def add(self, reading: Reading) -> None:
        """Adds a reading that it takes."""
        self._made |= self._made_by(reading)
        self.ids[list(reading.new)] = list(reading.new.values())
        self.readings.append(reading)
        self._changed.update(reading.new)
        self._kept.update(reading.kept)
        self._asked.add(self._bigram(reading))

    def _bigram(self, reading: Reading) -> tuple[int, int]:
        return int(self.ids[reading.token.position - 1]), int(self.ids[reading.token.position])

    def _made_by(self, reading: Reading) -> set[tuple[int, int]]:
        """The bigrams that its change makes here."""
        near = {place: int(self.ids[place]) for at in reading.new for place in (max(0, at - 1), at + 1)} | dict(reading.new)
        return {(near[place - 1], id_) for place, id_ in near.items() if place - 1 in near}


def _pack(readings: Sequence[Reading], ids: np.ndarray, seed: tuple[int, int]) -> list[_Group]:
    """Divides the readings of a sequence into groups, each into the first one that takes it: later targets first, otherwise at random."""
    groups: list[_Group] = []
    order = np.random.default_rng(seed).permutation(len(readings)).tolist()
    for reading in sorted((readings[place] for place in order), key=lambda reading: -reading.token.position):
        group = next((each for each in groups if each.takes(reading)), None)
        if group is None:
            groups.append(_Group(ids, [reading]))
        else:
            group.add(reading)
    return groups
