"""Which predicted tokens are in an n-gram of the training text, by the hashes of its n-grams that
`count` sampled.

A sequence that continues the one before it is read on from there: n-grams extend from one sequence
into the next, and end where the context of the text does, at documents if these are read one by
one. Example with 3-grams: sequences [1, 2, 3, 4] and [4, 5, 6], where [3, 4, 5] is in the training
text: 3, 4 and 5 are marked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.jit import read_only
from recallkit.slicing.copy_loops import leading_power, mark_ngrams
from recallkit.text.sequences import group_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from recallkit.counting.table import NgramHashes


_LOOKED_UP_TOGETHER = 128
_BUCKET_BITS = 21
"""A hash is looked up in one of up to 2^21 buckets, about one hash in each."""


class CopyFinder:
    """Finds tokens of `sequences.parquet` that are in a sampled n-gram of the training text, and
    counts them and the n-grams."""

    def __init__(self, known: Sequence[NgramHashes]) -> None:
        """`known`: the sampled n-grams of each size, at least one."""
        self._markers = [_Marker(hashes) for hashes in sorted(known, key=attrgetter("size"))]
        self._counted = [np.zeros(2, np.int64) for _ in known]
        self._reach = self._markers[-1].known.size - 1
        self._tokens = np.zeros(3, np.int64)

    def marked(self, groups: Iterable[pa.Table]) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Each row group with a mark for each of its predicted tokens, int8: the size of the
        longest known n-gram around it, or 0."""
        stretches = _stretches(groups)
        behind, waiting = _Stretch.joined([]), deque(islice(stretches, 1))
        while waiting:
            own = waiting.popleft()
            while sum(len(stretch.ids) for stretch in waiting) < self._reach:
                if (more := next(stretches, None)) is None:
                    break
                waiting.append(more)
            following = _Stretch.joined(stretch.part(0, self._reach) for stretch in waiting)
            around = _Stretch.joined([behind, own, following.part(0, self._reach)])
            stop = len(behind.ids) + len(own.ids)
            yield own.group, self._mark(around, len(behind.ids), stop)[own.is_predicted]
            behind = around.part(max(0, stop - self._reach), stop)

    def _mark(self, stretch: _Stretch, first: int, stop: int) -> np.ndarray:
        """Marks of the ids [first, stop); what is around them are the ids that may be in the same
        n-grams."""
        marks, starts = np.zeros(len(stretch.ids), np.int8), np.union1d(stretch.starts, [0])
        # Longer n-grams come last: their marks replace others.
        for marker, counted in zip(self._markers, self._counted, strict=True):
            counted += marker.mark(stretch.ids, starts, marks, first, stop)
        return marks[first:stop]

    def count(self, table: pa.Table) -> None:
        """Counts the marked tokens of labelled rows, whose columns `ar_hit` and `in_training` have
        no nulls."""
        marked, hits = (table[name].to_numpy() != 0 for name in ("in_training", "ar_hit"))
        self._tokens += [np.count_nonzero(rows) for rows in (marked, marked & hits, hits)]

    def summary(self) -> dict[str, Any]:
        """So far: marked tokens, those of them that are AR hits, all AR hits.

        `ngrams`, by size: the fraction of all n-grams that is sampled, the sampled ones of the
        text, and those of them in training.
        """
        ngrams = {}
        for marker, counted in zip(self._markers, self._counted, strict=True):
            sampled, in_training = counted.tolist()
            ngrams[str(marker.known.size)] = {
                "fraction": marker.known.fraction,
                "sampled": sampled,
                "found": in_training,
            }
        tokens, ar_hits, of_ar_hits = self._tokens.tolist()
        return {
            "tokens": tokens,
            "ar_hits": ar_hits,
            "of_ar_hits": of_ar_hits,
            "ngrams": ngrams,
        }


class _Marker:
    """Marks the tokens of text that are in a sampled n-gram of the training text."""

    def __init__(self, known: NgramHashes) -> None:
        self.known = known
        self._shift = np.uint64(max(0, known.largest.bit_length() - _BUCKET_BITS))
        num_buckets = (known.largest >> int(self._shift)) + 1
        bounds = np.arange(num_buckets + 1, dtype=np.uint64) << self._shift
        bounds[-1] = np.uint64(2**64 - 1)
        self._places = np.searchsorted(known.hashes, bounds).astype(np.uint32)
        self._places[-1] = len(known.hashes)

    def mark(
        self,
        ids: np.ndarray,
        starts: np.ndarray,
        marks: np.ndarray,
        first: int,
        stop: int,
    ) -> tuple[int, int]:
        """Sets `marks` to the size of the n-grams wherever one is in the training text, and counts
        n-grams.

        `ids` is (n,) unsigned, of at most 32 bits, `marks` int8 (n,), `starts` int64, ascending,
        the first 0: positions that no n-gram extends across. Returns how many of the n-grams that
        end at positions [first, stop) are of the sample, that is would be known if they were in the
        training text, and how many of these are in it.
        """
        ids, size = read_only(ids), self.known.size
        largest = np.uint64(self.known.largest)
        power = leading_power(size)
        table = self.known.hashes, self._places, self._shift
        waiting = np.empty((4, _LOOKED_UP_TOGETHER), np.uint64)
        num_sampled, num_found = mark_ngrams(
            ids,
            starts,
            size,
            power,
            largest,
            *table,
            marks,
            first,
            stop,
            waiting,
        )
        return int(num_sampled), int(num_found)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Consecutive ids of the text: `starts`, where no n-gram extends across, and which ids are
    predicted, bool (n,)."""

    ids: np.ndarray
    starts: np.ndarray
    is_predicted: np.ndarray
    group: pa.Table | None = None

    @classmethod
    def joined(cls, parts: Iterable[_Stretch]) -> _Stretch:
        """Parts one after the other."""
        ids, starts, is_predicted = (
            [np.empty(0, np.uint32)],
            [np.empty(0, np.int64)],
            [np.empty(0, bool)],
        )
        length = 0
        for part in parts:
            ids.append(part.ids)
            starts.append(part.starts + length)
            is_predicted.append(part.is_predicted)
            length += len(part.ids)
        return cls(np.concatenate(ids), np.concatenate(starts), np.concatenate(is_predicted))

    def part(self, first: int, stop: int) -> _Stretch:
        """The ids [first, stop)."""
        within = self.starts[(self.starts >= first) & (self.starts < stop)] - first
        return _Stretch(self.ids[first:stop], within, self.is_predicted[first:stop])


def _stretches(groups: Iterable[pa.Table]) -> Iterator[_Stretch]:
    """The ids of each row group, without the first id of a sequence that continues the one before:
    it is the last id of that one."""
    last_document = -1
    for group in groups:
        ids, offsets = group_ids(group)
        spans = group["span_documents"].combine_chunks()
        bounds = spans.offsets.to_numpy() - spans.offsets[0].as_py()
        documents = spans.flatten().to_numpy()
        before = np.concatenate([[last_document], documents[bounds[1:-1] - 1]])
        continues = documents[bounds[:-1]] == before
        last_document = int(documents[-1])
        is_kept, is_first = np.ones(len(ids), bool), np.zeros(len(ids), bool)
        is_kept[offsets[:-1][continues]] = False
        is_first[offsets[:-1]] = True
        is_first = is_first[is_kept]
        yield _Stretch(ids[is_kept], np.flatnonzero(is_first), ~is_first, group)
