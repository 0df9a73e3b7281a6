"""What a finished count is, before it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from recallkit.counting.bigram_kernels import BigramRun
    from recallkit.counting.ngram_kernels import NgramRun


@dataclass(frozen=True, slots=True)
class CountedStream:
    """A finished count: the sorted run of bigrams, the tokens that occur (uint32, sorted) with their counts (uint64), the totals.

    `ngrams` is the run of longer n-grams, if they were counted. Runs may be memory-mapped.
    """

    bigrams: BigramRun
    tokens: np.ndarray
    token_counts: np.ndarray
    num_tokens: int
    num_documents: int
    ngrams: NgramRun | None = None
