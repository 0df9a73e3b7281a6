"""The recurrences token by token, as they are written: the oracle, in float64 for float64 inputs.
Shapes as in `api`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.recurrences.chunks import first_state, precision

if TYPE_CHECKING:
    from torch import Tensor


def decayed_attention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """S_i = a_i S_{i-1} + k_i^T v_i."""
    b, h, t, _ = v.shape
    q, k = (x.repeat_interleave(h // x.shape[1], dim=1) for x in (q, k))
    logs = log_decay if log_decay.ndim == 3 else log_decay[:, None].expand(b, h, t)
    return gated_linear_attention(q, k, v, logs.unsqueeze(-1), state, scale)


def gated_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """S_i = diag(a_i) S_{i-1} + k_i^T v_i; also of decays (b, h, t, 1)."""
    s, o = first_state(state, q, v, precision(q, k, v, state)), torch.zeros_like(v)
    q, k, decay = q.to(s.dtype), k.to(s.dtype), log_decay.to(s.dtype).exp()
    for i in range(q.shape[2]):
        s = decay[:, :, i, :, None] * s + k[:, :, i, :, None] * v[:, :, i, None, :]
        o[:, :, i] = scale * (q[:, :, i, :, None] * s).sum(-2)
    return o, s


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    log_decay: Tensor | None,
    state: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """S_i = A_i S_{i-1} + b_i k_i^T (v_i - k_i A_i S_{i-1})."""
    s, o = first_state(state, q, v, precision(q, k, v, state)), torch.zeros_like(v)
    q, k, strength = (x.to(s.dtype) for x in (q, k, strength))
    decay = torch.ones_like(strength) if log_decay is None else log_decay.to(s.dtype).exp()
    decay = decay.unsqueeze(-1) if decay.ndim == 3 else decay
    for i in range(q.shape[2]):
        s = decay[:, :, i, :, None] * s
        recalled = (k[:, :, i, :, None] * s).sum(-2)
        new = strength[:, :, i, None] * (v[:, :, i] - recalled)
        s = s + k[:, :, i, :, None] * new[:, :, None, :]
        o[:, :, i] = scale * (q[:, :, i, :, None] * s).sum(-2)
    return o, s


def rwkv5_attention(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    bonus: Tensor,
    state: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """S_i = diag(w) S_{i-1} + k_i^T v_i, read before it is written, with a bonus for the present
    token."""
    s, o = first_state(state, r, v, precision(r, k, v, state)), torch.zeros_like(v)
    r, k, decay, bonus = (
        r.to(s.dtype),
        k.to(s.dtype),
        log_decay.to(s.dtype).exp()[..., None],
        bonus.to(s.dtype)[..., None],
    )
    for i in range(r.shape[2]):
        new = k[:, :, i, :, None] * v[:, :, i, None, :]
        o[:, :, i] = scale * (r[:, :, i, :, None] * (s + bonus * new)).sum(-2)
        s = decay * s + new
    return o, s


def rwkv7_attention(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    erase: Tensor,
    write: Tensor,
    log_decay: Tensor,
    state: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """S_i = diag(a_i) S_{i-1} - w_i^T (e_i S_{i-1}) + k_i^T v_i."""
    s, o = first_state(state, r, v, precision(r, k, v, state)), torch.zeros_like(v)
    r, k, erase, write, decay = (
        x.to(s.dtype).unsqueeze(-1) for x in (r, k, erase, write, log_decay.to(s.dtype).exp())
    )
    for i in range(r.shape[2]):
        recalled = (erase[:, :, i] * s).sum(-2)
        s = (
            decay[:, :, i] * s
            - write[:, :, i] * recalled[:, :, None, :]
            + k[:, :, i] * v[:, :, i, None, :]
        )
        o[:, :, i] = scale * (r[:, :, i] * s).sum(-2)
    return o, s
