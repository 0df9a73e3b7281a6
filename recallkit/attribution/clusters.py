"""Clusters: the pieces of text that are independent of each other, which intervals resample. By default a document is one.

Tokens of a document move together, whatever sequence they are in: resampled by sequences, intervals are far too narrow (docs/intervals.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recallkit.attribution.bootstrap import ratio_of_squares
from recallkit.ragged import run_starts

if TYPE_CHECKING:
    from recallkit.attribution.sums import Sums

CLUSTERS = ("document", "sequence", "source")
"""What can be a cluster: columns of `tokens.parquet`."""

MOST_GROUPS = 1024
"""Clusters are resampled singly up to this number, and beyond it in so many groups, drawn at random: a standard error is then known to
2 % (1 / sqrt(2 g)), and time and memory do not grow with the text."""


def group_numbers(num_clusters: int) -> np.ndarray:
    """The group of each cluster, int64 (num_clusters,): a group of its own, or one of MOST_GROUPS of equal size."""
    if num_clusters <= MOST_GROUPS:
        return np.arange(num_clusters)
    groups: np.ndarray = np.random.default_rng(0).permutation(num_clusters) % MOST_GROUPS
    return groups


class ClusterSizes:
    """How many clusters have tokens in each of K rows, and how unequal they are: K unions of k codes, by source.

    Entries come in order of clusters, so that all but the last cluster of a batch are whole (`in_order`; otherwise none is
    until the end).
    """

    def __init__(self, unions: np.ndarray, num_sources: int = 1, *, in_order: bool = True) -> None:
        """`unions`: (k, K) of 0 and 1."""
        self._unions, self._in_order = unions.astype(np.float64), in_order
        self._powers = np.zeros((3, num_sources, unions.shape[1]))  # sums of sizes, of their squares, of their fourth powers
        self._clusters = np.zeros((num_sources, unions.shape[1]), np.int64)
        self._open: list[np.ndarray] = [np.zeros(0, np.int64)] * 4

    def add(self, sums: Sums) -> None:
        """Adds a batch."""
        entries = [sums.cluster.astype(np.int64), sums.source.astype(np.int64), sums.code.astype(np.int64), sums.tokens.astype(np.int64)]
        entries = [np.concatenate(pair) for pair in zip(self._open, entries, strict=True)]
        is_open = entries[0] == entries[0].max(initial=-1) if self._in_order else np.ones(len(entries[0]), bool)
        self._open = [column[is_open] for column in entries]
        self._close([column[~is_open] for column in entries])

    def finish(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """When every batch was added: the clusters of each row, int64 (s, K), their effective number and degrees of freedom, float64.

        See `bootstrap.effective_number` and `bootstrap.freedom_of`.
        """
        self._close(self._open)
        sizes, squares, fourths = self._powers
        return self._clusters, ratio_of_squares(sizes, squares), ratio_of_squares(squares, fourths) - 1.0

    def _close(self, entries: list[np.ndarray]) -> None:
        cluster, source, code, tokens = entries
        num_codes, num_sources = len(self._unions), len(self._clusters)
        pairs, pair = _distinct(cluster * num_sources + source)
        by_code = np.bincount(pair * num_codes + code, weights=tokens, minlength=len(pairs) * num_codes)
        sizes = by_code.reshape(len(pairs), num_codes) @ self._unions
        of_source = pairs % num_sources
        squares = np.square(sizes)
        for total, powers in zip(self._powers, (sizes, squares, np.square(squares)), strict=True):
            total += _sum_by_source(powers, of_source, num_sources)
        self._clusters += _sum_by_source(sizes > 0, of_source, num_sources)


def _distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct keys (n,), ascending, and the place of each key among them; of keys in order, as most are, without sorting."""
    if (keys[1:] < keys[:-1]).any():
        distinct, places = np.unique(keys, return_inverse=True)
        return distinct, places
    starts = run_starts(keys)
    return keys[starts], np.repeat(np.arange(len(starts)), np.diff(starts, append=len(keys)))


def _sum_by_source(values: np.ndarray, source: np.ndarray, num_sources: int) -> np.ndarray:
    """Sums (s, K) of rows of `values` (p, K) by their `source` (p,); of true values, their number."""
    total: np.ndarray = np.zeros((num_sources, values.shape[1]), np.int64 if values.dtype == bool else np.float64)
    if num_sources == 1:
        total[0] = values.sum(axis=0)
        return total
    np.add.at(total, source, values)
    return total
