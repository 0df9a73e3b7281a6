"""`token_nll` tile by tile, for CPU and CUDA.

A tile is a block of rows times a block of the vocabulary, on CPU small enough to be reduced while
it is in a core's cache. Three numbers per row are kept of it: its largest logit, its log-sum-exp
relative to that, and how many of its logits are larger than the target's, whose logit is computed
first.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch

from recallkit.kernels.token_nll.reference import TokenNll

if TYPE_CHECKING:
    from torch import Tensor

ROWS, COLUMNS = 512, 1024
"""A thread's part of a tile on CPU: 2 MB of float32. The order of sums depends on the columns
alone, not on rows or threads."""

CUDA_LOGITS = 1 << 26
"""Logits of a tile on a GPU, where a tile has whole rows: 256 MB of float32."""

_LEAST_ROWS = 64
"""BLAS libraries use other algorithms, with other rounding, for products of few rows: rows are
padded to this number."""


@torch.no_grad()
def token_nll_torch(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None
) -> TokenNll:
    """Shapes as in `token_nll`. In float64 where an input is. A row's result does not depend on the
    other rows."""
    precision = _precision(hidden.dtype, weight.dtype)
    operands = hidden.dtype if _multiplies_halves(hidden, weight) else precision
    # Half-precision operands are widened, or their products are float32: logits rounded to bf16
    # change NLLs by 0.015 and flip argmaxes.
    wide_hidden = _padded(hidden.to(operands).contiguous())
    tally = _Tally(_padded(targets.long()), weight.shape[0], precision)
    if len(tally.columns) > 1:
        _fill_target_logits(tally, wide_hidden, weight, bias)
    for number, columns in enumerate(tally.columns):
        # One block at a time: all of a large half-precision head in float32 would take gigabytes.
        part, offset = (
            weight[columns].to(operands),
            None if bias is None else bias[columns].to(precision),
        )
        for rows in tally.rows:
            tile = tally.tile(rows, columns)
            _multiply(wide_hidden[rows], part, offset, out=tile)
            tally.add(number, rows, columns, tile)
    return tally.result(hidden.shape[0])


@torch.no_grad()
def logits_nll_torch(logits: Tensor, targets: Tensor) -> TokenNll:
    """Shapes as in `logits_nll`. In float64 where the logits are."""
    tally = _Tally(targets.long(), logits.shape[1], _precision(logits.dtype))
    tally.target_logits.copy_(logits.gather(1, targets.long()[:, None])[:, 0])
    for rows in tally.rows:
        for number, columns in enumerate(tally.columns):
            tile = tally.tile(rows, columns)
            tile.copy_(logits[rows, columns])
            tally.add(number, rows, columns, tile)
    return tally.result(logits.shape[0])


class _Tally:
    """The running reduction of the logits of n rows, tile by tile."""

    def __init__(self, targets: Tensor, vocab: int, precision: torch.dtype) -> None:
        num_rows = len(targets)
        most_rows, most_columns = _tile_shape(targets.device, vocab)
        self.rows, self.columns = _pieces(num_rows, most_rows), _pieces(vocab, most_columns)
        self.targets = targets
        empty = targets.new_empty
        self.target_logits = empty(num_rows, dtype=precision)
        self.largest, self.log_sum, self.num_ahead = empty(
            (3, len(self.columns), num_rows), dtype=precision
        )
        self.best = torch.full_like(self.target_logits, -math.inf)
        self.argmax = torch.zeros_like(targets)
        size = max(
            math.prod(_shape(rows, columns)) for rows in self.rows for columns in self.columns
        )
        self._logits = empty(size, dtype=precision)
        self._scratch = empty(0 if targets.is_cuda else size, dtype=precision)

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """The buffer for the logits of a tile: `add` them before requesting the next."""
        return _as_tile(self._logits, rows, columns)

    def add(self, number: int, rows: slice, columns: slice, logits: Tensor) -> None:
        """Reduces a tile of block `number` of the vocabulary; the tile is overwritten."""
        self._settle_targets(rows, columns, logits)
        target, largest = self.target_logits[rows, None], self.largest[number, rows]
        torch.amax(logits, 1, out=largest)
        self._keep_argmax(rows, columns, logits, largest)
        # A GPU is bound by memory traffic, a CPU core by arithmetic.
        if logits.is_cuda:
            self.num_ahead[number, rows] = (logits > target).sum(1)
            self.log_sum[number, rows] = logits.sub_(largest[:, None]).exp_().sum(1).log_()
            return
        scratch = _as_tile(self._scratch, rows, columns)
        # As floats: a count of booleans takes several times longer.
        torch.sum(torch.gt(logits, target, out=scratch), 1, out=self.num_ahead[number, rows])
        # The largest log-probability is minus the log of the sum relative to the maximum: one pass,
        # without slow denormal exponentials.
        torch.amax(
            torch.log_softmax(logits, 1, out=scratch), 1, out=self.log_sum[number, rows]
        ).neg_()

    def _settle_targets(self, rows: slice, columns: slice, logits: Tensor) -> None:
        """Overwrites the targets' logits in the tile with those that are compared with, equal to
        the last bit."""
        if len(self.columns) == 1:
            self.target_logits[rows] = logits.gather(1, self.targets[rows, None])[:, 0]
            return
        place = self.targets[rows] - columns.start
        within = ((place >= 0) & (place < columns.stop - columns.start)).nonzero()[:, 0]
        logits[within, place[within]] = self.target_logits[rows][within]

    def _keep_argmax(self, rows: slice, columns: slice, logits: Tensor, largest: Tensor) -> None:
        """Finds the index of the largest logit in rows where it is larger than in all earlier
        blocks: few, after the first."""
        if len(self.columns) == 1:
            self.argmax[rows] = _first_place(logits, largest)
            return
        best = self.best[rows]
        better = (largest > best).nonzero()[:, 0]
        if len(better):
            candidates = logits if len(better) == len(logits) else logits[better]
            self.argmax[rows][better] = _first_place(candidates, largest[better]) + columns.start
            best.copy_(torch.maximum(best, largest))

    def result(self, num_rows: int) -> TokenNll:
        """Of the first `num_rows` rows."""
        # Relative to the target's logit the NLL is a log-sum-exp and never a difference of two
        # large numbers. In float64,
        # because torch may round the last few of many exponentials differently from the first.
        ahead = (self.largest.double() - self.target_logits) + self.log_sum
        ahead = torch.where(self.largest.isneginf(), -math.inf, ahead)
        nll = torch.logsumexp(ahead, dim=0).float()
        return TokenNll(
            nll[:num_rows], self.argmax[:num_rows], self.num_ahead.sum(0).long()[:num_rows]
        )


def _first_place(rows: Tensor, largest: Tensor) -> Tensor:
    """The first index of each row's largest value; on CPU three times faster than argmax."""
    if rows.is_cuda:
        return rows.argmax(1)
    last = rows.shape[1] - 1
    places_behind = torch.arange(last, -1, -1, dtype=rows.dtype, device=rows.device)
    is_largest = torch.eq(rows, largest[:, None], out=torch.empty_like(rows))
    return last - is_largest.mul_(places_behind).amax(1).long()


