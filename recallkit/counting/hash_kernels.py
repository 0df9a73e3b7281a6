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
_COMPILED_FROM = 1 << 26
"""Ids of a text beyond which loops save the half second that numba takes to be imported."""


class HashRun(NamedTuple):
    """Distinct hashes, uint64 (m,), strictly increasing."""

    hashes: np.ndarray


class HashSampler:
    """Samples the n-grams of a text that comes in chunks."""

    def __init__(self, size: int, most: int) -> None:
        """n-grams of `size` ids, of whose hashes the `most` smallest are kept."""
        self.size, self.most = size, most
        self._num_ids = 0
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
        self._num_ids += len(ids)
        # Hashes are uniform: up to here there are `most`, and three quarters more for n-grams that
        # occur several times.
        expected = min(self._largest, ALL * 7 * self.most // (4 * len(ids))) if len(ids) else self._largest
        kept = self._smallest(ids, segment_starts, expected)
        if len(kept) < self.most and expected < self._largest:
            kept = self._smallest(ids, segment_starts, self._largest)
        if len(kept) == self.most:
            self._largest = int(kept[-1])
        return HashRun(kept)

    def _smallest(self, ids: np.ndarray, segment_starts: np.ndarray, largest: int) -> np.ndarray:
        """The smallest hashes up to `largest` of a chunk, at most `most`: whenever twice as many
        are found, larger ones are left out."""
        small = small_hashes
        if self._num_ids > _COMPILED_FROM:
            from recallkit.counting.hash_loops import small_hashes as small
        found, num_found = [np.empty(0, np.uint64)], 0
        for first in range(0, len(ids), _BLOCK):
            found.append(
                small(ids, segment_starts, slice(first, first + _BLOCK), self.size, largest),
            )
            num_found += len(found[-1])
            if num_found > 2 * self.most:
                found = [_distinct(np.concatenate(found))[: self.most]]
                num_found = len(found[0])
                largest = int(found[0][-1]) if num_found == self.most else largest
        return _distinct(np.concatenate(found))[: self.most]


def _distinct(hashes: np.ndarray) -> np.ndarray:
    """The hashes in order, equal ones once: `np.unique` has a hash table, which takes ten times as
    long as sorting."""
    ordered = np.sort(hashes)
    found: np.ndarray = ordered[run_starts(ordered)]
    return found


def merge_hashes(runs: Iterable[HashRun]) -> HashRun:
    """The distinct hashes of all runs, which may be memory-mapped."""
    return HashRun(_distinct(np.concatenate([hashes for (hashes,) in runs])))


def smallest(runs: Iterable[HashRun], most: int) -> HashRun:
    """The `most` smallest distinct hashes of all runs, which may be memory-mapped."""
    kept = np.empty(0, np.uint64)
    for (hashes,) in runs:
        end = np.searchsorted(hashes, kept[-1]) if len(kept) == most else len(hashes)
        kept = _distinct(np.concatenate([kept, hashes[:end]]))[:most]
    return HashRun(kept)
