"""Attention by sparse patterns of positions: strided, fixed, star and random, used sequentially, as a union or per head."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from recallkit.kernels.masked_attention.api import masked_attention
from recallkit.models.mixers.attention import Attention
from recallkit.models.mixers.selection import hash_share, hash_share_reference

if TYPE_CHECKING:
    from torch import Tensor

PATTERNS = ("strided", "fixed", "star", "random")
CONFIGURATIONS = ("sequential", "union", "multihead")


def sees_in_pattern(
    pattern: str,
    queries: Tensor,
    keys: Tensor,
    *,
    part: int | None = None,
    stride: int | Tensor = 16,
    sparsity: float = 0.875,
    seed: int = 0,
) -> Tensor:
    """Which keys a query sees, by int64 positions that broadcast -> bool; with l the stride, i a query, j <= i a key:

    strided  part 0: i - j <= l;  part 1: (i - j) mod l = 0
    fixed    part 0: floor(j / l) = floor(i / l);  part 1: j mod l = l - 1, or j = i
    star     j = i, j = i - 1, j the last relay up to i, or i a relay, which are the positions of i mod l = l - 1
    random   j = i, or hash(seed, i, j) >= sparsity

    `part` None is the union of a pattern's parts; star and random have no parts. No pair depends on the length of the text.
    """
    apart = queries - keys
    if pattern == "random":
        seen = (hash_share(seed, queries, keys) >= sparsity) | (apart == 0)
    elif pattern == "star":
        is_relay = (queries + 1) % stride == 0
        last_relay = queries - (queries + 1) % stride
        seen = (apart <= 1) | (keys == last_relay) | is_relay
    elif pattern == "strided":
        seen = _either(part, apart <= stride, apart % stride == 0)
    else:
        summary = (keys + 1) % stride == 0
        seen = _either(part, queries // stride == keys // stride, summary | (apart == 0))
    return seen & (apart >= 0)


class SparseAttention(Attention):
    """Softmax attention over the keys of a sparse pattern, S(i) as in `sees_in_pattern`.

    The patterns and their three configurations are those that Yun et al. 2020 (arXiv 2006.04862, sections 2 and 5) compare. Strided and
    fixed are Sparse Transformers' (Child et al. 2019, arXiv 1904.10509, section 4), whose parts A1 and A2 a model uses

    sequential  alternating: A1 in even layers, A2 in odd ones (`layer`)
    union       at once: A1 and A2 in every head
    multihead   side by side: A1 in the first half of the heads, A2 in the second

    Star (Star-Transformer, arXiv 1902.09113) and random have one part, so `union` is their only configuration. Yun et al. write
    star for both directions: a token sees its neighbours and one relay, which sees all. A causal relay can only attend to what
    is before it, so there is one at the end of each `stride` tokens: it sees all before it, and the others see the last one.
    Yun et al. name a pattern's sparsity level by the share of zeros in the mask; here it is the share of the pairs
    j <= i that are not seen: `stride` sets it for the first three patterns, `sparsity` for random. Every query sees itself. Other
    options are those of `Attention`.

    Only the mask is sparse: on CPU and in training `forward` is dense attention under it, in time and memory of t^2 whatever the
    pattern, as `read` is after the first tokens. On a GPU `forward` skips blocks of pairs without any seen one, see `masked_attention`.
    """

    def __init__(
        self,
        d_model: int,
        *,
        pattern: str = "strided",
        configuration: str = "union",
        stride: int = 16,
        sparsity: float = 0.875,
        layer: int = 0,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(d_model, **options)
        if pattern not in PATTERNS:
            raise ValueError(f"no sparse pattern {pattern}: {', '.join(PATTERNS)}")
        if configuration not in CONFIGURATIONS:
            raise ValueError(f"no configuration {configuration}: {', '.join(CONFIGURATIONS)}")
        if pattern in ("star", "random") and configuration != "union":
            raise ValueError(f"{pattern} has one part, so its configuration is union, not {configuration}")
        if configuration == "multihead" and self.num_heads % 2:
            raise ValueError(f"multihead gives each half of the heads a part, and {self.num_heads} heads cannot be halved")
        if stride < 1 or not 0 <= sparsity <= 1:
            raise ValueError(f"a stride of {stride} and a sparsity of {sparsity}: at least 1, and from 0 to 1")
        self.pattern, self.configuration, self.layer = pattern, configuration, layer
        self.stride, self.sparsity, self.seed = stride, sparsity, seed

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor:
        if self.configuration != "multihead":
            return self._rule()(queries, keys, stride=self.stride)
        return self._rule()(queries, keys, torch.arange(self.num_heads, device=queries.device).view(-1, 1, 1), stride=self.stride)

    def keys_of(self, query: int, head: int) -> list[int]:
        parts = {"sequential": {self.layer % 2}, "union": {0, 1}, "multihead": {int(head >= self.num_heads // 2)}}[self.configuration]
        return sorted({query}.union(*(self._keys_of_part(query, part) for part in parts)))

    def num_pairs(self, t: int) -> int:
        """See `Attention.num_pairs`: the expected number for `random`, exact for the others. No mask is made."""
        if self.pattern == "random":
            return self.num_heads * (t + round((1 - self.sparsity) * (t * (t - 1) // 2)))
        if self.configuration == "multihead":
            return self.num_heads // 2 * (self._num_pairs(0, t) + self._num_pairs(1, t))
        return self.num_heads * self._num_pairs(None if self.configuration == "union" else self.layer % 2, t)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rule = self._rule()
        key = (rule.func, *rule.args, *sorted(rule.keywords.items()))
        return masked_attention(q, k, v, rule, by_head=self.configuration == "multihead", key=key, numbers={"stride": self.stride})

    def _rule(self) -> functools.partial[Tensor]:
        """`sees` without the mixer and its stride, so that caching it does not keep parameters in memory."""
        pattern: dict[str, Any] = {"sparsity": self.sparsity, "seed": self.seed}
        if self.configuration == "multihead":
            return functools.partial(_sees_half_by_half, self.pattern, self.num_heads // 2, **pattern)
        part = None if self.configuration == "union" else self.layer % 2
        return functools.partial(sees_in_pattern, self.pattern, part=part, **pattern)

    def _num_pairs(self, part: int | None, t: int) -> int:
        """Pairs of a pattern's part, or of all of it, in one head: the keys that each query sees, summed."""
        places, width = torch.arange(t), self.stride
        block, offset, relays = places // width, places % width, (places + 1) // width
        is_last = offset == width - 1
        if self.pattern == "star":
            # Itself, the previous token, and the last relay where that is a different position; a relay sees all.
            others = (places > 0).long() + ((relays > 0) & (offset != 0))
            num_keys = 1 + torch.where(is_last, places, others)
        elif self.pattern == "strided":
            near, far = places.clamp(max=width) + 1, block + 1
            num_keys = near + far - 1 - (places >= width).long() if part is None else (near, far)[part]
        else:
            own, summaries = offset + 1, relays + (~is_last).long()
            num_keys = own + block if part is None else (own, summaries)[part]
        return int(num_keys.sum())

    def _keys_of_part(self, i: int, part: int) -> list[int]:
        """The keys of a pattern's part, gathered one by one as the papers list them."""
        width = self.stride
        block = i - i % width
        if self.pattern == "strided":
            return list(range(max(0, i - width), i + 1)) if part == 0 else list(range(i % width, i + 1, width))
        if self.pattern == "fixed":
            return list(range(block, i + 1)) if part == 0 else list(range(width - 1, i + 1, width))
        if self.pattern == "star":
            relays = list(range(width - 1, i + 1, width))
            return list(range(i + 1)) if i in relays else [*relays[-1:], *range(max(0, i - 1), i + 1)]
        return [j for j in range(i) if hash_share_reference(self.seed, i, j) >= self.sparsity]


def _sees_half_by_half(pattern: str, half: int, queries: Tensor, keys: Tensor, heads: Tensor, **options: Any) -> Tensor:
    """`sees_in_pattern`, part 0 in the first `half` heads and part 1 in the others."""
    first, second = (sees_in_pattern(pattern, queries, keys, part=part, **options) for part in (0, 1))
    return torch.where(heads < half, first, second)


def _either(part: int | None, first: Tensor, second: Tensor) -> Tensor:
    return first | second if part is None else (first, second)[part]
