"""What models gain from far context, and the gap split by it: NLLs with the last k ids alone beside those with the full context.

A token's gain is G_k = NLL with its last k ids alone - NLL with the full context, in nats. The gap splits exactly, token by token:

    NLL(model) - NLL(ref) = [NLL_k(model) - NLL_k(ref)] + [G_k(ref) - G_k(model)]
                            the local gap                 the far gap

Key tokens are those of LongPPL (arXiv 2410.23771, section 3.2), whose windows `scoring.scores.LastIds` has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recallkit.attribution.aligned import LabelledTokens, Scores, open_scores, open_tokens
from recallkit.attribution.batches import read_batches
from recallkit.attribution.bootstrap import MIN_CLUSTERS, expanded_interval, number_or_none, resample_blocks
from recallkit.attribution.clusters import ClusterSizes
from recallkit.attribution.collect import groups_of
from recallkit.attribution.shares import FEW_CLUSTERS, describe_gap, like_uniform, void_notes
from recallkit.attribution.sums import Codes, GroupSums, Runs, values_of
from recallkit.storage import db, schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.attribution.clusters import Groups
    from recallkit.scoring.scores import LastIds

GAINS = 1.0
"""Nats that a token's NLL falls by at least where a model gains from the context further back: its probability is e times as high."""

ALPHA, BETA = 2.0, -2.0
"""LongPPL's thresholds in nats: a key token's long-short difference is above ALPHA, and its log-probability with all context above BETA."""

ALL, KEY_TOKENS = "all", "key_tokens"
CLASSES = ("ar_hit", "other_repeated", "not_repeated")
"""A partition of the tokens by their labels; each is divided further by whether the reference gains."""

_SHAPE = (len(CLASSES), 2, 2, 2)
"""A token's code in mixed radix: class, whether the reference gains, whether it is a key token, whether the model gains."""


class _Row(NamedTuple):
    """A row of the table for one model and one k; `reference_gains` None: whether it gains or not."""

    slice: str
    reference_gains: bool | None


ROWS = (*(_Row(name, gains) for name in (ALL, *CLASSES) for gains in (None, True, False)), _Row(KEY_TOKENS, None))
_MIRRORED = [place for place, row in enumerate(ROWS) if row.reference_gains]
_RATIOS = ("delta", "gain_reference", "gain_model", "local_gap", "far_gap")
_SHARES = ("gap_share", "far_share", "mirror_share")


def context_gains(
    tokens: Path,
    full: Mapping[str, Path],
    last: Mapping[LastIds, Sequence[Path]],
    *,
    cluster: str = "document",
    clean: bool = False,
    num_resamples: int = 2000,
    seed: int = 0,
) -> pl.DataFrame:
    """The table `by_context`: a row for each model, each number of last ids, and each of ROWS; see `GapTables`.

    `full`: names and score files with the full context, the reference first; `last`: those with the last ids alone, in the same order.
    Intervals are those of `attribute_gap`, from the same resamples. Raises UserError if a file is not as expected.
    """
    import polars as pl

    labelled = open_tokens(tokens)
    names = list(full)
    long = [open_scores(path, labelled) for path in full.values()]
    short = [[open_scores(path, labelled) for path in paths] for paths in last.values()]
    pairs = _collect(labelled, long, short, cluster, clean=clean)
    samples = resample_blocks([pair.flat() for pair in pairs], num_resamples, seed)
    vocab_size = (labelled.manifest.get("tokenizer") or {}).get("vocab_size")
    frames: dict[tuple[int, int], pl.DataFrame] = {}
    for number, (pair, sampled) in enumerate(zip(pairs, samples, strict=True)):
        place, model = divmod(number, len(names) - 1)
        keys = {"reference": names[0], "model": names[model + 1]}
        frames[model, place] = _table(pair, sampled, keys, list(last)[place], cluster, vocab_size)
    return pl.concat([frames[key] for key in sorted(frames)])


def classes_of(repeated: np.ndarray, train_count: np.ndarray, max_count: int) -> np.ndarray:
    """The number in CLASSES of n tokens, uint8 (n,)."""
    found: np.ndarray = np.where(repeated, np.where(train_count <= max_count, 0, 1), 2).astype(np.uint8)
    return found


