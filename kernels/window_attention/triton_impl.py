"""Window attention on a GPU: FlexAttention for a whole text, and one launch of our own for the next
token of each row.

A program of the step has one head of one row: it rotates q and k, reads the ring, puts the new key
and value in their slot, attends, and writes the slot, or a whole new ring. It multiplies without
the matrix unit, which one query cannot fill: the time is that of reading 2 window k elements. All
loads are issued before anything is computed, and their addresses depend only on the program.
"""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallkit.kernels.launch import Launcher
from recallkit.kernels.masked_attention.api import masked_attention
from recallkit.kernels.window_attention.state import WindowState, frequencies


def window_attention_triton(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Shapes as in `window_attention`."""
    return masked_attention(q, k, v, _sees, key="window", numbers={"window": window}, impl="triton")


def _sees(queries: Tensor, keys: Tensor, window: Tensor | int) -> Tensor:
    return (keys <= queries) & (keys > queries - window)


@triton.jit
def _cos_sin(phases):
    """Cosine and sine in float32 of angles in units of 2^-64 of a turn, int64: integer overflow
    drops whole turns and nothing else.

    The nearest quarter of a turn is also subtracted. The rest, at most pi/4 in magnitude, has
    Taylor series whose next terms are below 2e-9; CUDA's own functions would include their path for
    large angles, which spills registers.
    """
    quarter: tl.constexpr = 1 << 62
    rounded = phases + quarter // 2
    quarters = (rounded >> 62).to(tl.int32) & 3
    rest = ((rounded & (quarter - 1)) - quarter // 2) >> 30
    x = rest.to(tl.int32).to(tl.float32) * 3.6572951981080884e-10  # 2 pi / 2^34
    square = x * x
    cos = 1 + square * (
        -1 / 2
        + square * (1 / 24 + square * (-1 / 720 + square * (1 / 40320 - square * (1 / 3628800))))
    )
    sin = x + x * square * (
        -1 / 6 + square * (1 / 120 + square * (-1 / 5040 + square * (1 / 362880)))
    )
    is_odd = (quarters & 1) == 1
    sign = tl.where(quarters >= 2, -1.0, 1.0)
    return tl.where(is_odd, -sin, cos) * sign, tl.where(is_odd, cos, sin) * sign


@triton.jit
def _load_pairs(x_ptr, features, WIDTH: tl.constexpr, HALF: tl.constexpr):
    """A head's entries, and for each of the first 2 HALF the one that it is paired with."""
    x = tl.load(x_ptr + features, mask=features < WIDTH, other=0.0)
    partner = x
    if HALF > 0:
        places = tl.where(features < HALF, features + HALF, features - HALF)
        partner = tl.load(x_ptr + places, mask=features < 2 * HALF, other=0.0)
    return x.to(tl.float32), partner.to(tl.float32)


@triton.jit
def _turned(x, partner, features, cos, sin, HALF: tl.constexpr):
    return tl.where(
        features < 2 * HALF, x * cos + tl.where(features < HALF, -partner, partner) * sin, x
    )


@triton.jit
def _absorb(keys, values, places, mask, slots, new_keys_ptr, new_values_ptr, q, key, value, slot,
            position, largest, total, acc,
            WINDOW: tl.constexpr, INPLACE: tl.constexpr):  # fmt: skip
    """A tile of the rings with the new entries in their slot, written where rings are new, and
    added to the running softmax."""
    is_new = (slots == slot)[:, None]
    keys, values = tl.where(is_new, key[None, :], keys), tl.where(is_new, value[None, :], values)
    if not INPLACE:
        tl.store(new_keys_ptr + places, keys, mask=mask)
        tl.store(new_values_ptr + places, values, mask=mask)
    # Slots are filled from the first on: the first tile has a key, so that `higher` is finite.
    written = (slots < WINDOW) & (slots <= position)
    scores = tl.where(written, tl.sum(keys.to(tl.float32) * q[None, :], axis=1), -float("inf"))
    higher = tl.maximum(largest, tl.max(scores, axis=0))
    weights, shrink = tl.exp(scores - higher), tl.exp(largest - higher)
    total = total * shrink + tl.sum(weights, axis=0)
    acc = acc * shrink + tl.sum(weights[:, None] * values.to(tl.float32), axis=0)
    return higher, total, acc


@triton.jit
def step_kernel(q_ptr, k_ptr, v_ptr, keys_ptr, values_ptr, seen_ptr, turns_ptr, y_ptr,
                new_keys_ptr, new_values_ptr, new_seen_ptr,
                num_heads, q_row, q_head, k_row, k_head, v_row, v_head, scale,
                WINDOW: tl.constexpr, WIDTH: tl.constexpr,
                HALF: tl.constexpr, INPLACE: tl.constexpr, BLOCK_K: tl.constexpr,
                MOST_SLOTS: tl.constexpr, TILE: tl.constexpr,
                ):  # fmt: skip
    """One head of one row. `turns_ptr`: see `_turns`, (HALF,); INPLACE: new rings are the old
    ones."""
    block: tl.constexpr = min(MOST_SLOTS, max(1, TILE // BLOCK_K))
    program = tl.program_id(0)
    features, first_slots = tl.arange(0, BLOCK_K), tl.arange(0, block)
    within = features < WIDTH
    ring = program.to(tl.int64) * (WINDOW * WIDTH)
    # Loads are issued before anything is computed, the rings first. Volatile: else the compiler
    # moves loads to where they are used, and
    # a program would wait for three memory latencies, which dominate the time, instead of one.
    first_places = ring + first_slots[:, None] * WIDTH + features[None, :]
    first_mask = (first_slots < WINDOW)[:, None] & within[None, :]
    first_keys = tl.load(keys_ptr + first_places, mask=first_mask, other=0.0, volatile=True)
    first_values = tl.load(values_ptr + first_places, mask=first_mask, other=0.0, volatile=True)
    row, head = program // num_heads, program % num_heads
    row64, head64 = row.to(tl.int64), head.to(tl.int64)
    position = tl.load(seen_ptr + row, volatile=True)
    turns = tl.zeros((BLOCK_K,), tl.int64)
    if HALF > 0:
        pair = tl.where(features < HALF, features, features - HALF)
        turns = tl.load(turns_ptr + pair, mask=pair < HALF, other=0)
    q, q_partner = _load_pairs(q_ptr + row64 * q_row + head64 * q_head, features, WIDTH, HALF)
    key, key_partner = _load_pairs(k_ptr + row64 * k_row + head64 * k_head, features, WIDTH, HALF)
    value = tl.load(v_ptr + row64 * v_row + head64 * v_head + features, mask=within, other=0.0)

    slot = (position % WINDOW).to(tl.int32)
    if HALF > 0:
        cos, sin = _cos_sin(position * turns)
        q, key = (
            _turned(q, q_partner, features, cos, sin, HALF),
            _turned(key, key_partner, features, cos, sin, HALF),
        )
    q *= scale
    key = key.to(keys_ptr.dtype.element_ty)  # rounded as later queries will read it
    largest, total, acc = _absorb(
        first_keys, first_values, first_places, first_mask, first_slots, new_keys_ptr,
        new_values_ptr,
        q, key, value, slot, position, -float("inf"), 0.0, tl.zeros((BLOCK_K,), tl.float32),
        WINDOW, INPLACE,
    )  # fmt: skip
    for start in range(block, WINDOW, block):
        slots = start + first_slots
        places = ring + slots[:, None] * WIDTH + features[None, :]
        mask = (slots < WINDOW)[:, None] & within[None, :]
        keys = tl.load(keys_ptr + places, mask=mask, other=0.0)
        values = tl.load(values_ptr + places, mask=mask, other=0.0)
        largest, total, acc = _absorb(
            keys, values, places, mask, slots, new_keys_ptr, new_values_ptr, q, key, value, slot,
            position, largest, total, acc,
            WINDOW, INPLACE,
        )  # fmt: skip
    tl.store(
        y_ptr + program.to(tl.int64) * WIDTH + features,
        (acc / total).to(y_ptr.dtype.element_ty),
        mask=within,
    )
    if INPLACE:
        # The tiles took the new entries from registers: it does not matter when the slot itself
        # changes.
        tl.store(new_keys_ptr + ring + slot * WIDTH + features, key, mask=within)
        tl.store(new_values_ptr + ring + slot * WIDTH + features, value, mask=within)
    tl.store(new_seen_ptr + row, position + 1, mask=head == 0)


def _config(tile: int, warps: int) -> triton.Config:
    return triton.Config({"TILE": tile}, num_warps=warps, num_stages=1)


_KEY = ("WINDOW", "WIDTH", "INPLACE")
HALF_STEP = Launcher(step_kernel, [_config(4096, 2), _config(8192, 4)], _KEY)
"""TILE: elements of a ring that a program processes at once; a window of 64 with heads of 64 is one
tile."""
FLOAT_STEP = Launcher(step_kernel, [_config(4096, 4), _config(4096, 8)], _KEY)


def step_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: WindowState,
    rope_base: float,
    rope_width: int,
    inplace: bool,
) -> tuple[Tensor, WindowState]:
    """Shapes as in `window_attention_step`."""
    if inplace:
        y, num_read = window_attention_step_inplace(q, k, v, *state, rope_base, rope_width)
        return y, WindowState(state.keys, state.values, num_read)
    y, *after = window_attention_step_new(q, k, v, *state, rope_base, rope_width)
    return y, WindowState(*after)


@torch.library.custom_op("recallkit::window_attention_step", mutates_args=())
def window_attention_step_new(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    num_read: Tensor,
    rope_base: float,
    rope_width: int,
    config: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Shapes as in `window_attention_step` -> y, new rings and a new `num_read`. `config`: see
    `Launcher`."""
    keys, values = keys.contiguous(), values.contiguous()
    y, new_num_read = _empty_results(q, num_read)
    new_keys, new_values = torch.empty_like(keys), torch.empty_like(values)
    _launch(
        q,
        k,
        v,
        (keys, values, num_read),
        (y, new_keys, new_values, new_num_read),
        rope_base,
        rope_width,
        config,
    )
    return y, new_keys, new_values, new_num_read


@window_attention_step_new.register_fake
def _(
    q: Tensor,
    _k: Tensor,
    _v: Tensor,
    keys: Tensor,
    values: Tensor,
    num_read: Tensor,
    *_others: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y, new_num_read = _empty_results(q, num_read)
    return y, keys.new_empty(keys.shape), values.new_empty(values.shape), new_num_read


@torch.library.custom_op(
    "recallkit::window_attention_step_inplace", mutates_args=("keys", "values")
)
def window_attention_step_inplace(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    num_read: Tensor,
    rope_base: float,
    rope_width: int,
    config: int | None = None,
) -> tuple[Tensor, Tensor]:
    """As `window_attention_step_new`, but the contiguous rings are overwritten: -> y and a new
    `num_read`, as other heads read the old one."""
    y, new_num_read = _empty_results(q, num_read)
    _launch(
        q,
        k,
        v,
        (keys, values, num_read),
        (y, keys, values, new_num_read),
        rope_base,
        rope_width,
        config,
    )
    return y, new_num_read


@window_attention_step_inplace.register_fake
def _(
    q: Tensor,
    _k: Tensor,
    _v: Tensor,
    _keys: Tensor,
    _values: Tensor,
    num_read: Tensor,
    *_others: object,
) -> tuple[Tensor, Tensor]:
    return _empty_results(q, num_read)


def _launch(
    q: Tensor, k: Tensor, v: Tensor, state: tuple[Tensor, ...], results: tuple[Tensor, ...],
    rope_base: float, rope_width: int,
    config: int | None,
) -> None:  # fmt: skip
    b, h, width = q.shape
    window = state[0].shape[2]
    if b * h == 0 or width == 0:
        results[-1].copy_(state[-1] + 1)
        return
    q, k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (q, k, v))
    strides = {
        f"{name}_{axis}": x.stride(i)
        for name, x in (("q", q), ("k", k), ("v", v))
        for i, axis in enumerate(("row", "head"))
    }
    turns = _turns(rope_base, rope_width, q.device) if rope_width else None
    launch = HALF_STEP if q.element_size() == 2 else FLOAT_STEP
    launch(
        lambda _: (b * h,),
        *(q, k, v, *state[:2], state[2].contiguous(), turns, *results),
        config=config, num_heads=h, **strides, scale=1 / math.sqrt(width), WINDOW=window,
        WIDTH=width, HALF=rope_width // 2,
        INPLACE=results[1] is state[0], BLOCK_K=triton.next_power_of_2(width),
        MOST_SLOTS=triton.next_power_of_2(window),
    )  # fmt: skip


@functools.lru_cache(maxsize=64)
def _turns(base: float, width: int, device: torch.device) -> Tensor:
    """The rotation of each pair per position in units of 2^-64 of a turn: int64 (width / 2,), with
    a relative error of 2^-53.

    Its product with a position in 64 bits is the angle up to whole turns; in a float, a position of
    1e5 would amplify the error of its last bits. Computed once: the first step, which compiles the
    kernel, is never inside a CUDA graph.
    """
    turns = (frequencies(base, width, torch.device("cpu")) / (2 * math.pi)).tolist()
    parts = [int(turn * 2**64) % 2**64 for turn in turns]
    return torch.tensor(
        [part - 2**64 * (part >= 2**63) for part in parts], dtype=torch.int64, device=device
    )


def _empty_results(q: Tensor, num_read: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), num_read.new_empty(num_read.shape)
