"""`lookup_attention` on a GPU: a program for a query and some heads reads only the keys and values
of its list.

Keys are read in blocks with an online softmax in float32. Queries without a list write zeros. The
queries at the end of the rows, whose lists are longest where keys precede queries, are started
first, so that none is left over at the end. Lists are not split: where keys come from repetitions,
a list of length L comes with lists of lengths 1 to L - 1, which keep the GPU busy as long as the
longest takes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallkit.kernels.launch import Launcher


@triton.jit
def lookup_kernel(q_ptr, k_ptr, v_ptr, offsets_ptr, keys_ptr, out_ptr, batch, num_heads, t, width,
                  num_keys, scale,
                  q_row, q_head, q_place, k_row, k_head, k_place, v_row, v_head, v_place,
                  WIDTH: tl.constexpr, MOST_HEADS: tl.constexpr, NUMBERS: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
    """The result of one query in `heads_together` heads; out is (b, t, h, k), `scale` is log2(e) /
    sqrt(k).

    Strides are those of rows, heads and positions, in elements. WIDTH and MOST_HEADS are width and
    heads rounded up to powers of two.
    """
    fitting: tl.constexpr = 1 if NUMBERS < WIDTH else NUMBERS // WIDTH
    together: tl.constexpr = fitting if fitting < MOST_HEADS else MOST_HEADS
    groups = tl.cdiv(num_heads, together)
    program = tl.program_id(0)
    heads = (program % groups) * together + tl.arange(0, together)
    row = ((program // groups) % batch).to(tl.int64)
    place = (t - 1 - program // (groups * batch)).to(tl.int64)
    inner = tl.arange(0, WIDTH)
    has = (heads < num_heads)[:, None] & (inner < width)[None, :]
    first = tl.load(offsets_ptr + row * t + place)
    last = tl.minimum(tl.load(offsets_ptr + row * t + place + 1), num_keys)
    heads_long = heads.to(tl.int64)[:, None]
    at_query = row * q_row + place * q_place + heads_long * q_head + inner[None, :]
    # Triton 3.9 interprets `has & (a scalar)` as integers, which are not a mask.
    q = (
        tl.load(q_ptr + at_query, mask=tl.where(first < last, has, False), other=0.0).to(tl.float32)
        * scale
    )
    keys_of_row = k_ptr + row * k_row + heads_long * k_head + inner[None, :]
    values_of_row = v_ptr + row * v_row + heads_long * v_head + inner[None, :]
    highest = tl.full((together,), -float("inf"), tl.float32)
    total = tl.zeros((together,), tl.float32)
    acc = tl.zeros((together, WIDTH), tl.float32)
    for start in range(first, last, BLOCK):
        listed = start + tl.arange(0, BLOCK) < last
        keys = tl.load(keys_ptr + start + tl.arange(0, BLOCK), mask=listed, other=0)
        inside = (keys >= 0) & (keys < t)
        wanted = (listed & inside)[:, None, None] & has[None, :, :]
        k = tl.load(
            keys_of_row[None, :, :] + keys[:, None, None] * k_place, mask=wanted, other=0.0
        ).to(tl.float32)
        v = tl.load(
            values_of_row[None, :, :] + keys[:, None, None] * v_place, mask=wanted, other=0.0
        ).to(tl.float32)
        scores = tl.sum(q[None, :, :] * k, axis=2)
        scores = tl.where(inside[:, None], scores, float("nan"))
        scores = tl.where(listed[:, None], scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=0))
        weights = tl.exp2(scores - higher[None, :])
        factor = tl.exp2(highest - higher)
        total = total * factor + tl.sum(weights, axis=0)
        acc = acc * factor[:, None] + tl.sum(weights[:, :, None] * v, axis=0)
        highest = higher
    # Without a key the sum is zero: avoid 0 / 0.
    acc = acc / tl.where(first < last, total, 1.0)[:, None]
    at_out = ((row * t + place) * num_heads + heads_long) * width + inner[None, :]
    tl.store(out_ptr + at_out, acc.to(out_ptr.dtype.element_ty), mask=has)


def heads_together(meta: dict[str, Any]) -> int:
    """Heads per program: as many as have NUMBERS elements of one key in total, at least one."""
    return int(min(max(1, meta["NUMBERS"] // meta["WIDTH"]), meta["MOST_HEADS"]))


def _config(block: int, numbers: int, warps: int) -> triton.Config:
    return triton.Config({"BLOCK": block, "NUMBERS": numbers}, num_warps=warps, num_stages=2)


LOOKUPS = Launcher(lookup_kernel, [_config(8, 128, 1), _config(16, 64, 1)], ("width", "num_heads"))


@torch.library.custom_op("recallkit::lookup_attention", mutates_args=())
def lookup_attention_triton(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, keys: Tensor, config: int | None = None
) -> Tensor:
    """Shapes as in `lookup_attention`. `config`: which configuration, see `Launcher`."""
    batch, heads, t, width = q.shape
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    out = _empty_result(q)
    if out.numel() == 0:
        return out
    strides = {
        f"{name}_{axis}": x.stride(i)
        for name, x in (("q", q), ("k", k), ("v", v))
        for i, axis in enumerate(("row", "head", "place"))
    }
    sizes = {"WIDTH": triton.next_power_of_2(width), "MOST_HEADS": triton.next_power_of_2(heads)}
    LOOKUPS(
        lambda meta: (batch * t * triton.cdiv(heads, heads_together(meta)),),
        *(q, k, v, offsets.contiguous(), keys.contiguous(), out),
        config=config, batch=batch, num_heads=heads, t=t, width=width, num_keys=len(keys),
        scale=math.log2(math.e) / math.sqrt(width), **sizes, **strides,
    )  # fmt: skip
    return out


@lookup_attention_triton.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, keys: Tensor, config: int | None = None
) -> Tensor:
    return _empty_result(q)


def _empty_result(q: Tensor) -> Tensor:
    """(b, h, t, k), the heads of a position contiguous, as the following projection reads them."""
    batch, heads, t, width = q.shape
    return q.new_empty(batch, t, heads, width).transpose(1, 2)
