"""Which tokens reach which through layers of sparse attention, and the conditions of Yun et al.'s
universal approximation.

    python examples/theory/5_sparse_patterns.py            # the paper's copying task: 256 ids, w =
    16 python examples/theory/5_sparse_patterns.py 64 8

Assumption 1 of arXiv 2006.04862 (section 3.2) asks that every token attends to itself, that an
order of all tokens exists in which each attends to the one before (a Hamiltonian path), and that
after s layers every token has reached every other. Its section 3.4 says of the strided pattern that
s = 2: true but for keys within half a stride of an end of the text, where the nearest token a whole
number of strides away is outside.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from recallkit.models.mixers.sparse_patterns import CONFIGURATIONS, TWO_PARTS, sees_in_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

MOST_STEPS = 20_000
"""Positions that a search for a Hamiltonian path tries before it gives up."""


def pattern_masks(
    pattern: str,
    length: int,
    *,
    configuration: str = "union",
    causal: bool = False,
    num_heads: int = 4,
    **options: Any,
) -> list[Tensor]:
    """The masks of a pattern at a length, one for each layer of its cycle: (h, n, n) bool, queries
    down, keys across, h distinct heads.

    `options` are those of `sees_in_pattern`. Sequential gives two masks of one head, union one of
    one, multihead one of two (of `num_heads` for random). Raises ValueError for a configuration
    that the pattern does not have.
    """
    places = torch.arange(length)

    def mask(**more: Any) -> Tensor:
        return sees_in_pattern(
            pattern,
            places[:, None],
            places,
            **{"causal": causal, "length": length} | options | more,
        )

    if configuration == "union":
        return [mask()[None]]
    if configuration == "multihead" and pattern == "random":
        return [mask(heads=torch.arange(num_heads).view(-1, 1, 1))]
    if configuration not in CONFIGURATIONS or pattern not in TWO_PARTS:
        raise ValueError(
            f"no {configuration} configuration of {pattern}: only {' and '.join(TWO_PARTS)} have "
            "two parts"
        )
    parts = [mask(part=part) for part in (0, 1)]
    return [torch.stack(parts)] if configuration == "multihead" else [part[None] for part in parts]


def sparsity_of(masks: Sequence[Tensor]) -> float:
    """The share of zeros in the masks, over layers of the cycle and heads, as the paper states it
    (of the square, causal or not)."""
    return 1 - sum(float(mask.double().mean()) for mask in masks) / len(masks)


def reached(masks: Sequence[Tensor], num_layers: int) -> Tensor:
    """Which tokens act on which after a number of layers: (n, n) bool, S^t of section 3.2 (a token
    reaches another if any head does)."""
    tables = _tables(masks)
    return [next(tables) for _ in range(num_layers)][-1]


def _tables(masks: Sequence[Tensor]) -> Iterator[Tensor]:
    """S^1, S^2 and so on, endlessly."""
    table, step = torch.eye(masks[0].shape[-1], dtype=torch.bool), 0
    while True:
        # The newest layer is the last one: its query attends to what each of its keys had reached
        # below it.
        table = (masks[step % len(masks)].any(0).float() @ table.float()) > 0
        step += 1
        yield table


class Check(NamedTuple):
    """Assumption 1 for a pattern, and how sparse it is."""

    self_loops: bool
    path: list[int] | None
    """An order of all tokens in which each attends, in some layer, to the one before; None where
    there is none, or none was found."""
    hops: int | None
    """s: the least number of layers after which every token has reached every token (if causal,
    every earlier one); None: never."""
    sparsity: float


def check_pattern(masks: Sequence[Tensor], *, causal: bool = False) -> Check:
    """Checks the masks of a cycle of layers, (h, n, n) bool each. `causal`: tokens need to reach
    earlier ones only."""
    self_loops = all(bool(mask.any(0).diagonal().all()) for mask in masks)
    seen = torch.stack([mask.any(0) for mask in masks]).any(0)
    return Check(self_loops, _hamiltonian_path(seen), _hops(masks, causal), sparsity_of(masks))


def _hops(masks: Sequence[Tensor], causal: bool) -> int | None:
    """The first table with all pairs that are wanted; None once a table comes again at the same
    place of the cycle."""
    missing = torch.ones(masks[0].shape[1:], dtype=torch.bool)
    missing = missing.tril() if causal else missing
    seen: set[tuple[int, bytes]] = set()
    for step, table in enumerate(_tables(masks), 1):
        if not (missing & ~table).any():
            return step
        state = (step % len(masks), table.numpy().tobytes())
        if state in seen:
            break
        seen.add(state)
    return None


def _hamiltonian_path(seen: Tensor) -> list[int] | None:
    """An order in which seen[order[i + 1], order[i]] for all i: in sequence or backwards, else
    depth first, as far as `MOST_STEPS`.

    Tokens with the fewest ways on are tried before others (Warnsdorff's rule).
    """
    n = len(seen)
    ways_on = [set(seen[:, token].nonzero()[:, 0].tolist()) - {token} for token in range(n)]
    for order in (range(n), range(n - 1, -1, -1)):
        if all(after in ways_on[before] for before, after in pairwise(order)):
            return list(order)
    stack, path, steps = [iter(sorted(range(n), key=lambda token: len(ways_on[token])))], [], 0
    while stack and steps < MOST_STEPS:
        token = next(stack[-1], None)
        if token is None:
            stack.pop()
            if path:
                path.pop()
            continue
        steps += 1
        path.append(token)
        if len(path) == n:
            return path
        used = set(path)
        stack.append(
            iter(sorted(ways_on[token] - used, key=lambda other: len(ways_on[other] - used)))
        )
    return None


PATTERNS = {
    **{
        f"{name}, {way}": {"pattern": name, "configuration": way}
        for name in TWO_PARTS
        for way in ("sequential", "multihead", "union")
    },
    "star": {"pattern": "star"},
    "longformer, one global token": {"pattern": "longformer"},
    "longformer without (a window)": {"pattern": "longformer", "num_global": 0},
    "bigbird, one global, 3 random": {"pattern": "bigbird"},
}


def main(length: int = 256, stride: int = 16) -> None:
    """Prints sparsity and s of each pattern, in both directions and causal, and what strided layers
    miss."""
    print(f"{length} tokens, w = {stride}{'':13} sparsity  self-loops, path   s  s causal")
    for name, options in PATTERNS.items():
        found = check_pattern(pattern_masks(length=length, stride=stride, **options))
        causal = check_pattern(
            pattern_masks(length=length, stride=stride, causal=True, **options), causal=True
        )
        whole = "yes" if found.self_loops and found.path else "no"
        print(f"{name:30} {100 * found.sparsity:8.2f} % {whole:>16} {found.hops:4} {causal.hops:9}")
    missed = ~reached(
        pattern_masks("strided", length, configuration="sequential", stride=stride), 2
    )
    keys = missed.nonzero()[:, 1]
    assert ((keys < stride // 2) | (keys >= length - stride // 2)).all()
    print(
        f"two strided layers leave {len(keys):,} of {length**2:,} pairs apart, all of keys "
        "within half a stride of an end"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
