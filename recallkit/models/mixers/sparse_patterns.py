"""Sparse patterns of attention as rules of positions: strided, fixed, star, random, Longformer's
and BigBird's, causal or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.models.mixers.selection import hash_share

if TYPE_CHECKING:
    from torch import Tensor

PATTERNS: dict[str, tuple[str, ...]] = {
    "strided": ("stride",),
    "fixed": ("stride",),
    "star": ("stride", "length"),
    "random": (),
    "longformer": ("stride", "num_global"),
    "bigbird": ("stride", "num_global", "length"),
}
"""Pattern -> those of its numbers that compiled kernels take as arguments."""

TWO_PARTS = ("strided", "fixed")
CONFIGURATIONS = ("sequential", "union", "multihead")


def sees_in_pattern(
    pattern: str,
    queries: Tensor,
    keys: Tensor,
    *,
    part: int | None = None,
    heads: Tensor | None = None,
    causal: bool = True,
    stride: int | Tensor = 16,
    length: int | Tensor = 0,
    num_global: int | Tensor = 1,
    num_random: int = 3,
    sparsity: float = 0.9,
    seed: int = 0,
) -> Tensor:
    """Which keys a query sees, by int64 positions from 0 that broadcast -> bool; i a query, j a
    key, w the stride, n the length:

    strided     part 0: -floor(w / 2) <= i - j <= ceil(w / 2);  part 1: (i - j) mod w = 0
    fixed       part 0: floor(j / w) = floor(i / w);  part 1: j mod w = w - 1, or j = i
    star        i or j the relay, n - 1; or both at most w apart on the ring of the other positions
    random      j = i, or hash(seed, i, j) >= sparsity; with `heads`, which broadcast, one for each
    longformer  |i - j| <= floor(w / 2), or i or j among the first `num_global`
    bigbird     as longformer, or j one of `num_random` draws of i from all n positions

    Strided, fixed and star are equations 4, 5 and 6 of Yun et al. 2020 (arXiv 2006.04862),
    longformer is section 3.1 of Beltagy et al. 2020 (arXiv 2004.05150) without dilation, bigbird
    section 2 of Zaheer et al. 2020 (arXiv 2007.14062) with the first tokens as the global ones,
    draws with replacement, and pairs of positions instead of blocks. `causal` keeps only pairs of j
    <= i, as the paper masks patterns for language models (G.2, H.1). `part` None is the union of a
    pattern's parts; others than strided and fixed have one. Star and bigbird depend on the length
    n, at most which a text may be long; no other does.
    """
    apart = queries - keys
    if pattern == "strided":
        near = (apart <= (stride + 1) // 2) & (-apart <= stride // 2)
        mask = _either(part, near, apart % stride == 0)
    elif pattern == "fixed":
        summary = (keys + 1) % stride == 0
        mask = _either(part, queries // stride == keys // stride, summary | (apart == 0))
    elif pattern == "star":
        ring = length - 1
        is_near = (apart % ring <= stride) | (-apart % ring <= stride)
        mask = is_near | (keys == ring) | (queries == ring)
    elif pattern == "random":
        head = () if heads is None else (heads,)
        mask = (hash_share(seed, *head, queries, keys) >= sparsity) | (apart == 0)
    else:
        mask = (abs(apart) <= stride // 2) | (queries < num_global) | (keys < num_global)
        for draw in range(num_random if pattern == "bigbird" else 0):
            mask = mask | (keys == drawn_key(seed, queries, draw, length))
    return mask & (apart >= 0) if causal else mask


def drawn_key(seed: int, queries: Tensor, draw: int, length: int | Tensor) -> Tensor:
    """A position below the length for each query, int64: one of BigBird's random keys."""
    return (hash_share(seed, queries, draw) * length).long()


def _either(part: int | None, first: Tensor, second: Tensor) -> Tensor:
    return first | second if part is None else (first, second)[part]
