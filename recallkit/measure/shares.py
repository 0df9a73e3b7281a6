"""A gap divided over slices (Zoology, section 3.1 and appendix C.1), and the one rule by which a share of it is void: it means nothing.

Gaps are signed, model minus reference in nats: positive if the model is worse. A share is the fraction of the overall gap that is in a
slice; it is not clipped and may be below 0 or above 1. A share says where a gap lies, not why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display.cells import too_few
from recallkit.measure.intervals import (
    MIN_CLUSTERS,
    NUM_RESAMPLES,
    estimates,
    expanded_interval,
    freedom_of_ratio,
    holm,
    number_or_none,
    p_values,
)
from recallkit.measure.sums import resampled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.measure.sums import RowSums

NO_GAP = "no gap overall"
GAP_MAY_BE_ZERO = "overall gap cannot be distinguished from zero"
MODEL_LIKE_UNIFORM = "model predicts no better than a uniform guess"
REFERENCE_LIKE_UNIFORM = "reference predicts no better than a uniform guess"
ALL_TOKENS = "a slice of all tokens: its share is 100 % by definition"
MODEL_BETTER = "model is better than the reference overall: shares are of its lead"
WORSE_ON_HITS = "negative share: model is worse on AR hits"
WORSE_ON_OTHER = "share above 100 %: model is worse on the other tokens"
BETTER_ON_HITS = "negative share: model is better on AR hits"
BETTER_ON_OTHER = "share above 100 %: model is better on the other tokens"
SHARE_MAY_BE_POSITIVE = "negative share, but by its interval it may be positive"
SHARE_MAY_BE_BELOW = "share above 100 %, but by its interval it may be below"


def gap_figures(
    tokens: np.ndarray, reference: np.ndarray, model: np.ndarray, whole_tokens: np.ndarray, whole_gap: np.ndarray
) -> dict[str, np.ndarray]:
    """The figures of K rows (K,) from their tokens and summed NLLs, nats; `whole_*` (K,): of all tokens of a row's source.

    A slice's NLL is the mean over its tokens, its perplexity exp of that; its share of the gap is the summed difference in it over the
    summed difference in all tokens: (dNLL_AR n_AR) / (dNLL n) in appendix C.1; its enrichment is 1 if the gap is the same for every token.
    NaN where there is no token, or no gap.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        nll_reference, nll_model, share_of_tokens = reference / tokens, model / tokens, tokens / whole_tokens
        gap_share = np.where((tokens > 0) & (whole_gap != 0), (model - reference) / whole_gap, np.nan)
        return {
            "share_of_tokens": share_of_tokens,
            "nll_reference": nll_reference,
            "nll_model": nll_model,
            "ppl_reference": np.exp(nll_reference),
            "ppl_model": np.exp(nll_model),
            "delta_nll": (model - reference) / tokens,
            "gap_share": gap_share,
            "enrichment": gap_share / share_of_tokens,
        }


def clipped_share(gap: float, share: float | None) -> float | None:
    """The share as the papers report it: at most 1, and 1 if the model is better overall but worse in the slice.

    A negative share of a positive gap stays negative: the papers clip above only (Zoology, appendix C.1).
    None without a share, that is, if there is no gap or no token in the slice.
    """
    if share is None:
        return None
    return 1.0 if gap < 0 and share < 0 else min(share, 1.0)


def enrichment(share: float | None, share_of_tokens: float) -> float | None:
    """How many times as much of the gap lies in a slice as it has of the tokens: 1 if the gap is the same for every token."""
    return None if share is None or not share_of_tokens else share / share_of_tokens


