"""Adds labelled tokens to histograms by source: one pass over the rows, each of which updates a few counters.

With numpy, one `bincount` per table, this would take several times as long as labelling the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recallkit.jit import frozen, njit
from recallkit.slicing.label_kernels import NO_DISTANCE

NUM_COUNTS = 6
TOKENS, CONTENT_TOKENS, REPEATED, CONTENT_REPEATED, DISTINCT_REPEATED, AR_HITS = range(NUM_COUNTS)
"""Tokens counted by group. Distinct: a repeated content bigram once per sequence, at its first repetition."""

NUM_KINDS = 3
KIND_REPEATED, KIND_CONTENT, KIND_AR_HITS = range(NUM_KINDS)
"""Tokens whose distances are counted."""

NUM_PLACED = 5
PLACED_TOKENS, PLACED_CONTENT_TOKENS, PLACED_REPEATED, PLACED_CONTENT_REPEATED, PLACED_AR_HITS = range(NUM_PLACED)
"""Tokens counted by position."""


@dataclass(frozen=True, slots=True)
class Histograms:
    """Sums over tokens: s sources, g groups of documents, c ranges of distances (between cuts), p buckets of positions.

    Sums of range c are over distances cuts[c] <= d < cuts[c + 1]; ln d is added in the order of the tokens, so that the sums
    are bit-identical however a stream was divided.
    """

    counts: np.ndarray  # (s, g, NUM_COUNTS) int64
    distances: np.ndarray  # (s, NUM_KINDS, x_max + 1) int64
    cut_counts: np.ndarray  # (s, NUM_KINDS, g, c) int64
    cut_logs: np.ndarray  # (s, NUM_KINDS, g, c) float64
    positions: np.ndarray  # (s, p, NUM_PLACED) int64
    documents: np.ndarray  # (s,) int64, documents that have ended
    squared_sizes: np.ndarray  # (s,) float64, the sum of the squares of their tokens
    fourth_powers: np.ndarray  # (s,) float64, and of the fourth powers

    @classmethod
    def zeros(cls, num_sources: int, num_groups: int, x_max: int, num_cuts: int, num_buckets: int) -> Histograms:
        """All zero."""
        return cls(
            np.zeros((num_sources, num_groups, NUM_COUNTS), np.int64),
            np.zeros((num_sources, NUM_KINDS, x_max + 1), np.int64),
            np.zeros((num_sources, NUM_KINDS, num_groups, num_cuts), np.int64),
            np.zeros((num_sources, NUM_KINDS, num_groups, num_cuts), np.float64),
            np.zeros((num_sources, num_buckets, NUM_PLACED), np.int64),
            np.zeros(num_sources, np.int64),
            np.zeros(num_sources, np.float64),
            np.zeros(num_sources, np.float64),
        )


def add_tokens(
    sums: Histograms,
    cut_of: np.ndarray,
    source: np.ndarray,
    group: np.ndarray,
    bucket: np.ndarray,
    content: np.ndarray,
    distance: np.ndarray,
    occurrences: np.ndarray,
    ar_hit: np.ndarray,
) -> None:
    """Adds n tokens, given as arrays (n,): source int32, group and bucket uint8, distance and occurrences int32.

    `content`: whether its bigram is a content bigram; `distance` is NO_DISTANCE unless the bigram is repeated;
    `cut_of[d]` (uint8, x_max + 1) is the range of distance d.
    """
    arrays = (source, group, bucket, content, distance, occurrences, ar_hit)
    assert all(len(array) == len(source) for array in arrays)
    logs = np.log(np.maximum(np.arange(len(cut_of)), 1))
    shape = np.array([sums.counts.shape[1], len(cut_of), sums.cut_counts.shape[3], sums.positions.shape[1]], np.uint64)
    flat = [array.reshape(-1) for array in (sums.counts, sums.distances, sums.cut_counts, sums.cut_logs, sums.positions)]
    _add(shape, *flat, *map(frozen, (cut_of, logs, *arrays)))


@njit(cache=True, nogil=True)
def _add(  # type: ignore[no-untyped-def]
    shape, counts, distances, cut_counts, cut_logs, positions, cut_of, logs, source, group, bucket, content, distance, occurrences, ar_hit
):
    """All tables are flat and all indexes unsigned, because signed indexes would be checked for negative values each time.

    Consecutive tokens mostly share source, group and bucket: counts that need no distance stay in registers until a run ends.
    """
    num_groups, num_distances, num_cuts, num_buckets = shape
    to_content, to_hits = np.uint64(KIND_CONTENT), np.uint64(KIND_AR_HITS)
    row, num_rows = 0, len(source)
    while row < num_rows:
        first, s, g, b = row, source[row], group[row], bucket[row]
        at = np.uint64(s) * np.uint64(NUM_KINDS) * num_distances
        cut_at = (np.uint64(s) * np.uint64(NUM_KINDS) * num_groups + np.uint64(g)) * num_cuts
        num_content = num_repeated = num_both = num_distinct = num_hits = 0
        while row < num_rows and source[row] == s and group[row] == g and bucket[row] == b:
            is_content = content[row]
            num_content += is_content
            if distance[row] != NO_DISTANCE:
                d = np.uint64(distance[row])
                log, cut = logs[d], cut_at + np.uint64(cut_of[d])
                num_repeated += 1
                distances[at + d] += 1
                cut_counts[cut] += 1
                cut_logs[cut] += log
                if is_content:
                    num_both += 1
                    num_distinct += occurrences[row] == 1
                    distances[at + to_content * num_distances + d] += 1
                    cut_counts[cut + to_content * num_groups * num_cuts] += 1
                    cut_logs[cut + to_content * num_groups * num_cuts] += log
                if ar_hit[row]:
                    num_hits += 1
                    distances[at + to_hits * num_distances + d] += 1
                    cut_counts[cut + to_hits * num_groups * num_cuts] += 1
                    cut_logs[cut + to_hits * num_groups * num_cuts] += log
            row += 1
        of_group = (np.uint64(s) * num_groups + np.uint64(g)) * np.uint64(NUM_COUNTS)
        counts[of_group + np.uint64(TOKENS)] += row - first
        counts[of_group + np.uint64(CONTENT_TOKENS)] += num_content
        counts[of_group + np.uint64(REPEATED)] += num_repeated
        counts[of_group + np.uint64(CONTENT_REPEATED)] += num_both
        counts[of_group + np.uint64(DISTINCT_REPEATED)] += num_distinct
        counts[of_group + np.uint64(AR_HITS)] += num_hits
        of_place = (np.uint64(s) * num_buckets + np.uint64(b)) * np.uint64(NUM_PLACED)
        positions[of_place + np.uint64(PLACED_TOKENS)] += row - first
        positions[of_place + np.uint64(PLACED_CONTENT_TOKENS)] += num_content
        positions[of_place + np.uint64(PLACED_REPEATED)] += num_repeated
        positions[of_place + np.uint64(PLACED_CONTENT_REPEATED)] += num_both
        positions[of_place + np.uint64(PLACED_AR_HITS)] += num_hits
