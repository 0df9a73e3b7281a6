"""The recurrences in chunks: for CPU, and for gradients. Shapes as in `api`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from recallkit.kernels.recurrences.chunks import (
    by_chunks,
    first_state,
    precision,
    states_between,
    weigh_pairs,
)
from recallkit.kernels.recurrences.delta import delta_recurrence

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def _widely(
    run: Callable[..., tuple[Tensor, Tensor]],
    tensors: tuple[Any, ...],
    state: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """run(q, k, v, ..., state) in the widest of the types of q, k, v and state, at least float32; o
    is rounded once."""
    q, k, v = tensors[:3]
    wide = precision(q, k, v, state)
    with torch.autocast(q.device.type, enabled=False):
        state = None if state is None else state.to(wide)
        if v.shape[2] == 0:
            return v, first_state(state, q, v, wide)
        others = [None if x is None else x.to(wide) for x in tensors[1:]]
        o, state = run(q.to(wide) if scale == 1 else q.to(wide) * scale, *others, state)
    return o.to(v.dtype), state


# ------------------------------------------------------------------------------- one decay per head


def decayed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor | None,
    scale: float,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """Heads that share q and k share their products."""

    def run(
        q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, s: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        t = v.shape[2]
        if t == 1:
            return _decayed_step(q, k, v, log_decay, s)
        if log_decay.ndim == 1:
            return by_chunks(
                lambda v, q, k, s: _attend(v, q, k, _constant(log_decay, t, v.shape[3]), s),
                chunk,
                s,
                v,
                q,
                k,
            )
        return by_chunks(
            lambda v, q, k, a, s: _attend(v, q, k, _of_tokens(a), s),
            chunk,
            s,
            v,
            q,
            k,
            log_decay.unsqueeze(-1),
        )

    return _widely(run, (q, k, v, log_decay), state, scale)


class Decays(NamedTuple):
    """Decays of n chunks of c tokens; axes of one element broadcast over the batch, chunks or
    channels."""

    between: Tensor
    """From token j to token i of a chunk, (b, h, n, c, c); 0 where j > i."""
    since_start: Tensor
    """Of the state before the chunk, at token i: (b, h, n, c, 1)."""
    until_end: Tensor
    """Of token j, in the state after the chunk: (b, h, n, c, 1)."""
    over_chunk: Tensor
    """Of the state before the chunk, by its end: (b, h, n, 1, 1)."""


def _constant(log_decay: Tensor, t: int, size: int) -> Decays:
    """Powers of the decays whose logarithms are (h,), for t tokens."""
    # Finite, because a decay of 0 to the 0th power is 1.
    logs = log_decay.clamp(min=torch.finfo(log_decay.dtype).min).view(1, -1, 1, 1, 1)
    places = torch.arange(size, device=logs.device)[:, None]
    lengths = (t - torch.arange(0, t, size, device=logs.device)).clamp(max=size)[:, None, None]
    between = ((places - places.T).clamp(min=0) * logs).exp().tril()
    return Decays(
        between,
        *(
            ((power * logs).exp())
            for power in (places + 1, (lengths - 1 - places).clamp(min=0), lengths)
        ),
    )


def _of_tokens(logs: Tensor) -> Decays:
    """From those of the tokens, (b, h, n, c, 1): computed as the pair weights of queries and keys
    of ones."""
    ones = torch.ones_like(logs)
    return Decays(*weigh_pairs(logs.exp(), ones, logs, ones.squeeze(-1)))


def _attend(
    v: Tensor, q: Tensor, k: Tensor, decays: Decays, s: Tensor | None
) -> tuple[Tensor, Tensor]:
    """n chunks: v (b, h, n, c, v), q, k (b, g, n, c, k), s (b, h, k, v)."""
    groups = q.shape[1]
    v, between, since_start, until_end, over_chunk = (
        torch.unflatten(x, 1, (groups, -1)) for x in (v, *decays)
    )
    s = None if s is None else torch.unflatten(s, 1, (groups, -1))
    q, k = q.unsqueeze(2), k.unsqueeze(2)
    inside = ((q @ k.transpose(-1, -2)) * between) @ v
    states, last = states_between(k.transpose(-1, -2) @ (v * until_end), over_chunk, s)
    o = inside if states is None else torch.addcmul(inside, q @ states, since_start)
    return o.flatten(1, 2), last.flatten(1, 2)


def _decayed_step(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, s: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One token, computed directly."""
    q, k = (
        x if x.shape[1] == v.shape[1] else x.repeat_interleave(v.shape[1] // x.shape[1], dim=1)
        for x in (q, k)
    )
    decay = (log_decay[:, None, None] if log_decay.ndim == 1 else log_decay.unsqueeze(-1)).exp()
    s = k.transpose(-1, -2) * v if s is None else torch.addcmul(decay * s, k.transpose(-1, -2), v)
    return q @ s, s


# ----------------------------------------------------------------------- decays of channels, RWKV-5


def gated_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor | None,
    scale: float,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """See `api`."""

    def run(
        q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, s: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if v.shape[2] > 1:
            return by_chunks(_attend_gated, chunk, s, v, q, k, log_decay)
        new = k.transpose(-1, -2) * v
        s = new if s is None else torch.addcmul(new, log_decay.transpose(-1, -2).exp(), s)
        return q @ s, s

    return _widely(run, (q, k, v, log_decay), state, scale)


def _attend_gated(
    v: Tensor, q: Tensor, k: Tensor, log_decay: Tensor, s: Tensor | None
) -> tuple[Tensor, Tensor]:
    """n chunks: v (b, h, n, c, v), q, k, log_decay (b, h, n, c, k), s (b, h, k, v)."""
    weights, q, k, over_chunk = weigh_pairs(q * log_decay.exp(), k, log_decay, (q * k).sum(-1))
    states, last = states_between(k.transpose(-1, -2) @ v, over_chunk.transpose(-1, -2), s)
    return weights @ v if states is None else weights @ v + q @ states, last


def rwkv5_attention(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    bonus: Tensor,
    state: Tensor | None,
    scale: float,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """See `api`."""

    def run(
        r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, bonus: Tensor, s: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        t = v.shape[2]
        if t > 1:
            attend = functools.partial(
                _attend_with_bonus, log_decay=log_decay, bonus=bonus, rest=t % min(chunk, t)
            )
            return by_chunks(attend, chunk, s, v, r, k)
        s, new = first_state(s, r, v, v.dtype), k.transpose(-1, -2) * v
        return r @ torch.addcmul(s, bonus[..., None], new), torch.addcmul(
            new, log_decay[..., None].exp(), s
        )

    return _widely(run, (r, k, v, log_decay, bonus), state, scale)


def _attend_with_bonus(
    v: Tensor,
    r: Tensor,
    k: Tensor,
    s: Tensor | None,
    *,
    log_decay: Tensor,
    bonus: Tensor,
    rest: int,
) -> tuple[Tensor, Tensor]:
    """n chunks: v (b, h, n, c, v), r, k (b, h, n, c, k), s (b, h, k, v); log_decay, bonus (h, k).
    The last has `rest` tokens, if not 0."""
    one_chunk = log_decay[None, :, None, None].expand(-1, -1, -1, k.shape[3], -1)
    weights, r, until_end, over_chunk = weigh_pairs(
        r, k, one_chunk, (r * bonus[:, None, None] * k).sum(-1)
    )
    states, last = states_between(until_end.transpose(-1, -2) @ v, over_chunk.transpose(-1, -2), s)
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
    return (
        torch.exp(t * log_decay)[..., None] * s
        + (k * torch.exp(ages * log_decay[:, None])).transpose(-1, -2) @ v
    )


# --------------------------------------------------------------------------- the delta rule, RWKV-7


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    log_decay: Tensor | None,
    state: Tensor | None,
    scale: float,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """See `api`."""

    def run(
        q: Tensor, k: Tensor, v: Tensor, b: Tensor, log_decay: Tensor | None, s: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        b = b.unsqueeze(-1)
        logs = (
            torch.zeros_like(b)
            if log_decay is None
            else log_decay.unsqueeze(-1)
            if log_decay.ndim == 3
            else log_decay
        )
        return delta_recurrence(q, (k,), b * v, b * logs.exp() * k, logs, s, chunk)

    return _widely(run, (q, k, v, strength, log_decay), state, scale)


def rwkv7_attention(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    erase: Tensor,
    write: Tensor,
    log_decay: Tensor,
    state: Tensor | None,
    scale: float,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """See `api`."""

    def run(
        r: Tensor,
        k: Tensor,
        v: Tensor,
        erase: Tensor,
        write: Tensor,
        log_decay: Tensor,
        s: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        return delta_recurrence(r, (k, write), v, erase, log_decay, s, chunk)

    return _widely(run, (r, k, v, erase, write, log_decay), state, scale)
