"""Attention at selected positions alone: all, a random share, repeated tokens, or positions that a
learned score chooses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812

from recallkit.kernels.lookup_attention.api import lookup_attention
from recallkit.models.mixers.api import State, linear_flops
from recallkit.models.mixers.attention import Attention
from recallkit.models.mixers.selection import (
    Selector,
    follower_lists,
    followers,
    hash_share,
    repeated,
)

if TYPE_CHECKING:
    from torch import Tensor

SELECTIONS = ("full", "random", "programmatic", "learned")
KEYS = ("all", "matches")
SEED = 0
"""Of the hash by which a random selection draws its positions."""


class SelectiveAttention(Attention):
    """Causal attention where a position is selected, zero elsewhere: a layer beside convolutions in
    a hybrid.

    y[i] = f[i] Wo softmax(q[i] . K / sqrt(k)) V,   f[i] in {0, 1},   keys 0..i

    (Zoology, arXiv 2312.04927, section 5: attention as selective lookups on a BaseConv backbone.)
    `selection` determines f, which is 1

    - full: everywhere: softmax attention;
    - random: at a `share` of the positions, the same in every text, where hash(i) < share;
    - programmatic: where the token occurred earlier in the row (equation 3), so that associative
      recall is possible; needs the ids;
    - learned: where a learned score of u[i] is among the highest, a `share` of the positions or `k`
      of each text; before the whole text is known within such a budget, see `Selector`.

    With `keys="matches"` a programmatic query sees only the positions right after the earlier
    occurrences of its token, which contain what followed: as many pairs as there are repetitions,
    not t^2. The default, "all", is the paper's: a query that is selected attends to everything
    before it. Other options are those of `Attention`.
    """

    def __init__(
        self,
        d_model: int,
        *,
        selection: str = "programmatic",
        share: float = 0.25,
        keys: str = "all",
        k: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(d_model, **options)
        if selection not in SELECTIONS:
            raise ValueError(f"no selection {selection}: {', '.join(SELECTIONS)}")
        if keys not in KEYS or (keys == "matches" and selection != "programmatic"):
            choices = "all, or with programmatic matches"
            raise ValueError(f"keys {keys} with selection {selection}: {choices}")
        if not 0 < share <= 1:
            raise ValueError(f"share is {share}, not a fraction of the positions")
        if k and selection != "learned":
            problem = f"where a selection is learned, not where it is {selection}"
            raise ValueError(f"k = {k} positions are chosen {problem}")
        self.selection, self.share, self.keys = selection, share, keys
        # Whether ids are needed depends on the selection, so this is an attribute of the instance.
        self.needs_ids = selection == "programmatic"  # type: ignore[misc]
        self.selector = Selector(d_model, share, k=k) if selection == "learned" else None
        self._excess: Tensor | None = None

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        places, self._excess = torch.arange(u.shape[1], device=u.device), None
        q, k, v = self.project(u, places)
        if self.keys == "matches":
            return self.merge(lookup_attention(q, k, v, *follower_lists(self._needed(ids))))
        if self.needs_ids:
            chosen = repeated(self._needed(ids))
        elif self.selector is not None and self.training:
            chosen, score = self.selector(u)
            self._excess = self.selector.excess(score)
        else:
            chosen, _ = self._choose(u, places, self._nothing_chosen(len(u)))
        return self.merge(_where_chosen(self.attend(q, k, v), chosen))

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        t = u.shape[1]
        q, after = self.extend(u, state)
        keys, values = after["keys"], after["values"]
        mask = self.seen_in(after, t)
        if self.needs_ids:
            after["ids"] = torch.cat([state["ids"], self._needed(ids)], dim=1)
            if self.keys == "matches" and keys.shape[2] == t:
                lists = follower_lists(after["ids"])
                return self.merge(lookup_attention(q, keys, values, *lists)), after
            places = self.places(after, after["ids"].shape[1])
            # Padding of shorter rows is -1, which is not an id.
            matched = followers(after["ids"].where(places >= 0, -1), t)
            chosen = matched.any(-1)
            if self.keys == "matches":
                mask = _or_itself(matched)
        else:
            chosen, choice = self._choose(u, self.places(after, t), state)
            after |= choice
        context = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.merge(_where_chosen(context, chosen)), after

    def chosen_reference(self, u: Tensor, ids: list[int] | None) -> list[list[list[int]]]:
        rows, num_chosen = [], 0
        for i in range(u.shape[0]):
            is_chosen, keys = True, list(range(i + 1))
            if self.selection == "random":
                is_chosen = bool(hash_share(SEED, torch.tensor(i)) < self.share)
            if self.selector is not None:
                budget = self.selector.k or math.ceil((i + 1) * self.share)
                is_chosen = num_chosen < budget and bool(self.selector.asks(u[i]))
            if self.needs_ids:
                text = ids or []
                following = [place + 1 for place in range(i) if text[place] == text[i]]
                is_chosen = bool(following)
                keys = following if self.keys == "matches" else keys
            num_chosen += is_chosen
            rows.append(keys if is_chosen else [])
        return [rows] * self.num_heads

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: with the ids read so far (b, T) where they are needed."""
        state = super().initial_state(batch)
        if self.needs_ids:
            return state | {"ids": state["num_read"].new_zeros(batch, 0)}
        return state | self._nothing_chosen(batch)

    def auxiliary_loss(self) -> Tensor | None:
        """See `Mixer.auxiliary_loss`: for a learned selection in training, the penalty on too many
        selected positions."""
        return self._excess

    def state_size(self, t: int) -> int:
        """See `Mixer.state_size`: 2 d t keys and values, since a later query may see any, and t ids
        where they are needed."""
        return super().state_size(t) + t * self.needs_ids

    def flops(self, t: int) -> int:
        """See `Mixer.flops`: the projections, the selector, and the pairs of a `share` of the
        queries (of all, if full).

        How many tokens are repeated depends on the text: `share` is used as an estimate, and a
        query that sees matches alone is counted as if it saw all.
        """
        if self.selection == "full":
            return super().flops(t)
        pairs = 4 * self.head_width * self.num_pairs(t)
        if self.selector is None:
            return super().flops(t) - round(pairs * (1 - self.share))
        unselected = round(pairs * (1 - self.selector.most(t) / t))
        return super().flops(t) - unselected + linear_flops(t, self.selector.score)

    def _choose(self, u: Tensor, places: Tensor, state: State) -> tuple[Tensor, State]:
        """u: (b, t, d), places: (t,) or (b, t) -> which positions are selected, (b or 1, t), and
        what a learned selection keeps of them."""
        if self.selector is not None:
            return self.selector.choose(u, places, state)
        places = places if places.dim() == 2 else places[None]
        if self.selection == "random":
            return hash_share(SEED, places) < self.share, {}
        return torch.ones_like(places), {}

    def _nothing_chosen(self, batch: int) -> State:
        return {} if self.selector is None else self.selector.initial_state(batch)

    def _needed(self, ids: Tensor | None) -> Tensor:
        if ids is None:
            raise ValueError("a programmatic selection needs the ids")
        return ids


def _or_itself(matched: Tensor) -> Tensor:
    """matched: (b, t, T) -> (b, 1, t, T), where a query without a match sees itself, so that no
    softmax is over an empty set."""
    t, num_keys = matched.shape[1:]
    itself = torch.eye(num_keys, dtype=torch.bool, device=matched.device)[-t:]
    return (matched | (itself & ~matched.any(-1, keepdim=True)))[:, None]


def _where_chosen(context: Tensor, chosen: Tensor) -> Tensor:
    """context: (b, h, t, k), chosen: (b or 1, t) -> the context where chosen is 1, and zero where
    it is 0."""
    return context * chosen[:, None, :, None].to(context.dtype)
