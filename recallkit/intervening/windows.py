"""Sequences with changed ids, in which the NLLs of asked tokens are read again: one change in each, or many.

Exact: every change of every token has a sequence of its own, which ends with the token.

Joint: changes that leave each other alone share a sequence, so that many tokens are read in it, at most once each. A change
leaves another one alone if it changes neither the ids before that one's token that take part in its match (the query), nor, unless that
one replaces them anyway, the matches themselves. Which changes meet is drawn at random, so what they do to each other does not depend on
what is changed but for the above. At most one of MOST_CHANGED ids is changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from recallkit.intervening.places import CHANGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from recallkit.intervening.asking import AskedToken

DESIGNS = ("joint", "exact")
MOST_CHANGED = 6
"""The joint design changes at most one id in so many of those before the last token that is read."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One token, by its number among those asked, under one change: positions and new ids (k,), and those that no other may change."""

    number: int
    change: str
    target: int
    positions: np.ndarray
    new: np.ndarray
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
    numbers = sorted((n for n, token in enumerate(asked) if token.changes is not None), key=lambda n: (asked[n].sequence, n))
    for sequence, own in groupby(numbers, key=lambda n: asked[n].sequence):
        readings = [reading for number in own for reading in _readings(number, asked[number])]
        groups = [[reading] for reading in readings] if design == "exact" else _pack(readings, np.random.default_rng((seed, sequence)))
        for group in groups:
            changed = ids[sequence][: max(reading.target for reading in group) + 1].copy()
            for reading in group:
                changed[reading.positions] = reading.new
            yield ChangedSequence(sequence, changed, group)


def _readings(number: int, token: AskedToken) -> Iterator[Reading]:
    """The four readings of one token."""
    assert token.places is not None
    assert token.changes is not None
    query = range(token.places.query, token.position + 1)
    matches = token.places.of("span").tolist()
    for change in CHANGES:
        positions, new = token.changes[change]
        kept = frozenset(query) | (frozenset(matches) - frozenset(positions.tolist()))
        yield Reading(number, change, token.position, positions, new, kept)


@dataclass(slots=True)
class _Group:
    """Readings that share a sequence."""

    last: int
    readings: list[Reading] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)

    def takes(self, reading: Reading, positions: set[int]) -> bool:
        """Whether a reading, whose target is not after the last, leaves all others alone, and they it."""
        if not (self.changed.isdisjoint(reading.kept) and self.kept.isdisjoint(positions)):
            return False  # so are two readings of one token
        return len(self.changed | positions) * MOST_CHANGED <= self.last

    def add(self, reading: Reading, positions: set[int]) -> None:
        """Adds a reading that it takes."""
        self.readings.append(reading)
        self.changed |= positions
        self.kept |= reading.kept


def _pack(readings: Sequence[Reading], rng: np.random.Generator) -> list[list[Reading]]:
    """Divides the readings of a sequence into groups, each into the first one that takes it: later targets first, otherwise at random."""
    groups: list[_Group] = []
    for place in sorted(rng.permutation(len(readings)).tolist(), key=lambda place: -readings[place].target):
        reading = readings[place]
        positions = set(reading.positions.tolist())
        group = next((each for each in groups if each.takes(reading, positions)), None)
        if group is None:
            group = _Group(reading.target)
            groups.append(group)
        group.add(reading, positions)
    return [group.readings for group in groups]
