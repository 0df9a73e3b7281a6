"""Which tokens each row of a table is made of: classes of tokens, as `queries/measure/` groups them, and unions of these classes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.config import MAX_COUNT
from recallkit.slicing.definitions import CONTEXT_CLASSES, PARTITION, STANDARD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from recallkit.slicing.definitions import Slice

NUM_POSITION_BUCKETS = 32
LARGEST_THRESHOLD = (1 << 63) - 1
"""Training counts are 64-bit integers: no threshold need be larger."""
IN_NONE = "in none of them"


@dataclass(frozen=True, slots=True)
class Rows:
    """The K rows of a table: the columns that name them, and `unions` (k, K): whether a row contains each class, or what part of it."""

    keys: Mapping[str, Sequence[Any]]
    unions: np.ndarray

    def __len__(self) -> int:
        """K"""
        return int(self.unions.shape[1])


def log2_bucket(values: np.ndarray) -> np.ndarray:
    """Bucket of each whole number, int64 (n,): 0 -> 0, 1 -> 1, 2 -> 2, 3-4 -> 3, 5-8 -> 4: (2^(b-2), 2^(b-1)] -> b."""
    _, exponents = np.frexp(np.maximum(np.asarray(values, np.float64) - 0.5, 0.25))  # v - 1/2 = f 2^e with 1/2 <= f < 1
    buckets: np.ndarray = exponents.astype(np.int64) + 1
    return buckets


# ------------------------------------------------------------------------------------------------------ slices (sum_by_slice)


class SliceClasses:
    """The classes of `sum_by_slice` that occur in `found`: repeated or not, an AR hit or not, and the set of requested slices."""

    def __init__(self, found: pa.Table, slices: Sequence[Slice]) -> None:
        columns = np.stack([found[name].to_numpy().astype(np.int64) for name in ("repeated", "ar_hit", "slices")])
        (repeated, hit, sets), self.code = np.unique(columns, axis=1, return_inverse=True)
        self._held = sets[:, None] >> np.arange(len(slices)) & 1  # (k, s)
        self._standard = np.column_stack([np.ones_like(hit), hit, 1 - hit, repeated])
        self._slices = slices

    def by_slice(self) -> Rows:
        """The slices of every comparison, STANDARD, and then the requested ones."""
        return Rows({"slice": [slice_.name for slice_ in (*STANDARD, *self._slices)]}, np.hstack([self._standard, self._held]))

    def first(self) -> Rows:
        """The slices that have a first-occurrence control."""
        return Rows({"slice": ["ar_hit", "repeated"]}, self._standard[:, [1, 3]])

    def by_overlap(self) -> Rows:
        """A row for each requested slice, and one for the tokens in none: a token in k of them is divided among these."""
        times = self._held.sum(axis=1, keepdims=True)
        parts = np.hstack([self._held / np.maximum(times, 1), times == 0])
        return Rows({"slice": [*(slice_.name for slice_ in self._slices), IN_NONE]}, parts)


# --------------------------------------------------------------------------------------- training counts (sum_by_count), places


class Classes:
    """The classes of `sum_by_count` and `sum_by_place`, numbered in mixed radix, of sequences of `seq_len` predictions.

    Class 61 of `sum_by_count`, with 58 classes of training counts, is (1, 3): context class 1, counts up to the third threshold but not
    the second. `most`: the largest training count of an AR hit.
    """

    def __init__(self, max_count: int, seq_len: int) -> None:
        self.most, self.seq_len = min(max_count, LARGEST_THRESHOLD), seq_len
        near = {"quarter": self.most // 4, "half": self.most // 2, "most": self.most, "double": 2 * self.most, "fourfold": 4 * self.most}
        cuts = {"papers": MAX_COUNT, **{name: min(cut, LARGEST_THRESHOLD) for name, cut in near.items()}}
        self.extra = list(cuts.values())
        """Thresholds besides 0 and the powers of two: the papers', and the one of AR hits, from a quarter of it to four times it."""
        self.thresholds = sorted({0, *(1 << power for power in range(52)), *self.extra})
        self.num_counts = len(CONTEXT_CLASSES) * len(self.thresholds)
        self.places: dict[str, Sequence[int]] = {
            "distance": [1 << power for power in range(int(log2_bucket(np.array([seq_len]))[0]))],
            "match_length": [0, 1, 2, 3, *(1 << power for power in range(2, seq_len.bit_length()))],
            "position": range(NUM_POSITION_BUCKETS),
        }
        """The classes of each column of `sum_by_place`, as it names them."""
        self.of_counts = cuts
        self.of_places = {"buckets": NUM_POSITION_BUCKETS, "seq_len": seq_len}
        """The parameters of the queries."""

    def number_counts(self, found: pa.Table) -> np.ndarray:
        """The class of each row of `sum_by_count`: context class, then class of counts."""
        import pyarrow as pa
        import pyarrow.compute as pc

        context = pc.index_in(found["context_class"], value_set=pa.array(CONTEXT_CLASSES)).to_numpy()
        numbers: np.ndarray = context * len(self.thresholds) + np.searchsorted(self.thresholds, found["largest_count"].to_numpy())
        return numbers

    def number_places(self, found: pa.Table, column: str) -> np.ndarray:
        """The class of each row of `sum_by_place`, all of which have one of `column`: AR hit or not, then the class."""
        ends = self.places[column]
        numbers: np.ndarray = found["ar_hit"].to_numpy().astype(np.int64) * len(ends) + np.searchsorted(
            list(ends), found[column].to_numpy()
        )
        return numbers

    def by_count(self) -> Rows:
        """Log2 buckets of counts, of repeated tokens and of others."""
        highs = [1 << (threshold - 1).bit_length() if threshold else 0 for threshold in self.thresholds]
        every = sorted(set(highs))
        in_bucket = np.array(highs)[:, None] == np.array(every)  # (classes of counts, buckets)
        is_repeated = np.arange(len(CONTEXT_CLASSES))[:, None] == CONTEXT_CLASSES.index("bigram")
        keys: dict[str, Sequence[Any]] = {
            "repeated": [True] * len(every) + [False] * len(every),
            "low": [high // 2 + 1 if high else 0 for high in every] * 2,
            "high": [min(high, LARGEST_THRESHOLD) for high in every] * 2,
        }
        return Rows(keys, np.kron(np.hstack([is_repeated, ~is_repeated]), in_bucket))

    def by_threshold(self) -> Rows:
        """Repeated tokens up to each threshold."""
        num_classes = len(self.thresholds)
        unions = np.zeros((self.num_counts, num_classes), bool)
        unions[:num_classes] = np.triu(np.ones((num_classes, num_classes), bool))
        return Rows({"threshold": self.thresholds}, unions)

    def by_partition(self) -> Rows:
        """Each context class, rare and frequent bigrams apart."""
        is_rare = np.array(self.thresholds) <= self.most
        unions = np.kron(np.eye(len(CONTEXT_CLASSES), dtype=bool), np.stack([is_rare, ~is_rare], 1))
        return Rows({"slice": [class_.name for class_ in PARTITION]}, unions)

    def by_distance(self) -> Rows:
        """Log2 buckets from 1 on: tokens that repeat nothing have no distance and no row."""
        return _of_hits("ar_hit", [(high // 2 + 1, high) for high in self.places["distance"]])

    def by_match(self) -> Rows:
        """0, 1, 2 and 3, then [2^b, 2^(b+1))."""
        return _of_hits("ar_hit", [(low, low if low < 4 else 2 * low - 1) for low in self.places["match_length"]])

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