@dataclass(frozen=True, slots=True)
class WholeGap:
    """The gap of all tokens between a model and the reference, by which every share of it is judged, in every command.

    gap: nats per token; is_distinct: whether it is significant among the models of the command, None without an interval; uniform:
    notes on those of the pair whose mean NLL is no lower than that of a uniform guess; effective: the effective number of the clusters that
    were resampled, each a `cluster`.
    """

    gap: float
    is_distinct: bool | None
    uniform: Sequence[str]
    effective: float
    cluster: str = "document"

    @classmethod
    def of(cls, row: Mapping[str, Any], vocab_size: int | None, cluster: str = "document") -> WholeGap:
        """From the row of all tokens, with the columns of `gap_rows`."""
        uniform = math.log(vocab_size) if vocab_size else math.inf
        nlls = ((row["nll_reference"], REFERENCE_LIKE_UNIFORM), (row["nll_model"], MODEL_LIKE_UNIFORM))
        return cls(row["delta_nll"], row["is_distinct"], [note for nll, note in nlls if nll >= uniform], row["effective_clusters"], cluster)

    def why_void(self, *, share_of_tokens: float | None = None, effective: float = math.inf, slice_: str = "") -> list[str]:
        """Why the share of a slice is void: empty if it means something. Of any slice where nothing is said of it.

        The gap is zero or cannot be distinguished from it, a model predicts no better than a uniform guess, the slice has all tokens
        (`share_of_tokens` is 1), or there is too little text for an interval (`effective`: of the clusters of `slice_`).
        """
        of_slice = [ALL_TOKENS] if share_of_tokens == 1 else []
        called = "all tokens" if self.effective <= effective else "AR hits" if slice_ == "ar_hit" else "its tokens"
        least = min(self.effective, effective)
        few = [too_few(called, least, f"{self.cluster}s")] if least < MIN_CLUSTERS else []
        return [*self.of_gap(), *of_slice, *few]

    def describe(self, hits_share: float | None = None, share_interval: tuple[float, float] | None = None) -> list[str]:
        """What to know before quoting the AR hits' share of the gap; empty if nothing is unusual. Little text is not said here.

        `hits_share` is None if there are no AR hits, or another share is judged; `share_interval` is its confidence interval. Where a
        share is void, only why is said. Which model is better on AR hits, or on the other tokens, is said only where the share's interval
        says the same (of printed figures, which have none, by the share).
        """
        if void := self.of_gap():
            return void
        if self.effective < MIN_CLUSTERS:  # nothing is significant
            return []
        behind = self.gap > 0
        lead = [] if behind else [MODEL_BETTER]
        if hits_share is None or 0 <= hits_share <= 1 or (share_interval is None and self.is_distinct is not None):
            return lead
        low, high = share_interval or (hits_share, hits_share)
        if hits_share < 0:
            return [*lead, SHARE_MAY_BE_POSITIVE if high >= 0 else BETTER_ON_HITS if behind else WORSE_ON_HITS]
        return [*lead, SHARE_MAY_BE_BELOW if low <= 1 else BETTER_ON_OTHER if behind else WORSE_ON_OTHER]

    def of_gap(self) -> list[str]:
        """Why every share of the gap is void; empty if that is not for the gap itself."""
        none = [NO_GAP] if self.gap == 0 else []
        if not none and self.is_distinct is not None and not self.is_distinct:
            none = [GAP_MAY_BE_ZERO]
        return [*self.uniform, *none]


def is_void(row: Mapping[str, Any]) -> bool:
    """Whether the share in a row of a table means nothing: such a figure is struck out wherever it is shown."""
    return row["gap_share"] is None or bool(row["void"])


@dataclass(frozen=True, slots=True)
class GapIntervals:
    """95 % intervals of the K rows of a table for m models, (2, m, K) low and high: NaN where the text is too small, or without tokens."""

    delta_nll: np.ndarray  # nats per token
    share: np.ndarray  # of the gap of all tokens of the row's source
    is_distinct: np.ndarray  # (m, K) 1 where delta_nll is significant among the m models (`intervals.holm`), 0 where not, NaN without one


