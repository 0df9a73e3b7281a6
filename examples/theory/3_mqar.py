"""MQAR as two proofs of Zoology (arXiv 2312.04927) compute it, on one-hot tokens of which it is
known what they are.

    python examples/theory/3_mqar.py

Proposition H.27: "Attention with linear biases (even without using soft-max) solves Mqar". A first
layer brings values up to their keys by a bias that shifts up, B, and a second one is

    z = Q K^T (V + B V)

Theorem H.38: "There exists a BaseConv model with gated data-dependent convolutions that solves the
multiple-query associative recall problem", where queries find their keys at t distances at most.
For each distance s, in blocks of their own,

    y = Q * (X^s conv K),   E = y J,   z = E * (X^(s - 1) conv V)      J: all ones; a value is one
    place after its key

so E is one where query and key agree, and the blocks' sum is the value. Distances are the t largest
cross-correlations of queries and keys. (H.38 finds them by autocorrelation of the whole input, in
which values that recur and other keys count, too. Its last display has V and h^V where eq. 21 has K
and h^K, the last but one h^k where eq. 19 has h^v: eqs. 19 to 23 are built.) The models
`construct:attention` and `construct:base-conv` are causal versions of both with real tokens.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import one_hot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

base_conv = importlib.import_module("2_base_conv")

VOCAB = 16


def solve_by_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The value of each query, else zeros; all (n, c) float64, one-hot, zeros at other tokens, a
    value one place after its key."""
    shifted_up = base_conv.run(base_conv.shift_up(*values.shape, 1), values)
    return queries @ keys.T @ (values + shifted_up)


def interaction_distances(queries: Tensor, keys: Tensor, most: int) -> list[int]:
    """At most `most` distances i - j >= 1 with the most pairs of a query i equal to a key j."""
    products = queries @ keys.T
    agree = [(float(products.diagonal(-s).sum()), s) for s in range(1, len(queries))]
    return [
        s for count, s in sorted(agree, key=lambda found: (-found[0], found[1]))[:most] if count > 0
    ]


def solve_by_distances(
    queries: Tensor, keys: Tensor, values: Tensor, distances: Sequence[int]
) -> Tensor:
    """The value of each query whose key is one of the distances before it, else zeros."""
    n, c = keys.shape
    found = torch.zeros_like(values)
    for s in distances:
        agree = queries * base_conv.convolve(keys, base_conv.ones_at(n, c, s))
        found += (agree @ torch.ones(c, c, dtype=agree.dtype)) * base_conv.convolve(
            values, base_conv.ones_at(n, c, s - 1)
        )
    return found


def draw(pairs: int, tail: int, seed: int) -> tuple[list[Tensor], Tensor, set[int]]:
    """Queries, keys and values (n, c) of k1 v1 k2 v2 ... and queries at random places of the tail;
    the answers; their distances."""
    generator = torch.Generator().manual_seed(seed)
    drawn, values = (
        torch.randperm(VOCAB, generator=generator)[:pairs],
        torch.randint(VOCAB, (pairs,), generator=generator),
    )
    places = 2 * pairs + torch.randperm(tail, generator=generator)[:pairs]
    parts = [torch.zeros(2 * pairs + tail, VOCAB, dtype=torch.float64) for _ in range(4)]
    at_keys = 2 * torch.arange(pairs)
    for part, at, ids in zip(
        parts, (places, at_keys, at_keys + 1, places), (drawn, drawn, values, values), strict=True
    ):
        part[at] = one_hot(ids, VOCAB).double()
    return parts[:3], parts[3], set((places - at_keys).tolist())


def main(sequences: int = 20) -> None:
    """Checks both computations on random sequences."""
    for seed in range(sequences):
        parts, answers, wanted = draw(pairs=1 + seed % 6, tail=6 + seed % 7, seed=seed)
        assert solve_by_attention(*parts).equal(answers)
        distances = interaction_distances(*parts[:2], most=len(answers))
        assert set(distances) == wanted
        assert solve_by_distances(*parts, distances).equal(answers)
        assert not solve_by_distances(*parts, distances[:-1]).equal(answers)
    print(
        f"{sequences} sequences: attention answers every query, BaseConv with as many filters as "
        "distances, and with one less it does not"
    )


if __name__ == "__main__":
    main()
