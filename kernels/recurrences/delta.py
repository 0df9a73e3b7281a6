"""Recurrences of the delta rule in chunks: the common part of the PyTorch implementations of
`delta_rule` and `rwkv7_attention`.

    S_i = diag(a_i) S_{i-1} + k_i^T v_i - w_i^T (e_i S_{i-1}),  o_i = q_i S_i      with S of k x v,
    and 0 <= a_i <= 1

The state is multiplied by a diagonal plus a matrix of rank one: e_i reads what the state has, and
this is taken away under the key w_i.

The rows f_i = e_i S_{i-1} that the tokens of a chunk read depend on the rows before them. With D_ij
the product of the decays of the tokens between j and i, and d_i that from the start of the chunk to
before i, they solve the triangular system

    f_i + sum_{j<i} (e_i D_ij w_j^T) f_j = e_i diag(d_i) S + sum_{j<i} (e_i D_ij k_j^T) v_j

of all chunks at once, once for what does not depend on the state S before the chunk and once for
what does. Where w = k only the differences v_j - f_j are needed: they solve the same system with
v_i - e_i diag(d_i) S at its right (arXiv 2406.06484, section 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.recurrences.chunks import by_chunks, weigh_pairs

if TYPE_CHECKING:
    from torch import Tensor


def delta_recurrence(
    q: Tensor,
    keys: tuple[Tensor, ...],
    v: Tensor,
    erase: Tensor,
    log_decay: Tensor,
    state: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """o (b, h, t, v) and S (b, h, k, v) after all t > 0 tokens, in chunks of `chunk`; all tensors
    of one type.

    keys: k and w, or one alone that is both; q, keys, erase: (b, h, t, k), v (b, h, t, v),
    `log_decay`, ln a: (b, h, t, k or 1).
    """
    if v.shape[2] == 1:
        return _step(q, keys, v, erase, log_decay, state)
    return by_chunks(_attend, chunk, state, v, q, erase, log_decay, *keys)


def _attend(
    v: Tensor, q: Tensor, erase: Tensor, log_decay: Tensor, *rest: Tensor
) -> tuple[Tensor, Tensor]:
    """n chunks: v (b, h, n, c, v), q, erase and the keys (b, h, n, c, k), log_decay (b, h, n, c, k
    or 1), last the state (b, h, k, v)."""
    *all_keys, state = rest
    keys = all_keys[0].unsqueeze(-3) if len(all_keys) == 1 else torch.stack(all_keys, dim=-3)
    weights, read, q, erase, keys, decays = _weigh(q, erase, keys, log_decay)
    # Only what is below the diagonal of a system is read.
    system = read.select(-3, -1)
    right = v if len(all_keys) == 1 else read.select(-3, 0).tril(-1) @ v
    solved = torch.linalg.solve_triangular(
        system, torch.cat([right, erase], dim=-1), upper=False, unitriangular=True
    )
    written, removed = solved.split([v.shape[-1], q.shape[-1]], dim=-1)
    if len(all_keys) == 2:
        written, removed = (
            torch.cat([v, -written], dim=-2),
            torch.cat([torch.zeros_like(removed), removed], dim=-2),
        )
    # The columns of both keys side by side.
    weights, keys = weights.transpose(-3, -2).flatten(-2), keys.flatten(-3, -2).transpose(-1, -2)
    outputs = []
    for i in range(v.shape[2]):
        new = written[:, :, i] if state is None else written[:, :, i] - removed[:, :, i] @ state
        o, added = weights[:, :, i] @ new, keys[:, :, i] @ new
        outputs.append(o if state is None else o + q[:, :, i] @ state)
        state = added if state is None else torch.addcmul(added, decays[:, :, i], state)
    assert state is not None
    return torch.stack(outputs, dim=2), state


def _weigh(q: Tensor, erase: Tensor, keys: Tensor, log_decay: Tensor) -> tuple[Tensor, ...]:
    """Pair weights of q, which sees S_i, and of e, which sees S_{i-1}, (..., m, c, c); q and e
    decayed since the start, keys until the end.

    q, erase: (..., c, k); keys (..., m, c, k); log_decay (..., c, k or 1). The last result is the
    decay over a chunk, (..., k or 1, 1).
    """
    a = log_decay.exp()
    if log_decay.shape[-1] == q.shape[-1]:
        rows, keys = torch.stack([a * q, erase], dim=-3).unsqueeze(-3), keys.unsqueeze(-4)
        diagonal = (torch.stack([q, erase], dim=-3).unsqueeze(-3) * keys).sum(dim=-1)
        pairs, rows, keys, decays = weigh_pairs(
            rows, keys, log_decay[..., None, None, :, :], diagonal
        )
        (weights, read), (q, erase) = pairs.unbind(-4), rows.squeeze(-3).unbind(-3)
        return weights, read, q, erase, keys.squeeze(-4), decays.flatten(-4, -2).transpose(-1, -2)
    ones = torch.ones_like(a)
    factors = torch.stack([a, ones], dim=-3)
    between, since_start, until_end, decays = weigh_pairs(
        factors, ones.unsqueeze(-3), log_decay.unsqueeze(-3), torch.ones_like(factors).squeeze(-1)
    )
    columns = keys.transpose(-1, -2)
    weights, read = (
        pairs.unsqueeze(-3) * (x.unsqueeze(-3) @ columns)
        for pairs, x in zip(between.unbind(-3), (q, erase), strict=True)
    )
    q, erase = (factor * x for factor, x in zip(since_start.unbind(-3), (q, erase), strict=True))
    return weights, read, q, erase, until_end * keys, decays.squeeze(-3)


def _step(
    q: Tensor,
    keys: tuple[Tensor, ...],
    v: Tensor,
    erase: Tensor,
    log_decay: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """One token, computed directly."""
    k, w = (key.transpose(-1, -2) for key in (keys[0], keys[-1]))
    s = (
        k * v
        if state is None
        else torch.addcmul(
            log_decay.transpose(-1, -2).exp() * state + k * v, w, erase @ state, value=-1
        )
    )
    return q @ s, s
