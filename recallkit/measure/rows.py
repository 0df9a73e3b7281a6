"""The rows of every table as data: the columns that name them, and which tokens each one has.

A query of `queries/measure/` adds tokens up by cluster and class, a combination of a few columns. A
row of a table has the tokens of some classes: those for which an expression over the columns of
both is true.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from recallkit.config import MAX_COUNT
from recallkit.slicing.definitions import CONTEXT_CLASSES, PARTITION, STANDARD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.slicing.definitions import Slice

NUM_POSITION_BUCKETS = 32
LARGEST_THRESHOLD = (1 << 63) - 1
"""Training counts are 64-bit integers: no threshold need be larger."""
ALL, OTHER_SOURCES = "ALL", "other sources"
"""The row of all sources, and that of those beyond the MAX_RESAMPLED_SOURCES largest."""

_POWERS = [0, *(1 << power for power in range(52))]


@dataclass(frozen=True, slots=True)
class Rows:
    """The K rows of a table: `keys` name them, and `has`, over columns of `keys` and of classes,
    says what they have.

    by: the columns of the query's answer that make a class.
    """

    by: Sequence[str]
    keys: pl.DataFrame
    has: pl.Expr

    def __len__(self) -> int:
        """The number of rows."""
        return self.keys.height

    def parts(self, classes: pl.DataFrame) -> np.ndarray:
        """Which of k classes each row has, float64 (k, K): 1 or 0."""
        pairs = classes.join(self.keys, how="cross", suffix="_of_row")
        has = pairs.select(self.has.cast(pl.Float64).fill_null(0.0)).to_series()
        return has.to_numpy().reshape(classes.height, self.keys.height)


def log2_bucket(values: np.ndarray) -> np.ndarray:
    """Bucket of each whole number, int64 (n,): 0 -> 0, 1 -> 1, 2 -> 2, 3-4 -> 3, 5-8 -> 4:
    (2^(b-2), 2^(b-1)] -> b."""
    # v - 1/2 = f 2^e, 1/2 <= f < 1
    _, exponents = np.frexp(np.maximum(np.asarray(values, np.float64) - 0.5, 0.25))
    buckets: np.ndarray = exponents.astype(np.int64) + 1
    return buckets


# ---------------------------------------------------------------------------- slices (sum_by_slice)


def slice_rows(slices: Sequence[Slice]) -> Rows:
    """The slices of every comparison, STANDARD, and then those requested: bit i of a class's
    `slices` is that of row i."""
    names = [slice_.name for slice_ in (*STANDARD, *slices)]
    keys = pl.DataFrame({"slice": names, "bit": [1 << place for place in range(len(names))]})
    return Rows(["slices"], keys, (pl.col("slices") & pl.col("bit")) != 0)


def source_rows(slices: Sequence[Slice], sources: Sequence[str]) -> Rows:
    """The same slices of all sources together, then of each; a class's `place` is that of its
    source, from 1 on."""
    places = pl.DataFrame({"source": [ALL, *sources], "place": np.arange(1 + len(sources))})
    of_slices = slice_rows(slices)
    is_of_source = (pl.col("place_of_row") == 0) | (pl.col("place_of_row") == pl.col("place"))
    return Rows(
        ["place", "slices"], places.join(of_slices.keys, how="cross"), is_of_source & of_slices.has
    )


# ------------------------------------------------------------------- training counts (sum_by_count)


def count_cuts(max_count: int) -> dict[str, int]:
    """Thresholds besides 0 and the powers of two, parameters of `sum_by_count`.

    The papers', and `most`, the largest training count of an AR hit, from a quarter of it to four
    times it.
    """
    most = min(max_count, LARGEST_THRESHOLD)
    cuts = {"papers": MAX_COUNT, "quarter": most // 4, "half": most // 2, "most": most}
    cuts |= {
        "double": min(2 * most, LARGEST_THRESHOLD),
        "fourfold": min(4 * most, LARGEST_THRESHOLD),
    }
    return cuts


def count_rows(max_count: int) -> dict[str, Rows]:
    """Tables by training count: log2 buckets, repeated bigrams up to each threshold, and the
    classes of PARTITION."""
    by = ["context_class", "largest_count"]
    is_repeated = pl.col("context_class") == "bigram"
    cuts = count_cuts(max_count)
    buckets = pl.DataFrame(
        {"low": [power // 2 + 1 if power else 0 for power in _POWERS], "high": _POWERS}
    )
    repeated = pl.DataFrame({"repeated": [True, False]})
    thresholds = pl.DataFrame({"threshold": sorted({*_POWERS, *cuts.values()})})
    kinds = [(kind, is_rare) for kind in CONTEXT_CLASSES for is_rare in (True, False)]
    names = [class_.name for class_ in PARTITION]
    partition = pl.DataFrame(
        {
            "slice": names,
            "kind": [kind for kind, _ in kinds],
            "is_rare": [rare for _, rare in kinds],
        }
    )
    count = pl.col("largest_count")
    return {
        "by_count": Rows(
            by,
            repeated.join(buckets, how="cross"),
            (pl.col("repeated") == is_repeated) & count.is_between(pl.col("low"), pl.col("high")),
        ),
        "by_threshold": Rows(by, thresholds, is_repeated & (count <= pl.col("threshold"))),
        "by_partition": Rows(
            by,
            partition,
            (pl.col("context_class") == pl.col("kind"))
            & ((count <= cuts["most"]) == pl.col("is_rare")),
        ),
    }


# --------------------------------------------------------- distance, match, position (sum_by_place)


def place_rows(seq_len: int) -> dict[str, Rows]:
    """Tables by distance, length of match and position in sequences of `seq_len` predictions, AR
    hits apart.

    Distances are in buckets from 1 on, (2^(b-1), 2^b]: tokens that repeat nothing have none.
    Matches: 0, 1, 2 and 3, then [2^b, 2^(b+1)). Positions p of 1..seq_len: bucket b has those with
    floor((p - 1) * 32 / seq_len) = b.
    """
    distances = [1 << power for power in range(int(log2_bucket(np.array([seq_len]))[0]))]
    matches = [0, 1, 2, 3, *(1 << power for power in range(2, seq_len.bit_length()))]
    ends = [
        -(-bucket * seq_len // NUM_POSITION_BUCKETS) for bucket in range(NUM_POSITION_BUCKETS + 1)
    ]
    ranges = {
        "distance": [(end, end // 2 + 1, end) for end in distances],
        "match_length": [(low, low, low if low < 4 else 2 * low - 1) for low in matches],
        "position": [(bucket, 1 + low, high) for bucket, (low, high) in enumerate(pairwise(ends))],
    }
    hits = pl.DataFrame({"slice": ["ar_hit", "other"], "is_hit": [True, False]})
    tables = {}
    for column, buckets in ranges.items():
        keys = hits.join(
            pl.DataFrame(buckets, schema=["bucket", "low", "high"], orient="row"), how="cross"
        )
        is_bucket = (pl.col("ar_hit") == pl.col("is_hit")) & (pl.col(column) == pl.col("bucket"))
        tables[f"by_{column.removesuffix('_length')}"] = Rows(["ar_hit", column], keys, is_bucket)
    return tables
