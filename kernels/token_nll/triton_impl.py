"""`token_nll` on a GPU: a matrix product whose tiles are reduced as they are computed, so that
logits are never written to memory.

Three kernels. The first computes the targets' logits, from rows of W gathered by target, on the
diagonal of small products. The second multiplies tile by tile and writes four numbers per row and
tile: its largest logit, the sum of exponentials relative to it, the index of the largest, and how
many are larger than the target's. The third combines the tiles of a row.

Both products add along d in the same order, so equal rows of W give equal logits in any tile. A
row's result depends on no other row. There are no atomic additions: results are deterministic.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallkit.kernels.launch import Launcher, operand_type

COLUMNS = 128
"""Vocabulary entries per tile in half precision, in every configuration: the number of tiles is
known before one is chosen. With 256, registers spill, and a multiprocessor has no room for a second
program, whose products would hide the reductions."""
FLOAT_COLUMNS = 64
"""The same in float32, whose products take more registers."""
MOST_PARTS = 1 << 24
"""Tiles times rows whose four numbers are in memory at once: 256 MB. More rows are processed in
several parts."""


@triton.jit
def _product(hidden_ptr, weight_ptr, rows, columns, n, num_columns, d, hidden_stride, weight_stride,
             DOT: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
             BLOCK_K: tl.constexpr):  # fmt: skip
    """hidden[rows] W[columns]^T in float32 (BLOCK_M, BLOCK_N); `num_columns`: entries beyond it are
    read as zero."""
    inner = tl.arange(0, BLOCK_K)
    left = hidden_ptr + rows.to(tl.int64)[:, None] * hidden_stride + inner[None, :]
    right = weight_ptr + columns.to(tl.int64)[None, :] * weight_stride + inner[:, None]
    has_row, has_column = (rows < n)[:, None], ((columns >= 0) & (columns < num_columns))[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, d, BLOCK_K):
        if EVEN:
            a, b = (
                tl.load(left, mask=has_row, other=0.0),
                tl.load(right, mask=has_column, other=0.0),
            )
        else:
            within = start + inner < d
            a = tl.load(left, mask=has_row & within[None, :], other=0.0)
            b = tl.load(right, mask=has_column & within[:, None], other=0.0)
        acc = tl.dot(a.to(DOT), b.to(DOT), acc, input_precision="ieee")
        left += BLOCK_K
        right += BLOCK_K
    return acc


@triton.jit
def target_logits_kernel(hidden_ptr, weight_ptr, bias_ptr, targets_ptr, target_logits_ptr, n,
                         vocab, d, hidden_stride, weight_stride,
                         HAS_BIAS: tl.constexpr, DOT: tl.constexpr, EVEN: tl.constexpr,
                         BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """The targets' logits (n,), zeros where a target is not in the vocabulary."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    targets = tl.load(targets_ptr + rows, mask=rows < n, other=-1)
    square = _product(
        hidden_ptr,
        weight_ptr,
        rows,
        targets,
        n,
        vocab,
        d,
        hidden_stride,
        weight_stride,
        DOT,
        EVEN,
        BLOCK_M,
        BLOCK_M,
        BLOCK_K,
    )
    places = tl.arange(0, BLOCK_M)
    logits = tl.sum(tl.where(places[:, None] == places[None, :], square, 0.0), axis=1)
    known = (targets >= 0) & (targets < vocab) & (rows < n)
    if HAS_BIAS:
        logits += tl.load(bias_ptr + targets, mask=known, other=0.0).to(tl.float32)
    tl.store(target_logits_ptr + rows, logits, mask=rows < n)


