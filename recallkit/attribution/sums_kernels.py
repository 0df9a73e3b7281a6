"""The compiled loops of sums: rows added up by run and code, and entries added to the rows of a large table; sizes of clusters."""

from __future__ import annotations

import numpy as np

from recallkit.jit import njit


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def sum_entries(
    run: np.ndarray, code: np.ndarray, num_codes: int, places: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of the same run and code added up: run and code of each entry, (e,), and its sums, float64 (e, v).

    Row i of n has the values of row `places[i]` of `values` (., v), or, where `places` is empty, of row i. `run` (n,) ascends; entries
    are in the order of their first rows, and what is added up is in that of rows.
    """
    of_run, of_code, sums = np.empty_like(run), np.empty_like(code), np.empty((len(run), values.shape[1]))
    latest, number = np.full(num_codes, -1, run.dtype), np.empty(num_codes, np.int64)
    count = 0
    for row in range(len(run)):
        own = code[row]
        if latest[own] != run[row]:
            latest[own], number[own] = run[row], count
            of_run[count], of_code[count] = run[row], own
            sums[count] = 0
            count += 1
        into, added = sums[number[own]], values[places[row] if len(places) else row]
        for value in range(len(added)):
            into[value] += added[value]
    return of_run[:count].copy(), of_code[:count].copy(), sums[:count].copy()


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def add_entries(total: np.ndarray, row: np.ndarray, sums: np.ndarray) -> None:
    """Adds `sums` (e, v) to rows `row` (e,) of `total` (rows, v), one entry after the other."""
    for entry in range(len(row)):
        into = total[row[entry]]
        for value in range(sums.shape[1]):
            into[value] += sums[entry, value]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def close_cluster(sizes: np.ndarray, powers: np.ndarray) -> None:
    """Adds the powers 0, 1, 2 and 4 of `sizes` (s, K) that are not 0 to `powers` (4, s, K), and makes them 0."""
    for source in range(sizes.shape[0]):
        for row in range(sizes.shape[1]):
            size = sizes[source, row]
            if size:
                powers[0, source, row] += 1
                powers[1, source, row] += size
                powers[2, source, row] += size**2
                powers[3, source, row] += size**4
                sizes[source, row] = 0


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def add_sizes(
    cluster: np.ndarray,
    source: np.ndarray,
    code: np.ndarray,
    tokens: np.ndarray,
    bounds: np.ndarray,
    rows: np.ndarray,
    latest: int,
    sizes: np.ndarray,
    powers: np.ndarray,
) -> int:
    """Adds entries (e,), in order of clusters, to `sizes` (s, K) of the open cluster, and closes it where the next one begins.

    Code c is in `rows[bounds[c] : bounds[c + 1]]`. `latest` is the open cluster; returns the one that is open then.
    """
    for entry in range(len(cluster)):
        if cluster[entry] != latest:
            close_cluster(sizes, powers)
            latest = cluster[entry]
        own = sizes[source[entry]]
        for place in range(bounds[code[entry]], bounds[code[entry] + 1]):
            own[rows[place]] += tokens[entry]
    return latest
