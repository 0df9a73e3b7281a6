"""The headline numbers of every kind of result, by which runs are compared in a tracker: which columns of which rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import polars as pl


class Headline(NamedTuple):
    """Columns of a table that are logged as numbers, named by the columns `keys`. Rows whose shares are void have none of them.

    `where`: only rows with one of these values; `unless`: only rows without them.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    where: Mapping[str, str] = {}
    unless: Mapping[str, str] = {}


_WHOLE = {"source": "ALL"}
HEADLINES: Mapping[str, tuple[Headline, ...]] = {
    "gap/gap": (
        Headline(("model", "slice"), ("ppl_model", "delta_nll"), _WHOLE),
        Headline(("model", "slice"), ("gap_share", "ci_low", "ci_high"), _WHOLE, unless={"slice": "all"}),
    ),
    "intervene/recall_share": (Headline(("model", "slice"), ("gap_share", "recall_share", "recall_share_ci_low", "recall_share_ci_high")),),
    "intervene/intervene": (Headline(("model", "slice"), ("nll", "recall", "recall_ci_low", "recall_ci_high", "points")),),
    "ablation/mixers": (
        Headline(("model", "mixers"), ("loss", "loss_ar_hit", "recall_lost", "recall_lost_ci_low", "recall_lost_ci_high")),
    ),
    "recall/recall": (Headline(("model", "task"), ("accuracy", "ci_low", "ci_high", "f1", "answer_nll")),),
    "metrics/metrics": (Headline(("model", "task", "metric", "filter"), ("value",)),),
    "mqar/mqar": (Headline(("model", "pairs"), ("accuracy", "accuracy_low", "accuracy_high", "ar_ppl", "filler_ppl")),),
    "tradeoff/tradeoff": (Headline(("task", "model", "size", "width"), ("accuracy", "state_bytes", "parameters")),),
    "profile/profile": (Headline(("source",), ("repeated_bigrams", "repeated_share", "ar_hit_share"), _WHOLE),),
    "track/track": (Headline(("model",), ("nll", "ar_nll", "first_nll", "other_nll", "recall", "ar_gap")),),
    "scores/scores": (Headline(("model",), ("nll_nats", "ppl", "accuracy")),),
    "by_source/by_source": (Headline(("source",), ("repeated_share", "ar_hit_share"), _WHOLE),),
    "published/published": (Headline(("group", "model"), ("gap_share", "enrichment")),),
}
"""RESULT/TABLE -> what is logged of it. A result is named as its kind is, else as its first table."""


def headline_numbers(result: str, frames: Mapping[str, pl.DataFrame]) -> dict[str, float]:
    """RESULT/KEY/.../COLUMN -> number, of all tables of a result; missing and infinite ones are left out, and shares that are void."""
    found: dict[str, float] = {}
    for name, frame in frames.items():
        for headline in HEADLINES.get(f"{result}/{name}", ()):
            for row_name, number in _numbers(headline, frame):
                found[f"{result}/{row_name}"] = number
    return found


def _numbers(headline: Headline, frame: pl.DataFrame) -> Iterator[tuple[str, float]]:
    frame = frame.unique(headline.keys + tuple(headline.where), keep="first", maintain_order=True)  # totals, where a source is called ALL
    for row in frame.iter_rows(named=True):
        has = [row[column] == value for column, value in headline.where.items()]
        lacks = [row[column] != value for column, value in headline.unless.items()]
        if not all((*has, *lacks)):
            continue
        keys = [str(row[key]) for key in headline.keys if row[key] not in (None, "", "none")]
        for column in headline.values:
            number = row[column]
            is_void = row.get("void", False) and ("share" in column or column.startswith(("ci_", "enrichment")))
            if not is_void and isinstance(number, int | float) and math.isfinite(number):
                yield "/".join([*keys, column]), number
