"""`rwkv4_attention` on a GPU: one program processes a text sequentially for a block of channels,
whose sums stay in registers.

A lane has a channel, and exchanges nothing with others. Four tokens are loaded at a time, several
such loads ahead of their use, because a sequential loop does not hide memory latency by itself. The
remaining tokens are processed one by one, as is a text of one token. All exponents are relative to
the largest so far, at most 0 up to rounding.

At large b d the speed is bounded by instructions, some 60 per token and warp, five of them in the
special-function unit: three powers of two, one more for the gate, and a division. At small b d it
is bounded by the latency of a token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallkit.kernels.launch import Launcher, inner_contiguous
from recallkit.kernels.rwkv4.reference import NOTHING as EMPTY

LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(EMPTY)
STEPS = tl.constexpr(4)
"""Tokens that are loaded at a time."""


@triton.jit
def _four_tokens(ptr, stride, first, channels, has_channel):
    """The channels of the four tokens from `first` on, each token a vector."""
    tokens = first + tl.arange(0, STEPS).to(tl.int64)
    tile = tl.load(
        ptr + (tokens * stride)[None, :] + channels[:, None], mask=has_channel[:, None], other=0.0
    )
    even, odd = tl.split(tl.reshape(tile, (channels.shape[0], 2, 2)))
    first_token, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first_token, second, third, fourth


@triton.jit
def _advance(numerator, denominator, exponent, k, v, gate, decay, bonus, HAS_GATE: tl.constexpr):
    """Both sums and their exponent after one more token, and its y."""
    k, v = k.to(tl.float32), v.to(tl.float32)
    # Of the weights of past and present, the larger is 1.
    lead = exponent - (bonus + k)
    lesser = tl.exp2(-tl.abs(lead) * LOG2_E)
    of_past, of_now = tl.where(lead > 0, 1.0, lesser), tl.where(lead > 0, lesser, 1.0)
    below = of_past * denominator + of_now
    if HAS_GATE:
        below *= 1.0 + tl.exp2(gate.to(tl.float32) * -LOG2_E)
    y = (of_past * numerator + of_now * v) / below
    peak = tl.maximum(exponent - decay, k)
    # Subtract the two maxima first: their accumulated rounding errors are then part of `fading`,
    # and cancel.
    fading, arriving = tl.exp2((exponent - peak - decay) * LOG2_E), tl.exp2((k - peak) * LOG2_E)
    return fading * numerator + arriving * v, fading * denominator + arriving, peak, y


@triton.jit
def weighted_values_kernel(k_ptr, v_ptr, gate_ptr, decay_ptr, bonus_ptr, numerator_ptr,
                           denominator_ptr, exponent_ptr, y_ptr, last_ptr,
                           t, b, d, k_t, k_b, v_t, v_b, gate_t, gate_b,
                           HAS_STATE: tl.constexpr, HAS_GATE: tl.constexpr, BLOCK: tl.constexpr,
                           STAGES: tl.constexpr):  # fmt: skip
    """One row and BLOCK channels. `k_t`, `k_b`: strides of time and row; states (b, d), last (3, b,
    d), y (t, b, d)."""
    num_blocks = tl.cdiv(d, BLOCK)
    row = (tl.program_id(0) // num_blocks).to(tl.int64)
    channels = tl.program_id(0) % num_blocks * BLOCK + tl.arange(0, BLOCK)
    has_channel = channels < d
    decay = tl.load(decay_ptr + channels, mask=has_channel, other=0.0)
    bonus = tl.load(bonus_ptr + channels, mask=has_channel, other=0.0)
    numerator, denominator = (
        tl.zeros((BLOCK,), dtype=tl.float32),
        tl.zeros((BLOCK,), dtype=tl.float32),
    )
    exponent = tl.full((BLOCK,), NOTHING, dtype=tl.float32)
    in_state = row * d + channels
    if HAS_STATE:
        numerator = tl.load(numerator_ptr + in_state, mask=has_channel, other=0.0)
        denominator = tl.load(denominator_ptr + in_state, mask=has_channel, other=0.0)
        exponent = tl.load(exponent_ptr + in_state, mask=has_channel, other=0.0)
        exponent = tl.maximum(exponent, NOTHING, propagate_nan=tl.PropagateNan.ALL)
    k_ptr += row * k_b
    v_ptr += row * v_b
    gate_ptr += row * gate_b
    y_ptr += in_state
    full = t // STEPS * STEPS
    for first in tl.range(0, full, STEPS, num_stages=STAGES):
        k = _four_tokens(k_ptr, k_t, first, channels, has_channel)
        v = _four_tokens(v_ptr, v_t, first, channels, has_channel)
        gate = k
        if HAS_GATE:
            gate = _four_tokens(gate_ptr, gate_t, first, channels, has_channel)
        for i in tl.static_range(STEPS):
            numerator, denominator, exponent, y = _advance(
                numerator, denominator, exponent, k[i], v[i], gate[i], decay, bonus, HAS_GATE
            )
            tl.store(y_ptr + (tl.cast(first, tl.int64) + i) * b * d, y, mask=has_channel)
    for single in tl.range(full, t):
        token = tl.cast(single, tl.int64)
        k = tl.load(k_ptr + token * k_t + channels, mask=has_channel, other=0.0)
        v = tl.load(v_ptr + token * v_t + channels, mask=has_channel, other=0.0)
        gate = k
        if HAS_GATE:
            gate = tl.load(gate_ptr + token * gate_t + channels, mask=has_channel, other=0.0)
        numerator, denominator, exponent, y = _advance(
            numerator, denominator, exponent, k, v, gate, decay, bonus, HAS_GATE
        )
        tl.store(y_ptr + token * b * d, y, mask=has_channel)
    last_ptr += in_state
    size = tl.cast(b, tl.int64) * d
    tl.store(last_ptr, numerator, mask=has_channel)
    tl.store(last_ptr + size, denominator, mask=has_channel)
    tl.store(last_ptr + 2 * size, exponent, mask=has_channel)


WALK = Launcher(
    weighted_values_kernel,
    [triton.Config({"BLOCK": 32, "STAGES": stages}, num_warps=1) for stages in (5, 8)],
    ("d", "HAS_GATE"),
)


@torch.library.custom_op("recallkit::rwkv4_attention", mutates_args=())
def rwkv4_attention_triton(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor,
    gate: Tensor | None,
    numerator: Tensor | None,
    denominator: Tensor | None,
    exponent: Tensor | None,
    config: int | None = None,
) -> tuple[Tensor, Tensor]:
    """y (t, b, d) and the state (3, b, d). Shapes as in `rwkv4_attention`. `config`: which
    configuration, see `Launcher`."""
    t, b, d = k.shape
    y, last = _empty_results(k, v)
    if b == 0 or d == 0:
        return y, last
    kinds = {"HAS_STATE": numerator is not None, "HAS_GATE": gate is not None}
    k, v = inner_contiguous(k), inner_contiguous(v)
    gate = k if gate is None else inner_contiguous(gate)
    strides = {
        f"{name}_{axis}": x.stride(i)
        for name, x in (("k", k), ("v", v), ("gate", gate))
        for i, axis in enumerate("tb")
    }
    state = (
        last if part is None else part.float().contiguous()
        for part in (numerator, denominator, exponent)
    )
    WALK(
        lambda meta: (b * triton.cdiv(d, meta["BLOCK"]),),
        *(k, v, gate, decay.float().contiguous(), bonus.float().contiguous(), *state, y, last),
        config=config, t=t, b=b, d=d, **strides, **kinds,
    )  # fmt: skip
    return y, last


@rwkv4_attention_triton.register_fake
def _(k: Tensor, v: Tensor, *_others: object) -> tuple[Tensor, Tensor]:
    return _empty_results(k, v)


def _empty_results(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), v.new_empty(3, *k.shape[1:], dtype=torch.float32)
