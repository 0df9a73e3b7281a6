"""`linear_scan` on a GPU: one program processes a text for a block of channels, 32 tokens at a
time.

Within the 32 tokens the recurrence is an associative scan: two stretches of text with decays a, b
and sums u, v are one with decay a b and sum b u + v. Beyond the text, decays are 1 and inputs 0, so
that the state stays what it is. The speed is bounded by memory: two numbers are read and one is
written for each token and channel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallkit.kernels.launch import Launcher, inner_contiguous


@triton.jit
def _joined(decay, h, next_decay, next_h):
    """Decay and sum of two neighbouring stretches of text together."""
    return decay * next_decay, next_decay * h + next_h


@triton.jit
def linear_scan_kernel(decay_ptr, u_ptr, start_ptr, h_ptr, last_ptr, t, b, d, decay_t, decay_b,
                       u_t, u_b,
                       HAS_START: tl.constexpr, BLOCK: tl.constexpr,
                       STEPS: tl.constexpr):  # fmt: skip
    """One row and BLOCK channels. `u_t`, `u_b`: strides of time and row; start and last (b, d), h
    (t, b, d)."""
    num_blocks = tl.cdiv(d, BLOCK)
    row = (tl.program_id(0) // num_blocks).to(tl.int64)
    channels = tl.program_id(0) % num_blocks * BLOCK + tl.arange(0, BLOCK)
    has_channel = channels < d
    in_state = row * d + channels
    state = tl.zeros((BLOCK,), dtype=tl.float32)
    if HAS_START:
        state = tl.load(start_ptr + in_state, mask=has_channel, other=0.0)
    places = tl.arange(0, STEPS)
    for first in tl.range(0, t, STEPS):
        tokens = (first + places).to(tl.int64)[:, None]
        mask = (tokens < t) & has_channel[None, :]
        decay_at = decay_ptr + tokens * decay_t + row * decay_b + channels[None, :]
        u_at = u_ptr + tokens * u_t + row * u_b + channels[None, :]
        decay = tl.load(decay_at, mask=mask, other=1.0).to(tl.float32)
        u = tl.load(u_at, mask=mask, other=0.0).to(tl.float32)
        decay, h = tl.associative_scan((decay, u), 0, _joined)
        h += decay * state[None, :]
        tl.store(h_ptr + tokens * b * d + in_state[None, :], h, mask=mask)
        state = tl.sum(tl.where(places[:, None] == STEPS - 1, h, 0.0), axis=0)
    tl.store(last_ptr + in_state, state, mask=has_channel)


_CONFIGS = [triton.Config({"BLOCK": channels, "STEPS": 32}, num_warps=1) for channels in (32, 64)]
SCAN = Launcher(linear_scan_kernel, _CONFIGS, ("d",))


@torch.library.custom_op("recallkit::linear_scan", mutates_args=())
def linear_scan_triton(
    decay: Tensor,
    u: Tensor,
    start: Tensor | None,
    config: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Shapes as in `linear_scan`. `config`: which configuration, see `Launcher`."""
    t, b, d = u.shape
    h, last = _empty_results(u)
    if b == 0 or d == 0:
        return h, last
    decay, u = inner_contiguous(decay), inner_contiguous(u)
    strides = {
        "decay_t": decay.stride(0),
        "decay_b": decay.stride(1),
        "u_t": u.stride(0),
        "u_b": u.stride(1),
    }
    begin = last if start is None else start.float().contiguous()
    SCAN(
        lambda meta: (b * triton.cdiv(d, meta["BLOCK"]),),
        *(decay, u, begin, h, last),
        config=config, t=t, b=b, d=d, HAS_START=start is not None, **strides,
    )  # fmt: skip
    return h, last


@linear_scan_triton.register_fake
def _(_decay: Tensor, u: Tensor, *_others: object) -> tuple[Tensor, Tensor]:
    return _empty_results(u)


def _empty_results(u: Tensor) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), u.new_empty(u.shape[1:], dtype=torch.float32)
