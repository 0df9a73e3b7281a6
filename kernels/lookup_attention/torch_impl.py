"""`lookup_attention` in PyTorch: pair by pair where few pairs are listed, under a mask of all pairs
where many are.

Pairs are gathered in chunks of the lists that fit in a core's cache on CPU. The backward pass
gathers again instead of storing what was gathered: only queries, keys, values and one number per
query and head are kept, whatever the lengths of the lists.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional as F  # noqa: N812

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

MASKED = 32
"""Where more than one pair in this many is listed, a mask of all pairs is faster."""

PIECE = 1 << 18
"""Elements of the keys gathered at once on CPU: 1 MB of float32."""

CUDA_PIECE = 1 << 26
"""The same on a GPU: 256 MB."""

MOST_MASKED = 1 << 26
"""Pairs of a mask that is computed at once: 256 MB of float32."""


def lookup_attention_torch(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, keys: Tensor
) -> Tensor:
    """Shapes as in `lookup_attention`."""
    batch, _, t, _ = q.shape
    attend = attend_by_mask if MASKED * len(keys) > batch * t**2 else attend_by_pair
    return attend(q, k, v, offsets, keys)


def attend_by_mask(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, keys: Tensor) -> Tensor:
    """Shapes as in `lookup_attention`; a strip of the queries at a time, against all keys."""
    batch, _, t, _ = q.shape
    counts = offsets.diff().view(batch, t)
    ends = _repeated(torch.arange(batch * t, device=q.device), counts.flatten(), len(keys))
    # of texts of 3 tokens, query 4 of the batch is query 1 of row 1
    rows, queries = ends // t, ends % t
    strip = max(1, MOST_MASKED // (batch * t))
    parts = []
    for start in range(0, t, strip):
        height = min(strip, t - start)
        # Strips lie row after row: in one of 2 queries, from query 2 on, (row 1, query 3, key 0) is
        # at (1 * 2 + 3 - 2) * t + 0.
        place = (rows * height + queries - start) * t + keys
        if height < t:
            place = place[(queries >= start) & (queries < start + height)]
        num_keys = counts[:, start : start + height]
        mask = _mask_of(place, num_keys, t, _wide(q.dtype))
        context = F.scaled_dot_product_attention(
            q[:, :, start : start + height], k, v, attn_mask=mask
        )
        parts.append(context.masked_fill((num_keys == 0)[:, None, :, None], 0.0))
    return torch.cat(parts, dim=2)


def attend_by_pair(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, keys: Tensor) -> Tensor:
    """Shapes as in `lookup_attention`."""
    out: Tensor = _ByPair.apply(q, k, v, offsets, keys)  # type: ignore[no-untyped-call]
    return out


class _Piece(NamedTuple):
    """Consecutive queries and their p pairs; places are indices of tokens in the batch, row after
    row."""

    queries: slice
    ends: Tensor  # (p,), the query of each pair, relative to the first of the chunk
    starts: Tensor  # (p,), the place of the key


class _ByPair(torch.autograd.Function):
    """Pair by pair. With p the weights and o the result, a score's gradient is p (do . v - do .
    o)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, keys: Tensor) -> Tensor:
        batch, heads, t, width = q.shape
        flat = _by_token(q), _by_token(k), _by_token(v)
        out = torch.zeros(batch * t, heads, width, dtype=_wide(q.dtype), device=q.device)
        log_sums = out.new_zeros(batch * t, heads)
        for piece in _pieces(offsets, keys, t, heads * width):
            scores = _scores(flat[0], flat[1], piece)
            highest = torch.segment_reduce(
                scores,
                "max",
                lengths=offsets[piece.queries.start : piece.queries.stop + 1].diff(),
                unsafe=True,
            )
            weights = (scores - highest.index_select(0, piece.ends)).exp_()
            total = torch.zeros_like(highest).index_add_(0, piece.ends, weights)
            part = out[piece.queries].index_add_(
                0, piece.ends, _gathered(flat[2], piece.starts).mul_(weights[..., None])
            )
            empty = total == 0
            part /= total.masked_fill_(empty, 1)[..., None]
            log_sums[piece.queries] = total.log_().add_(highest.masked_fill_(empty, 0))
        ctx.save_for_backward(*flat, out, log_sums, offsets, keys)
        ctx.shape = q.shape
        return _by_head(out, q.shape).to(q.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sums, offsets, keys = ctx.saved_tensors
        _, heads, t, width = ctx.shape
        grad = _by_token(grad).to(out.dtype)
        expected = (grad * out).sum(-1)
        grad_q, grad_k, grad_v = (torch.zeros_like(out) for _ in range(3))
        for piece in _pieces(offsets, keys, t, heads * width):
            q_piece, grad_piece = (
                x[piece.queries].to(out.dtype).index_select(0, piece.ends) for x in (q, grad)
            )
            k_piece = _gathered(k, piece.starts)
            scores = (q_piece * k_piece).sum(-1).div_(math.sqrt(width))
            weights = scores.sub_(log_sums[piece.queries].index_select(0, piece.ends)).exp_()
            change = (_gathered(v, piece.starts).mul_(grad_piece)).sum(-1)
            change.sub_(expected[piece.queries].index_select(0, piece.ends)).mul_(weights).div_(
                math.sqrt(width)
            )
            grad_q[piece.queries].index_add_(0, piece.ends, k_piece.mul_(change[..., None]))
            grad_k.index_add_(0, piece.starts, q_piece.mul_(change[..., None]))
            grad_v.index_add_(0, piece.starts, grad_piece.mul_(weights[..., None]))
        return *(_by_head(x, ctx.shape).to(q.dtype) for x in (grad_q, grad_k, grad_v)), None, None


def _pieces(offsets: Tensor, keys: Tensor, t: int, numbers: int) -> Iterator[_Piece]:
    """The queries in chunks, where a pair gathers `numbers` elements; a chunk may be longer by one
    query's list."""
    most = max(1, (CUDA_PIECE if keys.is_cuda else PIECE) // numbers)
    wanted = torch.arange(0, len(keys) + most, most, device=keys.device)
    cuts = torch.searchsorted(offsets, wanted).clamp_(max=len(offsets) - 1)
    # Lists of 2, 3 and 4 keys (offsets 0, 2, 5, 9), 4 pairs at most: wanted 0, 4, 8, 12, so cuts
    # before queries 0, 2, 3 and 3.
    bounds = torch.stack([cuts, offsets[cuts]], dim=1).tolist()
    for (first, begin), (last, end) in itertools.pairwise(bounds):
        if begin < end:
            counts = offsets[first : last + 1].diff()
            ends = _repeated(torch.arange(last - first, device=keys.device), counts, end - begin)
            yield _Piece(slice(first, last), ends, (ends + first) // t * t + keys[begin:end])


def _scores(q: Tensor, k: Tensor, piece: _Piece) -> Tensor:
    """(p, h)."""
    queries = q[piece.queries].to(_wide(q.dtype)).index_select(0, piece.ends)
    return _gathered(k, piece.starts).mul_(queries).sum(-1).div_(math.sqrt(q.shape[2]))


def _gathered(x: Tensor, places: Tensor) -> Tensor:
    """x: (b t, h, k) -> its rows at these places (p, h, k), widened, a copy."""
    return x.index_select(0, places).to(_wide(x.dtype))


def _mask_of(place: Tensor, counts: Tensor, t: int, dtype: torch.dtype) -> Tensor:
    """Which pairs of a strip are listed, (b, 1, strip, t) bool; where some are listed repeatedly,
    the logarithms of their multiplicities.

    `place`: the index of each pair in that tensor, `counts`: of each query in the strip (b, strip).
    A query of an empty list sees the first key, so that no softmax is over an empty set.
    """
    mask = torch.zeros(counts.numel() * t, dtype=torch.bool, device=place.device).index_fill_(
        0, place, True
    )
    if int(mask.sum()) < len(place):
        mask = torch.zeros(mask.shape, dtype=dtype, device=place.device)
        mask.index_add_(0, place, mask.new_ones(()).expand(len(place)))
    mask = mask.view(*counts.shape, t)
    mask[:, :, 0] += counts == 0
    return (mask if mask.dtype == torch.bool else mask.log_())[:, None]


def _repeated(values: Tensor, counts: Tensor, total: int) -> Tensor:
    """Each value repeated by its count; with the total known, this need not wait for the GPU to sum
    the counts."""
    return torch.repeat_interleave(values, counts, output_size=total)


def _by_token(x: Tensor) -> Tensor:
    """(b, h, t, k) -> (b t, h, k): the heads of a position are contiguous."""
    return x.transpose(1, 2).flatten(0, 1).contiguous()


def _by_head(x: Tensor, shape: torch.Size) -> Tensor:
    """(b t, h, k) -> (b, h, t, k)."""
    return x.view(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
