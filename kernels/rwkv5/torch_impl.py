"""`rwkv5_attention` in chunks: for CPU, and for gradients."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from recallkit.kernels.linear_recurrence import by_chunks, first_state, precision, states_between, weigh_pairs

if TYPE_CHECKING:
    from torch import Tensor


def rwkv5_attention_torch(
    r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, bonus: Tensor, state: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor]:
    """Shapes as in `rwkv5_attention`."""
    narrow, wide, t = v.dtype, precision(r, k, v, state), v.shape[2]
    with torch.autocast(r.device.type, enabled=False):
        r, k, v, log_decay, bonus = (x.to(wide) for x in (r, k, v, log_decay, bonus))
        s = None if state is None else state.to(wide)
        if t == 0:
            o, s = v, first_state(s, r, v, wide)
        elif t == 1:
            s, new = first_state(s, r, v, wide), k.transpose(-1, -2) * v
            o = r @ torch.addcmul(s, bonus[..., None], new)
            s = torch.addcmul(new, log_decay[..., None].exp(), s)
        else:
            attend = functools.partial(_attend, log_decay=log_decay, bonus=bonus, rest=t % min(chunk, t))
            o, s = by_chunks(attend, chunk, s, v, r, k)
    return o.to(narrow), s


def _attend(v: Tensor, r: Tensor, k: Tensor, s: Tensor | None, *, log_decay: Tensor, bonus: Tensor, rest: int) -> tuple[Tensor, Tensor]:
    """n chunks: v (b, h, n, c, v), r, k (b, h, n, c, k), s (b, h, k, v); log_decay, bonus (h, k). The last has `rest` tokens, if not 0."""
    one_chunk = log_decay[None, :, None, None].expand(-1, -1, -1, k.shape[3], -1)
    weights, r, until_end, whole = weigh_pairs(r, k, one_chunk, (r * bonus[:, None, None] * k).sum(-1))
    states, last = states_between(until_end.transpose(-1, -2) @ v, whole.transpose(-1, -2), s)
    if states is None:
        return weights @ v, last
    if rest:
        last = _after(states[:, :, -1], k[:, :, -1, :rest], v[:, :, -1, :rest], log_decay)
    return weights @ v + r @ states, last


def _after(s: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """S after the tokens of a chunk that is not full: its padding must not decay S."""
    t = k.shape[2]
    ages = torch.arange(t - 1, -1, -1, device=k.device)[:, None]
    # Finite, because a decay of 0 to the 0th power is 1.
    log_decay = log_decay.clamp(min=torch.finfo(log_decay.dtype).min)
    return torch.exp(t * log_decay)[..., None] * s + (k * torch.exp(ages * log_decay[:, None])).transpose(-1, -2) @ v
