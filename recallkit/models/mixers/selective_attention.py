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
    bigrams,
    follower_lists,
    followers,
    hash_share,
    repeated,
)

if TYPE_CHECKING:
    from torch import Tensor

SELECTIONS = ("full", "random", "programmatic", "learned")
KEYS = ("all", "matches")
MATCHES = ("token", "bigram")


class SelectiveAttention(Attention):
    """Causal attention where a position is selected, zero elsewhere: a layer beside convolutions in
    a hybrid.

    y[i] = f[i] Wo softmax(q[i] . K / sqrt(k)) V,   f[i] in {0, 1},   keys 0..i

    (Zoology, arXiv 2312.04927, section 5: attention as selective lookups on a BaseConv backbone.)
    `selection` determines f:

    full          1: softmax attention
    random        1 at a share of the positions, the same in every text: where hash(seed, i) < share
    programmatic  1 where the token occurred earlier in the row (equation 3), so that associative
        recall is possible; needs the ids.
                  With `match="bigram"` where the last two tokens did, which is what the paper's
                      appendix C.2 describes
    learned       1 where a learned score of u[i] is among the highest, a `share` of the positions
        or `k` of each text; before the
                  whole text is known within such a budget, see `Selector`. Training adds `noise` to
                      scores, and `auxiliary_loss`
                  with weight `penalty` in nats per position

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
        match: str = "token",
        seed: int = 0,
        k: int = 0,
        noise: float = 0.1,
        penalty: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(d_model, **options)
        if selection not in SELECTIONS:
            raise ValueError(f"no selection {selection}: {', '.join(SELECTIONS)}")
        if keys not in KEYS or (keys == "matches" and selection != "programmatic"):
            raise ValueError(
                f"keys {keys} with selection {selection}: all, or with programmatic matches",
            )
        if match not in MATCHES or (match == "bigram" and selection != "programmatic"):
            raise ValueError(
                f"match {match} with selection {selection}: token, or with programmatic bigram",
            )
        if not 0 < share <= 1:
            raise ValueError(f"share is {share}, not a fraction of the positions")
        if k and selection != "learned":
            raise ValueError(
                f"k = {k} positions are chosen where a selection is learned, not where it is {selection}",
            )
        self.selection, self.share, self.keys, self.match, self.seed = (
            selection,
            share,
            keys,
            match,
            seed,
        )
        # Whether ids are needed depends on the selection, so this is an attribute of the instance.
        self.needs_ids = selection == "programmatic"  # type: ignore[misc]
        self.selector = Selector(d_model, share, k=k, noise=noise, penalty=penalty) if selection == "learned" else None
        self._excess: Tensor | None = None

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        places, self._excess = torch.arange(u.shape[1], device=u.device), None
        q, k, v = self.project(u, places)
        if self.keys == "matches":
            return self.merge(
                lookup_attention(q, k, v, *follower_lists(self._matchable(self._needed(ids)))),
            )
        if self.selection == "programmatic":
            chosen = repeated(self._matchable(self._needed(ids)))
        elif self.selector is not None and self.training:
            chosen, score = self.selector(u)
            self._excess = self.selector.excess(score)
        else:
            chosen, _ = self._choose(u, places, self._nothing_chosen(len(u)))
        return self.merge(_where_chosen(self.attend(q, k, v), chosen))

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        t = u.shape[1]
        q, new = self.extend(u, state)
        if self.needs_ids:
            new["ids"] = torch.cat([state["ids"], self._needed(ids)], dim=1)
        if self.keys == "matches" and new["keys"].shape[2] == t:
            return self.merge(
                lookup_attention(
                    q,
                    new["keys"],
                    new["values"],
                    *follower_lists(self._matchable(new["ids"])),
                ),
            ), new
        mask = self.seen_in(new, t)
        if self.needs_ids:
            places = self.places(new, new["ids"].shape[1])
            # Padding of shorter rows is -1, which is not an id.
            matched = followers(self._matchable(new["ids"].where(places >= 0, -1)), t)
            chosen = matched.any(-1)
            if self.keys == "matches":
                mask = _or_itself(matched)
        else:
            chosen, asked = self._choose(u, self.places(new, t), state)
            new |= asked
        return self.merge(
            _where_chosen(
                F.scaled_dot_product_attention(q, new["keys"], new["values"], attn_mask=mask),
                chosen,
            ),
        ), new

    def chosen_reference(self, u: Tensor, ids: list[int] | None) -> list[list[list[int]]]:
        stood: dict[tuple[int, ...], list[int]] = {}
        seen, num_chosen = [], 0
        for i in range(u.shape[0]):
            before = list(range(i + 1))
            if self.selection == "random" and hash_share(self.seed, torch.tensor(i)) >= self.share:
                before = []
            if self.selector is not None:
                budget = self.selector.k or math.ceil((i + 1) * self.share)
                asks = bool(self.selector.asks(u[i]))
                before = before if asks and num_chosen < budget else []
                num_chosen += bool(before)
            if self.selection == "programmatic":
                assert ids is not None
                last = tuple(ids[max(0, i - (self.match == "bigram")) : i + 1])
                after = [place + 1 for place in stood.setdefault(last, [])]
                before = after if self.keys == "matches" or not after else before
                stood[last].append(i)
            seen.append(before)
        return [seen] * self.num_heads

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: with the ids read so far (b, T) where they are needed."""
        state = super().initial_state(batch)
        return state | ({"ids": state["seen"].new_zeros(batch, 0)} if self.needs_ids else self._nothing_chosen(batch))

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
        pairs = 4 * self.head_width * self.num_pairs(t)
        share = self.share if self.selector is None else self.selector.most(t) / t
        unselected = 0 if self.selection == "full" else round(pairs * (1 - share))
        selector = 0 if self.selector is None else linear_flops(t, self.selector.score)
        return super().flops(t) - unselected + selector

    def _choose(self, u: Tensor, places: Tensor, state: State) -> tuple[Tensor, State]:
        """u: (b, t, d), places: (t,) or (b, t) -> which positions are selected, (b or 1, t), and
        what a learned selection keeps of them."""
        if self.selector is not None:
            return self.selector.choose(u, places, state)
        places = places if places.dim() == 2 else places[None]
        return hash_share(
            self.seed,
            places,
        ) < self.share if self.selection == "random" else torch.ones_like(places), {}

    def _nothing_chosen(self, batch: int) -> State:
        return {} if self.selector is None else self.selector.initial_state(batch)

    def _matchable(self, ids: Tensor) -> Tensor:
        """What must have occurred before, as integers (b, t): the tokens or the bigrams of ids (b,
        t)."""
        return bigrams(ids) if self.match == "bigram" else ids

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
