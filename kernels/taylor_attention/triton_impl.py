"""`taylor_attention` on a GPU: chunk states, their prefix sums, outputs; and the step of one token.

A sequential kernel that keeps the state in registers spills them, and leaves most of a GPU idle
where there are few heads. So a text is processed by three kernels: the first sums phi(k_j) v_j^T
over each chunk, the second computes prefix sums of the chunks, the third computes a chunk's outputs
from the prefix before it and, among its own tokens, from scores, which need no features.

Features stay in registers. Feature n is a product x_a x_b, and columns of x are selected by a
product with a matrix of zeros and ones: exact in every type, and at the speed of the matrix units.
States, prefixes and normalisers are float32; prefixes are rounded once, where they are written as
operands of the third kernel. There are no atomic additions, and rows are independent.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallkit.kernels.launch import Launcher, operand_type
from recallkit.kernels.taylor_attention.state import num_taylor_features

CHUNK = 256
"""Tokens per chunk. Outputs depend on it, within rounding. Shorter chunks have more states to write
and to read, longer ones more pairs: at 256 a float32 state of Based's sizes, written and read once,
is as many bytes per token as q, k, v and y. A multiple of every configuration's BLOCK_M."""

_SCALE = tl.constexpr(2.0**-10)
"""Scale of weights and prefixes as operands, and of the normaliser: sums over long texts exceed
65504, the largest float16. A power of two does not round, and no weight, being at least 1/2,
becomes small enough to lose digits."""


@triton.jit
def _factors(n, F: tl.constexpr):
    """Feature n as (a, b, scale): x_a x_b scale, where entry F of x is a one. See `state.py`."""
    pair = n - 1 - F
    turn = pair // F
    a = tl.where(n == 0, F, tl.where(n <= F, n - 1, pair % F))
    b = tl.where(n <= F, F, (pair + turn) % F)
    of_pair = tl.where(turn == 0, (2 * F) ** -0.5, F**-0.5)
    return a, b, tl.where(n == 0, 1.0, tl.where(n <= F, F**-0.25, of_pair))


