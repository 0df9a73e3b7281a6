"""Which positions of a text attend: hashes of positions, tokens that occurred before, learned
scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from recallkit.models.mixers.api import State, applied, widened

WORD = 2**32


def hash_share(seed: int, *places: Tensor | int) -> Tensor:
    """A number in [0, 1) for each place, from int64 tensors that broadcast, at least one, and
    integers; it depends on nothing else.

    Each integer goes through a 32-bit mixer of multiplications and shifts (Wellons' lowbias32), its
    hash into the next one's.
    """
    # In plain Python, since a tensor on CPU could not be passed to a GPU kernel.
    mixed: Tensor | int = _mix(seed % WORD)
    for place in places:
        mixed = _mix((place % WORD) ^ mixed)
    assert isinstance(mixed, Tensor)
    return mixed.double() / WORD


def repeated(ids: Tensor) -> Tensor:
    """ids: (b, t) -> (b, t) bool, whether the token occurred earlier in its row. In t log t steps,
    by sorting."""
    return repeats_before(ids)[0] > 0


def repeats_before(ids: Tensor) -> tuple[Tensor, Tensor]:
    """How often each token of ids (b, t) occurred earlier in its row, (b, t), and the order (b, t)
    that sorts each row, stably."""
    ordered, order = ids.sort(dim=1, stable=True)
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    starts = torch.ones_like(ids, dtype=torch.bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    ranks = places - torch.where(starts, places, 0).cummax(dim=1).values
    return torch.empty_like(ids).scatter_(1, order, ranks), order


def followers(ids: Tensor, num_queries: int) -> Tensor:
    """ids: (b, T) -> (b, t, T) bool: the positions right after an earlier occurrence of the token
    at each of the last t places."""
    matched = torch.zeros(
        ids.shape[0],
        num_queries,
        ids.shape[1],
        dtype=torch.bool,
        device=ids.device,
    )
    places = torch.arange(ids.shape[1], device=ids.device)
    matched[:, :, 1:] = ids[:, -num_queries:, None] == ids[:, None, :-1]
    return matched & (places <= places[-num_queries:, None])


def follower_lists(ids: Tensor) -> tuple[Tensor, Tensor]:
    """ids: (b, t) -> the keys that `followers` marks, query after query and row after row: offsets
    (b t + 1,) and keys (n,), rising.

    The keys of query i of row r are keys[offsets[r t + i] : offsets[r t + i + 1]]. Without a
    matrix, in t log t + n steps: in the sorted order the earlier occurrences of a token are the
    entries right before it, as many as it has.
    """
    batch, t = ids.shape
    before, order = repeats_before(ids)
    counts = before.flatten()
    offsets = functional.pad(counts.cumsum(0), (1, 0))
    # The index of each token in its sorted row: its list begins that many entries before. With ids
    # 7 3 7 3 7 the sorted order is 1 3 0 2 4; the last 7, at index 4, has count 2, so its list is
    # the entries 2 and 3: positions 0 and 2, whose followers are 1 and 3.
    entries = torch.arange(ids.numel(), device=ids.device).view(batch, t)
    begins = torch.empty_like(order).scatter_(1, order, entries).flatten() - counts
    num_pairs = int(offsets[-1])
    shifts = torch.repeat_interleave(begins - offsets[:-1], counts, output_size=num_pairs)
    return offsets, order.flatten()[shifts + torch.arange(num_pairs, device=ids.device)] + 1


class Selector(nn.Module):
    """A learned choice of positions: the k of a text whose scores w . u[i] + b are highest, or a
    share of them.

    Zoology's learned selection (arXiv 2312.04927, section 5) weights the lookup of every position
    by s[i] = sigmoid(w . u[i] + b), keeps the k highest of a text, adds Gaussian noise before it
    looks for these in training, and adds max(0, sum s - k) / t to the loss. So does this in
    training; the weight is 1, with the gradient of s (straight-through), so that positions that are
    not chosen also learn. The k highest of a whole text look ahead: whether a position is one
    depends on what follows. Elsewhere a position is therefore chosen where it may be, which is
    where its score is at least `threshold`, the mean of the k-th highest in training, and the
    budget so far, share * (i + 1) rounded up, or k, is not used up.
    """

    threshold: Tensor
    FORGETS = 0.01
    """The share of each training step's mean in `threshold`."""

    noise = 0.1
    """Its standard deviation, in logits."""
    PENALTY = 0.1
    """The weight of the auxiliary loss, in nats per position."""

    def __init__(self, d_model: int, share: float, *, k: int = 0) -> None:
        """`k` > 0 is a number of positions of each text in place of `share`."""
        super().__init__()
        self.score = nn.Linear(d_model, 1)
        self.register_buffer("threshold", torch.zeros(()))
        self.share, self.k = share, k

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """u: (b, t, d) -> in training: 1 where a position is chosen and 0 elsewhere, with the
        gradient of s; and s; both (b, t)."""
        logit: Tensor = widened(self.score(u)[..., 0])
        noisy = logit.detach() + self.noise * torch.randn_like(logit)
        highest = noisy.topk(self.most(logit.shape[1]), dim=1)
        self.threshold.lerp_(highest.values[:, -1].mean().to(self.threshold.dtype), self.FORGETS)
        chosen = torch.zeros_like(logit).scatter_(1, highest.indices, 1.0)
        score = logit.sigmoid()
        return chosen + (score - score.detach()), score

    def asks(self, u: Tensor) -> Tensor:
        """u: (..., d) -> whether a position may be chosen, (...,) bool."""
        return applied(self.score, u)[..., 0] >= self.threshold

    def choose(self, u: Tensor, places: Tensor, state: State) -> tuple[Tensor, State]:
        """u: (b, t, d) at positions (t,) or (b, t), after a state -> which are chosen, (b, t) bool,
        and the state after them."""
        requests = state["asked"][:, None] + self.asks(u).cumsum(1)
        budget = self.k if self.k else ((places + 1).double() * self.share).ceil().long()
        # `granted` is the greatest count that rises with the requests and stays within the budget:
        # their number, less the worst excess so far. With requests 1 2 3 and a budget of 1 1 2 the
        # excess is 0 1 1, so 1 1 2 are granted: the first and the third.
        refused = torch.maximum((requests - budget).cummax(1).values, state["refused"][:, None])
        before = (state["asked"] - state["refused"])[:, None]
        granted = torch.cat([before, requests - refused], dim=1)
        after = {"asked": requests[:, -1], "refused": refused[:, -1]}
        return granted.diff(dim=1) > 0, after

    def initial_state(self, batch: int) -> State:
        """How many positions of each row asked to be chosen, and how many of these were not: (b,)
        each."""
        none = torch.zeros(batch, dtype=torch.int64, device=self.score.weight.device)
        return {"asked": none, "refused": none}

    def most(self, t: int) -> int:
        """The most positions of t that are chosen."""
        return min(t, self.k or math.ceil(t * self.share))

    def excess(self, score: Tensor) -> Tensor:
        """The auxiliary loss of scores s (b, t), a mean over rows: the penalty on
        max(0, sum s - k) / t."""
        t = score.shape[1]
        excess = torch.relu(score.sum(dim=1) - (self.k or t * self.share))
        return self.PENALTY * excess.mean() / t


def _mix(x: Tensor | int) -> Tensor | int:
    """x: int64 in [0, 2^32) -> the same range; overflowing products are right in their lower 32
    bits, which are kept."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) % WORD
    return x ^ (x >> 16)
