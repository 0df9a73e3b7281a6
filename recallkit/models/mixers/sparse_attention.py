"""Attention by sparse patterns of positions: strided, fixed, star, random and others, used
sequentially, as a union or per head."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from recallkit.kernels.masked_attention.api import masked_attention
from recallkit.models.mixers.attention import Attention
from recallkit.models.mixers.sparse_patterns import (
    CONFIGURATIONS,
    PATTERNS,
    TWO_PARTS,
    sees_in_pattern,
)

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.models.mixers.api import State


MOST_RANDOM = 64
"""Most keys that a query of BigBird draws: each is a comparison for all pairs."""


class SparseAttention(Attention):
    """Softmax attention over the keys of a sparse pattern, S(i) as in `sees_in_pattern`,
    intersected with j <= i.

    The patterns and their three configurations are those that Yun et al. 2020 (arXiv 2006.04862,
    equations 4 to 6, section 5.1) compare, and Longformer's and BigBird's. Strided and fixed have
    two parts, A1 and A2, which a model uses

    sequential  alternating: A1 in even layers, A2 in odd ones (`layer`)
    union       at once: A1 and A2 in every head
    multihead   side by side: A1 in the first half of the heads, A2 in the second

    The others have one part, so `union` is their only configuration, except that `multihead` of
    random draws other pairs for each head. The causal mask of a pattern is its intersection with
    the past, as the paper evaluates language models (G.2): strided reaches half a stride back, and
    star's relay, the last of `length` positions, is seen by nobody before it. A text must not be
    longer than `length`, which star and bigbird need. `stride` is w, `sparsity` is random's alone:
    the share of pairs that are not seen. Every query sees itself. Other options are those of
    `Attention`.

    Only the mask is sparse: on CPU and in training `forward` is dense attention under it, in time
    and memory of t^2 whatever the pattern, as `read` is after the first tokens. On a GPU `forward`
    skips blocks of pairs without any seen one, see `masked_attention`.
    """

    causal: ClassVar[bool] = True
    """Whether only the past is seen. A subclass with False is an encoder's, for texts of just
    `length` tokens, without a state."""

    def __init__(
        self,
        d_model: int,
        *,
        pattern: str = "strided",
        configuration: str = "union",
        stride: int = 16,
        length: int = 0,
        num_global: int = 1,
        num_random: int = 3,
        sparsity: float = 0.9,
        layer: int = 0,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(d_model, **options)
        if pattern not in PATTERNS:
            raise ValueError(f"no sparse pattern {pattern}: {', '.join(PATTERNS)}")
        if configuration not in CONFIGURATIONS:
            raise ValueError(f"no configuration {configuration}: {', '.join(CONFIGURATIONS)}")
        has_parts = pattern in TWO_PARTS or (pattern, configuration) == ("random", "multihead")
        if configuration != "union" and not has_parts:
            raise ValueError(
                f"{pattern} has one part, so its configuration is union, not {configuration}",
            )
        if pattern in TWO_PARTS and configuration == "multihead" and self.num_heads % 2:
            problem = f"{self.num_heads} heads cannot be halved"
            raise ValueError(f"multihead gives each half of the heads a part, and {problem}")
        if stride < 1 or not 0 <= sparsity <= 1:
            raise ValueError(
                f"a stride of {stride} and a sparsity of {sparsity}: at least 1, and from 0 to 1",
            )
        if not 0 <= num_random <= MOST_RANDOM:
            raise ValueError(f"num_random is {num_random}: choose 0 to {MOST_RANDOM}")
        if "length" in PATTERNS[pattern] and length < 2:
            raise ValueError(
                f"{pattern} is defined for texts of a length, at least 2: set length, not {length}",
            )
        self.pattern, self.configuration, self.layer = pattern, configuration, layer
        self.stride, self.length, self.num_global, self.num_random = (
            stride,
            length,
            num_global,
            num_random,
        )
        self.sparsity, self.seed = sparsity, seed
        self.max_length = length if "length" in PATTERNS[pattern] else None

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor:
        if self.configuration != "multihead":
            return self._rule()(queries, keys, **self._numbers())
        heads = torch.arange(self.num_heads, device=queries.device).view(-1, 1, 1)
        return self._rule()(queries, keys, heads, **self._numbers())

    def num_pairs(self, t: int) -> int:
        """See `Attention.num_pairs`: the expected number for `random`, exact for the others, from
        masks of some queries at a time."""
        self._refuse_other_lengths(t)
        if self.pattern == "random":
            return self.num_heads * (t + round((1 - self.sparsity) * (t * (t - 1) // 2)))
        places = torch.arange(t)
        total = 0
        for queries in torch.split(places, 1024):
            mask = self.sees(queries[:, None], places)
            total += int(mask.expand(self.num_heads, -1, -1).sum())
        return total

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._refuse_other_lengths(q.shape[2])
        rule = self._rule()
        key = (rule.func, *rule.args, *sorted(rule.keywords.items()))
        return masked_attention(
            q,
            k,
            v,
            rule,
            by_head=self.configuration == "multihead",
            key=key,
            numbers=self._numbers(),
        )

    def extend(self, u: Tensor, state: State) -> tuple[Tensor, State]:
        if not self.causal:
            raise ValueError(
                "attention in both directions has no state: it reads a text as a whole",
            )
        self._refuse_other_lengths(state["keys"].shape[2] + u.shape[1])
        return super().extend(u, state)

    def _refuse_other_lengths(self, t: int) -> None:
        if not self.causal and t != self.length:
            texts = f"texts of {self.length:,} tokens, not {t:,}"
            raise ValueError(f"attention in both directions is made for {texts}")
        if self.max_length is not None and t > self.max_length:
            texts = f"texts of at most {self.max_length:,} tokens, not {t:,}"
            raise ValueError(f"{self.pattern} is defined for {texts}")

    def _rule(self) -> functools.partial[Tensor]:
        """`sees` without the mixer and its numbers, so that caching it does not keep parameters in
        memory."""
        options: dict[str, Any] = self._drawing() | {"causal": self.causal}
        if self.configuration == "multihead":
            halves = None if self.pattern == "random" else self.num_heads // 2
            return functools.partial(_sees_by_head, self.pattern, halves, **options)
        part = None if self.configuration == "union" else self.layer % 2
        return functools.partial(sees_in_pattern, self.pattern, part=part, **options)

    def _numbers(self) -> dict[str, int]:
        """The numbers of the pattern that kernels take as arguments."""
        return {name: getattr(self, name) for name in PATTERNS[self.pattern]}

    def _drawing(self) -> dict[str, Any]:
        """What decides which pairs a pattern with random ones draws."""
        if self.pattern == "random":
            return {"sparsity": self.sparsity, "seed": self.seed}
        if self.pattern == "bigbird":
            return {"num_random": self.num_random, "seed": self.seed}
        return {}


def _sees_by_head(
    pattern: str,
    half: int | None,
    queries: Tensor,
    keys: Tensor,
    heads: Tensor,
    **options: Any,
) -> Tensor:
    """`sees_in_pattern`, part 0 in the first `half` heads and part 1 in the others, or with `half`
    None a draw for each head."""
    if half is None:
        return sees_in_pattern(pattern, queries, keys, heads=heads, **options)
    first = sees_in_pattern(pattern, queries, keys, part=0, **options)
    second = sees_in_pattern(pattern, queries, keys, part=1, **options)
    return torch.where(heads < half, first, second)
