"""`long_conv` on a GPU: for each channel a Toeplitz matrix of its taps times its inputs, on the
matrix units.

Time is divided into blocks, whose outputs are columns: those of all rows of the batch and all
blocks of a channel. A column is a sum over lags of the same matrix T_lag[i, j] = h[lag + i - j]
times the inputs `lag` steps back, so that each T_lag multiplies many columns at once. T_lag is
read, not gathered: its rows are the reversed filter, each shifted by one to the left, and filters
are stored in as many shifted copies as there are elements in 16 bytes, so that every row is
aligned.

Three kernels. The first gates inputs and transposes channels to the front, as operands; the second
multiplies; the third transposes them back, with the second gate and the bias. The skip is added to
tap 0. A column's products are added from the present backwards, in the same pieces at every
position: results depend on no other row, and on no later input unless that is not finite, since
later inputs of the same block are multiplied by zeros. Kernels are compiled once for all lengths
and batches; the third is compiled twice, for values of `first` that are multiples of 16 and for
others, since alignment determines how many sums are loaded at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from recallkit.kernels.launch import Launcher, operand_type

MOST_BLOCK = 128
"""Most outputs of a block of time, in any configuration: inputs and filters are padded for it."""


@triton.jit(do_not_specialize=["batch", "t"])
def arrange_kernel(u_ptr, gate_ptr, inputs_ptr, batch, t, c, padded, u_row_stride, u_time_stride,
                   gate_row_stride, gate_time_stride,
                   HAS_GATE: tl.constexpr, BLOCK_T: tl.constexpr,
                   BLOCK_C: tl.constexpr):  # fmt: skip
    """Gated inputs (c, batch, padded), zeros from t on, of u and its gate (batch, t, c)."""
    channel_tiles, time_tiles = tl.cdiv(c, BLOCK_C), tl.cdiv(padded, BLOCK_T)
    place = tl.program_id(0) // channel_tiles
    row = (place // time_tiles).to(tl.int64)
    channels = (tl.program_id(0) % channel_tiles * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)
    times = (place % time_tiles * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    has = (times < t)[:, None] & (channels < c)[None, :]
    x = tl.load(
        u_ptr + row * u_row_stride + times[:, None] * u_time_stride + channels[None, :],
        mask=has,
        other=0.0,
    )
    if HAS_GATE:
        gate = tl.load(
            gate_ptr
            + row * gate_row_stride
            + times[:, None] * gate_time_stride
            + channels[None, :],
            mask=has,
            other=0.0,
        )
        x = x.to(tl.float32) * gate.to(tl.float32)
    out = inputs_ptr + (channels[:, None] * batch + row) * padded + times[None, :]
    tl.store(
        out,
        tl.trans(x.to(inputs_ptr.dtype.element_ty)),
        mask=(channels < c)[:, None] & (times < padded)[None, :],
    )


@triton.jit(do_not_specialize=["batch", "t", "first", "num_taps"])
def toeplitz_kernel(inputs_ptr, taps_ptr, sums_ptr, batch, t, first, padded, num_taps, origin,
                    width, COPIES: tl.constexpr,
                    DOT: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
                    BLOCK_N: tl.constexpr):  # fmt: skip
    """Sums (c, batch, padded) of all blocks with an output at or after `first`. Long sums are
    started before short ones.

    taps: (c, COPIES, width), copy v at x is tap origin + COPIES - 1 - v - x, zero where there is
    none.
    """
    first_block = first // BLOCK_T
    num_columns = (tl.cdiv(t, BLOCK_T) - first_block) * batch
    tiles = tl.cdiv(num_columns, BLOCK_N)
    channel = (tl.program_id(0) // tiles).to(tl.int64)
    start = (tiles - 1 - tl.program_id(0) % tiles) * BLOCK_N
    # column 5 of a batch of 2 is block 2 (after `first_block`) of row 1
    columns = start + tl.arange(0, BLOCK_N)
    blocks = first_block + columns // batch
    sequences = (channel * batch + columns % batch) * padded
    i, j = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_K)
    # The first product is with the last BLOCK_K inputs of a column's own block, each further one
    # with those before.
    begins = blocks * BLOCK_T + (BLOCK_T - BLOCK_K)
    right = inputs_ptr + (sequences + begins)[None, :] + j[:, None]
    # Output i reads i elements further left: with 8 copies, i = 11 reads copy 8 - 1 - 3, shifted by
    # 3, from 8 elements further left.
    shifts = (COPIES - 1 - i % COPIES) * width - i // COPIES * COPIES
    left = (
        taps_ptr
        + channel * COPIES * width
        + origin
        + (BLOCK_T - BLOCK_K)
        + shifts[:, None]
        + j[None, :]
    )
    last_block = first_block + (tl.minimum(start + BLOCK_N, num_columns) - 1) // batch
    num_products = tl.minimum(
        (last_block + 1) * (BLOCK_T // BLOCK_K), tl.cdiv(num_taps + BLOCK_T - 1, BLOCK_K)
    )
    acc = tl.zeros((BLOCK_T, BLOCK_N), dtype=tl.float32)
    for product in range(num_products):
        has = (columns < num_columns) & (begins >= product * BLOCK_K)
        toeplitz = tl.load(left)
        part = tl.load(right, mask=has[None, :], other=0.0)
        acc = tl.dot(toeplitz.to(DOT), part.to(DOT), acc, input_precision="ieee")
        left -= BLOCK_K
        right -= BLOCK_K
    out = sums_ptr + (sequences + blocks * BLOCK_T)[None, :] + i[:, None]
    tl.store(out, acc.to(sums_ptr.dtype.element_ty), mask=(columns < num_columns)[None, :])


@triton.jit(do_not_specialize=["batch", "last"])
def finish_kernel(sums_ptr, gate_ptr, bias_ptr, out_ptr, batch, last, first, c, padded,
                  gate_row_stride, gate_time_stride,
                  HAS_GATE: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_T: tl.constexpr,
                  BLOCK_C: tl.constexpr):  # fmt: skip
    """Outputs (batch, last, c) of sums (c, batch, padded) from time `first` on: gated, the bias
    added."""
    channel_tiles, time_tiles = tl.cdiv(c, BLOCK_C), tl.cdiv(last, BLOCK_T)
    place = tl.program_id(0) // channel_tiles
    row = (place // time_tiles).to(tl.int64)
    channels = (tl.program_id(0) % channel_tiles * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)
    times = (place % time_tiles * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    has = (times < last)[:, None] & (channels < c)[None, :]
    sums = sums_ptr + (channels[:, None] * batch + row) * padded + first + times[None, :]
    # Loads cover the padding: with an arbitrary `last` as bound, neighbours would be loaded one by
    # one.
    y = tl.trans(
        tl.load(sums, mask=(channels < c)[:, None] & (first + times < padded)[None, :], other=0.0)
    ).to(tl.float32)
    if HAS_GATE:
        gate = (
            gate_ptr + row * gate_row_stride + times[:, None] * gate_time_stride + channels[None, :]
        )
        y *= tl.load(gate, mask=has, other=0.0).to(tl.float32)
    if HAS_BIAS:
        y += tl.load(bias_ptr + channels, mask=channels < c, other=0.0).to(tl.float32)[None, :]
    out = out_ptr + (row * last + times)[:, None] * c + channels[None, :]
    tl.store(out, y.to(out_ptr.dtype.element_ty), mask=has)


def _config(time: int, inner: int, columns: int, warps: int, stages: int) -> triton.Config:
    blocks = {"BLOCK_T": time, "BLOCK_K": inner, "BLOCK_N": columns}
    return triton.Config(blocks, num_warps=warps, num_stages=stages)


HALF_PRODUCTS = Launcher(
    toeplitz_kernel, [_config(128, 64, 128, 4, 3), _config(128, 64, 64, 4, 4)], ("COPIES",)
)
FLOAT_PRODUCTS = Launcher(
    toeplitz_kernel, [_config(64, 32, 32, 8, 2), _config(32, 32, 16, 4, 2)], ("COPIES",)
)
ARRANGE = Launcher(
    arrange_kernel, [triton.Config({"BLOCK_T": 64, "BLOCK_C": 64}, num_warps=4)], ("c", "HAS_GATE")
)
FINISH = Launcher(
    finish_kernel,
    [triton.Config({"BLOCK_T": 64, "BLOCK_C": 64}, num_warps=4)],
    ("c", "HAS_GATE", "HAS_BIAS"),
)


@torch.library.custom_op("recallkit::long_conv", mutates_args=())
def long_conv_triton(
    u: Tensor,
    filters: Tensor,
    skip: Tensor | None,
    bias: Tensor | None,
    in_gate: Tensor | None,
    out_gate: Tensor | None,
    last: int,
    out_dtype: torch.dtype,
    config: int | None = None,
) -> Tensor:
    """Shapes as in `long_conv`, none of them zero, k <= t. `config`: which configuration of the
    products, see `Launcher`."""
    (batch, t, c), first = u.shape, u.shape[1] - last
    padded = triton.cdiv(t, MOST_BLOCK) * MOST_BLOCK
    taps, origin = _constant_copies(filters, skip, u.dtype)
    inputs = u.new_empty(c, batch, padded)
    sums = inputs.new_empty(inputs.shape, dtype=out_dtype)
    out = _empty_result(u, last, out_dtype)
    u = _channels_adjacent(u)
    in_gate, out_gate = (
        None if gate is None else _channels_adjacent(gate) for gate in (in_gate, out_gate)
    )

    def tiles(meta: dict[str, int], length: int) -> tuple[int]:
        return (batch * triton.cdiv(length, meta["BLOCK_T"]) * triton.cdiv(c, meta["BLOCK_C"]),)

    ARRANGE(
        lambda meta: tiles(meta, padded),
        *(u, in_gate, inputs),
        batch=batch, t=t, c=c, padded=padded, u_row_stride=u.stride(0), u_time_stride=u.stride(1),
        **_gate(in_gate),
    )  # fmt: skip
    products = HALF_PRODUCTS if u.element_size() == 2 else FLOAT_PRODUCTS
    products(
        lambda meta: (c * triton.cdiv(batch * (triton.cdiv(t,
        meta["BLOCK_T"]) - first // meta["BLOCK_T"]), meta["BLOCK_N"]),),
        *(inputs, taps, sums),
        config=config, batch=batch, t=t, first=first, padded=padded, num_taps=filters.shape[1],
        origin=origin, width=taps.shape[2],
        COPIES=taps.shape[1], DOT=operand_type(u.dtype),
    )  # fmt: skip
    bias = None if bias is None else bias.contiguous()
    FINISH(
        lambda meta: tiles(meta, last),
        *(sums, out_gate, bias, out),
        batch=batch, last=last, first=first, c=c, padded=padded, HAS_BIAS=bias is not None,
        **_gate(out_gate),
    )  # fmt: skip
    return out


@long_conv_triton.register_fake
def _(
    u: Tensor,
    filters: Tensor,
    skip: Tensor | None,
    bias: Tensor | None,
    in_gate: Tensor | None,
    out_gate: Tensor | None,
    last: int,
    out_dtype: torch.dtype,
    config: int | None = None,
) -> Tensor:
    return _empty_result(u, last, out_dtype)


def _empty_result(u: Tensor, last: int, dtype: torch.dtype) -> Tensor:
    return u.new_empty(u.shape[0], last, u.shape[2], dtype=dtype)


def _channels_adjacent(x: Tensor) -> Tensor:
    return x if x.stride(2) == 1 else x.contiguous()


def _gate(gate: Tensor | None) -> dict[str, int | bool]:
    row, time = (0, 0) if gate is None else gate.stride()[:2]
    return {"gate_row_stride": row, "gate_time_stride": time, "HAS_GATE": gate is not None}


MOST_CACHED = 1 << 28
"""Most bytes of shifted copies in the cache. Where it is full, further filters are copied in each
call."""
_CACHE = WeakTensorKeyDictionary()
"""The tensor that filters are a view of -> what their copies depend on, the skip, and the copies
and their origin."""


def _constant_copies(
    filters: Tensor, skip: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, int]:
    """`_shifted_copies`, or those of the last call where it was with the same tensors, not written
    to since.

    Tensors of inference mode do not count what is written to them. What a CUDA graph reads must not
    be freed by other calls.
    """
    parts = [filters] if skip is None else [filters, skip]
    capturing = filters.is_cuda and torch.cuda.is_current_stream_capturing()
    if capturing or any(part.is_inference() for part in parts):
        return _shifted_copies(filters, skip, dtype)
    # The cache refers to the skip's tensor: as long as it exists, no other tensor is at its
    # address.
    base, skip_base = (
        part if part is None or part._base is None else part._base for part in (filters, skip)
    )
    record = [
        (part.data_ptr(), part._version, part.shape, part.stride(), part.dtype) for part in parts
    ]
    entry = _CACHE.pop(base, None)
    if entry is None or entry[0] != (dtype, record) or entry[1] is not skip_base:
        entry = ((dtype, record), skip_base, _shifted_copies(filters, skip, dtype))
    copies: tuple[Tensor, int] = entry[2]
    if sum(other[2][0].nbytes for other in _CACHE.values()) + copies[0].nbytes <= MOST_CACHED:
        _CACHE[base] = entry
    return copies


def _shifted_copies(filters: Tensor, skip: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, int]:
    """filters (c, k) -> copies (c, copies, width) in `dtype` as `toeplitz_kernel` reads them, and
    the origin.

    Padded with zeros on both sides, as far as any block reaches.
    """
    taps = filters.float()
    if skip is not None:
        taps = torch.cat([taps[:, :1] + skip.float().unsqueeze(1), taps[:, 1:]], dim=1)
    copies = 16 // dtype.itemsize
    num_taps = taps.shape[1]
    origin = triton.cdiv(num_taps, MOST_BLOCK) * MOST_BLOCK + 2 * MOST_BLOCK
    reversed_taps = functional.pad(
        taps.to(dtype).flip(1), (origin + copies - num_taps, MOST_BLOCK - 1)
    )
    return reversed_taps.unfold(1, origin + MOST_BLOCK, 1).contiguous(), origin
