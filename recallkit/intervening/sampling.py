"""Which tokens of a slice are measured: a sample, stratified by distance to the latest earlier occurrence and by training count.

A stratum of N tokens gets samples in proportion to the square root of N, so that small ones can be reported, too; each sample then
weighs N over the number sampled there, and weighted means are those of the slice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from recallkit.measure.classes import log2_bucket
from recallkit.measure.labelled import batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.measure.labelled import LabelledTokens
    from recallkit.slicing.definitions import Slice

FIRST_RARE = "first_rare"
"""The slice whose tokens have no earlier occurrence: they borrow the places of another slice's tokens."""

COLUMNS = ("sequence", "position", "document", "distance", "occurrences", "match_length", "train_count")
"""Labels of sampled tokens."""

_BUCKETS = 64


class Sample(NamedTuple):
    """Tokens of one slice, in the order of the text, and the number of tokens of the whole slice.

    `tokens`: COLUMNS (`distance` 0 where the bigram does not occur earlier), `row` in `tokens.parquet`, from 0, and `weight`: how many
    tokens of the slice each represents.
    """

    tokens: pl.DataFrame
    num_tokens: int


def that_repeat(slice_: Slice) -> Slice:
    """The tokens of a slice that can be sampled: those that repeat a bigram; of FIRST_RARE all."""
    if slice_.name == FIRST_RARE:
        return slice_
    columns = tuple(dict.fromkeys([*slice_.columns, "repeated"]))
    return replace(slice_, columns=columns, predicate=lambda most: slice_.predicate(most) & pl.col("repeated"))


def draw_samples(tokens: LabelledTokens, slices: Sequence[Slice], sizes: Sequence[int], seed: int) -> list[Sample]:
    """At most so many tokens of each slice, drawn from `seed`.

    One pass over the labels, in memory that grows with `sizes` alone. Raises UserError if the labels are damaged.
    """
    pools, rng, first = [Pool(size) for size in sizes], np.random.default_rng(seed), 0
    for batch in batches(tokens, columns=COLUMNS, slices=slices):
        rows = pl.DataFrame(batch.select([*COLUMNS, "slices"]))
        number = pl.int_range(first, first + pl.len())
        rows = rows.with_columns(pl.col("distance").fill_null(0), row=number, key=pl.Series(rng.random(len(rows))))
        for bit, pool in enumerate(pools):
            pool.add(rows.filter(pl.col("slices") & (1 << bit) != 0).drop("slices"))
        first += len(rows)
    return [pool.sample() for pool in pools]


class Pool:
    """Candidates of one slice: of each stratum those with the smallest keys, as many as could be sampled."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: list[pl.DataFrame] = []
        self._num_tokens = np.zeros(_BUCKETS * _BUCKETS, np.int64)

    def add(self, rows: pl.DataFrame) -> None:
        """Adds tokens of the slice, with a random `key`."""
        stratum = log2_bucket(rows["distance"].to_numpy()) * _BUCKETS + log2_bucket(rows["train_count"].to_numpy())
        self._num_tokens += np.bincount(stratum, minlength=len(self._num_tokens))
        every = pl.concat([*self._kept, rows.with_columns(stratum=stratum)])
        self._kept = [every.sort("key").group_by("stratum", maintain_order=True).head(self._size)]

    def sample(self) -> Sample:
        """The sample of everything added."""
        [kept] = self._kept
        for width in (1, _BUCKETS, _BUCKETS * _BUCKETS):  # by distance and count, by distance, all together
            totals = np.bincount(np.arange(len(self._num_tokens)) // width, self._num_tokens).astype(np.int64)
            if np.count_nonzero(totals) <= self._size:  # every stratum can have one
                break
        kept = kept.with_columns(pl.col("stratum") // width)
        stratum, number = np.unique(kept["stratum"].to_numpy(), return_counts=True)
        wanted = allocate(totals[stratum], np.minimum(totals[stratum], number), self._size)
        strata = pl.DataFrame({"stratum": stratum, "wanted": wanted, "weight": totals[stratum] / wanted})
        taken = kept.join(strata, on="stratum").filter(pl.col("key").rank("ordinal").over("stratum") <= pl.col("wanted"))
        return Sample(taken.sort("row").drop("key", "stratum", "wanted"), int(totals.sum()))


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
