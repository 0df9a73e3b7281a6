"""`short_conv` on a GPU: a program has a block of channels and a few times, whose inputs it loads
and widens once each.

It is bound by memory: u and the gate are read and y is written once, and nothing is stored in
between. Channels are contiguous; the times are unrolled, so that a sum over the last inputs is over
registers and lanes exchange nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallkit.kernels.launch import Launcher


@triton.jit
def conv_kernel(u_ptr, taps_ptr, bias_ptr, history_ptr, gate_ptr, y_ptr, latest_ptr,
                t, c, taps_c, taps_k, u_b, u_t, gate_b, gate_t, y_b, y_t,
                K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_HISTORY: tl.constexpr,
                SILU: tl.constexpr, HAS_GATE: tl.constexpr,
                TIMES: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """TIMES outputs of BLOCK channels, and with a row's last ones its latest inputs. `u_b`, `u_t`:
    strides; history (b, K - 1, c)."""
    num_blocks, num_tiles = tl.cdiv(c, BLOCK), tl.maximum(tl.cdiv(t, TIMES), 1)
    tile = tl.program_id(0) // num_blocks % num_tiles
    row = (tl.program_id(0) // (num_blocks * num_tiles)).to(tl.int64)
    channels = tl.program_id(0) % num_blocks * BLOCK + tl.arange(0, BLOCK)
    has = channels < c
    u_ptr += row * u_b
    gate_ptr += row * gate_b
    y_ptr += row * y_b
    history_ptr += row * (K - 1) * c
    latest_ptr += row * (K - 1) * c
    taps = ()  # Triton supports concatenation of tuples, but not unpacking in them.
    for place in tl.static_range(K):
        tap = tl.load(taps_ptr + channels * taps_c + place * taps_k, mask=has, other=0.0).to(
            tl.float32
        )
        taps = taps + (tap,)  # type: ignore[assignment]  # noqa: RUF005
    bias = tl.zeros((BLOCK,), dtype=tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + channels, mask=has, other=0.0).to(tl.float32)
    inputs = ()
    for i in tl.static_range(TIMES + K - 1):
        time = tile * TIMES + i - (K - 1)
        # Triton 3.9 interprets `has & (a scalar)` as integers, which are not a mask.
        there = tl.where((time >= 0) & (time < t), has, False)
        value = tl.load(u_ptr + tl.cast(time, tl.int64) * u_t + channels, mask=there, other=0.0).to(
            tl.float32
        )
        if HAS_HISTORY and i < K - 1:
            older = history_ptr + (time + K - 1) * c + channels
            value += tl.load(older, mask=tl.where(time < 0, has, False), other=0.0).to(tl.float32)
        inputs = inputs + (value,)  # type: ignore[assignment]  # noqa: RUF005
    for i in tl.static_range(TIMES):
        time = tile * TIMES + i
        acc = bias
        for place in tl.static_range(K):
            acc += taps[place] * inputs[i + place]
        if SILU:
            acc = acc / (1.0 + tl.exp2(acc * -1.4426950408889634))
        if HAS_GATE:
            gate = gate_ptr + tl.cast(time, tl.int64) * gate_t + channels
            acc *= tl.load(gate, mask=tl.where(time < t, has, False), other=0.0).to(tl.float32)
        tl.store(
            y_ptr + tl.cast(time, tl.int64) * y_t + channels,
            acc,
            mask=tl.where(time < t, has, False),
        )
    if tile == num_tiles - 1:
        for place in tl.static_range(K - 1):
            latest = t - (K - 1) + place
            newer = u_ptr + tl.cast(latest, tl.int64) * u_t + channels
            entry = tl.load(newer, mask=tl.where(latest >= 0, has, False), other=0.0).to(tl.float32)
            if HAS_HISTORY:
                before = history_ptr + (latest + K - 1) * c + channels
                entry += tl.load(before, mask=tl.where(latest < 0, has, False), other=0.0).to(
                    tl.float32
                )
            tl.store(latest_ptr + place * c + channels, entry, mask=has)


def _config(times: int, channels: int, warps: int) -> triton.Config:
    return triton.Config({"TIMES": times, "BLOCK": channels}, num_warps=warps)


HALF_TILES = Launcher(conv_kernel, [_config(4, 256, 1), _config(8, 256, 1)], ("c", "K"))
FLOAT_TILES = Launcher(conv_kernel, [_config(16, 128, 1), _config(8, 128, 1)], ("c", "K"))
STEP = Launcher(conv_kernel, [_config(1, 128, 1)], ("c", "K"))


@torch.library.custom_op("recallkit::short_conv", mutates_args=())
def short_conv_triton(
    u: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    history: Tensor | None,
    silu: bool,
    gate: Tensor | None,
    config: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Shapes as in `short_conv` -> y and the new history. `config`: which configuration of the
    tiles, see `Launcher`."""
    (b, t, c), k = u.shape, taps.shape[1]
    y, latest = _empty_results(u, taps, history)
    if b == 0 or c == 0:
        return y, latest
    step = t <= 1 and config is None
    if not step:
        # Contiguous taps are loaded as vectors; for a single step making them so would cost more
        # than it saves.
        taps = taps.T.contiguous().T
    u = u if u.stride(2) == 1 else u.contiguous()
    gated = u if gate is None else gate if gate.stride(2) == 1 else gate.contiguous()
    strides = {
        "taps_c": taps.stride(0),
        "taps_k": taps.stride(1),
        "u_b": u.stride(0),
        "u_t": u.stride(1),
    }
    strides |= {
        "gate_b": gated.stride(0),
        "gate_t": gated.stride(1),
        "y_b": y.stride(0),
        "y_t": y.stride(1),
    }
    kinds = {
        "HAS_BIAS": bias is not None,
        "HAS_HISTORY": history is not None and k > 1,
        "SILU": silu,
        "HAS_GATE": gate is not None,
    }
    (STEP if step else HALF_TILES if u.element_size() == 2 else FLOAT_TILES)(
        lambda meta: (b * max(1, triton.cdiv(t, meta["TIMES"])) * triton.cdiv(c, meta["BLOCK"]),),
        *(u, taps, taps if bias is None else bias.contiguous(),
        latest if history is None else history.contiguous(), gated, y, latest),
        config=config, t=t, c=c, K=k, **strides, **kinds,
    )  # fmt: skip
    return y, latest


@short_conv_triton.register_fake
def _(
    u: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    history: Tensor | None,
    silu: bool,
    gate: Tensor | None,
    config: int | None = None,
) -> tuple[Tensor, Tensor]:
    return _empty_results(u, taps, history)


def _empty_results(u: Tensor, taps: Tensor, history: Tensor | None) -> tuple[Tensor, Tensor]:
    (b, t, c), k = u.shape, taps.shape[1]
    latest = u.new_empty(b, k - 1, c, dtype=u.dtype if history is None else history.dtype)
    # In the memory layout of u, time first or rows first, with contiguous channels.
    y = u.new_empty(t, b, c).transpose(0, 1) if u.stride(1) > u.stride(0) else u.new_empty(b, t, c)
    return y, latest