@triton.jit
def tile_kernel(hidden_ptr, weight_ptr, bias_ptr, targets_ptr, target_logits_ptr, largest_ptr,
                sum_ptr, argmax_ptr, ahead_ptr,
                n, vocab, d, hidden_stride, weight_stride, HAS_BIAS: tl.constexpr,
                DOT: tl.constexpr, EVEN: tl.constexpr,
                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                GROUP: tl.constexpr):  # fmt: skip
    """One tile of logits, reduced: largest, sum, argmax, ahead are (tiles, n). Neighbouring
    programs share rows of W in the cache."""
    num_row_tiles, num_tiles = tl.cdiv(n, BLOCK_M), tl.cdiv(vocab, BLOCK_N)
    group = tl.program_id(0) // (GROUP * num_tiles)
    height = min(num_row_tiles - group * GROUP, GROUP)
    place = tl.program_id(0) % (GROUP * num_tiles)
    tile = place // height
    rows = (group * GROUP + place % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    logits = _product(
        hidden_ptr,
        weight_ptr,
        rows,
        columns,
        n,
        vocab,
        d,
        hidden_stride,
        weight_stride,
        DOT,
        EVEN,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
    )
    if HAS_BIAS:
        logits += tl.load(bias_ptr + columns, mask=columns < vocab, other=0.0).to(tl.float32)[
            None, :
        ]
    logits = tl.where((columns < vocab)[None, :], logits, -float("inf"))
    targets = tl.load(targets_ptr + rows, mask=rows < n, other=-1)
    target_logits = tl.load(target_logits_ptr + rows, mask=rows < n, other=0.0)
    # Use the target's logit that others are compared with, equal to the last bit.
    logits = tl.where(columns[None, :] == targets[:, None], target_logits[:, None], logits)
    # The index is found afterwards: a maximum of pairs of logit and index needs more registers than
    # there are.
    largest = tl.max(logits, axis=1)
    first = tl.min(
        tl.where(logits == largest[:, None], tl.arange(0, BLOCK_N)[None, :], BLOCK_N), axis=1
    )
    finite = tl.where(largest == -float("inf"), 0.0, largest)
    total = tl.sum(tl.exp(logits - finite[:, None]), axis=1)
    ahead = tl.sum((logits > target_logits[:, None]).to(tl.int32), axis=1)
    out = tile.to(tl.int64) * n + rows
    tl.store(largest_ptr + out, largest, mask=rows < n)
    tl.store(sum_ptr + out, total, mask=rows < n)
    tl.store(argmax_ptr + out, tile * BLOCK_N + first, mask=rows < n)
    tl.store(ahead_ptr + out, ahead, mask=rows < n)


@triton.jit
def combine_kernel(largest_ptr, sum_ptr, argmax_ptr, ahead_ptr, targets_ptr, target_logits_ptr,
                   nll_ptr, best_ptr, rank_ptr,
                   n, vocab, num_tiles, BLOCK: tl.constexpr):  # fmt: skip
    """Combines the tiles of rows. Relative to the target's logit, the NLL is a log-sum-exp and not
    a difference of large numbers."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    within = rows < n
    targets = tl.load(targets_ptr + rows, mask=within, other=0)
    target_logits = tl.load(target_logits_ptr + rows, mask=within, other=0.0)
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    best = tl.zeros((BLOCK,), tl.int32)
    rank = tl.zeros((BLOCK,), tl.int32)
    for tile in range(num_tiles):
        place = tl.cast(tile, tl.int64) * n + rows
        new = tl.load(largest_ptr + place, mask=within, other=0.0)
        more = tl.load(sum_ptr + place, mask=within, other=1.0)
        rank += tl.load(ahead_ptr + place, mask=within, other=0)
        best = tl.where(new > largest, tl.load(argmax_ptr + place, mask=within, other=0), best)
        higher = tl.maximum(largest, new)
        finite = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(largest - finite) + more * tl.exp(new - finite)
        largest = higher
    nll = (largest - target_logits) + tl.log(total)
    # A skipped target has NLL 0 and rank -1; one outside the vocabulary gives NaN.
    nll = tl.where(targets < 0, 0.0, tl.where(targets < vocab, nll, float("nan")))
    tl.store(nll_ptr + rows, nll, mask=within)
    tl.store(best_ptr + rows, best.to(tl.int64), mask=within)
    tl.store(rank_ptr + rows, tl.where(targets < 0, -1, rank).to(tl.int64), mask=within)


def _config(rows: int, columns: int, inner: int, warps: int, stages: int) -> triton.Config:
    blocks = {"BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": inner, "GROUP": 8}
    return triton.Config(blocks, num_warps=warps, num_stages=stages)


_KEY = ("vocab", "d")
HALF_TILES = Launcher(
    tile_kernel,
    [
        _config(rows, COLUMNS, 64, warps, stages)
        for rows, warps, stages in ((128, 8, 3), (128, 4, 3), (64, 4, 4), (256, 8, 3))
    ],
    _KEY,
)
FLOAT_TILES = Launcher(
    tile_kernel, [_config(64, FLOAT_COLUMNS, 32, 8, 2), _config(32, FLOAT_COLUMNS, 32, 4, 2)], _KEY
)
TARGETS = Launcher(
    target_logits_kernel,
    [triton.Config({"BLOCK_M": 64, "BLOCK_K": 64}, num_warps=4, num_stages=3)],
    _KEY,
)
FLOAT_TARGETS = Launcher(
    target_logits_kernel,
    [triton.Config({"BLOCK_M": 32, "BLOCK_K": 32}, num_warps=2, num_stages=2)],
    _KEY,
)
COMBINE = Launcher(combine_kernel, [triton.Config({"BLOCK": 128}, num_warps=4)], ("vocab",))


@torch.library.custom_op("recallkit::token_nll", mutates_args=())
def token_nll_triton(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, config: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes as in `token_nll` -> nll, argmax, rank. `config`: which configuration of the tiles,
    see `Launcher`."""
    hidden, weight = (x if x.stride(1) == 1 else x.contiguous() for x in (hidden, weight))
    targets = targets.long().contiguous()
    bias = None if bias is None else bias.contiguous()
    results = _empty_results(hidden)
    num_tiles = -(-weight.shape[0] // (COLUMNS if hidden.element_size() == 2 else FLOAT_COLUMNS))
    most_rows = max(128, MOST_PARTS // num_tiles // 128 * 128)
    for start in range(0, len(hidden), most_rows):
        rows = slice(start, start + most_rows)
        _score(
            hidden[rows],
            weight,
            targets[rows],
            bias,
            num_tiles,
            tuple(result[rows] for result in results),
            config,
        )
    return results


def _score(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    num_tiles: int,
    results: tuple[Tensor, ...],
    config: int | None,
) -> None:
    """Writes nll, argmax and rank of some rows into `results`."""
    (n, d), vocab = hidden.shape, weight.shape[0]
    tiles, first = (
        (HALF_TILES, TARGETS) if hidden.element_size() == 2 else (FLOAT_TILES, FLOAT_TARGETS)
    )
    target_logits = hidden.new_empty(n, dtype=torch.float32)
    largest, total = hidden.new_empty(2, num_tiles, n, dtype=torch.float32)
    argmax, ahead = hidden.new_empty(2, num_tiles, n, dtype=torch.int32)
    sizes = {
        "n": n,
        "vocab": vocab,
        "d": d,
        "hidden_stride": hidden.stride(0),
        "weight_stride": weight.stride(0),
    }
    kinds = {"HAS_BIAS": bias is not None, "DOT": operand_type(hidden.dtype), "EVEN": d % 64 == 0}
    offset = target_logits if bias is None else bias
    first(
        lambda meta: (triton.cdiv(n, meta["BLOCK_M"]),),
        hidden,
        weight,
        offset,
        targets,
        target_logits,
        **sizes,
        **kinds,
    )
    tiles(
        lambda meta: (triton.cdiv(n, meta["BLOCK_M"]) * num_tiles,),
        *(hidden, weight, offset, targets, target_logits, largest, total, argmax, ahead),
        config=config, **sizes, **kinds,
    )  # fmt: skip
    COMBINE(
        lambda meta: (triton.cdiv(n, meta["BLOCK"]),),
        *(largest, total, argmax, ahead, targets, target_logits, *results),
        n=n, vocab=vocab, num_tiles=num_tiles,
    )  # fmt: skip


@token_nll_triton.register_fake
def _(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, config: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_results(hidden)


def _empty_results(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = hidden.shape[0]
    return (
        hidden.new_empty(n, dtype=torch.float32),
        hidden.new_empty(n, dtype=torch.int64),
        hidden.new_empty(n, dtype=torch.int64),
    )
