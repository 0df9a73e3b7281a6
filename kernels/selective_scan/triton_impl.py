"""`selective_scan` on a GPU: a program reads a text, or a piece of it, for a block of channels,
whose states stay in registers.

A lane has a channel with all its n state entries, so that lanes exchange nothing: B and C are the
same for all of them, and each lane sums over n by itself. (Where n > 16 two lanes share a channel.)
Four steps are loaded at a time, several such loads ahead of their use, because a sequential loop
does not hide memory latency by itself. Beyond the inputs, a step of 0 leaves the state unchanged.

The speed is bounded by the special-function unit: n powers of two per token and channel, and a
power and a division each for the gate and the step's size. Few rows have too few channels to occupy
it: their texts are divided along time. The states that pieces leave are computed side by side, each
from nothing; then all pieces are read side by side, each from what those before it leave, faded by
exp(A sum dt) for every piece in between.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallkit.kernels.launch import Launcher, inner_contiguous
from recallkit.kernels.selective_scan.torch_impl import empty_outputs

LOG2_E = tl.constexpr(1.4426950408889634)
STEPS = tl.constexpr(4)
"""Steps that are loaded at a time."""


@triton.jit
def _step_by_step(ptr, stride, t, first, inner, has):
    """Columns of four steps from `first` on, zeros beyond t: each as long as `inner`, the indices
    along contiguous memory."""
    steps = first + tl.arange(0, STEPS).to(tl.int64)
    mask = has[:, None] & (steps < t)[None, :]
    tile = tl.load(ptr + (steps * stride)[None, :] + inner[:, None], mask=mask, other=0.0)
    even, odd = tl.split(tl.reshape(tile, (inner.shape[0], 2, 2)))
    first_step, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first_step, second, third, fourth


@triton.jit
def _step_size(dt, bias, HAS_BIAS: tl.constexpr, SOFTPLUS: tl.constexpr):
    """softplus(dt + bias), or as much of it as is asked for, without losing small ones in a sum
    with 1."""
    if HAS_BIAS:
        dt += bias
    if SOFTPLUS:
        # log(1 + e) = 2 artanh(s), s = e / (2 + e) <= 1/3, by its series up to s^15.
        e = tl.exp2(tl.abs(dt) * -LOG2_E)
        s = e / (2.0 + e)
        square = s * s
        series = 1 / 15
        for term in tl.static_range(6, -1, -1):
            series = series * square + 1 / (2 * term + 1)
        dt = tl.maximum(dt, 0.0) + 2.0 * s * series
    return dt


@triton.jit
def _advance(h, x, dt, write, rates):
    """The state (N, BLOCK) after one more step."""
    return tl.exp2(dt[None, :] * rates) * h + (dt * x)[None, :] * write.to(tl.float32)[:, None]


@triton.jit
def _read_out(h, x, read, gate, skip, HAS_SKIP: tl.constexpr, HAS_GATE: tl.constexpr):
    """The output (BLOCK,) of a step."""
    y = tl.sum(h * read.to(tl.float32)[:, None], axis=0)
    if HAS_SKIP:
        y += skip * x
    if HAS_GATE:
        gate = gate.to(tl.float32)
        y *= gate / (1.0 + tl.exp2(gate * -LOG2_E))
    return y


@triton.jit
def scan_kernel(x_ptr, dt_ptr, rates_ptr, write_ptr, read_ptr, start_ptr, skip_ptr, gate_ptr,
                dt_bias_ptr, y_ptr, last_ptr,
                parts_ptr, sums_ptr, t, piece, pieces, d, n, rates_d, rates_n,
                x_t, x_b, dt_t, dt_b, write_t, write_b, read_t, read_b, gate_t, gate_b, y_t, y_b,
                HAS_START: tl.constexpr, HAS_SKIP: tl.constexpr, HAS_GATE: tl.constexpr,
                HAS_BIAS: tl.constexpr,
                SOFTPLUS: tl.constexpr, FORM: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
                STAGES: tl.constexpr):  # fmt: skip
    """One row, or a piece of one, and BLOCK channels. `x_t`, `x_b`: strides of time and row; start
    and last (b, n, d), rates (d, n).

    `FORM`: WHOLE reads a row from its first step to its last. PART computes the state that a piece
    leaves where there was none before it, parts (b, pieces, n, d), and the sum of its steps, sums
    (b, pieces, d): the last piece needs neither, and `pieces` does not count it. REST reads a
    piece, from the state that the parts before it add up to.
    """
    num_blocks = tl.cdiv(d, BLOCK)
    row = (tl.program_id(0) // num_blocks).to(tl.int64)
    channels = tl.program_id(0) % num_blocks * BLOCK + tl.arange(0, BLOCK)
    places = tl.arange(0, N)
    has_channel, has_place = channels < d, places < n
    mask = has_place[:, None] & has_channel[None, :]
    # Lanes follow the order of memory, also in the loop: channels side by side. Vectorised loads of
    # neighbours would
    # spread a channel over lanes, so contiguity is hidden from the compiler.
    rates_at = rates_ptr + channels[None, :] * rates_d + places[:, None] * rates_n
    rates = tl.load(tl.multiple_of(rates_at, [1, 1]), mask=mask, other=0.0) * LOG2_E
    in_state = places[:, None] * d + channels[None, :]
    begin, end = 0, t
    if FORM != "WHOLE":
        num_pieces = pieces + (FORM == "REST")
        number = (row % num_pieces).to(tl.int32)
        row = row // num_pieces
        begin = number * piece
        end = tl.minimum(begin + piece, t)
        parts_ptr += row * pieces * n * d
        sums_ptr += row * pieces * d
    h = tl.zeros((N, BLOCK), dtype=tl.float32)
    if HAS_START and FORM != "PART":
        h = tl.load(
            tl.multiple_of(start_ptr + row * n * d + in_state, [1, 1]), mask=mask, other=0.0
        )
    if FORM == "REST":
        for earlier in tl.range(0, number, num_stages=STAGES):
            place = tl.cast(earlier, tl.int64)
            total = tl.load(sums_ptr + place * d + channels, mask=has_channel, other=0.0)
            part = tl.load(
                tl.multiple_of(parts_ptr + place * n * d + in_state, [1, 1]), mask=mask, other=0.0
            )
            h = tl.exp2(total[None, :] * rates) * h + part
    skip = tl.zeros((BLOCK,), dtype=tl.float32)
    if HAS_SKIP:
        skip = tl.load(skip_ptr + channels, mask=has_channel, other=0.0)
    dt_bias = tl.zeros((BLOCK,), dtype=tl.float32)
    if HAS_BIAS:
        dt_bias = tl.load(dt_bias_ptr + channels, mask=has_channel, other=0.0)
    x_ptr += row * x_b
    dt_ptr += row * dt_b
    write_ptr += row * write_b
    read_ptr += row * read_b
    gate_ptr += row * gate_b
    y_ptr += row * y_b
    sum_of_steps = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in tl.range(begin, end, STEPS, num_stages=STAGES):
        x = _step_by_step(x_ptr, x_t, t, first, channels, has_channel)
        dt = _step_by_step(dt_ptr, dt_t, t, first, channels, has_channel)
        write = _step_by_step(write_ptr, write_t, t, first, places, has_place)
        read, gate = write, x
        if FORM != "PART":
            read = _step_by_step(read_ptr, read_t, t, first, places, has_place)
        if HAS_GATE and FORM != "PART":
            gate = _step_by_step(gate_ptr, gate_t, t, first, channels, has_channel)
        for i in tl.static_range(STEPS):
            size = _step_size(dt[i].to(tl.float32), dt_bias, HAS_BIAS, SOFTPLUS)
            size = tl.where(first + i < t, size, 0.0)
            value = x[i].to(tl.float32)
            h = _advance(h, value, size, write[i], rates)
            if FORM == "PART":
                sum_of_steps += size
            else:
                y = _read_out(h, value, read[i], gate[i], skip, HAS_SKIP, HAS_GATE)
                out = y_ptr + (tl.cast(first, tl.int64) + i) * y_t + channels
                # Triton 3.9 interprets `has_channel & (a scalar)` as integers, which are not a
                # mask.
                tl.store(out, y, mask=tl.where(first + i < t, has_channel, False))
    if FORM == "PART":
        tl.store(
            tl.multiple_of(parts_ptr + number.to(tl.int64) * n * d + in_state, [1, 1]), h, mask=mask
        )
        tl.store(sums_ptr + number.to(tl.int64) * d + channels, sum_of_steps, mask=has_channel)
    else:
        last = tl.multiple_of(last_ptr + row * n * d + in_state, [1, 1])
        tl.store(last, h, mask=tl.where(end == t, mask, False))


def _configs(channels: int) -> list[triton.Config]:
    return [triton.Config({"BLOCK": channels, "STAGES": stages}, num_warps=1) for stages in (3, 5)]


LANE_STATE = 16
"""State entries in a lane's registers; for 32, two lanes have half each."""
SCAN = Launcher(scan_kernel, _configs(32), ("d", "n", "FORM"))
WIDE_SCAN = Launcher(scan_kernel, _configs(16), ("d", "n", "FORM"))
SHORTEST_SPLIT = 512
"""Fewest steps of a text that is divided: below, another launch takes longer than the steps that it
saves."""
MOST_SPLIT_CHANNELS = 12_288
"""Most channels, rows times d, of texts that are divided: of 16,896, each of an H200's schedulers
has a warp."""


