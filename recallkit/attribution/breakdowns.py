"""Breakdowns of the gap: how tokens are divided into codes, and which codes each row of a table is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.attribution.buckets import count_thresholds, log2_bucket, match_bucket
from recallkit.config import MAX_COUNT
from recallkit.slicing.definitions import PARTITION, STANDARD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.attribution.aligned import LabelledTokens
    from recallkit.slicing.definitions import Slice

NUM_POSITION_BUCKETS = 32
LARGEST_THRESHOLD = (1 << 63) - 1
"""Training counts are 64-bit integers: no threshold need be larger."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The K rows of a table: the columns that name them, and `unions`, bool (k, K): the codes whose tokens each contains.

    `is_divided`: tokens are divided among rows, so that a row's number of them is no whole number.
    """

    keys: Mapping[str, Sequence[Any]]
    unions: np.ndarray
    is_divided: bool = False


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Tables that are made of the same codes."""

    tables: Mapping[str, Rows]

    @property
    def unions(self) -> np.ndarray:
        """The unions of all tables, side by side."""
        return np.hstack([rows.unions for rows in self.tables.values()])

    @property
    def num_codes(self) -> int:
        """k"""
        return len(self.unions)


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where labels are cut into codes: `thresholds` end the classes of training counts, of which those up to `num_rare` are rare.

    A code is a number in mixed radix: (kind of context, class of counts), (AR hit, bucket of distance, bucket of match) or
    (AR hit, bucket of position).
    """

    thresholds: Sequence[int]
    num_rare: int
    num_distances: int
    num_matches: int
    seq_len: int

    def of_counts(self, kind: np.ndarray, count_class: np.ndarray) -> np.ndarray:
        """Kinds of `context_kinds` and classes (n,) to codes, uint8 (n,)."""
        codes: np.ndarray = kind * np.uint8(len(self.thresholds)) + count_class
        return codes

    def of_places(self, ar_hit: np.ndarray, distance: np.ndarray, match: np.ndarray) -> np.ndarray:
        """AR hits and buckets (n,) to codes, int32 (n,)."""
        codes = ar_hit * np.int32(self.num_distances)
        codes += distance
        codes *= self.num_matches
        codes += match
        return codes

    def of_positions(self, ar_hit: np.ndarray, position: np.ndarray) -> np.ndarray:
        """AR hits and buckets (n,) to codes, uint8 (n,)."""
        codes: np.ndarray = ar_hit * np.uint8(NUM_POSITION_BUCKETS) + position
        return codes

    @property
    def token_codes(self) -> np.ndarray:
        """The code of a token in the breakdown into slices, for each code of counts: (k,) of NOT_REPEATED, AR_HIT, REPEATED_FREQUENT."""
        found = np.full(_NUM_KINDS * len(self.thresholds), NOT_REPEATED)
        found[: len(self.thresholds)] = REPEATED_FREQUENT
        found[: self.num_rare] = AR_HIT
        return found


_NUM_KINDS = len(PARTITION) // 2
FIRST, FIRST_BY_COUNT = "first", "first_by_count"
"""A breakdown and its rows, which are no table of their own but columns of `by_count`."""
OVERLAP = "overlap"
"""A breakdown whose codes are the requested slices, and IN_NONE: the values of a token in k of them are divided among these."""
IN_NONE = "in none of them"
NOT_REPEATED, AR_HIT, REPEATED_FREQUENT = range(3)
NUM_TOKEN_CODES = 3
"""In the breakdown into slices, each token has one of these codes, and further ones in requested slices."""


def extra_thresholds(tokens: LabelledTokens) -> list[int]:
    """Thresholds at which training counts are cut besides the powers of two: the paper's, and the one that defines AR hits."""
    return [MAX_COUNT, min(tokens.max_count, LARGEST_THRESHOLD)]


def cuts_of(tokens: LabelledTokens) -> Cuts:
    """Where the labels of `tokens` are cut."""
    thresholds = count_thresholds(extra_thresholds(tokens))
    num_rare = 1 + thresholds.index(min(tokens.max_count, LARGEST_THRESHOLD))
    longest = np.array([tokens.seq_len])
    return Cuts(thresholds, num_rare, int(log2_bucket(longest)[0]) + 1, int(match_bucket(longest)[0]) + 1, tokens.seq_len)


def breakdowns(cuts: Cuts, slices: Sequence[Slice] = ()) -> dict[str, Breakdown]:
    """The breakdowns of every comparison, all sources together; OVERLAP where two requested `slices` or more may overlap.

    FIRST has the codes of "counts" of repeated tokens once more, with sums of the first occurrence of each one's bigram in place of
    its own.
    """
    counts = {"by_count": _by_count(cuts), "by_threshold": _by_threshold(cuts), "by_partition": _by_partition(cuts)}
    return {
        "counts": Breakdown(counts),
        FIRST: Breakdown({FIRST_BY_COUNT: _first_by_count(cuts)}),
        "places": Breakdown({"by_distance": _by_distance(cuts), "by_match": _by_match(cuts)}),
        "positions": Breakdown({"by_position": _by_position(cuts)}),
        **({OVERLAP: Breakdown({"by_overlap": _by_overlap(slices)})} if len(slices) > 1 else {}),
    }


def _by_overlap(slices: Sequence[Slice]) -> Rows:
    """A row for each slice, and one for the tokens in none of them."""
    return Rows({"slice": [*(slice_.name for slice_ in slices), IN_NONE]}, np.eye(len(slices) + 1, dtype=bool), is_divided=True)


