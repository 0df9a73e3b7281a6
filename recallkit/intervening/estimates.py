"""Means of sampled tokens and totals of a text, with the same resamples of documents for all of them, so that they are paired."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from recallkit.measure.intervals import draw_weights, effective_number, freedom_of, group_numbers


class Documents:
    """The documents of a text (d,), by ascending number, and the resamples of them."""

    def __init__(self, numbers: np.ndarray, num_resamples: int, seed: int) -> None:
        self._numbers, self._num_resamples, self._seed = numbers, num_resamples, seed
        self._group = group_numbers(len(numbers))

    def __len__(self) -> int:
        """Their number."""
        return len(self._numbers)

    def sums(self, document: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Sums by document, (d, ...), of values (n, ...) of tokens in `document` (n,)."""
        sums = np.zeros((len(self), *values.shape[1:]))
        np.add.at(sums, np.searchsorted(self._numbers, document), values)
        return sums

    def resampled(self, sums: np.ndarray) -> np.ndarray:
        """Totals (num_resamples, ...) of sums by document (d, ...)."""
        groups = np.zeros((int(self._group.max()) + 1, *sums.shape[1:]))
        np.add.at(groups, self._group, sums)
        totals: np.ndarray = np.tensordot(self._weights, groups, axes=1)
        return totals

    @cached_property
    def _weights(self) -> np.ndarray:
        """How often each group of documents is in each resample."""
        rng = np.random.Generator(np.random.PCG64(self._seed))
        return draw_weights(rng, self._num_resamples, int(self._group.max()) + 1)


@dataclass(frozen=True)
class WeightedMeans:
    """Means of some values over tokens: weights (d,) and weighted sums (d, ...) by document, of `samples` tokens."""

    documents: Documents
    samples: int
    weight: np.ndarray
    sums: np.ndarray

    @property
    def num_documents(self) -> int:
        """Documents that have any of the tokens."""
        return int(np.count_nonzero(self.weight))

    @property
    def effective(self) -> float:
        """Their effective number (`bootstrap.effective_number`)."""
        return float(effective_number(self.weight))

    @property
    def freedom(self) -> float:
        """Degrees of freedom of a variance between them (`bootstrap.freedom_of`)."""
        return float(freedom_of(self.weight))

    @cached_property
    def mean(self) -> np.ndarray:
        """The means (...)."""
        means: np.ndarray = self.sums.sum(axis=0) / self.weight.sum()
        return means

    @cached_property
    def resampled(self) -> np.ndarray:
        """The means of resamples (num_resamples, ...); NaN where a resample has none of the tokens."""
        sums, weight = self.documents.resampled(self.sums), self.documents.resampled(self.weight)
        with np.errstate(divide="ignore", invalid="ignore"):
            means: np.ndarray = sums / weight.reshape(-1, *[1] * (sums.ndim - 1))
        return means