@triton.jit(do_not_specialize=["t", "num_chunks"])
def chunk_state_kernel(k_ptr, v_ptr, kv_ptr, sum_ptr, heads, t, v_dim, num_chunks, k_b, k_h, k_t,
                       v_b, v_h, v_t,
                       F: tl.constexpr, FEATURES: tl.constexpr, DOT: tl.constexpr,
                       CHUNK: tl.constexpr, BLOCK_K: tl.constexpr,
                       BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr,
                       BLOCK_T: tl.constexpr):  # fmt: skip
    """sum_j phi(k_j) v_j^T and sum_j phi(k_j) of each of the first `num_chunks` chunks: BLOCK_N
    features and BLOCK_V values per program.

    kv (b h, num_chunks, FEATURES, v), sum (b h, num_chunks, FEATURES), float32. Features are rows,
    tokens are columns.
    """
    num_blocks: tl.constexpr = (FEATURES + BLOCK_N - 1) // BLOCK_N
    n = tl.program_id(0) % num_blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    place = tl.program_id(0) // num_blocks
    row, chunk = (place // num_chunks).to(tl.int64), place % num_chunks
    begin, size = (chunk * CHUNK).to(tl.int64), min(t - chunk * CHUNK, CHUNK)
    a, b, scale = _factors(n, F)
    entries = tl.arange(0, BLOCK_K)
    first, second = (
        (a[:, None] == entries[None, :]).to(DOT),
        (b[:, None] == entries[None, :]).to(DOT),
    )
    first_is_one, second_is_one = (a == F).to(tl.float32)[:, None], (b == F).to(tl.float32)[:, None]
    values = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    k_ptr += row // heads * k_b + row % heads * k_h + begin * k_t
    v_ptr += row // heads * v_b + row % heads * v_h + begin * v_t
    kv = tl.zeros((BLOCK_N, BLOCK_V), tl.float32)
    total = tl.zeros((BLOCK_N,), tl.float32)
    for start in range(0, size, BLOCK_T):
        tokens = start + tl.arange(0, BLOCK_T)
        known = tokens < size
        k_at, v_at = (
            k_ptr + tokens[None, :] * k_t + entries[:, None],
            v_ptr + tokens[:, None] * v_t + values[None, :],
        )
        k = tl.load(k_at, mask=known[None, :] & (entries < F)[:, None], other=0.0).to(DOT)
        v = tl.load(v_at, mask=known[:, None] & (values < v_dim)[None, :], other=0.0).to(DOT)
        x_a = tl.dot(first, k, input_precision="ieee") + first_is_one
        x_b = tl.dot(second, k, input_precision="ieee") + second_is_one
        phi = x_a * x_b
        kv = tl.dot(phi.to(DOT), v, kv, input_precision="ieee")
        total += tl.sum(phi, axis=1)
    # The constant feature is one also beyond the end of the text, where all others and the values
    # are zero.
    total = tl.where(n == 0, tl.cast(size, tl.float32), total * scale)
    kv *= scale[:, None]
    out = place.to(tl.int64) * FEATURES + n
    tl.store(
        kv_ptr + out[:, None] * v_dim + values[None, :],
        kv,
        mask=(n < FEATURES)[:, None] & (values < v_dim)[None, :],
    )
    # Triton 3.9 interprets `mask & (a scalar)` as integers, which are not a mask; here and below.
    tl.store(sum_ptr + out, total, mask=tl.where(tl.program_id(1) == 0, n < FEATURES, False))


@triton.jit
def _add_up(chunks_ptr, initial_ptr, prefix_ptr, final_ptr, places, row, width, num_chunks,
            num_prefixes,
            HAS_INITIAL: tl.constexpr, WITH_FINAL: tl.constexpr, OUT: tl.constexpr,
            AHEAD: tl.constexpr):  # fmt: skip
    """Entries `places` of the prefixes of one row: the state before each chunk, and after the
    last."""
    within = places < width
    before = tl.zeros(places.shape, tl.float32)
    if HAS_INITIAL:
        before += tl.load(initial_ptr + row * width + places, mask=within, other=0.0)
    chunk_at = chunks_ptr + row * num_chunks * width + places
    prefix_at = prefix_ptr + row * num_prefixes * width + places
    # Chunks are prefetched: loading is all that takes time here.
    for chunk in tl.range(0, tl.maximum(num_chunks, num_prefixes), num_stages=AHEAD):
        tl.store(
            prefix_at, (before * _SCALE).to(OUT), mask=tl.where(chunk < num_prefixes, within, False)
        )
        before += tl.load(chunk_at, mask=tl.where(chunk < num_chunks, within, False), other=0.0)
        chunk_at += width
        prefix_at += width
    if WITH_FINAL:
        tl.store(final_ptr + row * width + places, before, mask=within)


@triton.jit(do_not_specialize=["num_chunks", "num_prefixes"])
def prefix_kernel(kv_ptr, sum_ptr, kv_initial_ptr, sum_initial_ptr, kv_prefix_ptr, sum_prefix_ptr,
                  kv_final_ptr, sum_final_ptr,
                  kv_width, sum_width, num_chunks, num_prefixes, HAS_INITIAL: tl.constexpr,
                  WITH_FINAL: tl.constexpr,
                  DOT: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr):  # fmt: skip
    """For each chunk the sum of the initial state and the chunks before it; the sum of all is the
    final state.

    A program adds up BLOCK entries of a row's (b h) states, or of its key sums. `num_prefixes`:
    chunks that have outputs.
    """
    kv_blocks, sum_blocks = tl.cdiv(kv_width, BLOCK), tl.cdiv(sum_width, BLOCK)
    row = (tl.program_id(0) // (kv_blocks + sum_blocks)).to(tl.int64)
    block = tl.program_id(0) % (kv_blocks + sum_blocks)
    inside = tl.arange(0, BLOCK)
    if block < kv_blocks:
        _add_up(kv_ptr, kv_initial_ptr, kv_prefix_ptr, kv_final_ptr, block * BLOCK + inside, row,
                kv_width, num_chunks, num_prefixes,
                HAS_INITIAL, WITH_FINAL, DOT, AHEAD)  # fmt: skip
    else:
        _add_up(sum_ptr, sum_initial_ptr, sum_prefix_ptr, sum_final_ptr,
                (block - kv_blocks) * BLOCK + inside, row, sum_width, num_chunks,
                num_prefixes, HAS_INITIAL, WITH_FINAL, tl.float32, AHEAD)  # fmt: skip


@triton.jit(do_not_specialize=["t", "num_chunks"])
def output_kernel(q_ptr, k_ptr, v_ptr, kv_ptr, sum_ptr, y_ptr, heads, t, v_dim, num_chunks, q_b,
                  q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t,
                  eps, HAS_INITIAL: tl.constexpr, F: tl.constexpr, FEATURES: tl.constexpr,
                  DOT: tl.constexpr, CHUNK: tl.constexpr,
                  BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_M: tl.constexpr,
                  BLOCK_T: tl.constexpr,
                  BLOCK_N: tl.constexpr):  # fmt: skip
    """y (b, t, h, v): BLOCK_M tokens and BLOCK_V values per program. kv and sum: the chunks'
    prefixes, (b h, num_chunks, FEATURES, ...)."""
    tiles = tl.cdiv(t, BLOCK_M)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    batch, head = row // heads, row % heads
    first_token = tl.program_id(0) % tiles * BLOCK_M
    chunk = first_token // CHUNK
    # Indices of tokens and their number, relative to the chunk's first.
    begin, size = (chunk * CHUNK).to(tl.int64), min(t - chunk * CHUNK, CHUNK)
    tokens = first_token % CHUNK + tl.arange(0, BLOCK_M)
    entries = tl.arange(0, BLOCK_K)
    values = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    has_token, has_value, has_entry = (
        (tokens < size)[:, None],
        (values < v_dim)[None, :],
        entries < F,
    )
    q_ptr += batch * q_b + head * q_h + begin * q_t
    q = tl.load(
        q_ptr + tokens[:, None] * q_t + entries[None, :],
        mask=has_token & has_entry[None, :],
        other=0.0,
    ).to(DOT)
    y = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    state = (row * num_chunks + chunk) * FEATURES
    # Before the first chunk there is only the initial state.
    num_features = FEATURES if HAS_INITIAL else min(chunk, 1) * FEATURES
    for start in range(0, num_features, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        a, b, scale = _factors(n, F)
        first, second = (
            (entries[:, None] == a[None, :]).to(DOT),
            (entries[:, None] == b[None, :]).to(DOT),
        )
        x_a = tl.dot(q, first, input_precision="ieee") + (a == F).to(tl.float32)[None, :]
        x_b = tl.dot(q, second, input_precision="ieee") + (b == F).to(tl.float32)[None, :]
        phi = x_a * x_b * scale[None, :]
        known = n < FEATURES
        kv = tl.load(
            kv_ptr + (state + n)[:, None] * v_dim + values[None, :],
            mask=known[:, None] & has_value,
            other=0.0,
        )
        y = tl.dot(phi.to(DOT), kv.to(DOT), y, input_precision="ieee")
        total += tl.sum(phi * tl.load(sum_ptr + state + n, mask=known, other=0.0)[None, :], axis=1)
    k_ptr += batch * k_b + head * k_h + begin * k_t
    v_ptr += batch * v_b + head * v_h + begin * v_t
    for start in range(0, min(first_token % CHUNK + BLOCK_M, size), BLOCK_T):
        others = start + tl.arange(0, BLOCK_T)
        known = others < size
        k_at, v_at = (
            k_ptr + others[None, :] * k_t + entries[:, None],
            v_ptr + others[:, None] * v_t + values[None, :],
        )
        k = tl.load(k_at, mask=known[None, :] & has_entry[:, None], other=0.0).to(DOT)
        v = tl.load(v_at, mask=known[:, None] & has_value, other=0.0).to(DOT)
        s = tl.dot(q, k, input_precision="ieee") * F**-0.5
        weights = tl.where(
            others[None, :] <= tokens[:, None], _SCALE + s * (_SCALE + s * (0.5 * _SCALE)), 0.0
        )
        y = tl.dot(weights.to(DOT), v, y, input_precision="ieee")
        total += tl.sum(weights, axis=1)
    y_ptr += ((batch * t + begin) * heads + head) * v_dim
    y_at = y_ptr + tokens[:, None] * (heads * v_dim) + values[None, :]
    tl.store(
        y_at,
        (y / (total + eps * _SCALE)[:, None]).to(y_ptr.dtype.element_ty),
        mask=has_token & has_value,
    )


@triton.jit
def step_kernel(q_ptr, k_ptr, v_ptr, kv_ptr, sum_ptr, y_ptr, new_kv_ptr, new_sum_ptr, heads, v_dim,
                q_b, q_h, k_b, k_h, v_b, v_h, eps,
                F: tl.constexpr, FEATURES: tl.constexpr, BLOCK_V: tl.constexpr,
                BLOCK_N: tl.constexpr):  # fmt: skip
    """One token: the state is read once, updated, written to a new one, and used. A program has
    BLOCK_V values of one row (b h)."""
    row = tl.program_id(0).to(tl.int64)
    batch, head = row // heads, row % heads
    q_ptr += batch * q_b + head * q_h
    k_ptr += batch * k_b + head * k_h
    values = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    has_value = values < v_dim
    v = tl.load(v_ptr + batch * v_b + head * v_h + values, mask=has_value, other=0.0).to(tl.float32)
    y = tl.zeros((BLOCK_V,), tl.float32)
    total = 0.0
    for start in range(0, FEATURES, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        known = n < FEATURES
        place = row * FEATURES + n
        at = place[:, None] * v_dim + values[None, :]
        mask = known[:, None] & has_value[None, :]
        kv = tl.load(kv_ptr + at, mask=mask, other=0.0)
        sums = tl.load(sum_ptr + place, mask=known, other=0.0)
        a, b, scale = _factors(n, F)
        k = _feature(k_ptr, a, b, scale, known, F)
        q = _feature(q_ptr, a, b, scale, known, F)
        kv += k[:, None] * v[None, :]
        sums += k
        tl.store(new_kv_ptr + at, kv, mask=mask)
        tl.store(new_sum_ptr + place, sums, mask=tl.where(tl.program_id(1) == 0, known, False))
        y += tl.sum(q[:, None] * kv, axis=0)
        total += tl.sum(q * sums, axis=0)
    tl.store(
        y_ptr + row * v_dim + values, (y / (total + eps)).to(y_ptr.dtype.element_ty), mask=has_value
    )


@triton.jit
def _feature(x_ptr, a, b, scale, known, F: tl.constexpr):
    """Features of one vector in float32; zero where not `known`."""
    x_a = tl.load(x_ptr + a, mask=known & (a < F), other=1.0).to(tl.float32)
    x_b = tl.load(x_ptr + b, mask=known & (b < F), other=1.0).to(tl.float32)
    return tl.where(known, x_a * x_b * scale, 0.0)


def _states(features: int, tokens: int, warps: int, stages: int) -> triton.Config:
    return triton.Config(
        {"BLOCK_N": features, "BLOCK_T": tokens}, num_warps=warps, num_stages=stages
    )


def _outputs(queries: int, keys: int, features: int, warps: int, stages: int) -> triton.Config:
    return triton.Config(
        {"BLOCK_M": queries, "BLOCK_T": keys, "BLOCK_N": features},
        num_warps=warps,
        num_stages=stages,
    )


_KEY = ("v_dim", "F")
HALF_STATES = Launcher(chunk_state_kernel, [_states(64, 64, 4, 4), _states(64, 32, 4, 4)], _KEY)
HALF_OUTPUTS = Launcher(
    output_kernel, [_outputs(128, 64, 32, 4, 3), _outputs(64, 64, 32, 4, 3)], _KEY
)
FLOAT_STATES = Launcher(chunk_state_kernel, [_states(32, 32, 4, 1), _states(32, 64, 4, 1)], _KEY)
FLOAT_OUTPUTS = Launcher(
    output_kernel, [_outputs(64, 32, 16, 8, 1), _outputs(32, 32, 16, 4, 1)], _KEY
)
PREFIXES = Launcher(
    prefix_kernel, [triton.Config({"BLOCK": 512, "AHEAD": 4}, num_warps=4)], ("kv_width",)
)
STEP = Launcher(step_kernel, [triton.Config({"BLOCK_N": 256, "BLOCK_V": 32}, num_warps=4,
num_stages=1),
                              triton.Config({"BLOCK_N": 128, "BLOCK_V": 32}, num_warps=4,
                              num_stages=1)], ("v_dim", "F"))  # fmt: skip


@torch.library.custom_op("recallkit::taylor_attention", mutates_args=())
def taylor_attention_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor | None,
    k_sum: Tensor | None,
    eps: float,
    final_state: bool,
    config: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes as in `taylor_attention` -> y, and the final state's kv and k, empty where it is not
    requested.

    `kv`, `k_sum`: the initial state. `config`: which configuration of the kernels with products,
    see `Launcher`.
    """
    y, final_kv, final_sum = _empty_results(q, v, final_state)
    (b, h, t, f), v_dim = q.shape, v.shape[3]
    if b * h * v_dim == 0:
        return y, final_kv, final_sum
    q, k, v = (
        x if x.stride(3) == 1 and x.stride(2) * CHUNK < 2**31 else x.contiguous() for x in (q, k, v)
    )
    half = v.element_size() == 2
    states, outputs = (HALF_STATES, HALF_OUTPUTS) if half else (FLOAT_STATES, FLOAT_OUTPUTS)
    num_prefixes = triton.cdiv(t, CHUNK)
    # No chunk follows the last one.
    num_chunks = num_prefixes if final_state else max(num_prefixes - 1, 0)
    widths = _widths(f, v_dim) | {"DOT": operand_type(v.dtype), "CHUNK": CHUNK}
    value_blocks = triton.cdiv(v_dim, widths["BLOCK_V"])
    size, features = {"heads": h, "t": t, "v_dim": v_dim}, widths["FEATURES"]
    of_k, of_v = _strides("k", k), _strides("v", v)
    chunk_kv, chunk_sum = _empty_states(q, num_chunks, features, v_dim, torch.float32)
    if num_chunks:
        states(
            lambda meta: (b * h * num_chunks * triton.cdiv(features, meta["BLOCK_N"]),
            value_blocks),
            *(k, v, chunk_kv, chunk_sum),
            config=config, num_chunks=num_chunks, **size, **of_k, **of_v, **widths,
        )  # fmt: skip
    needs_prefixes = kv is not None or num_prefixes > 1
    prefix_kv, prefix_sum = _empty_states(
        q, num_prefixes * needs_prefixes, features, v_dim, v.dtype
    )
    if needs_prefixes or final_state:
        initial_kv, initial_sum = (y if x is None else x.contiguous() for x in (kv, k_sum))
        PREFIXES(
            lambda meta: (b * h * (triton.cdiv(features * v_dim,
            meta["BLOCK"]) + triton.cdiv(features, meta["BLOCK"])),),
            *(chunk_kv, chunk_sum, initial_kv, initial_sum, prefix_kv, prefix_sum, final_kv,
            final_sum),
            kv_width=features * v_dim, sum_width=features, num_chunks=num_chunks,
            num_prefixes=num_prefixes * needs_prefixes,
            HAS_INITIAL=kv is not None, WITH_FINAL=final_state, DOT=widths["DOT"],
        )  # fmt: skip
    outputs(
        lambda meta: (b * h * triton.cdiv(t, meta["BLOCK_M"]), value_blocks),
        *(q, k, v, prefix_kv, prefix_sum, y),
        config=config, num_chunks=num_prefixes, eps=eps, HAS_INITIAL=kv is not None, **size,
        **_strides("q", q), **of_k, **of_v, **widths,
    )  # fmt: skip
    return y, final_kv, final_sum


@torch.library.custom_op("recallkit::taylor_attention_step", mutates_args=())
def taylor_attention_step_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor,
    k_sum: Tensor,
    eps: float,
    config: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes as in `taylor_attention_step` -> y, and the new state's kv and k. `config`: see
    `Launcher`."""
    y, new_kv, new_sum = _empty_step_results(v, kv, k_sum)
    if y.numel() == 0:
        return y, new_kv, new_sum
    q, k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (q, k, v))
    kv, k_sum = kv.contiguous(), k_sum.contiguous()
    (b, h, f), v_dim = q.shape, v.shape[2]
    STEP(
        lambda meta: (b * h, triton.cdiv(v_dim, meta["BLOCK_V"])),
        *(q, k, v, kv, k_sum, y, new_kv, new_sum),
        config=config, heads=h, v_dim=v_dim, **_strides("q", q), **_strides("k", k),
        **_strides("v", v), eps=eps, F=f,
        FEATURES=num_taylor_features(f),
    )  # fmt: skip
    return y, new_kv, new_sum


@taylor_attention_triton.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor | None,
    k_sum: Tensor | None,
    eps: float,
    final_state: bool,
    config: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_results(q, v, final_state)


@taylor_attention_step_triton.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor,
    k_sum: Tensor,
    eps: float,
    config: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_step_results(v, kv, k_sum)


def _empty_results(q: Tensor, v: Tensor, final_state: bool) -> tuple[Tensor, Tensor, Tensor]:
    """y with the heads of a token contiguous, as the following projection reads it; and the final
    state."""
    b, h, t, v_dim = v.shape
    features = num_taylor_features(q.shape[3]) if final_state else 0
    state = (
        v.new_empty(b, h, features, v_dim, dtype=torch.float32),
        v.new_empty(b, h, features, dtype=torch.float32),
    )
    return v.new_empty(b, t, h, v_dim).transpose(1, 2), *state


def _empty_step_results(v: Tensor, kv: Tensor, k_sum: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return v.new_empty(v.shape), kv.new_empty(kv.shape), k_sum.new_empty(k_sum.shape)


def _empty_states(
    q: Tensor, num: int, features: int, v_dim: int, kv_type: torch.dtype
) -> tuple[Tensor, Tensor]:
    """For `num` states of each row (b, h), key sums in float32."""
    shape = q.shape[0] * q.shape[1], num, features
    return q.new_empty(*shape, v_dim, dtype=kv_type), q.new_empty(shape, dtype=torch.float32)


def _widths(f: int, v_dim: int) -> dict[str, int]:
    """Features, and tiles of f and v: powers of two that matrix units can multiply."""
    return {
        "F": f,
        "FEATURES": num_taylor_features(f),
        "BLOCK_K": max(16, triton.next_power_of_2(f)),
        "BLOCK_V": min(64, max(16, triton.next_power_of_2(v_dim))),
    }


def _strides(name: str, x: Tensor) -> dict[str, int]:
    """Strides of all axes but the last, by the kernels' names."""
    return {f"{name}_{axis}": stride for axis, stride in zip("bht", x.stride()[:-1], strict=False)}
