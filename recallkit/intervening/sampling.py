"""A stratified sample of the tokens of each slice, by distance to the latest earlier occurrence and
by training count.

A stratum of N tokens gets samples in proportion to the square root of N, so that small ones can be
reported, too; each sample then weighs N over the number sampled there, and weighted means are those
of the slice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from recallkit.declarations import names
from recallkit.display.progress import progress
from recallkit.measure.labelled import batches
from recallkit.measure.rows import log2_bucket
from recallkit.slicing.definitions import parse_slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.measure.labelled import LabelledTokens
    from recallkit.options import InterventionOptions
    from recallkit.slicing.definitions import Slice

# The slice whose tokens have no earlier occurrence: they borrow the places of another slice's.
FIRST_RARE = "first_rare"

DEFAULT_SLICES = ("ar_hit", "repeated_frequent", FIRST_RARE)

# Labels of sampled tokens.
COLUMNS = (
    "sequence",
    "position",
    "document",
    "distance",
    "occurrences",
    "match_length",
    "train_count",
)

_BUCKETS = 64


def sampled_slices(options: InterventionOptions) -> tuple[Slice, ...]:
    """The slices that are sampled, each limited to tokens that can be changed: those of the
    options, or the default."""
    slices = parse_slices(names(options.slice) or DEFAULT_SLICES, without=())
    return tuple(that_repeat(slice_) for slice_ in slices)


def that_repeat(slice_: Slice) -> Slice:
    """The tokens of a slice that can be sampled: those that repeat a bigram; of FIRST_RARE all."""
    if slice_.name == FIRST_RARE:
        return slice_
    columns = tuple(dict.fromkeys([*slice_.columns, "repeated"]))
    repeats = pl.col("repeated")
    return replace(
        slice_,
        columns=columns,
        predicate=lambda most: slice_.predicate(most) & repeats,
    )


def draw_samples(
    tokens: LabelledTokens,
    slices: Sequence[Slice],
    sizes: Sequence[int],
    seed: int,
) -> list[pl.DataFrame]:
    """At most so many tokens of each slice, drawn from `seed`, in the order of the text.

    Columns: COLUMNS (`distance` 0 where the bigram does not occur earlier), `row` in
    `tokens.parquet`, from 0, and `weight`: how many tokens of the slice each represents. One pass
    over the labels, in memory that grows with `sizes` alone. Raises UserError if the labels are
    damaged.
    """
    pools, rng, first = [Pool(size) for size in sizes], np.random.default_rng(seed), 0
    with progress("drawing samples", total=tokens.num_rows) as show:
        for batch in batches(tokens, columns=COLUMNS, slices=slices):
            rows = pl.DataFrame(batch.select([*COLUMNS, "slices"]))
            rows = rows.with_columns(
                pl.col("distance").fill_null(0),
                row=pl.int_range(first, first + pl.len()),
                key=pl.Series(rng.random(len(rows))),
            )
            for bit, pool in enumerate(pools):
                pool.add(rows.filter(pl.col("slices") & (1 << bit) != 0).drop("slices"))
            first += len(rows)
            show(first)
    return [pool.sample() for pool in pools]


class Pool:
    """Candidates of one slice: of each stratum those with the smallest keys, as many as could be
    sampled."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._candidates: list[pl.DataFrame] = []
        self._totals = np.zeros(_BUCKETS * _BUCKETS, np.int64)

    def add(self, rows: pl.DataFrame) -> None:
        """Adds tokens of the slice, with a random `key`."""
        distance = log2_bucket(rows["distance"].to_numpy())
        stratum = distance * _BUCKETS + log2_bucket(rows["train_count"].to_numpy())
        self._totals += np.bincount(stratum, minlength=len(self._totals))
        rows = rows.with_columns(stratum=stratum)
        every = pl.concat([*self._candidates, rows]).sort("key")
        smallest = every.group_by("stratum", maintain_order=True).head(self._size)
        self._candidates = [smallest.select(rows.columns)]  # polars puts the stratum first

    def sample(self) -> pl.DataFrame:
        """The sample of everything added."""
        # By distance and count; with few samples by distance, or all together.
        for width in (1, _BUCKETS, _BUCKETS * _BUCKETS):
            totals = self._totals.reshape(-1, width).sum(axis=1)
            if np.count_nonzero(totals) <= self._size:  # every stratum can have one
                break
        [candidates] = self._candidates
        candidates = candidates.with_columns(pl.col("stratum") // width)
        strata = candidates.group_by("stratum").len().sort("stratum")
        total = totals[strata["stratum"].to_numpy()]
        number = allocate(total, np.minimum(total, strata["len"].to_numpy()), self._size)
        strata = strata.with_columns(number=number, weight=total / number)
        rank = pl.col("key").rank("ordinal").over("stratum")
        sample = candidates.join(strata, on="stratum").filter(rank <= pl.col("number"))
        return sample.sort("row").drop("key", "stratum", "len", "number")


def allocate(totals: np.ndarray, most: np.ndarray, size: int) -> np.ndarray:
    """How many of `size` samples each stratum of `totals` tokens gets, int64 (s,): at least one, at
    most `most`, else by the square root.

    All of a stratum whose share would be more than it has; what is left over goes to the others in
    the same way. `size` >= s.
    """
    number: np.ndarray = np.minimum(most, 1)
    while (left := size - int(number.sum())) > 0 and (room := most > number).any():
        share = room * np.sqrt(totals)
        exact = left * share / share.sum()
        more = np.minimum(exact.astype(np.int64), most - number)
        # Less than one each: to those with the largest remainders, all of which have room.
        if not more.any():
            more[np.argsort(-exact, kind="stable")[:left]] = 1
        number += more
    return number