def is_key(full: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Whether n tokens are key tokens, bool (n,), by the evaluator's NLLs with the full context and with the last ids (float32, nats)."""
    found: np.ndarray = (last - full > ALPHA) & (full < -BETA)
    return found


# ------------------------------------------------------------------------------------------------------------- the sums


def _unions() -> np.ndarray:
    """The codes of each of ROWS, then those of the mirrors of _MIRRORED, in which the model gains: bool (k, K)."""
    kind, reference_gains, key, model_gains = np.unravel_index(np.arange(np.prod(_SHAPE)), _SHAPE)
    columns = []
    for row in ROWS:
        of_class = (key == 1) if row.slice == KEY_TOKENS else (row.slice == ALL) | (kind == _number(row.slice))
        columns.append(of_class if row.reference_gains is None else of_class & (reference_gains == row.reference_gains))
    columns += [(model_gains == 1) & ((ROWS[place].slice == ALL) | (kind == _number(ROWS[place].slice))) for place in _MIRRORED]
    return np.stack(columns, axis=1)


def _number(name: str) -> int:
    return CLASSES.index(name) if name in CLASSES else -1


@dataclass(slots=True)
class _Pair:
    """The sums of the reference and one model for one k: tokens, and NLLs of both with the full context, then with the last ids."""

    sums: GroupSums
    sizes: ClusterSizes

    @classmethod
    def empty(cls, groups: Groups) -> _Pair:
        """Nothing added up."""
        unions = _unions()
        return cls(GroupSums(groups.number, 1, len(unions), 4), ClusterSizes(unions, in_order=groups.in_order))

    def rows(self) -> np.ndarray:
        """Sums by group: tokens, the reference's NLL, the model's, and both with the last ids, (5, g, K)."""
        tokens, nlls = self.sums.rows(_unions())
        return np.concatenate([tokens[None], nlls])[:, :, 0]

    def flat(self) -> np.ndarray:
        """`rows` of the groups that have tokens, (g, 5 K)."""
        rows = self.rows()
        held = rows[0].any(axis=1)
        return np.hstack(list(rows[:, held]))


def _collect(tokens: LabelledTokens, full: Sequence[Scores], last: Sequence[Sequence[Scores]], cluster: str, *, clean: bool) -> list[_Pair]:
    """The sums of each k and model, model by model for the first k, then for the next."""
    groups, num = groups_of(tokens, cluster), len(full)
    pairs = [_Pair.empty(groups) for _ in last for _ in range(num - 1)]
    scores = [*full, *(score for own in last for score in own)]
    for batch in read_batches(tokens, scores, ("repeated", "train_count"), cluster, clean=clean):
        if not batch.cluster.size:
            continue
        long, runs = batch.nlls[:num], Runs(batch.cluster, np.zeros_like(batch.cluster))
        kind = classes_of(batch.labels["repeated"], batch.labels["train_count"], tokens.max_count)
        for number, pair in enumerate(pairs):
            place, model = divmod(number, num - 1)
            short = batch.nlls[(1 + place) * num : (2 + place) * num]
            sides = [long[0], long[model + 1], short[0], short[model + 1]]
            marks = (sides[2] - sides[0] >= GAINS, is_key(sides[0], sides[2]), sides[3] - sides[1] >= GAINS)
            code = np.ravel_multi_index((kind, *(mark.view(np.uint8) for mark in marks)), _SHAPE).astype(np.uint8)
            sums = runs.sum_codes(Codes(code, int(np.prod(_SHAPE))), values_of(sides))
            pair.sizes.add(sums)
            pair.sums.add(groups.of(sums))
    return pairs


# ------------------------------------------------------------------------------------------------------------ the table


def _figures(sums: np.ndarray) -> dict[str, np.ndarray]:
    """Means per token in nats and shares of the whole gap, (..., ROWS), of `sums` (5, ..., K); NaN without tokens, or without a gap.

    Only rows of _MIRRORED have a `mirror_share`: the sum of G(model) - G(ref) over tokens where the model gains.
    """
    of_rows = sums[..., : len(ROWS)]
    tokens, reference, model, short_reference, short_model = of_rows
    far = (short_reference - reference) - (short_model - model)
    of_mirrors = sums[..., len(ROWS) :]
    mirror = np.full(far.shape, np.nan)
    mirror[..., _MIRRORED] = (of_mirrors[4] - of_mirrors[2]) - (of_mirrors[3] - of_mirrors[1])
    ratios = (model - reference, short_reference - reference, short_model - model, short_model - short_reference, far)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = (model - reference)[..., :1]
        whole = np.where(whole == 0, np.nan, whole)
        shares = [np.where(tokens > 0, part / whole, np.nan) for part in (model - reference, far)]
        figures = [*(part / tokens for part in ratios), *shares, mirror / whole]
        return dict(zip((*_RATIOS, *_SHARES), figures, strict=True))


def _table(pair: _Pair, sampled: np.ndarray, keys: Mapping[str, str], last: LastIds, cluster: str, vocab_size: int | None) -> pl.DataFrame:
    """The rows of one model and one k; `sampled` (num_resamples, 5 K)."""
    import polars as pl

    sums = pair.rows().sum(axis=1)
    clusters, effective, freedom = (numbers[0] for numbers in pair.sizes.finish())
    frame = _attributed(sums[:, : len(ROWS)], keys, last)
    found = _figures(sums)
    columns: dict[str, list[Any]] = {name: _numbers(found[name]) for name in (*_RATIOS[1:], *_SHARES[1:])}
    smallest = np.minimum(effective, effective[0]), np.minimum(freedom, freedom[0])
    for name, samples in _figures(sampled.reshape(len(sampled), 5, -1).swapaxes(0, 1)).items():
        of = smallest if name in _SHARES else (effective, freedom)
        low, high = expanded_interval(samples, *(numbers[: len(ROWS)] for numbers in of))
        ends = "" if name == "gap_share" else f"{name}_"
        columns |= {f"{ends}ci_low": _numbers(low), f"{ends}ci_high": _numbers(high)}
    columns |= {"clusters": clusters[: len(ROWS)].tolist(), "effective_clusters": effective[: len(ROWS)].tolist()}
    types = {"clusters": pl.Int64}
    frame = frame.with_columns(pl.Series(name, values, types.get(name, pl.Float64)) for name, values in columns.items())
    whole = frame.row(0, named=True)
    bounds = (whole["delta_ci_low"], whole["delta_ci_high"])
    uniform = like_uniform(whole["nll_reference"], whole["nll_model"], vocab_size)
    notes = describe_gap(whole["delta_nll"], None, None if None in bounds else bounds, uniform)
    few = [] if effective[0] >= MIN_CLUSTERS else [FEW_CLUSTERS.format(cluster)]
    note = "; ".join([*notes, *few])
    frame = frame.with_columns(note=pl.lit(note), void=pl.col("far_share").is_null() | pl.lit(bool(void_notes({"note": note}))))
    return frame.select(schemas.LAYOUTS["gap/by_context"].keys())


def _attributed(sums: np.ndarray, keys: Mapping[str, str], last: LastIds) -> pl.DataFrame:
    """The rows with tokens, NLLs with the full context, perplexities and shares of the gap."""
    import pyarrow as pa

    tokens, reference, model, *_ = sums
    columns = {
        "last": np.full(len(ROWS), last.ids),
        "stride": np.full(len(ROWS), last.stride),
        "slice": [row.slice for row in ROWS],
        "reference_gains": [row.reference_gains for row in ROWS],
        "tokens": tokens.astype(np.int64),
        "sum_reference": reference,
        "sum_model": model,
        "whole_tokens": np.full(len(ROWS), tokens[0]),
        "whole_gap": np.full(len(ROWS), model[0] - reference[0]),
    }
    with db.connect(threads=1) as database:
        database.register("sums", pa.table(columns))
        frame: pl.DataFrame = database.sql(db.query("gap/attribute"), params=dict(keys)).pl()
        return frame


def _numbers(values: np.ndarray) -> list[float | None]:
    return [number_or_none(value) for value in values.tolist()]
