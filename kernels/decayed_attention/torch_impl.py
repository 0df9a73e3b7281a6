"""`decayed_attention` in chunks: for CPU, and for gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from recallkit.kernels.linear_recurrence import by_chunks, first_state, precision, states_between, weigh_pairs

if TYPE_CHECKING:
    from torch import Tensor


def decayed_attention_torch(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, scale: float, chunk: int
) -> tuple[Tensor, Tensor]:
    """Shapes as in `decayed_attention`."""
    narrow, wide, t = v.dtype, precision(q, k, v, state), v.shape[2]
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, log_decay = (x.to(wide) for x in (q, k, v, log_decay))
        s = None if state is None else state.to(wide)
        q = q if scale == 1 else q * scale
        if t == 0:
            o, s = v, first_state(s, q, v, wide)
        elif t == 1:
            o, s = _step(q, k, v, log_decay, s)
        elif log_decay.ndim == 1:
            o, s = by_chunks(lambda v, q, k, s: _attend(v, q, k, _constant(log_decay, t, v.shape[3]), s), chunk, s, v, q, k)
        else:
            o, s = by_chunks(lambda v, q, k, a, s: _attend(v, q, k, _of_tokens(a), s), chunk, s, v, q, k, log_decay.unsqueeze(-1))
    return o.to(narrow), s


class Decays(NamedTuple):
    """Decays of n chunks of c tokens; axes of one element broadcast over the batch, chunks or channels."""

    between: Tensor
    """From token j to token i of a chunk, (b, h, n, c, c); 0 where j > i."""
    since_start: Tensor
    """Of the state before the chunk, at token i: (b, h, n, c, 1)."""
    until_end: Tensor
    """Of token j, in the state after the chunk: (b, h, n, c, 1)."""
    whole: Tensor
    """Of the state before the chunk, by its end: (b, h, n, 1, 1)."""


def _constant(log_decay: Tensor, t: int, size: int) -> Decays:
    """Powers of the decays whose logarithms are (h,), for t tokens."""
    # Finite, because a decay of 0 to the 0th power is 1.
    logs = log_decay.clamp(min=torch.finfo(log_decay.dtype).min).view(1, -1, 1, 1, 1)
    places = torch.arange(size, device=logs.device)[:, None]
    lengths = (t - torch.arange(0, t, size, device=logs.device)).clamp(max=size)[:, None, None]
    between = ((places - places.T).clamp(min=0) * logs).exp().tril()
    return Decays(between, *(((power * logs).exp()) for power in (places + 1, (lengths - 1 - places).clamp(min=0), lengths)))


def _of_tokens(logs: Tensor) -> Decays:
    """From those of the tokens, (b, h, n, c, 1): computed as the pair weights of queries and keys of ones."""
    ones = torch.ones_like(logs)
    return Decays(*weigh_pairs(logs.exp(), ones, logs, ones.squeeze(-1)))


def _attend(v: Tensor, q: Tensor, k: Tensor, decays: Decays, s: Tensor | None) -> tuple[Tensor, Tensor]:
    """n chunks: v (b, h, n, c, v), q, k (b, g, n, c, k), s (b, h, k, v). Heads that share q and k share their products."""
    groups = q.shape[1]
    v, between, since_start, until_end, whole = (torch.unflatten(x, 1, (groups, -1)) for x in (v, *decays))
    s = None if s is None else torch.unflatten(s, 1, (groups, -1))
    q, k = q.unsqueeze(2), k.unsqueeze(2)
    inside = ((q @ k.transpose(-1, -2)) * between) @ v
    states, last = states_between(k.transpose(-1, -2) @ (v * until_end), whole, s)
    o = inside if states is None else torch.addcmul(inside, q @ states, since_start)
    return o.flatten(1, 2), last.flatten(1, 2)


def _step(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, s: Tensor | None) -> tuple[Tensor, Tensor]:
    """One token, computed directly."""
    q, k = (x if x.shape[1] == v.shape[1] else x.repeat_interleave(v.shape[1] // x.shape[1], dim=1) for x in (q, k))
    decay = (log_decay[:, None, None] if log_decay.ndim == 1 else log_decay.unsqueeze(-1)).exp()
    s = k.transpose(-1, -2) * v if s is None else torch.addcmul(decay * s, k.transpose(-1, -2), v)
    return q @ s, s