def piece_length(t: int, b: int, d: int) -> int:
    """The steps of a piece: t itself where a text is not divided. A function of sizes alone, and so
    are a text's figures.

    Each step is computed twice, once for the state at the end of its piece. The programs of a short
    piece add up the states of many pieces before it, so that a piece has at least sqrt(t) steps.
    Four warps for each scheduler hide their waiting.
    """
    if t < SHORTEST_SPLIT or b * d > MOST_SPLIT_CHANNELS:
        return t
    length: int = triton.next_power_of_2(max(math.isqrt(t), t * b * d // (4 * 16_384)))
    return length


@torch.library.custom_op("recallkit::selective_scan", mutates_args=())
def selective_scan_triton(
    x: Tensor,
    dt: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    start: Tensor | None,
    skip: Tensor | None,
    gate: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    config: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Shapes as in `selective_scan`. `config`: which configuration, see `Launcher`."""
    t, b, d = x.shape
    n = rates.shape[1]
    y, last = _empty_results(x, rates)
    if b == 0 or d == 0:
        return y, last
    if t > 1:
        # Small compared with x; widening them in every program would cost a quarter of its
        # instructions.
        write, read = write.float(), read.float()
        # the order of the state in memory and in lanes; for a single step it would only be one more
        # launch
        rates = rates.T.contiguous().T
    x, dt, write, read = (inner_contiguous(text) for text in (x, dt, write, read))
    rates = rates.float()
    kinds = {
        "HAS_START": start is not None,
        "HAS_SKIP": skip is not None,
        "HAS_GATE": gate is not None,
    }
    kinds |= {"HAS_BIAS": dt_bias is not None, "SOFTPLUS": dt_softplus}
    gate = x if gate is None else inner_contiguous(gate)
    timed = {"x": x, "dt": dt, "write": write, "read": read, "gate": gate, "y": y}
    strides = {
        f"{name}_{axis}": text.stride(place)
        for name, text in timed.items()
        for place, axis in enumerate("tb")
    }
    strides |= {"rates_d": rates.stride(0), "rates_n": rates.stride(1)}
    start, skip, dt_bias = (
        last if part is None else part.float().contiguous() for part in (start, skip, dt_bias)
    )
    piece = piece_length(t, b, d)
    pieces = triton.cdiv(t, piece) - 1 if t else 0
    parts, sums = (
        (last.new_empty(b, pieces, n, d), last.new_empty(b, pieces, d)) if pieces else (last, last)
    )

    def launch(form: str, programs: int) -> None:
        (SCAN if n <= LANE_STATE else WIDE_SCAN)(
            lambda meta: (b * programs * triton.cdiv(d, meta["BLOCK"]),),
            *(x, dt, rates, write, read, start, skip, gate, dt_bias, y, last, parts, sums),
            config=config, t=t, piece=piece, pieces=pieces, d=d, n=n, N=triton.next_power_of_2(n),
            FORM=form, **strides, **kinds,
        )  # fmt: skip

    if pieces:
        launch("PART", pieces)
        launch("REST", pieces + 1)
    else:
        launch("WHOLE", 1)
    return y, last


@selective_scan_triton.register_fake
def _(x: Tensor, _dt: Tensor, rates: Tensor, *_others: object) -> tuple[Tensor, Tensor]:
    return _empty_results(x, rates)


def _empty_results(x: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    _, b, d = x.shape
    return empty_outputs(x, x.dtype), x.new_empty(b, rates.shape[1], d, dtype=torch.float32)
