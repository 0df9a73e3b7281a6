"""What models gain from far context, and the gap split by it: NLLs with the last k ids alone beside those with the full context.

A token's gain is G_k = NLL with its last k ids alone - NLL with the full context, in nats. The gap splits exactly, token by token:

    NLL(model) - NLL(ref) = [NLL_k(model) - NLL_k(ref)] + [G_k(ref) - G_k(model)]
                            the local gap                 the far gap

Key tokens are those of LongPPL (arXiv 2410.23771, section 3.2), whose windows `scoring.scores.LastIds` has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recallkit.measure.intervals import expanded_interval, number_or_none, resample_totals
from recallkit.measure.labelled import LabelledTokens, Scores, batches, open_scores, open_tokens
from recallkit.measure.shares import WholeGap, gap_figures, like_uniform
from recallkit.measure.sums import Adding, Clusters, RowSums
from recallkit.storage import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

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
    samples = resample_totals([_beside(pair) for pair in pairs], num_resamples, seed)
    vocab_size = labelled.vocab_size
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for number, (pair, sampled) in enumerate(zip(pairs, samples, strict=True)):
        place, model = divmod(number, len(names) - 1)
        of_last = list(last)[place]
        keys = {"reference": names[0], "model": names[model + 1], "last": of_last.ids, "stride": of_last.stride}
        drawn = sampled.reshape(num_resamples, 5, -1).swapaxes(0, 1)
        rows[model, place] = [keys | row for row in _table(pair, drawn, cluster, vocab_size)]
    return pl.concat([schemas.frame_of("gap/by_context", rows[key]) for key in sorted(rows)])


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


def _collect(
    tokens: LabelledTokens, full: Sequence[Scores], last: Sequence[Sequence[Scores]], cluster: str, *, clean: bool
) -> list[RowSums]:
    """The sums of each k and model, model by model for the first k, then for the next.

    NLLs are those of the reference and of the model with the full context, then of both with the last ids.
    """
    clusters, num, unions = Clusters(tokens, cluster), len(full), _unions()
    scores = [*full, *(score for own in last for score in own)]
    starts = range(num, len(scores), num)
    pairs = {(0, 1 + model, start, start + 1 + model): Adding(len(unions), clusters) for start in starts for model in range(num - 1)}
    for batch in batches(tokens, scores, cluster=cluster, clean=clean):
        for nlls, pair in pairs.items():
            found = batch.ask("sum_by_gain", nlls, gains=GAINS, alpha=ALPHA, beta=BETA)
            marks = [found[name].to_numpy().astype(np.int64) for name in ("kind", "reference_gains", "is_key", "model_gains")]
            pair.add(found, np.ravel_multi_index(marks, _SHAPE))
    return [pair.rows(unions) for pair in pairs.values()]


# ------------------------------------------------------------------------------------------------------------ the table


def _stacked(sums: RowSums) -> np.ndarray:
    """Tokens and the four NLLs by group, (5, g, K)."""
    return np.concatenate([sums.tokens[None], sums.nlls])


def _beside(sums: RowSums) -> np.ndarray:
    """The same of the groups that have tokens, side by side: (g, 5 K)."""
    rows = _stacked(sums)
    return np.hstack(list(rows[:, rows[0].any(axis=1)]))


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


def _table(pair: RowSums, sampled: np.ndarray, cluster: str, vocab_size: int | None) -> list[dict[str, Any]]:
    """The rows of one model and one k; `sampled` (5, num_resamples, K)."""
    sums = _stacked(pair).sum(axis=1)
    effective, freedom = pair.effective[: len(ROWS)], pair.freedom[: len(ROWS)]
    tokens, reference, model, *_ = sums[:, : len(ROWS)]
    columns = gap_figures(tokens, reference, model, tokens[:1], model[:1] - reference[:1])
    found = _figures(sums)
    columns |= {name: found[name] for name in (*_RATIOS[1:], *_SHARES[1:])}
    smallest = np.minimum(effective, effective[0]), np.minimum(freedom, freedom[0])
    for name, samples in _figures(sampled).items():
        low, high = expanded_interval(samples, *(smallest if name in _SHARES else (effective, freedom)))
        ends = "" if name == "gap_share" else f"{name}_"
        columns |= {f"{ends}ci_low": low, f"{ends}ci_high": high}
    names: dict[str, Sequence[Any]] = {
        "slice": [row.slice for row in ROWS],
        "reference_gains": [row.reference_gains for row in ROWS],
        "tokens": tokens.astype(np.int64).tolist(),
        "clusters": pair.clusters[: len(ROWS)].tolist(),
        "effective_clusters": effective.tolist(),
    }
    names |= {name: [number_or_none(value) for value in values.tolist()] for name, values in columns.items()}
    rows = [dict(zip(names, values, strict=True)) for values in zip(*names.values(), strict=True)]
    whole = _whole(rows[0], cluster, vocab_size)
    why = whole.why_void()
    notes = whole.describe()
    note = "; ".join([*notes, *(reason for reason in why if reason not in notes)])
    return [{**row, "note": note, "void": row["far_share"] is None or bool(why)} for row in rows]


def _whole(row: Mapping[str, Any], cluster: str, vocab_size: int | None) -> WholeGap:
    bounds = (row["delta_ci_low"], row["delta_ci_high"])
    uniform = like_uniform(row["nll_reference"], row["nll_model"], vocab_size)
    return WholeGap(row["delta_nll"], None if None in bounds else bounds, uniform, row["effective_clusters"], cluster)
