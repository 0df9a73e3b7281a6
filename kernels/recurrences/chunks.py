"""Linear recurrences with decays in chunks: what the PyTorch implementations of all of them share.

    S_i = diag(a_i) S_{i-1} + k_i^T v_i,  o_i = q_i S_i      with S of k x v, and 0 <= a_i <= 1 of k
    or of one number

The tokens of a chunk are compared pair by pair; earlier tokens act through S at the beginning of
the chunk, and all chunks are computed at once except for these states. A weight is never the
exponential of a difference of two sums of log decays, which cancel in float32 where decays are
strong, nor of a positive number, which overflows: see `weigh_pairs`.

Letters: b batch, h heads, n chunks, c tokens of a chunk, k and v the widths of keys and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def precision(*tensors: Tensor | None) -> torch.dtype:
    """The widest type of the tensors, at least float32, in which everything is computed."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = dtype if tensor is None else torch.promote_types(dtype, tensor.dtype)
    return dtype


def first_state(state: Tensor | None, q: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    """The state in the type `dtype`, zeros where None."""
    return (
        q.new_zeros(*v.shape[:2], q.shape[3], v.shape[3], dtype=dtype)
        if state is None
        else state.to(dtype)
    )


def by_chunks(
    part: Callable[..., tuple[Tensor, Tensor]],
    size: int,
    state: Tensor | None,
    v: Tensor,
    *tensors: Tensor,
) -> tuple[Tensor, Tensor]:
    """o (b, h, t, v) and S after all t tokens, from `part`, which processes n chunks of `size`
    tokens at once; t > 0.

    v and tensors: (b, h, t, ...); `part` takes them as (b, h, n, c, ...), and S, and returns o (b,
    h, n, c, v) and S. A last chunk that is not full ends with zeros: keys that add nothing to S,
    and log decays of zero.
    """
    t = v.shape[2]
    size = min(size, t)
    # Contiguous, so that products need not copy them again.
    pieces = (
        torch.unflatten(filled(x, -x.shape[2] % size), 2, (-1, size)).contiguous()
        for x in (v, *tensors)
    )
    o, state = part(*pieces, state)
    return o.flatten(2, 3)[:, :, :t], state


def filled(x: Tensor, missing: int) -> Tensor:
    """With `missing` zeros at the end of the last axis but one."""
    return functional.pad(x, (0, 0, 0, missing)) if missing else x


def weigh_pairs(
    q: Tensor, k: Tensor, log_decay: Tensor, diagonal: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights of a chunk's pairs, q and k decayed to its ends, and the decay over the chunk: (...,
    c, c), (..., c, k) twice, (..., 1, k).

        weights_ij = sum over channels of q_i k_j prod_{j<l<i} a_l,  j < i;   diagonal_i for j = i;
        0 for j > i q_i prod_{l<i} a_l,    k_j prod_{l>j} a_l,    prod_l a_l              l in the
        chunk

    q, k: (..., c, k), log_decay: ln a, shaped like q and k or broadcast along axes of one,
    diagonal: (..., c). Where token i sees S_i, not S_{i-1}, its q comes multiplied by a_i.

    By doubling blocks: with m the first token of a block's later half, the product from j+1 to i-1
    splits into m..i-1, by which the later half's q is already multiplied, and j+1..m-1, likewise
    for k. Each factor is the exponential of the sum over a half: it is at most 1, and two are
    computed per token. For a block of tokens 0..3, m = 2: a_1 for (i, j) = (2, 0).
    """
    size = q.shape[-2]
    missing = (1 << (size - 1).bit_length()) - size
    if missing:
        # Padding tokens, which neither add to S nor decay it.
        q, k, log_decay = (filled(x, missing) for x in (q, k, log_decay))
        diagonal = functional.pad(diagonal, (0, missing))
    weights = diagonal[..., None, None]
    length = 1
    while length < size:
        (q_early, q_late), (k_early, k_late) = (_halves(x, length) for x in (q, k))
        across = _products(q_late, k_early)
        early, late = torch.unflatten(log_decay, -2, (-1, 2)).unbind(-2)
        q = torch.stack([q_early, q_late * early.exp().unsqueeze(-2)], -3).flatten(-4, -2)
        k = torch.stack([k_early * late.exp().unsqueeze(-2), k_late], -3).flatten(-4, -2)
        first, second = torch.unflatten(weights, -3, (-1, 2)).unbind(-3)
        weights = torch.cat(
            [torch.cat([first, torch.zeros_like(first)], -1), torch.cat([across, second], -1)], -2
        )
        log_decay = early + late
        length *= 2
    return (
        weights.squeeze(-3)[..., :size, :size],
        q[..., :size, :],
        k[..., :size, :],
        log_decay.exp(),
    )


def states_between(
    added: Tensor, decays: Tensor, state: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """S before each chunk (..., n, k, v), None where it is all zeros, and after the last (..., k,
    v), from that before the first.

    added: (..., n, k, v), the contribution of each chunk; decays: (..., n or 1, k or 1, 1), the
    factor by which it decays S.
    """
    shares = decays.expand(*decays.shape[:-3], added.shape[-3], *decays.shape[-2:]).unbind(-3)
    if state is None and added.shape[-3] == 1:
        return None, added.squeeze(-3)
    states = [torch.zeros_like(added.select(-3, 0)) if state is None else state]
    for new, share in zip(added.unbind(-3), shares, strict=True):
        states.append(torch.addcmul(new, share, states[-1]))
    return torch.stack(states[:-1], dim=-3), states[-1]


def _halves(x: Tensor, length: int) -> tuple[Tensor, ...]:
    """(..., c, width) -> the earlier and the later halves of its blocks of 2 `length` tokens, (...,
    blocks, length, width) each."""
    return torch.unflatten(x, -2, (-1, 2, length)).unbind(-3)


def _products(q: Tensor, k: Tensor) -> Tensor:
    """q k^T; without a matrix product where the width or the number of tokens is one."""
    if q.shape[-1] == 1:
        return q * k.transpose(-1, -2)
    return (q * k).sum(-1, keepdim=True) if q.shape[-2] == 1 else q @ k.transpose(-1, -2)
