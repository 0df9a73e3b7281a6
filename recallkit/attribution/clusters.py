"""Clusters: the pieces of text that are independent of each other, which intervals resample. By default a document is one.

Tokens of a document move together, whatever sequence they are in: resampled by sequences, intervals are far too narrow (docs/intervals.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from recallkit.attribution.bootstrap import ratio_of_squares
from recallkit.attribution.sums import join_sums
from recallkit.attribution.sums_kernels import add_sizes, close_cluster
from recallkit.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

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


class Groups:
    """The groups in which the clusters of a table at `path` are resampled; `num_clusters` None: sources, whose number is not known."""

    def __init__(self, num_clusters: int | None, path: Path) -> None:
        self._path = path
        self._groups = None if num_clusters is None else group_numbers(num_clusters)
        self.number = MOST_GROUPS if num_clusters is None else min(num_clusters, MOST_GROUPS)
        """How many there are."""

    @property
    def in_order(self) -> bool:
        """Whether the clusters of a table ascend."""
        return self._groups is not None

    def of(self, sums: Sums) -> Sums:
        """The same entries with groups in place of clusters; see `numbers`."""
        return replace(sums, cluster=self.numbers(sums.cluster))

    def numbers(self, cluster: np.ndarray) -> np.ndarray:
        """The group of each of n clusters (n,). Raises UserError for a cluster that cannot be."""
        if self._groups is None:
            found: np.ndarray = cluster % MOST_GROUPS
            return found
        if cluster.size and not 0 <= cluster.min() <= cluster.max() < len(self._groups):
            problem = "damaged (documents or sequences are not in order)"
            raise UserError(problem, where=self._path, remedy="slice again with --force")
        of_groups: np.ndarray = self._groups[cluster]
        return of_groups


class ClusterSizes:
    """How many clusters have tokens in each of K rows, and how unequal they are: K unions of k codes, by source.

    Entries come in order of clusters, so that a cluster is whole when the next one begins (`in_order`; otherwise none is until the end).
    """

    def __init__(self, unions: np.ndarray, num_sources: int = 1, *, in_order: bool = True) -> None:
        """`unions`: (k, K) of 0 and 1."""
        code, self._rows = np.nonzero(unions)
        self._bounds = np.searchsorted(code, np.arange(len(unions) + 1))
        self._powers = np.zeros((4, num_sources, unions.shape[1]))  # sums of 1, of sizes, of their squares, of their fourth powers
        self._open = np.zeros((num_sources, unions.shape[1]))
        self._cluster = -1
        self._waiting: list[Sums] | None = None if in_order else []

    def add(self, sums: Sums) -> None:
        """Adds a batch."""
        if self._waiting is None:
            self._add(sums)
        else:
            self._waiting.append(sums)

    def finish(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """When every batch was added: the clusters of each row, int64 (s, K), their effective number and degrees of freedom, float64.

        See `bootstrap.effective_number` and `bootstrap.freedom_of`.
        """
        if self._waiting:
            every = join_sums(self._waiting)
            self._add(every.at(np.argsort(every.cluster, kind="stable")))
        close_cluster(self._open, self._powers)
        number, sizes, squares, fourths = self._powers
        return number.astype(np.int64), ratio_of_squares(sizes, squares), ratio_of_squares(squares, fourths) - 1.0

    def _add(self, sums: Sums) -> None:
        entries = (sums.cluster, sums.source, sums.code, sums.tokens)
        self._cluster = add_sizes(*entries, self._bounds, self._rows, self._cluster, self._open, self._powers)
