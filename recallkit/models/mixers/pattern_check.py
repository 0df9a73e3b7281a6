"""What a sparse pattern of attention can express: which tokens reach which, and the conditions of Yun et al.'s universal approximation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from recallkit.models.mixers.sparse_patterns import CONFIGURATIONS, TWO_PARTS, sees_in_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

MOST_STEPS = 20_000
"""Positions that a search for a Hamiltonian path tries before it gives up."""


def pattern_masks(
    pattern: str, length: int, *, configuration: str = "union", causal: bool = False, num_heads: int = 4, **options: Any
) -> list[Tensor]:
    """The masks of a pattern at a length, one for each layer of its cycle: (h, n, n) bool, queries down, keys across, h distinct heads.

    `options` are those of `sees_in_pattern`. Sequential gives two masks of one head, union one of one, multihead one of two (of
    `num_heads` for random). Raises ValueError for a pattern or configuration that is unknown or does not go with the pattern.
    """
    places = torch.arange(length)
    given = {"causal": causal, "length": length} | options

    def mask(**more: Any) -> Tensor:
        return sees_in_pattern(pattern, places[:, None], places, **given, **more)

    if configuration == "union":
        return [mask()[None]]
    if configuration == "multihead" and pattern == "random":
        return [mask(heads=torch.arange(num_heads).view(-1, 1, 1))]
    if configuration not in CONFIGURATIONS or pattern not in TWO_PARTS:
        raise ValueError(f"no {configuration} configuration of {pattern}: only {' and '.join(TWO_PARTS)} have two parts")
    parts = [mask(part=part) for part in (0, 1)]
    return [torch.stack(parts)] if configuration == "multihead" else [part[None] for part in parts]


def sparsity_of(masks: Sequence[Tensor]) -> float:
    """The share of zeros in the masks, over layers of the cycle and heads, as Yun et al. state it (of the square, causal or not)."""
    return 1 - sum(float(mask.double().mean()) for mask in masks) / len(masks)


def reached(masks: Sequence[Tensor], num_layers: int) -> Tensor:
    """Which tokens act on which after a number of layers: (n, n) bool, S^t of section 3.2 (a token reaches another if any head does)."""
    tables = _tables(masks)
    return next(table for step, table in enumerate(tables, 1) if step == num_layers)


@dataclass(frozen=True, slots=True)
class PatternCheck:
    """Assumption 1 of Yun et al. 2020 (arXiv 2006.04862, section 3.2) for a pattern, and how sparse it is."""

    self_loops: bool
    """1.1: every token attends to itself, in each layer of the cycle."""
    path: tuple[int, ...] | None
    """1.2: an order of all tokens in which each attends, in some layer, to the one before; None where none was found."""
    has_path: bool | None
    """Whether there is such an order; None where the search ended undecided."""
    hops: int | None
    """1.3: s, the least number of layers after which every token has reached every token (if causal, every earlier one); None: never."""
    sparsity: float
    """See `sparsity_of`."""

    @property
    def satisfied(self) -> bool | None:
        """Whether all three hold, so that by Theorem 1 such layers are universal approximators, given a probability map of Assumption 2.

        None where that is not decided. For causal masks the theorem says nothing: they cannot satisfy 1.3 as it is written.
        """
        if not self.self_loops or self.hops is None or self.has_path is False:
            return False
        return self.has_path


def check_pattern(masks: Sequence[Tensor], *, causal: bool = False) -> PatternCheck:
    """Checks the masks of a cycle of layers, each (n, n) or (h, n, n) bool, such as `pattern_masks` gives, against Assumption 1.

        check_pattern(pattern_masks("star", 256, stride=16)).hops      # 2

    A head's mask counts where any head has it, since heads are added up. `causal` says that tokens need to reach earlier ones
    only. Raises ValueError for masks that are none, not square or of unequal sizes.
    """
    layers = [_any_head(mask) for mask in masks]
    if not layers or any(layer.shape != (len(layers[0]),) * 2 for layer in layers):
        raise ValueError(f"masks must be square and of one size: {[tuple(mask.shape) for mask in masks]}")
    path, has_path = _hamiltonian_path(torch.stack(layers).any(0))
    return PatternCheck(
        self_loops=all(bool(layer.diagonal().all()) for layer in layers),
        path=path,
        has_path=has_path,
        hops=_hops(layers, causal),
        sparsity=sparsity_of(masks),
    )


def _any_head(mask: Tensor) -> Tensor:
    return mask.any(0) if mask.ndim == 3 else mask


def _tables(masks: Sequence[Tensor]) -> Iterator[Tensor]:
    """S^1, S^2 and so on, endlessly: (n, n) bool."""
    layers = [_any_head(mask) for mask in masks]
    table = torch.eye(len(layers[0]), dtype=torch.bool)
    step = 0
    while True:
        # The newest layer is the last one: its query attends to what each of its keys had reached below it.
        table = (layers[step % len(layers)].float() @ table.float()) > 0
        step += 1
        yield table


def _hops(layers: list[Tensor], causal: bool) -> int | None:
    """The first table with all pairs that are wanted; None once a table comes again at the same place of the cycle."""
    n = len(layers[0])
    wanted = torch.ones(n, n, dtype=torch.bool)
    if causal:
        wanted = wanted.tril()
    seen: set[tuple[int, bytes]] = set()
    for step, table in enumerate(_tables(layers), 1):
        if bool((table | ~wanted).all()):
            return step
        state = (step % len(layers), table.numpy().tobytes())
        if state in seen:
            return None
        seen.add(state)
    raise AssertionError("the tables do not end")


def _hamiltonian_path(seen: Tensor) -> tuple[tuple[int, ...] | None, bool | None]:
    """An order in which seen[order[i + 1], order[i]] for all i, and whether there is one: a search that may end undecided.

    Forwards and backwards are tried first, then depth first, tokens with the fewest ways on before others (Warnsdorff's rule).
    """
    n = len(seen)
    edges = seen & ~torch.eye(n, dtype=torch.bool)
    for order in (torch.arange(n), torch.arange(n - 1, -1, -1)):
        if bool(edges[order[1:], order[:-1]].all()):
            return tuple(order.tolist()), True
    # Of two tokens the later in the order reaches the earlier, if not directly.
    ways = edges | torch.eye(n, dtype=torch.bool)
    for _ in range(n.bit_length()):
        ways = (ways.float() @ ways.float()) > 0
    if not bool((ways | ways.T).all()):
        return None, False
    ahead = [set(edges[:, token].nonzero()[:, 0].tolist()) for token in range(n)]
    steps = 0
    starts = sorted(range(n), key=lambda token: int(edges[token].sum()))
    stack = [iter(starts)]
    path: list[int] = []
    used: set[int] = set()
    while stack:
        token = next(stack[-1], None)
        if token is None:
            stack.pop()
            if path:
                used.discard(path.pop())
            continue
        steps += 1
        if steps > MOST_STEPS:
            return None, None
        path.append(token)
        used.add(token)
        if len(path) == n:
            return tuple(path), True
        stack.append(iter(sorted(ahead[token] - used, key=lambda other: len(ahead[other] - used))))
    return None, False
