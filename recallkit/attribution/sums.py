"""Tokens and NLLs summed by cluster, source and code of a breakdown, batch by batch, and the sums over all batches."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from recallkit.attribution.sums_kernels import add_entries, sum_entries
from recallkit.ragged import run_starts

if TYPE_CHECKING:
    from collections.abc import Sequence

_EVERY = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Codes:
    """One breakdown of n rows: the code of each, below `num_codes`, and which rows have one (None: all)."""

    code: np.ndarray  # (n,)
    num_codes: int
    rows: np.ndarray | None = None  # indices of the rows that `code` is of, ascending

    def among(self, is_kept: np.ndarray) -> Codes:
        """The codes of those of the n rows that are kept, bool (n,)."""
        if self.rows is None:
            return Codes(self.code[is_kept], self.num_codes, np.flatnonzero(is_kept))
        kept = is_kept[self.rows]
        return Codes(self.code[kept], self.num_codes, self.rows[kept])


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of one or several batches: e entries, each of a cluster, a source and a code; most combinations do not occur."""

    code: np.ndarray  # (e,)
    cluster: np.ndarray  # (e,)
    source: np.ndarray  # (e,)
    values: np.ndarray  # (e, 1 + v) float64: tokens, and their NLLs in nats, of the reference first

    @property
    def tokens(self) -> np.ndarray:
        """The number of tokens of each entry, float64 (e,)."""
        return self.values[:, 0]

    def at(self, entries: np.ndarray) -> Sums:
        """These entries, by their numbers or as bool (e,)."""
        return Sums(*(getattr(self, field.name)[entries] for field in fields(self)))


def values_of(nlls: Sequence[np.ndarray]) -> np.ndarray:
    """What is added up of each row, (rows, 1 + v): 1, and its NLLs, of v arrays (rows,)."""
    return np.stack([np.ones_like(nlls[0]), *nlls], axis=1)


class Runs:
    """A batch of rows divided into runs of the same cluster and source; these are few, since rows of a document are contiguous."""

    def __init__(self, cluster: np.ndarray, source: np.ndarray) -> None:
        """`cluster` and `source` (rows,)."""
        starts = run_starts(cluster, source)
        self._cluster, self._source = cluster[starts], source[starts]
        self._run = np.repeat(np.arange(len(starts), dtype=np.int32), np.diff(starts, append=len(cluster)))

    def sum_codes(self, codes: Codes, values: np.ndarray, places: np.ndarray | None = None) -> Sums:
        """The sums of the n rows that have a code, an entry for each run and code that occur.

        `places` (n,): the rows of `values` (., 1 + v) that are added up; their own where None.
        """
        run = self._run if codes.rows is None else self._run[codes.rows]
        places = codes.rows if places is None else places
        run, code, sums = sum_entries(run, codes.code, codes.num_codes, _EVERY if places is None else places, values)
        return Sums(code, self._cluster[run], self._source[run], sums)


def recode(sums: Sums, code: np.ndarray, num_codes: int) -> Sums:
    """The same sums by the coarser code `code[c]` of each code c."""
    return Runs(sums.cluster, sums.source).sum_codes(Codes(code[sums.code], num_codes), sums.values)


def join_sums(parts: Sequence[Sums]) -> Sums:
    """The entries of all parts, concatenated."""
    return Sums(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Sums)))


def renumber(sums: Sums, *, cluster: np.ndarray | None = None, source: np.ndarray | None = None) -> Sums:
    """The same entries, with the numbers of clusters and sources that they have in these arrays."""
    sums = sums if cluster is None else replace(sums, cluster=cluster[sums.cluster])
    return sums if source is None else replace(sums, source=source[sums.source])


class GroupSums:
    """Sums by group of clusters, source and code, over all batches: g groups, s sources, k codes, v NLLs."""

    def __init__(self, num_groups: int, num_sources: int, num_codes: int, num_nlls: int) -> None:
        self._shape = (num_groups, num_sources, num_codes)
        self._sums = np.zeros((num_groups * num_sources * num_codes, 1 + num_nlls))  # tokens first

    def add(self, sums: Sums) -> None:
        """Adds a batch, whose clusters are numbers of groups and whose sources are below `num_sources`."""
        entry = np.ravel_multi_index((sums.cluster, sums.source, sums.code), self._shape)
        add_entries(self._sums, entry, sums.values)

    def rows(self, unions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens (g, s, K) and NLLs (v, g, s, K) of rows, each of which is made of some codes: `unions` (k, K)."""
        united = unions.T.astype(np.float64) @ self._sums.reshape(*self._shape, -1)
        return united[..., 0], np.moveaxis(united[..., 1:], -1, 0)


def gaps_of(nlls: np.ndarray) -> np.ndarray:
    """NLLs (v, g, s, K), the reference first, to sums of model minus reference (g, m, s, K), nats."""
    return np.moveaxis(nlls[1:] - nlls[:1], 0, 1)