def gap_intervals(
    tables: Mapping[str, RowSums], whole: Mapping[str, np.ndarray], num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> dict[str, GapIntervals]:
    """Intervals of the gaps to the first model of each table, from the same resamples of clusters; with `num_resamples` 0 all are NaN.

    `whole`: for tables whose rows are of several sources, the row of all tokens that each row's share is of, (K,); the shares of all
    others are of the first row of the first table.

    A share is a ratio of two sums: its effective number of clusters is the smaller one of the row's and of all tokens'. Degrees of freedom
    are the smallest of those by sizes (of the row's, of a share also of all tokens') and of `freedom_of_ratio`.
    """
    drawn = dict(zip(tables, resampled(list(tables.values()), num_resamples, seed), strict=True))
    first, found = next(iter(tables)), {}
    for name, of in tables.items():
        rows = np.flatnonzero(of.clusters)
        base, at = (name, whole[name][rows]) if name in whole else (first, np.zeros(len(rows), np.int64))
        effective, smaller = (np.minimum(getattr(of, kind)[rows], getattr(tables[base], kind)[at]) for kind in ("effective", "freedom"))
        tokens, reference, *models = drawn[name]
        delta_nll, share = np.full((2, 2, len(models), tokens.shape[1]), np.nan)
        freedom = np.full(delta_nll.shape[1:], np.nan)
        for number, model in enumerate(models):  # one at a time: samples are the largest arrays here
            gaps = (model - reference)[:, rows]
            wholes = drawn[base][2 + number][:, at] - drawn[base][1][:, at]
            in_cluster, in_whole = of.gaps(number)[:, rows], tables[base].gaps(number)[:, at]
            freedom[number, rows] = np.minimum(of.freedom[rows], freedom_of_ratio(in_cluster, of.tokens[:, rows]))
            of_share = np.minimum(smaller, freedom_of_ratio(in_cluster, in_whole))
            with np.errstate(divide="ignore", invalid="ignore"):
                delta_nll[:, number, rows] = expanded_interval(gaps / tokens[:, rows], of.effective[rows], freedom[number, rows])
                share[:, number, rows] = expanded_interval(gaps / wholes, effective, of_share)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = (of.totals[2:] - of.totals[1]) / of.totals[0]
        p = p_values(np.stack([values, *delta_nll]), freedom)
        found[name] = GapIntervals(delta_nll, share, np.where(np.isnan(p), np.nan, holm(p)))
    return found


def excess_losses(sums: RowSums) -> list[dict[str, float | None]]:
    """What each model after the first loses on AR hits beyond what it loses on the other tokens, nats per token, with its interval.

    `sums`: of two rows, all tokens and AR hits. A row for each model: `excess`, `excess_ci_low`, `excess_ci_high`.
    """

    def excess(tokens: np.ndarray, gaps: np.ndarray) -> np.ndarray:  # (..., 2) -> (...)
        found: np.ndarray = gaps[..., 1] / tokens[..., 1] - (gaps[..., 0] - gaps[..., 1]) / (tokens[..., 0] - tokens[..., 1])
        return found

    [(tokens, reference, *models)], totals, rows = resampled([sums]), sums.totals, []
    for number, model in enumerate(models):
        with np.errstate(divide="ignore", invalid="ignore"):
            value, samples = excess(totals[0], totals[2 + number] - totals[1]), excess(tokens, model - reference)
        freedom = np.minimum(sums.freedom[1], freedom_of_ratio(sums.gaps(number)[:, 1], sums.tokens[:, 1]))
        of = estimates("excess", value, samples, sums.effective[1], freedom)
        rows.append({name: number_or_none(float(figure)) for name, figure in of.items()})
    return rows


def rows_of(columns: Mapping[str, Sequence[Any] | np.ndarray]) -> list[dict[str, Any]]:
    """The rows of columns of equal length, None in place of NaN."""
    lists = {
        name: [None if value != value else value for value in (of.tolist() if isinstance(of, np.ndarray) else of)]
        for name, of in columns.items()
    }
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def gap_rows(
    keys: Mapping[str, Sequence[Any] | np.ndarray], sums: RowSums, whole: np.ndarray, model: int, intervals: GapIntervals | None = None
) -> list[dict[str, Any]]:
    """The rows of a table for the first model and number `model` (from 1): their `keys`, `gap_figures`, intervals and clusters.

    `whole` (1 + v, K) or (1 + v, 1): the sums of all tokens that each row's share is of. None stands for what is not known.
    """
    tokens, reference, *models = sums.totals
    columns = gap_figures(tokens, reference, models[model - 1], whole[0], whole[1 + model] - whole[1])
    columns["tokens"] = tokens if (tokens % 1).any() else tokens.astype(np.int64)  # a row may have a part of a token
    if intervals is not None:
        columns |= {"clusters": sums.clusters, "effective_clusters": sums.effective}
        columns |= dict(zip(("delta_ci_low", "delta_ci_high"), intervals.delta_nll[:, model - 1], strict=True))
        columns |= dict(zip(("ci_low", "ci_high"), intervals.share[:, model - 1], strict=True)) | {
            "is_distinct": intervals.is_distinct[model - 1]
        }
    return rows_of({**keys, **columns})