def _fill_target_logits(tally: _Tally, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """The targets' logits, computed first, on the diagonal of small products that round as the
    large ones do."""
    for rows in _pieces(len(hidden), _LEAST_ROWS):
        chosen = tally.targets[rows]
        square = tally.target_logits.new_empty(len(chosen), len(chosen))
        offset = None if bias is None else bias[chosen].to(square.dtype)
        _multiply(hidden[rows], weight[chosen].to(hidden.dtype), offset, out=square)
        tally.target_logits[rows] = square.diagonal()


def _multiply(hidden: Tensor, weight: Tensor, offset: Tensor | None, *, out: Tensor) -> None:
    """hidden W^T + offset, into `out`."""
    if hidden.dtype != out.dtype:
        torch.mm(hidden, weight.T, out_dtype=out.dtype, out=out)
        if offset is not None:
            out += offset
    elif offset is None:
        torch.mm(hidden, weight.T, out=out)
    else:
        torch.addmm(offset, hidden, weight.T, out=out)


def _multiplies_halves(hidden: Tensor, weight: Tensor) -> bool:
    """Whether products of half-precision operands are available in float32: on GPUs, from torch
    2.8."""
    halves = hidden.dtype == weight.dtype and hidden.dtype in (torch.bfloat16, torch.float16)
    return halves and hidden.is_cuda and hasattr(torch.ops.aten.mm, "dtype_out")


def _precision(*dtypes: torch.dtype) -> torch.dtype:
    return torch.float64 if torch.float64 in dtypes else torch.float32


def _tile_shape(device: torch.device, vocab: int) -> tuple[int, int]:
    if device.type == "cuda":
        return max(128, CUDA_LOGITS // vocab // 128 * 128), vocab
    return ROWS * torch.get_num_threads(), COLUMNS


def _pieces(total: int, most: int) -> list[slice]:
    """The fewest blocks of at most `most`, of nearly equal length."""
    number = max(1, -(-total // most))
    return list(
        itertools.starmap(slice, itertools.pairwise(total * i // number for i in range(number + 1)))
    )


def _shape(rows: slice, columns: slice) -> tuple[int, int]:
    return rows.stop - rows.start, columns.stop - columns.start


def _as_tile(buffer: Tensor, rows: slice, columns: slice) -> Tensor:
    shape = _shape(rows, columns)
    return buffer[: math.prod(shape)].view(shape)


def _padded(rows: Tensor) -> Tensor:
    """At least `_LEAST_ROWS` rows, padded with zeros."""
    missing = max(0, _LEAST_ROWS - len(rows))
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows
