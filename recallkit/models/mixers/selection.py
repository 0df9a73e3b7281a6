"""Which positions of a text attend: hashes of positions, tokens that occurred before, learned scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recallkit.models.mixers.api import widened

WORD = 2**32


def hash_share(seed: int, *places: Tensor | int) -> Tensor:
    """A number in [0, 1) for each place, from int64 tensors that broadcast, at least one, and integers; it depends on nothing else.

    Each integer goes through a 32-bit mixer of multiplications and shifts (Wellons' lowbias32), its hash into the next one's.
    """
    # In plain Python, since a tensor on CPU could not be passed to a GPU kernel.
    mixed: Tensor | int = _mix(seed % WORD)
    for place in places:
        mixed = _mix((place % WORD) ^ mixed)
    assert isinstance(mixed, Tensor)
    return mixed.double() / WORD


def hash_share_reference(seed: int, *places: int) -> float:
    """The same as `hash_share` in plain integers."""
    mixed = 0
    for value in (seed, *places):
        mixed ^= value % WORD
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            mixed = (mixed ^ mixed >> shift) * factor % WORD
        mixed ^= mixed >> 16
    return mixed / WORD


def repeated(ids: Tensor) -> Tensor:
    """ids: (b, t) -> (b, t) bool, whether the token occurred earlier in its row. In t log t steps, by sorting."""
    return repeats_before(ids)[0] > 0


def repeats_before(ids: Tensor) -> tuple[Tensor, Tensor]:
    """How often each token of ids (b, t) occurred earlier in its row, (b, t), and the order (b, t) that sorts each row, stably."""
    ordered, order = ids.sort(dim=1, stable=True)
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    starts = torch.ones_like(ids, dtype=torch.bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    ranks = places - torch.where(starts, places, 0).cummax(dim=1).values
    return torch.empty_like(ids).scatter_(1, order, ranks), order


def followers(ids: Tensor, num_queries: int) -> Tensor:
    """ids: (b, T) -> (b, t, T) bool: the positions right after an earlier occurrence of the token at each of the last t places."""
    matched = torch.zeros(ids.shape[0], num_queries, ids.shape[1], dtype=torch.bool, device=ids.device)
    places = torch.arange(ids.shape[1], device=ids.device)
    matched[:, :, 1:] = ids[:, -num_queries:, None] == ids[:, None, :-1]
    return matched & (places <= places[-num_queries:, None])


def follower_lists(ids: Tensor) -> tuple[Tensor, Tensor]:
    """ids: (b, t) -> the keys that `followers` marks, query after query and row after row: offsets (b t + 1,) and keys (n,), rising.

    The keys of query i of row r are keys[offsets[r t + i] : offsets[r t + i + 1]]. Without a matrix, in t log t + n steps: in the
    sorted order the earlier occurrences of a token are the entries right before it, as many as it has.
    """
    batch, t = ids.shape
    before, order = repeats_before(ids)
    counts = before.flatten()
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    # The index of each token in its sorted row: its list begins that many entries before. With ids 7 3 7 3 7 the sorted order is
    # 1 3 0 2 4; the last 7, at index 4, has count 2, so its list is the entries 2 and 3: positions 0 and 2, whose followers are 1 and 3.
    entries = torch.arange(ids.numel(), device=ids.device).view(batch, t)
    begins = torch.empty_like(order).scatter_(1, order, entries).flatten() - counts
    num_pairs = int(offsets[-1])
    shifts = torch.repeat_interleave(begins - offsets[:-1], counts, output_size=num_pairs)
    return offsets, order.flatten()[shifts + torch.arange(num_pairs, device=ids.device)] + 1


class Selector(nn.Module):
    """A learned choice of positions: s[i] = sigmoid(w . u[i] + b), and position i is chosen where s[i] >= 1/2.

    Zoology's learned selection (arXiv 2312.04927, section 5; `SigmoidLookups` of its code) weights the lookup of every position
    by s, adds  penalty * max(0, mean s - share)  to the loss, and after training keeps the positions of the highest s of
    the whole text, which is not causal: whether one is kept depends on what follows. Here a position is decided by its own
    score, both in training and after it; the gradient passes through the threshold as if the
    weight were s (straight-through), so that positions that are not chosen also learn; and the mean in the loss is that of the choices.
    """

    def __init__(self, d_model: int, share: float, penalty: float) -> None:
        super().__init__()
        self.score = nn.Linear(d_model, 1)
        self.share = share
        self.penalty = penalty

    def forward(self, u: Tensor) -> Tensor:
        """u: (b, t, d) -> (b, t), 1 where a position is chosen and 0 elsewhere, with the gradient of its score."""
        logit: Tensor = self.score(u)[..., 0]
        score = widened(logit).sigmoid()
        return (score >= 0.5).to(score.dtype) + (score - score.detach())

    def excess(self, chosen: Tensor) -> Tensor:
        """The auxiliary loss of a choice (b, t): the penalty on the share of chosen positions above the allowed share."""
        return self.penalty * torch.relu(chosen.mean() - self.share)


def _mix(x: Tensor | int) -> Tensor | int:
    """x: int64 in [0, 2^32) -> the same range; overflowing products are right in their lower 32 bits, which are kept."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) % WORD
    return x ^ (x >> 16)
