"""Breakdowns of the gap: how tokens are divided into codes, and which codes each row of a table is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.attribution.buckets import count_thresholds
from recallkit.config import MAX_COUNT
from recallkit.slicing.definitions import PARTITION, STANDARD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.attribution.aligned import LabelledTokens
    from recallkit.slicing.definitions import Slice

NUM_POSITION_BUCKETS = 32
NUM_BUCKETS = 64
"""Codes of buckets by powers of two, of distances and of matches: more than any sequence has."""
LARGEST_THRESHOLD = (1 << 63) - 1
"""Training counts are 64-bit integers: no threshold need be larger."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The K rows of a table: the columns that name them, and `unions`, bool (k, K): the codes whose tokens each contains."""

    keys: Mapping[str, Sequence[Any]]
    unions: np.ndarray


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Tables that are made of the same k codes."""

    num_codes: int
    tables: Mapping[str, Rows]

    @property
    def unions(self) -> np.ndarray:
        """The unions of all tables, side by side."""
        return np.hstack([rows.unions for rows in self.tables.values()])


def extra_thresholds(tokens: LabelledTokens) -> list[int]:
    """Thresholds at which training counts are cut besides the powers of two: the paper's, and the one that defines AR hits."""
    return [MAX_COUNT, min(tokens.max_count, LARGEST_THRESHOLD)]


def breakdowns(tokens: LabelledTokens) -> dict[str, Breakdown]:
    """The breakdowns of every comparison, all sources together. The hits' codes come last: `ar_hit * NUM_BUCKETS + bucket`."""
    return {
        "counts": _by_count(count_thresholds(extra_thresholds(tokens))),
        "distances": _by_bucket("by_distance", "ar_hit", _distances()),
        "matches": _by_bucket("by_match", "ar_hit", _matches()),
        "positions": _by_bucket("by_position", "slice", _positions(tokens.seq_len)),
        "partition": Breakdown(len(PARTITION), {"by_partition": _single({"slice": [class_.name for class_ in PARTITION]})}),
    }


def slice_rows(slices: Sequence[Slice]) -> Rows:
    """The slices of the table `gap`, STANDARD first: code 0 is other tokens, 1 AR hits, and each further slice has one of its own."""
    unions = np.zeros((2 + len(slices), len(STANDARD) + len(slices)), bool)
    unions[:2, :3] = [[True, False, True], [True, True, False]]
    unions[2:, 3:] = np.eye(len(slices), dtype=bool)
    return Rows({"slice": [slice_.name for slice_ in (*STANDARD, *slices)]}, unions)


def _single(keys: Mapping[str, Sequence[Any]]) -> Rows:
    """One row for each code."""
    return Rows(keys, np.eye(len(next(iter(keys.values()))), dtype=bool))


def _by_count(thresholds: Sequence[int]) -> Breakdown:
    """Codes `repeated * c + class` of the c classes of counts that end with `thresholds`: log2 buckets, and repeated tokens up to each."""
    num_classes = len(thresholds)
    highs = [1 << (threshold - 1).bit_length() if threshold else 0 for threshold in thresholds]
    every = sorted(set(highs))
    in_bucket = np.array(highs)[:, None] == np.array(every)  # (c, buckets)
    nothing = np.zeros_like(in_bucket)
    keys: dict[str, Sequence[Any]] = {
        "repeated": [True] * len(every) + [False] * len(every),
        "low": [high // 2 + 1 if high else 0 for high in every] * 2,
        "high": [min(high, LARGEST_THRESHOLD) for high in every] * 2,
    }
    by_count = Rows(keys, np.block([[nothing, in_bucket], [in_bucket, nothing]]))
    up_to = np.triu(np.ones((num_classes, num_classes), bool))
    by_threshold = Rows({"threshold": thresholds}, np.vstack([np.zeros_like(up_to), up_to]))
    return Breakdown(2 * num_classes, {"by_count": by_count, "by_threshold": by_threshold})


def _by_bucket(table: str, hit: str, buckets: Mapping[int, tuple[int, int]]) -> Breakdown:
    """Codes of AR hits and of other tokens by bucket -> (low, high), both included; `hit`: the column that tells which."""
    values = ("ar_hit", "other") if hit == "slice" else (True, False)
    lows, highs = ([end[side] for end in buckets.values()] for side in (0, 1))
    keys: dict[str, Sequence[Any]] = {hit: [value for value in values for _ in buckets], "low": lows * 2, "high": highs * 2}
    unions = np.zeros((2 * NUM_BUCKETS, 2 * len(buckets)), bool)
    for half, is_hit in enumerate((1, 0)):
        for place, bucket in enumerate(buckets):
            unions[is_hit * NUM_BUCKETS + bucket, half * len(buckets) + place] = True
    return Breakdown(2 * NUM_BUCKETS, {table: Rows(keys, unions)})


def _distances() -> dict[int, tuple[int, int]]:
    """Log2 buckets from 1 on: tokens that repeat nothing have no distance and no row."""
    return {bucket: ((1 << bucket - 1) // 2 + 1, 1 << bucket - 1) for bucket in range(1, NUM_BUCKETS)}


def _matches() -> dict[int, tuple[int, int]]:
    """0, 1, 2 and 3, then [2^(b-2), 2^(b-1))."""
    return {b: (b, b) if b < 4 else (1 << b - 2, (1 << b - 1) - 1) for b in range(NUM_BUCKETS)}


def _positions(seq_len: int) -> dict[int, tuple[int, int]]:
    """Bucket b contains the positions p of 1..seq_len with floor((p - 1) * NUM_POSITION_BUCKETS / seq_len) = b."""
    ends = [-(-bucket * seq_len // NUM_POSITION_BUCKETS) for bucket in range(NUM_POSITION_BUCKETS + 1)]
    return {bucket: (1 + ends[bucket], ends[bucket + 1]) for bucket in range(NUM_POSITION_BUCKETS)}