def slice_breakdown(slices: Sequence[Slice]) -> Breakdown:
    """The slices of the table `gap`, STANDARD first, and the first-occurrence control of AR hits and of all repeated tokens.

    After the codes of all tokens, each further slice has one; the last two are of AR hits and of other repeated tokens once more, with
    sums of the first occurrence of each one's bigram in place of its own.
    """
    not_repeated, hit, frequent, *own, first_of_hit, first_of_frequent = np.eye(NUM_TOKEN_CODES + len(slices) + 2, dtype=bool)
    standard = [not_repeated | hit | frequent, hit, not_repeated | frequent, hit | frequent]
    names = [slice_.name for slice_ in (*STANDARD, *slices)]
    return Breakdown(
        {
            "gap": Rows({"slice": names}, np.stack([*standard, *own], axis=1)),
            "control": Rows({"slice": ["ar_hit", "repeated"]}, np.stack([first_of_hit, first_of_hit | first_of_frequent], axis=1)),
        }
    )


def _by_count(cuts: Cuts) -> Rows:
    """Log2 buckets of counts, of repeated tokens and of others."""
    highs = [1 << (threshold - 1).bit_length() if threshold else 0 for threshold in cuts.thresholds]
    every = sorted(set(highs))
    in_bucket = np.array(highs)[:, None] == np.array(every)  # (classes, buckets)
    nothing = np.zeros_like(in_bucket)
    keys: dict[str, Sequence[Any]] = {
        "repeated": [True] * len(every) + [False] * len(every),
        "low": [high // 2 + 1 if high else 0 for high in every] * 2,
        "high": [min(high, LARGEST_THRESHOLD) for high in every] * 2,
    }
    return Rows(keys, np.block([[in_bucket, nothing], *[[nothing, in_bucket]] * (_NUM_KINDS - 1)]))


def _first_by_count(cuts: Cuts) -> Rows:
    """The rows of repeated tokens in `_by_count`."""
    every = _by_count(cuts)
    half = every.unions.shape[1] // 2
    return Rows({name: values[:half] for name, values in every.keys.items()}, every.unions[:, :half])


def _by_threshold(cuts: Cuts) -> Rows:
    """Repeated tokens up to each threshold."""
    num_classes = len(cuts.thresholds)
    unions = np.zeros((_NUM_KINDS * num_classes, num_classes), bool)
    unions[:num_classes] = np.triu(np.ones((num_classes, num_classes), bool))
    return Rows({"threshold": cuts.thresholds}, unions)


def _by_partition(cuts: Cuts) -> Rows:
    """Each kind of context, rare and frequent bigrams apart."""
    is_rare = np.arange(len(cuts.thresholds)) < cuts.num_rare
    return Rows({"slice": [class_.name for class_ in PARTITION]}, np.kron(np.eye(_NUM_KINDS, dtype=bool), np.stack([is_rare, ~is_rare], 1)))


def _by_distance(cuts: Cuts) -> Rows:
    """Log2 buckets from 1 on: tokens that repeat nothing have no distance and no row."""
    buckets = {bucket: ((1 << bucket - 1) // 2 + 1, 1 << bucket - 1) for bucket in range(1, cuts.num_distances)}
    unions = np.kron(np.eye(2 * cuts.num_distances, dtype=bool), np.ones((cuts.num_matches, 1), bool))
    return _of_hits("ar_hit", buckets, unions, cuts.num_distances)


def _by_match(cuts: Cuts) -> Rows:
    """0, 1, 2 and 3, then [2^(b-2), 2^(b-1))."""
    buckets = {b: (b, b) if b < 4 else (1 << b - 2, (1 << b - 1) - 1) for b in range(cuts.num_matches)}
    one = np.tile(np.eye(cuts.num_matches, dtype=bool), (cuts.num_distances, 1))
    return _of_hits("ar_hit", buckets, np.kron(np.eye(2, dtype=bool), one), cuts.num_matches)


def _by_position(cuts: Cuts) -> Rows:
    """Bucket b contains the positions p of 1..seq_len with floor((p - 1) * NUM_POSITION_BUCKETS / seq_len) = b."""
    ends = [-(-bucket * cuts.seq_len // NUM_POSITION_BUCKETS) for bucket in range(NUM_POSITION_BUCKETS + 1)]
    buckets = {bucket: (1 + ends[bucket], ends[bucket + 1]) for bucket in range(NUM_POSITION_BUCKETS)}
    return _of_hits("slice", buckets, np.eye(2 * NUM_POSITION_BUCKETS, dtype=bool), NUM_POSITION_BUCKETS)


def _of_hits(column: str, buckets: Mapping[int, tuple[int, int]], unions: np.ndarray, num_buckets: int) -> Rows:
    """Rows of bucket -> (low, high), both included, AR hits first; of `unions` (k, 2 * num_buckets) AR hits have the second half."""
    values = ("ar_hit", "other") if column == "slice" else (True, False)
    lows, highs = ([end[side] for end in buckets.values()] for side in (0, 1))
    places = [half * num_buckets + bucket for half in (1, 0) for bucket in buckets]
    keys: dict[str, Sequence[Any]] = {column: [value for value in values for _ in buckets], "low": lows * 2, "high": highs * 2}
    return Rows(keys, unions[:, places])
