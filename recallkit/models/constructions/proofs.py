"""MQAR as two proofs of Zoology (arXiv 2312.04927) compute it, on one-hot tokens of which it is known what they are; `mqar.py` has models.

Proposition H.27, attention without softmax: a first layer brings values up to their keys by a bias that shifts up, B, and a second one is

    z = Q K^T (V + B V)

Theorem H.38, BaseConv whose filters are shifts to the distances at which queries find their keys, where at most t distances
occur. For each distance s, in blocks of their own ("in parallel"),

    y = Q * (X^s conv K),   E = y J,   z = E * (X^(s - 1) conv V)      J: all ones; a value is one place after its key

so E is one where query and key agree, and the blocks' sum is the value. Distances are the t largest cross-correlations of queries and
keys. (H.38 finds them by autocorrelation of the whole input, in which values that recur and other keys count, too.
Its last display has V and h^V where eq. 21 has K and h^K, the last but one h^k where eq. 19 has h^v: eqs. 19 to 23 are built.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.models.constructions.layers import convolve, one_hot, run, shift_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def solve_by_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The value of each query, else zeros; all (n, c) float64, one-hot, zeros at other tokens, a value one place after its key."""
    n, c = values.shape
    return queries @ keys.T @ (values + run(shift_up(n, c, 1), values))


def interaction_distances(queries: Tensor, keys: Tensor, most: int) -> list[int]:
    """At most `most` distances i - j >= 1 with the most pairs of a query i equal to a key j; (n, c) one-hot, zeros at other tokens."""
    products = queries @ keys.T
    agree = [(float(products.diagonal(-s).sum()), s) for s in range(1, len(queries))]
    return [s for count, s in sorted(agree, key=lambda found: (-found[0], found[1]))[:most] if count > 0]


def solve_by_distances(queries: Tensor, keys: Tensor, values: Tensor, distances: Sequence[int]) -> Tensor:
    """The value of each query whose key is one of the distances before it, else zeros; all (n, c) float64, zeros at other tokens."""
    n, c = keys.shape
    found = torch.zeros_like(values)
    for s in distances:
        agree = queries * convolve(keys, one_hot(n, c, s), cyclic=False)
        found += (agree @ torch.ones(c, c, dtype=agree.dtype)) * convolve(values, one_hot(n, c, s - 1), cyclic=False)
    return found
