"""Which classes of tokens each row of a table is made of. The classes themselves are in `queries/measure/`.

A class has a number in mixed radix: class 57 of 3 context classes with 54 classes of counts is (1, 3). A row is a union of classes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.config import MAX_COUNT
from recallkit.slicing.definitions import PARTITION, STANDARD
from recallkit.slicing.label_kernels import CONTEXT_CLASSES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from recallkit.slicing.definitions import Slice

NUM_POSITION_BUCKETS = 32
LARGEST_THRESHOLD = (1 << 63) - 1
"""Training counts are 64-bit integers: no threshold need be larger."""
IN_NONE = "in none of them"
NOT_REPEATED, AR_HIT, REPEATED_FREQUENT = range(3)
NUM_STANDARD = 3
"""Classes that make up the slices of every comparison; each requested slice is one more."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The K rows of a table: the columns that name them, and `unions`, bool (k, K): the classes whose tokens each contains.

    `is_divided`: tokens are divided among rows, so that a row's number of them is no whole number.
    """

    keys: Mapping[str, Sequence[Any]]
    unions: np.ndarray
    is_divided: bool = False

    def __len__(self) -> int:
        """K"""
        return int(self.unions.shape[1])


def log2_bucket(values: np.ndarray) -> np.ndarray:
    """Bucket of each whole number, int64 (n,): 0 -> 0, 1 -> 1, 2 -> 2, 3-4 -> 3, 5-8 -> 4: (2^(b-2), 2^(b-1)] -> b."""
    _, exponents = np.frexp(np.maximum(np.asarray(values, np.float64) - 0.5, 0.25))  # v - 1/2 = f 2^e with 1/2 <= f < 1
    buckets: np.ndarray = exponents.astype(np.int64) + 1
    return buckets


class Classes:
    """The classes of a set of labels: with sequences of `seq_len` predictions and AR hits of at most `max_count` training occurrences."""

    def __init__(self, max_count: int, seq_len: int) -> None:
        self.most, self.seq_len = min(max_count, LARGEST_THRESHOLD), seq_len
        self.extra = [MAX_COUNT, self.most]
        """Thresholds besides 0 and the powers of two: the papers', and the one of AR hits."""
        self.thresholds = sorted({0, *(1 << power for power in range(52)), *self.extra})
        self._distances = [1 << power for power in range(int(log2_bucket(np.array([seq_len]))[0]))]
        self._matches = [0, 1, 2, 3, *(1 << power for power in range(2, seq_len.bit_length()))]

    # ------------------------------------------------------------------------------------------- numbers of classes

    def parameters(self, query: str) -> dict[str, int]:
        """The parameters of a query in `queries/measure/`."""
        if query == "sum_by_count":
            return {"papers": MAX_COUNT, "most": self.most}
        return {"most": self.most, "buckets": NUM_POSITION_BUCKETS, "seq_len": self.seq_len} if query == "sum_by_place" else {}

    def of_counts(self, found: pa.Table) -> np.ndarray:
        """The class of each row of `sum_by_count`: context class, then class of counts."""
        import pyarrow as pa
        import pyarrow.compute as pc

        context = pc.index_in(found["context_class"], value_set=pa.array(CONTEXT_CLASSES)).to_numpy()
        numbers: np.ndarray = context * len(self.thresholds) + np.searchsorted(self.thresholds, found["largest_count"].to_numpy())
        return numbers

    def of_places(self, found: pa.Table, column: str) -> tuple[np.ndarray, np.ndarray]:
        """The rows of `sum_by_place` that have a class of `column`, and it: AR hit or not, then the class."""
        ends = {"distance": self._distances, "match_length": self._matches, "position": range(NUM_POSITION_BUCKETS)}[column]
        rows = np.flatnonzero(found[column].is_valid().to_numpy())
        taken = found.take(rows)
        hit = taken["ar_hit"].to_numpy().astype(np.int64)
        return rows, hit * len(ends) + np.searchsorted(list(ends), taken[column].to_numpy())

    @property
    def standard(self) -> np.ndarray:
        """NOT_REPEATED, AR_HIT or REPEATED_FREQUENT of each class of counts, (k,)."""
        num_classes = len(self.thresholds)
        found = np.full(len(CONTEXT_CLASSES) * num_classes, NOT_REPEATED)
        found[:num_classes] = np.where(np.array(self.thresholds) <= self.most, AR_HIT, REPEATED_FREQUENT)
        return found

    # -------------------------------------------------------------------------------------------------- rows of tables

    def by_count(self) -> Rows:
        """Log2 buckets of counts, of repeated tokens and of others."""
        highs = [1 << (threshold - 1).bit_length() if threshold else 0 for threshold in self.thresholds]
        every = sorted(set(highs))
        in_bucket = np.array(highs)[:, None] == np.array(every)  # (classes, buckets)
        nothing = np.zeros_like(in_bucket)
        keys: dict[str, Sequence[Any]] = {
            "repeated": [True] * len(every) + [False] * len(every),
            "low": [high // 2 + 1 if high else 0 for high in every] * 2,
            "high": [min(high, LARGEST_THRESHOLD) for high in every] * 2,
        }
        return Rows(keys, np.block([[in_bucket, nothing], *[[nothing, in_bucket]] * (len(CONTEXT_CLASSES) - 1)]))

    def first_by_count(self) -> Rows:
        """The rows of repeated tokens in `by_count`."""
        every = self.by_count()
        half = len(every) // 2
        return Rows({name: values[:half] for name, values in every.keys.items()}, every.unions[:, :half])

    def by_threshold(self) -> Rows:
        """Repeated tokens up to each threshold."""
        num_classes = len(self.thresholds)
        unions = np.zeros((len(CONTEXT_CLASSES) * num_classes, num_classes), bool)
        unions[:num_classes] = np.triu(np.ones((num_classes, num_classes), bool))
        return Rows({"threshold": self.thresholds}, unions)

    def by_partition(self) -> Rows:
        """Each context class, rare and frequent bigrams apart."""
        is_rare = np.array(self.thresholds) <= self.most
        unions = np.kron(np.eye(len(CONTEXT_CLASSES), dtype=bool), np.stack([is_rare, ~is_rare], 1))
        return Rows({"slice": [class_.name for class_ in PARTITION]}, unions)

    def by_distance(self) -> Rows:
        """Log2 buckets from 1 on: tokens that repeat nothing have no distance and no row."""
        return _of_hits("ar_hit", [(high // 2 + 1, high) for high in self._distances])

    def by_match(self) -> Rows:
        """0, 1, 2 and 3, then [2^b, 2^(b+1))."""
        return _of_hits("ar_hit", [(low, low if low < 4 else 2 * low - 1) for low in self._matches])

    def by_position(self) -> Rows:
        """Bucket b contains the positions p of 1..seq_len with floor((p - 1) * NUM_POSITION_BUCKETS / seq_len) = b."""
        ends = [-(-bucket * self.seq_len // NUM_POSITION_BUCKETS) for bucket in range(NUM_POSITION_BUCKETS + 1)]
        return _of_hits("slice", [(1 + low, high) for low, high in itertools.pairwise(ends)])


def _of_hits(column: str, buckets: Sequence[tuple[int, int]]) -> Rows:
    """A row for each bucket low..high, both included, of AR hits and then of other tokens; of the classes AR hits have the second half."""
    values = ("ar_hit", "other") if column == "slice" else (True, False)
    keys: dict[str, Sequence[Any]] = {column: [value for value in values for _ in buckets]}
    keys |= {"low": [low for low, _ in buckets] * 2, "high": [high for _, high in buckets] * 2}
    return Rows(keys, np.roll(np.eye(2 * len(buckets), dtype=bool), len(buckets), axis=1))


def by_slice(slices: Sequence[Slice]) -> Rows:
    """The slices of the table `gap`, STANDARD first, from the classes NOT_REPEATED, AR_HIT, REPEATED_FREQUENT and one a requested slice."""
    not_repeated, hit, frequent, *own = np.eye(NUM_STANDARD + len(slices), dtype=bool)
    standard = [not_repeated | hit | frequent, hit, not_repeated | frequent, hit | frequent]
    return Rows({"slice": [slice_.name for slice_ in (*STANDARD, *slices)]}, np.stack([*standard, *own], axis=1))


def first_of_slices() -> Rows:
    """The slices that have a first-occurrence control, from the same three classes, with sums of first occurrences."""
    every = by_slice(())
    names = ["ar_hit", "repeated"]
    return Rows({"slice": names}, every.unions[:, [list(every.keys["slice"]).index(name) for name in names]])


def by_overlap(slices: Sequence[Slice]) -> Rows:
    """A row for each slice, and one for the tokens in none of them: a token in k of them is divided among these."""
    return Rows({"slice": [*(slice_.name for slice_ in slices), IN_NONE]}, np.eye(len(slices) + 1, dtype=bool), is_divided=True)
