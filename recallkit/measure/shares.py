"""A gap divided over rows of tokens, recall gain, what is retained of it, and when a share of a gap
is void.

Gaps are signed, model minus reference in nats: positive if the model is worse. A share is the
fraction of the overall gap that is in a row (Zoology, section 3.1 and appendix C.1: (dNLL_AR n_AR)
/ (dNLL n)); it is not clipped and may be below 0 or above 1. A share says where a gap lies, not
why.

Recall gain is the mean of p(token) less p(token at the first occurrence of its bigram in the
sequence), with p = exp(-NLL): what a model has gained since it first met the bigram, in
probability. Retained is a model's recall gain over the reference's, a ratio of two sums over
documents.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display.cells import too_few
from recallkit.measure.ratio import MIN_CLUSTERS, NUM_RESAMPLES, Ratio, Sum, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.measure.sums import TableSums

NO_GAP = "no gap overall"
GAP_MAY_BE_ZERO = "the overall gap cannot be distinguished from zero"
MODEL_LIKE_UNIFORM = "the model predicts no better than a uniform guess"
REFERENCE_LIKE_UNIFORM = "the reference predicts no better than a uniform guess"
ALL_TOKENS = "a slice of all tokens: its share is 100 % by definition"
LEAST_GAIN = 0.001
"""Recall of a reference, a probability, of which a part can be retained: a random model gains less,
for other reasons than recall."""
EMPTY_SLICE, NO_HITS = "no tokens in this slice", "no token is an AR hit"


def gap_figures(
    table: TableSums,
    all_tokens: TableSums,
    model: int,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Columns (K,) of a table's rows for the reference and model number `model` (from 1).

    `all_tokens`: the sums of all tokens that each row's share is of, of one row or K. NLLs and
    `delta_nll` are nats per token, perplexities exp of them; `gain_*` and `retained` are fractions;
    figures have intervals, `NAME_ci_low` and `NAME_ci_high`. NaN where there is no token, no gap,
    or for `retained` where the reference's gain is not shown to exceed LEAST_GAIN.
    """
    tokens, gap = table["tokens"], table.gap(model)
    means = {"reference": table["nll_0"], "model": table[f"nll_{model}"]}
    columns = {"clusters": table.spread.clusters, "effective_clusters": table.spread.effective}
    columns["tokens"] = tokens.total
    columns["share_of_tokens"] = tokens.total / all_tokens["tokens"].total
    for side, nlls in means.items():
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            columns[f"nll_{side}"] = nlls.total / tokens.total
            columns[f"ppl_{side}"] = np.exp(columns[f"nll_{side}"])
    of_reference = ratio(table.gain(0), tokens, num_resamples, seed)
    ratios = {
        "delta_nll": ratio(gap, tokens, num_resamples, seed),
        "gap_share": ratio(gap, all_tokens.gap(model), num_resamples, seed),
        "gain_reference": of_reference,
        "gain_model": ratio(table.gain(model), tokens, num_resamples, seed),
        "retained": _where_shown(
            of_reference, ratio(table.gain(model), table.gain(0), num_resamples, seed)
        ),
    }
    for name, figure in ratios.items():
        columns |= figure.columns(name)
    freedom = {
        "delta_freedom": ratios["delta_nll"].freedom,
        "share_freedom": ratios["gap_share"].freedom,
    }
    return columns | freedom


def retained(
    gain: Sum, reference: Sum, tokens: Sum, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Ratio:
    """A model's recall over the reference's, of the same `tokens`; NaN where that one is not shown
    to exceed LEAST_GAIN."""
    of_reference = ratio(reference, tokens, num_resamples, seed)
    return _where_shown(of_reference, ratio(gain, reference, num_resamples, seed))


def _where_shown(of_reference: Ratio, part: Ratio) -> Ratio:
    """A part of the reference's recall gain, where that is shown to exceed LEAST_GAIN."""
    return part.where(of_reference.low > LEAST_GAIN)


def efficiency(
    table: TableSums, model: int, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Ratio:
    """Recall efficiency of model number `model`: 1 less its summed NLL over that at first
    occurrences of the bigrams.

    Of the rows of slices; NaN of those with tokens that repeat no bigram. Source: a replication of
    arXiv 2606.20936 (alxndrTL/filtered_token_losses), which has 5-grams whose first NLL is above 2
    nats.
    """
    first = table[f"first_nll_{model}"]
    figure = ratio(first - table[f"nll_{model}"], first, num_resamples, seed)
    return figure.where(table["repeats"].total == table["tokens"].total)


@dataclass(frozen=True, slots=True)
class WholeGap:
    """The gap of all tokens between a model and the reference, by which every share of it is
    judged.

    gap: nats per token; is_distinct: whether it is significant among the models of the command,
    None without an interval; uniform: notes on those of the pair whose mean NLL is no lower than
    that of a uniform guess;
    effective: the effective number of the clusters that were resampled, each a `cluster`.
    """

    gap: float
    is_distinct: bool | None
    uniform: Sequence[str]
    effective: float
    cluster: str = "document"

    @classmethod
    def from_row(
        cls, row: Mapping[str, Any], vocab_size: int, cluster: str = "document"
    ) -> WholeGap:
        """From the row of all tokens, with the columns of `gap_figures` and `is_distinct`."""
        uniform = math.log(vocab_size)
        nlls = (
            (row["nll_reference"], REFERENCE_LIKE_UNIFORM),
            (row["nll_model"], MODEL_LIKE_UNIFORM),
        )
        notes = [note for nll, note in nlls if nll >= uniform]
        return cls(row["delta_nll"], row["is_distinct"], notes, row["effective_clusters"], cluster)

    def why_void(self, row: Mapping[str, Any], slice_: str = "") -> str:
        """Why the share in a row of a table is void; empty if it means something.

        The gap is zero or cannot be distinguished from it, a model predicts no better than a
        uniform guess, the row has all tokens, no tokens, or too little text for an interval.
        `slice_`: the row's slice, if it is of one.
        """
        notes = list(self.uniform)
        if self.gap == 0:
            notes.append(NO_GAP)
        elif self.is_distinct is not None and not self.is_distinct:
            notes.append(GAP_MAY_BE_ZERO)
        effective = row["effective_clusters"]
        if not row["tokens"]:
            notes.append(NO_HITS if slice_ == "ar_hit" else EMPTY_SLICE)
        elif min(self.effective, effective) < MIN_CLUSTERS:
            called = "AR hits" if slice_ == "ar_hit" else "its tokens"
            called = "all tokens" if self.effective <= effective else called
            notes.append(too_few(called, min(self.effective, effective), f"{self.cluster}s"))
        if row["share_of_tokens"] == 1 and slice_ != "all":
            notes.append(ALL_TOKENS)
        return "; ".join(notes)


def is_void(row: Mapping[str, Any]) -> bool:
    """Whether the share in a row of a table means nothing: such a figure is not shown, or struck
    out."""
    return row["gap_share"] is None or bool(row["void"])
