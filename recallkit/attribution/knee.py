"""The knee: the training count from which on recalling a bigram from the context no longer helps a model, because it has memorised it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit.display.cells import abbreviate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

WITHIN = 0.5
"""Nats per token within which two costs are the same. Repetitions are a little cheaper also without any recall, because a context is
about something: by 0.0 to 0.55 nats at every training count for models of the zoo that learnt no recall (Hyena, RWKV, BaseConv)."""

_MOST_LISTED = 10
"""Models whose knees are all in the sentence."""

MIN_TOKENS = 100
"""Buckets of fewer repeated tokens are left out: with single differences of some 4 nats, their mean is uncertain by more than 0.4."""


class Bucket(NamedTuple):
    """The repeated tokens of a bucket of training counts `low`..`high`, and what their first occurrences cost more, in nats per token."""

    low: int
    high: int
    tokens: int
    excess: float


@dataclass(frozen=True, slots=True)
class Knee:
    """`count`: the knee, None if there is none. It was looked for among counts from `smallest` to `largest`, None if there were none."""

    count: int | None
    smallest: int | None
    largest: int | None

    def __str__(self) -> str:
        if self.count is None:
            return "–" if self.largest is None else f"above {abbreviate(self.largest)}"
        return f"at most {abbreviate(self.count)}" if self.count == self.smallest != 0 else abbreviate(self.count)


def find_knee(buckets: Sequence[Bucket]) -> Knee:
    """The smallest training count at and above which first occurrences cost at most WITHIN nats more than repetitions.

    `buckets` are in the order of their counts; those with fewer than MIN_TOKENS are left out. A bigram that is more frequent in
    training is not memorised worse, so that the excess of first occurrences falls with the count, and what rises is noise: it is
    replaced by the falling sequence that is nearest to it in squares weighted by tokens (isotonic regression), which crosses WITHIN at
    most once. Between the two buckets around the crossing, log2(1 + count) is interpolated linearly; the place of a bucket is the
    middle of its ends there.
    If not even the rarest bigrams' excess is above WITHIN, the knee is at most the smallest count.
    """
    kept = [bucket for bucket in buckets if bucket.tokens >= MIN_TOKENS]
    excess = _nearest_falling([bucket.excess for bucket in kept], [bucket.tokens for bucket in kept])
    if not kept:
        return Knee(None, None, None)
    looked_at = kept[0].low, kept[-1].high
    if excess[-1] > WITHIN:
        return Knee(None, *looked_at)
    below = next(place for place, nats in enumerate(excess) if nats <= WITHIN)
    if below == 0:
        return Knee(kept[0].low, *looked_at)
    start, end = _place(kept[below - 1]), _place(kept[below])
    passed = (excess[below - 1] - WITHIN) / (excess[below - 1] - excess[below])
    return Knee(round(2 ** (start + passed * (end - start)) - 1), *looked_at)


def _nearest_falling(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The sequence that never rises and is nearest to `values`, by pooling neighbours that rise (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        size = 1
        while pools and pools[-1][0] <= value:
            other, other_weight, other_size = pools.pop()
            value = (value * weight + other * other_weight) / (weight + other_weight)
            weight, size = weight + other_weight, size + other_size
        pools.append((value, weight, size))
    return [value for value, _, size in pools for _ in range(size)]


def _place(bucket: Bucket) -> float:
    return (math.log2(1 + bucket.low) + math.log2(1 + bucket.high)) / 2


def knees(by_count: pl.DataFrame) -> dict[str, Knee]:
    """The knee of the reference and of each model, from the table `by_count` of a comparison.

    The two costs are of the same bigrams in the same sequences: the mean NLL of repeated tokens, and of the first occurrences of
    their bigrams (`nll_first_*`), where nothing can be recalled. So a model that ignores its context has a knee of 0.
    """
    found: dict[str, Knee] = {}
    for (reference, model), rows in by_count.filter(by_count["repeated"]).sort("low").group_by("reference", "model", maintain_order=True):
        sides = {"reference": reference, "model": model}
        found |= {str(name): find_knee([_bucket(row, side) for row in rows.to_dicts()]) for side, name in sides.items()}
    return found


def describe_knees(by_count: pl.DataFrame) -> str | None:
    """A sentence with the knee of the reference and of every model, of many models the least and the largest; None if none is known."""
    found = knees(by_count)
    if all(knee.largest is None for knee in found.values()):
        return None
    if len(found) > _MOST_LISTED:
        known = [name for name, knee in found.items() if knee.largest is not None]
        placed = sorted(known, key=lambda name: math.inf if (count := found[name].count) is None else count)
        listed = f"from {found[placed[0]]} ({placed[0]}) to {found[placed[-1]]} ({placed[-1]})"
    else:
        listed = ", ".join(f"{name} {knee}" for name, knee in found.items())
    what = f"the training count from which on a bigram's first occurrence costs at most {WITHIN} nats more than its repetitions"
    return f"Knee, {what}: {listed}."


def knee_facts(by_count: pl.DataFrame) -> dict[str, dict[str, int | None]]:
    """`knees` as manifests and JSON have them: by model, `count`, `smallest` and `largest`."""
    return {name: asdict(knee) for name, knee in knees(by_count).items()}


def _bucket(row: Mapping[str, Any], side: str) -> Bucket:
    return Bucket(row["low"], row["high"], row["tokens"], row[f"nll_first_{side}"] - row[f"nll_{side}"])
