"""The ids that take the place of others: of like frequency in training, and not in the sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recallkit.intervening.places import NO_REPLACEMENT, NotChangedError

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_RANKS = 25
"""How far a replacement's rank by frequency may be from that of the id it replaces, while there is one in reach."""


class Replacements:
    """Draws replacements by the rank of ids among those that occur in training; an id that does not occur ranks last.

    `num_far`: how many were drawn from further away than MOST_RANKS, because the sequence contained all that are nearer.
    """

    def __init__(self, unigram_counts: np.ndarray, end_id: int) -> None:
        """`unigram_counts`: occurrences in training of every id, (vocab,)."""
        counts = unigram_counts.astype(np.float64)
        counts[end_id] = 0
        self._ids = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        self._rank = np.full(len(counts), len(self._ids))
        self._rank[self._ids] = np.arange(len(self._ids))
        self._is_present = np.zeros(len(counts), bool)
        self.num_far = 0

    def draw(self, ids: np.ndarray, places: Sequence[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
        """Replacements of the ids at each array of places in a sequence (n,): the same for the same id, no two alike.

        Raises NotChangedError if the vocabulary has none left.
        """
        self._is_present[ids] = True
        chosen: dict[int, int] = {}
        try:
            for original in np.unique(ids[np.concatenate(places)]).tolist():
                chosen[original] = self._draw(original, rng)
                self._is_present[chosen[original]] = True
        finally:
            self._is_present[ids] = False
            self._is_present[list(chosen.values())] = False
        return [np.array([chosen[original] for original in ids[some].tolist()], ids.dtype) for some in places]

    def _draw(self, original: int, rng: np.random.Generator) -> int:
        rank, reach = int(self._rank[original]), MOST_RANKS
        while True:
            near = self._ids[max(0, rank - reach) : rank + reach + 1]
            absent = near[~self._is_present[near]]
            if len(absent):
                self.num_far += reach > MOST_RANKS
                return int(rng.choice(absent))
            if reach >= len(self._ids):
                raise NotChangedError(NO_REPLACEMENT)
            reach *= 2
