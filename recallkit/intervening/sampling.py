"""Which tokens of a slice are asked about: a sample, stratified by distance to the latest earlier occurrence and by training count.

A stratum of N tokens gets samples in proportion to the square root of N, so that small ones can be reported, too; each sample then
weighs N over the number sampled there, and weighted means are those of the slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.measure.classes import log2_bucket
from recallkit.measure.labelled import RowReader, batch_ranges
from recallkit.ragged import run_starts
from recallkit.slicing.definitions import members
from recallkit.slicing.words import needed_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recallkit.measure.labelled import LabelledTokens
    from recallkit.slicing.definitions import Slice

FIRST_RARE = "first_rare"
"""The slice whose tokens have no earlier occurrence: they borrow the places of another slice's tokens."""

_COLUMNS = ("sequence", "position", "document", "distance", "occurrences", "match_length", "train_count")
_BUCKETS = 64
_SLICE_AGAIN = "slice again with --force"


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens of one slice, in the order of the text: arrays (n,) of whole numbers, and how many tokens of the slice each represents.

    `row`: in `tokens.parquet`, from 0; `distance` 0 where the bigram does not occur earlier. `num_tokens`: of the whole slice.
    """

    num_tokens: int
    row: np.ndarray
    sequence: np.ndarray
    position: np.ndarray
    document: np.ndarray
    distance: np.ndarray
    occurrences: np.ndarray
    match_length: np.ndarray
    train_count: np.ndarray
    weight: np.ndarray

    def __len__(self) -> int:
        """The number of sampled tokens."""
        return len(self.row)


def draw_samples(tokens: LabelledTokens, slices: Sequence[Slice], sizes: Sequence[int], seed: int) -> list[Sample]:
    """At most so many tokens of each slice that repeat a bigram (of FIRST_RARE: of all its tokens), drawn from `seed`.

    One pass over the labels, in memory that grows with `sizes` alone. Raises UserError if the labels are damaged.
    """
    reader = SliceReader(tokens, slices, *_COLUMNS)
    pools = [Pool(size) for size in sizes]
    rng = np.random.default_rng(seed)
    for start, stop in batch_ranges(tokens.path):
        rows, masks = reader.read(start, stop)
        keys = rng.random(stop - start)
        for pool, is_asked in zip(pools, masks, strict=True):
            pool.add(rows, start, keys, np.flatnonzero(is_asked))
    return [pool.sample() for pool in pools]


class SliceReader:
    """Reads rows of labels, and which of them each slice has that can be asked about: those that repeat a bigram; of FIRST_RARE all."""

    def __init__(self, tokens: LabelledTokens, slices: Sequence[Slice], *more: str) -> None:
        """`more`: further columns to read. Raises UserError if slices need a table of words that is missing."""
        of_words = needed_columns(slices)
        needed = [column for slice_ in slices for column in slice_.columns if column not in of_words]
        self._slices, self._max_count = slices, tokens.max_count
        self._labels = RowReader(tokens.path, tuple(dict.fromkeys([*more, "repeated", *needed])), remedy=_SLICE_AGAIN)
        self._words = tokens.words(of_words)

    def read(self, start: int, stop: int) -> tuple[pa.Table, list[np.ndarray]]:
        """Rows [start, stop), and for each slice a mask of them, bool (n,). Raises UserError if they are damaged."""
        rows = self._labels.read(start, stop)
        repeated = rows["repeated"].to_numpy()
        every = rows
        if self._words is not None:
            words = self._words.read(start, stop)
            for name in words.column_names:
                every = every.append_column(name, words[name])
        found = members(self._slices, every, self._max_count)
        return rows, [mask if slice_.name == FIRST_RARE else mask & repeated for slice_, mask in zip(self._slices, found, strict=True)]


class Pool:
    """Candidates of one slice: of each stratum those with the smallest keys, as many as could be sampled."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: dict[str, np.ndarray] = {}
        self._num_tokens = np.zeros(_BUCKETS * _BUCKETS, np.int64)

    def add(self, rows: pa.Table, first: int, keys: np.ndarray, chosen: np.ndarray) -> None:
        """Adds the `chosen` rows of a batch that begins at row `first`."""
        found: dict[str, Any] = {name: rows[name].fill_null(0).to_numpy()[chosen] for name in _COLUMNS}
        found |= {"row": first + chosen, "key": keys[chosen]}
        found["stratum"] = log2_bucket(found["distance"]).astype(np.int64) * _BUCKETS + log2_bucket(found["train_count"])
        self._num_tokens += np.bincount(found["stratum"], minlength=len(self._num_tokens))
        every = {name: np.concatenate([self._held[name], found[name]]) if self._held else found[name] for name in found}
        order = np.lexsort((every["key"], every["stratum"]))
        kept = order[_places_within(every["stratum"][order]) < self._size]
        self._held = {name: values[kept] for name, values in every.items()}

    def sample(self) -> Sample:
        """The sample of everything added."""
        merged, totals = self._strata()
        strata, size_of = np.unique(merged, return_counts=True)
        wanted = allocate(totals, np.minimum(totals, size_of), self._size)
        order = np.lexsort((self._held["key"], merged))
        stratum = np.searchsorted(strata, merged[order])
        is_taken = _places_within(stratum) < wanted[stratum]
        taken = order[is_taken]
        weight = (totals / np.maximum(wanted, 1))[stratum[is_taken]]
        in_order = np.argsort(self._held["row"][taken])
        columns = {name: self._held[name][taken[in_order]].astype(np.int64) for name in ("row", *_COLUMNS)}
        return Sample(int(totals.sum()), weight=weight[in_order], **columns)

    def _strata(self) -> tuple[np.ndarray, np.ndarray]:
        """The stratum of each candidate, coarser where there are more strata than samples, and the tokens of those that have any."""
        own, whole = self._held["stratum"], np.arange(len(self._num_tokens))
        for width in (1, _BUCKETS, _BUCKETS * _BUCKETS):  # by distance and count, by distance, all together
            totals = np.bincount(whole // width, weights=self._num_tokens).astype(np.int64)
            if np.count_nonzero(totals) <= self._size:
                break
        return own // width, totals[totals > 0]


def _places_within(runs: np.ndarray) -> np.ndarray:
    """The place of each element in its run of equal ones, from 0: of 5 5 7 it is 0 1 0."""
    starts = run_starts(runs)
    places: np.ndarray = np.arange(len(runs)) - np.repeat(starts, np.diff(starts, append=len(runs)))
    return places


def allocate(totals: np.ndarray, most: np.ndarray, size: int) -> np.ndarray:
    """How many of `size` samples each stratum of `totals` tokens gets, int64 (s,): at least one, at most `most`, else by the square root.

    All of a stratum whose share would be more than it has; what is left over goes to the others in the same way. `size` >= s.
    """
    wanted: np.ndarray = np.minimum(most, 1)
    while (left := size - int(wanted.sum())) > 0 and (room := most > wanted).any():
        share = np.where(room, np.sqrt(totals), 0.0)
        exact = left * share / share.sum()
        more = np.minimum(np.floor(exact).astype(np.int64), most - wanted)
        if not more.any():  # less than one each: to those with the largest remainders
            more[np.argsort(-exact, kind="stable")[:left]] = 1
            more = np.minimum(more, most - wanted)
        wanted += more
    return wanted
