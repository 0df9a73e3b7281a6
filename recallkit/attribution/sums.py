"""Tokens and NLLs summed by cluster, source and code of a breakdown, batch by batch, and the sums over all batches."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from recallkit.attribution.sums_kernels import add_entries
from recallkit.ragged import run_starts

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCK = 1 << 15
"""Rows summed at a time: the temporaries stay in the processor's cache."""
_SPARSE = 4
"""Where there are more than this many combinations of cluster and code per row, those that occur are looked up, not all counted."""


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
    tokens: np.ndarray  # (e,)
    nlls: np.ndarray  # (v, e) float64, sums in nats: of the reference and of each model


def sum_rows(breakdowns: Sequence[Codes], cluster: np.ndarray, source: np.ndarray, nlls: Sequence[np.ndarray]) -> list[Sums]:
    """The sums of a batch of rows by each breakdown; `cluster` and `source` (rows,), `nlls` v arrays (rows,).

    Rows of a cluster are contiguous, and so are sources, document by document, so that runs of both are few. An entry is one run in
    one block of rows.
    """
    found: list[list[Sums]] = [[] for _ in breakdowns]
    for start in range(0, len(cluster), _BLOCK):
        at = slice(start, start + _BLOCK)
        block = [nll[at].astype(np.float64) for nll in nlls]
        runs = _Runs(cluster[at], source[at])
        for sums, codes in zip(found, breakdowns, strict=True):
            sums.append(runs.sum_codes(codes, start, block))
    return [join_sums(sums) for sums in found]


class _Runs:
    """A block of rows divided into runs of the same cluster and source."""

    def __init__(self, cluster: np.ndarray, source: np.ndarray) -> None:
        starts = run_starts(cluster, source)
        self._cluster, self._source = cluster[starts], source[starts]
        self._run = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(cluster)))

    def sum_codes(self, codes: Codes, start: int, nlls: Sequence[np.ndarray]) -> Sums:
        """The sums of the block, whose first row is `start`."""
        if codes.rows is None:
            run, code, picked = self._run, codes.code[start : start + len(self._run)], list(nlls)
        else:
            first, last = np.searchsorted(codes.rows, [start, start + len(self._run)])
            within = codes.rows[first:last] - start
            run, code, picked = self._run[within], codes.code[first:last], [nll[within] for nll in nlls]
        entry = run * codes.num_codes
        entry += code
        if len(self._cluster) * codes.num_codes <= _SPARSE * len(self._run):
            tokens = np.bincount(entry)
            occur = np.flatnonzero(tokens)
            tokens = tokens[occur]
            sums = [np.bincount(entry, weights=nll)[occur] for nll in picked]
        else:
            occur, entry, tokens = np.unique(entry, return_inverse=True, return_counts=True)
            sums = [np.bincount(entry, weights=nll, minlength=len(occur)) for nll in picked]
        run = occur // codes.num_codes
        return Sums(occur % codes.num_codes, self._cluster[run], self._source[run], tokens, np.stack(sums))


def join_sums(parts: Sequence[Sums]) -> Sums:
    """The entries of all parts, concatenated."""
    return Sums(*(np.concatenate([getattr(part, field.name) for part in parts], axis=-1) for field in fields(Sums)))


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
        add_entries(self._sums, entry, sums.tokens, sums.nlls)

    def rows(self, unions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens (g, s, K) and NLLs (v, g, s, K) of rows, each of which is made of some codes: `unions` (k, K)."""
        united = unions.T.astype(np.float64) @ self._sums.reshape(*self._shape, -1)
        return united[..., 0], np.moveaxis(united[..., 1:], -1, 0)


def gaps_of(nlls: np.ndarray) -> np.ndarray:
    """NLLs (v, g, s, K), the reference first, to sums of model minus reference (g, m, s, K), nats."""
    return np.moveaxis(nlls[1:] - nlls[:1], 0, 1)
