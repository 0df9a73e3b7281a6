"""Control models: language models computed from training counts, with exact NLLs, so that the
pipeline has a known answer.

Interpolated Witten-Bell smoothing (Chen & Goodman 1999, section 2.4), which sums to one at every
order:

    p1(w)     = (c(w) + T / V) / (N + T)                          N tokens, T distinct ones, V
        entries of the vocabulary
    p2(w | u) = (c(u, w) + T(u) p1(w)) / (C(u) + T(u))            C(u) bigrams after u, T(u)
        distinct ones; p1 if C(u) = 0
    p3(w | u, context) = (1 - m) p2(w | u) + m [w = r(u)]         r(u): what followed the latest
        earlier u in this context

`control:recall` is p3 and `control:bigram` is p2: they differ by a cache of the context's bigrams
and nothing else.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from recallkit import registry
from recallkit.counting.table import open_counts, read_meta
from recallkit.errors import UserError
from recallkit.models.protocol import TokenScores
from recallkit.storage import hashing

if TYPE_CHECKING:
    from pathlib import Path

    from recallkit.counting.table import CountsTable
    from recallkit.models.plan import ModelPlan

CACHE_WEIGHT = 0.35
"""m above: the value among 0.1, 0.15, ..., 0.5 with the lowest NLL on 2M tokens of mixed text held
out from the counts (docs/log.md)."""


def _counts_path(plan: ModelPlan) -> Path:
    if plan.counts is None:
        problem = "control models are computed from training counts"
        raise UserError(problem, where=plan.location, remedy="give the table with --counts")
    return plan.counts


_MODELS = {
    "control:unigram": (1, 0.0),
    "control:bigram": (2, 0.0),
    "control:recall": (2, CACHE_WEIGHT),
}
"""Order and weight of the cache."""


class ControlModel:
    """The control model of a plan, over its counts: p1, p2 or p3."""

    max_length: int | None = None
    prefix: tuple[int, ...] = ()

    def __init__(self, plan: ModelPlan) -> None:
        self.name = plan.location
        self.order, self.cache_weight = _find(plan.location)
        self.table: CountsTable = open_counts(_counts_path(plan))
        if plan.tokenizer:
            self.table.check_tokenizer(plan.tokenizer)
        if self.table.meta.get("only"):
            problem = "this table contains only the bigrams of one slice directory"
            remedy = "a control model needs all of them: count without --only"
            raise UserError(problem, where=plan.counts, remedy=remedy)
        self.vocab_size = max(plan.vocab_size, len(self.table.unigram_counts))

    @cached_property
    def unigram(self) -> np.ndarray:
        """p1, float64 (vocab,)."""
        counts = np.zeros(self.vocab_size)
        counts[: len(self.table.unigram_counts)] = self.table.unigram_counts
        distinct = np.count_nonzero(counts)
        if distinct == 0:
            return np.full(self.vocab_size, 1 / self.vocab_size)
        smoothed = counts + distinct / self.vocab_size
        probabilities: np.ndarray = smoothed / (counts.sum() + distinct)
        return probabilities

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        """The arguments of `score_ngrams`: rows of followers with weights and ranks, p1, p1 sorted,
        and the rows' summaries."""
        from recallkit.models.control_kernels import UNKNOWN, summarise_rows

        rows = np.zeros(self.vocab_size + 1, np.int64), np.empty(0, np.uint32), np.empty(0)
        if self.order == 2:
            rows = self._rows()
        ranks = np.full(len(rows[1]), UNKNOWN, np.int32)
        summaries = summarise_rows(*rows, self.unigram)
        return *rows, ranks, self.unigram, np.sort(self.unigram), *summaries

    def _rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        starts = self.table.row_starts()
        starts = np.concatenate([starts, np.full(self.vocab_size + 1 - len(starts), starts[-1])])
        return starts, self.table.keys.astype(np.uint32), self.table.counts.astype(np.float64)

    def batch_tokens(self, seq_len: int) -> int:
        """Any number fits."""
        return max(seq_len, 1 << 17)

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        """See `ScoringModel.score`; probabilities in float64, NLLs rounded once to float32."""
        from recallkit.models.control_kernels import score_ngrams

        flat, ends = np.ascontiguousarray(ids, np.uint32), offsets.astype(np.int64)
        nll, argmax, rank = score_ngrams(flat, ends, self.cache_weight, *self._arrays)
        return TokenScores(nll, argmax, rank)


def identify(plan: ModelPlan) -> str:
    """Digest of everything that determines the scores. Raises UserError as `load` does."""
    _, cache_weight = _find(plan.location)
    counts_id = plan.counts_id or read_meta(_counts_path(plan))["id"]
    return hashing.digest_json([plan.location, counts_id, plan.vocab_size, cache_weight])


def load(plan: ModelPlan) -> ControlModel:
    """The model over the plan's counts, of which none is read yet.

    Raises UserError without counts or of another tokenizer's, for an unknown name, and for
    `control:copy`, which cannot be scored.
    """
    return ControlModel(plan)


def facts(plan: ModelPlan) -> None:
    """Nothing is known of a control model, but it is opened. Raises UserError as `load` does."""
    load(plan)


def _find(spec: str) -> tuple[int, float]:
    if spec == "control:copy":
        problem = "it copies text and has no likelihoods"
        raise UserError(problem, where=spec, remedy="evaluate it with `recallkit eval-recall`")
    return registry.look_up(_MODELS, spec, "control model")
