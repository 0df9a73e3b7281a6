"""Scores of the control models: exact probabilities, argmax and rank from a sorted table of counts.

A rank asks how many of all tokens are more likely. Tokens never seen after `u` are ordered as under
the unigram distribution, so that a binary search counts them; only the followers of `u` are visited
one by one, and once for each bigram, whose rank is then known.
"""

from __future__ import annotations

import numpy as np

from recallkit.jit import njit, prange

_NONE = -1
UNKNOWN = -1
"""The rank of a bigram that has not been counted."""


@njit(inline="always", nogil=True, cache=True)
def _find(seconds, low, end, token):  # type: ignore[no-untyped-def]
    """Index of `token` in the sorted seconds[low:end], or -1."""
    at = low + np.searchsorted(seconds[low:end], token)
    return at if at < end and seconds[at] == token else _NONE


@njit(nogil=True, cache=True)
def _count_larger_scaled(ascending, scale, bound):  # type: ignore[no-untyped-def]
    """How many values v of `ascending` have scale * v > bound."""
    low, stop = 0, len(ascending)
    while low < stop:
        middle = (low + stop) // 2
        if scale * ascending[middle] > bound:
            stop = middle
        else:
            low = middle + 1
    return len(ascending) - low


@njit(nogil=True, cache=True)
def _count_larger(low, end, seconds, weights, scale, unigram, ascending, bound):  # type: ignore[no-untyped-def]
    """How many tokens v have a weight > bound: `weights` has those of followers, of any other token
    it is scale * p1(v)."""
    larger = _count_larger_scaled(ascending, scale, bound)
    for place in range(low, end):
        larger += np.int64(weights[place] > bound) - np.int64(
            scale * unigram[seconds[place]] > bound,
        )
    return larger


@njit(parallel=True, nogil=True, cache=True)
def summarise_rows(starts, seconds, counts, unigram):  # type: ignore[no-untyped-def]
    """For every token u: the sum of its counts, and the most likely next token under p2 with its
    weight.

    Weights are p2 times C(u) + T(u): count(u, v) + scale * p1(v), where scale is T(u). Those of
    followers replace their `counts`.

    Of the tokens never seen after u only the most frequent one can win; where that one is a
    follower of u, none of them can. Ties go to the lowest id.
    """
    num_rows = len(starts) - 1
    totals = np.zeros(num_rows)
    best = np.empty(num_rows, np.int64)
    best_weight = np.empty(num_rows)
    most_frequent = np.int64(np.argmax(unigram))
    for u in prange(num_rows):
        scale = max(1.0, np.float64(starts[u + 1] - starts[u]))
        token, weight, total = most_frequent, scale * unigram[most_frequent], 0.0
        for place in range(starts[u], starts[u + 1]):
            total += counts[place]
            counts[place] += scale * unigram[seconds[place]]
            if counts[place] > weight or (counts[place] == weight and seconds[place] < token):
                token, weight = np.int64(seconds[place]), counts[place]
        totals[u], best[u], best_weight[u] = total, token, weight
    return totals, best, best_weight


@njit(parallel=True, nogil=True, cache=True)
def score_ngrams(  # type: ignore[no-untyped-def]
    ids,
    offsets,
    cache_weight,
    starts,
    seconds,
    weights,
    ranks,
    unigram,
    ascending,
    totals,
    best,
    best_weight,
):
    """NLL (float32, nats), argmax and rank (int32) of every predicted id under p3 (p2 where
    `cache_weight` is 0).

    `ids` uint32 flat, sequence i is ids[offsets[i]:offsets[i + 1]]; followers of token u are
    seconds[starts[u]:starts[u + 1]] with `weights` float64 and `ranks` int32, which are filled in
    as they are needed; `unigram` p1 (vocab,), `ascending` the same sorted; the rest from
    `summarise_rows`.
    """
    num_sequences = len(offsets) - 1
    num_predicted = offsets[-1] - offsets[0] - num_sequences
    nll = np.empty(num_predicted, np.float32)
    argmax = np.empty(num_predicted, np.int32)
    rank = np.empty(num_predicted, np.int32)
    for sequence in prange(num_sequences):
        latest = np.full(len(unigram), _NONE, np.int64)
        out = offsets[sequence] - offsets[0] - sequence
        for place in range(offsets[sequence] + 1, offsets[sequence + 1]):
            u, w = np.int64(ids[place - 1]), np.int64(ids[place])
            low, end = starts[u], starts[u + 1]
            scale = max(1.0, np.float64(end - low))
            norm = totals[u] + scale
            at = _find(seconds, low, end, w)
            weight = weights[at] if at != _NONE else scale * unigram[w]
            larger = ranks[at] if at != _NONE else UNKNOWN
            if larger == UNKNOWN:
                larger = _count_larger(
                    low,
                    end,
                    seconds,
                    weights,
                    scale,
                    unigram,
                    ascending,
                    weight,
                )
                if at != _NONE:
                    ranks[at] = larger
            likeliest = best[u]
            recalled = latest[u] if cache_weight > 0.0 else _NONE
            if recalled == _NONE:
                probability = weight / norm
            else:
                # Weights of p3, in units of (1 - m) / norm: the cache adds `bonus` to one token.
                bonus = cache_weight / (1.0 - cache_weight) * norm
                at = _find(seconds, low, end, recalled)
                plain = weights[at] if at != _NONE else scale * unigram[recalled]
                if w != recalled:
                    larger += np.int64(plain + bonus > weight) - np.int64(plain > weight)
                else:
                    weight = plain + bonus
                    is_first = weight >= best_weight[u]
                    larger = (
                        0
                        if is_first
                        else _count_larger(
                            low,
                            end,
                            seconds,
                            weights,
                            scale,
                            unigram,
                            ascending,
                            weight,
                        )
                    )
                total = plain + bonus
                is_equal = total == best_weight[u]
                if total > best_weight[u] or (is_equal and recalled < likeliest):
                    likeliest = recalled
                probability = (1.0 - cache_weight) * weight / norm
            nll[out] = np.float32(-np.log(probability))
            argmax[out] = likeliest
            rank[out] = larger
            latest[u] = w
            out += 1
    return nll, argmax, rank
