"""Hashes of a text's n-grams, of which the smallest are kept: a sample in bounded memory that tells
copied text from new.

The hash of an n-gram depends on its ids alone, so the same n-gram is kept or left out wherever it
occurs, in training text as in the text that is sliced. The `most` smallest distinct hashes are kept
(a bottom-k sketch: A. Broder, "On the resemblance and containment of documents", 1997). Those of
two texts together are the smallest of both samples, so the sample does not depend on where the text
was divided. All hashes up to the largest one kept are known, which are a uniform sample of the
distinct n-grams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recallkit.counting.ngram_hash import ALL, small_hashes
from recallkit.ragged import run_starts

if TYPE_CHECKING:
    from collections.abc import Iterable

_BLOCK = 1 << 15
"""n-grams hashed at a time: their numbers stay in the cache."""


class HashRun(NamedTuple):
    """Distinct hashes, uint64 (m,), strictly increasing."""

    hashes: np.ndarray


class HashSampler:
    """Samples the n-grams of a text that comes in chunks."""

    def __init__(self, size: int, most: int) -> None:
        """n-grams of `size` ids, of whose hashes the `most` smallest are kept."""
        self.size, self.most = size, most
        self.restart()

    def restart(self) -> None:
        """Begins with another text: what follows does not depend on the chunks before it."""
        self._largest = ALL
        """No hash beyond it can be among the smallest of all chunks together."""

    def count(self, ids: np.ndarray, segment_starts: np.ndarray) -> HashRun:
        """Hashes of a chunk: together with those of all earlier chunks they contain the `most`
        smallest of all.

        `ids` is (n,), unsigned, of at most 32 bits; `segment_starts` (s,) int64, ascending, the
        first 0: no n-gram extends across one.
        """
        # Hashes are uniform: up to here there are `most`, and three quarters more for n-grams that
        # occur several times.
        expected = min(self._largest, ALL * 7 * self.most // (4 * max(1, len(ids))))
        hashes = self._smallest(ids, segment_starts, expected)
        if len(hashes) < self.most and expected < self._largest:
            hashes = self._smallest(ids, segment_starts, self._largest)
        if len(hashes) == self.most:
            self._largest = int(hashes[-1])
        return HashRun(hashes)

    def _smallest(self, ids: np.ndarray, segment_starts: np.ndarray, largest: int) -> np.ndarray:
        """The smallest hashes up to `largest` of a chunk, at most `most`: whenever twice as many
        are found, larger ones are left out."""
        parts, number = [np.empty(0, np.uint64)], 0
        for first in range(0, len(ids), _BLOCK):
            block = slice(first, first + _BLOCK)
            parts.append(small_hashes(ids, segment_starts, block, self.size, largest))
            number += len(parts[-1])
            if number > 2 * self.most:
                parts = [_distinct(np.concatenate(parts))[: self.most]]
                number = len(parts[0])
                largest = int(parts[0][-1]) if number == self.most else largest
        return _distinct(np.concatenate(parts))[: self.most]


def _distinct(hashes: np.ndarray) -> np.ndarray:
    """The hashes in order, equal ones once: `np.unique` has a hash table, which takes ten times as
    long as sorting."""
    ordered = np.sort(hashes)
    distinct: np.ndarray = ordered[run_starts(ordered)]
    return distinct


def merge_hashes(runs: Iterable[HashRun]) -> HashRun:
    """The distinct hashes of all runs, which may be memory-mapped."""
    return HashRun(_distinct(np.concatenate([hashes for (hashes,) in runs])))


def smallest(runs: Iterable[HashRun], most: int) -> HashRun:
    """The `most` smallest distinct hashes of all runs, which may be memory-mapped."""
    sample = np.empty(0, np.uint64)
    for (hashes,) in runs:
        end = np.searchsorted(hashes, sample[-1]) if len(sample) == most else len(hashes)
        sample = _distinct(np.concatenate([sample, hashes[:end]]))[:most]
    return HashRun(sample)
