"""`selective_scan` in PyTorch, its gradients written out: for CPU, and for gradients.

Steps are sequential, each an in-place multiply-add of all rows; everything that does not depend on
the previous step is computed for many steps at once. Inputs may lie in memory in any order and
type: a piece of the text at a time is widened and brought into the order of the scan, time first
and channels last, so that no copy of a text is made.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from recallkit.kernels.elementwise_recurrence import recur, recur_back
from recallkit.kernels.selective_scan.reference import step_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

CHUNK = 6
"""Steps per chunk. The states of one chunk are in memory at once, for gradients also those at all
beginnings."""
PIECE = 8
"""Chunks per piece, whose inputs are brought into order at once."""
STEP_ELEMENTS = 1 << 16
"""Most elements of a state (rows x n x d) in a step on CPU, so that the working set stays in the
cache."""
LOG2_E = 1 / math.log(2)


def selective_scan_torch(
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
) -> tuple[Tensor, Tensor]:
    """Shapes as in `selective_scan`."""
    (_, b, d), n = x.shape, rates.shape[1]
    wide = _widest(x, dt, rates, write, read, start, dt_bias)
    state = x.new_zeros(b, n, d, dtype=wide) if start is None else start.to(wide)
    rows = max(1, STEP_ELEMENTS // (n * d)) if x.device.type == "cpu" else max(1, b)
    with torch.autocast(x.device.type, enabled=False):
        if torch.is_grad_enabled():
            texts = (x, dt, rates, write, read, state, skip, gate)
            return _differentiable(*texts, dt_bias, dt_softplus, rows)
        y, state = empty_outputs(x, x.dtype), state.clone(memory_format=torch.contiguous_format)
        for first in range(0, b, rows):
            group = slice(first, first + rows)
            part = tuple(text[:, group] for text in (x, dt, write, read))
            scan = _Scan(part, rates, dt_bias, dt_softplus, wide)
            for place, inputs, outputs in scan.run(state[group]):
                gated = _gated(outputs, inputs, skip, None if gate is None else gate[place, group])
                y[place, group] = gated
        return y, state


def selective_scan_step_torch(
    x: Tensor,
    dt: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    start: Tensor,
    skip: Tensor | None,
    gate: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
) -> tuple[Tensor, Tensor]:
    """A single step from a state, with t = 1 in the shapes of `selective_scan`: the formula, all at
    once."""
    narrow, wide = x.dtype, _widest(x, dt, rates, write, read, start, dt_bias)
    x, dt, write, read = (text.to(wide) for text in (x, dt, write, read))
    rates, start = rates.to(wide), start.to(wide)
    with torch.autocast(x.device.type, enabled=False):
        dt = step_sizes(dt, dt_bias, dt_softplus)
        decay = torch.exp2(dt.transpose(0, 1) * (rates.T * LOG2_E))
        last = torch.addcmul(decay * start, write[0].unsqueeze(2), (dt * x)[0].unsqueeze(1))
        y = torch.bmm(read[0].unsqueeze(1), last).transpose(0, 1)
        return _gated(y, x, skip, gate).to(narrow), last


def empty_outputs(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for outputs like x (t, b, d): channels side by side, time or rows first as they are in
    x."""
    t, b, d = x.shape
    if x.stride(1) > x.stride(0):
        return x.new_empty(b, t, d, dtype=dtype).transpose(0, 1)
    return x.new_empty(t, b, d, dtype=dtype)


def _widest(*inputs: Tensor | None) -> torch.dtype:
    """The widest of their types, at least float32."""
    types = [tensor.dtype for tensor in inputs if tensor is not None]
    return functools.reduce(torch.promote_types, types, torch.float32)


def _gated(y: Tensor, x: Tensor, skip: Tensor | None, gate: Tensor | None) -> Tensor:
    """(y + skip x) silu(gate); without gradients y is overwritten."""
    if torch.is_grad_enabled():
        y = y if skip is None else y + skip * x
        return y if gate is None else y * functional.silu(gate.to(y.dtype))
    if skip is not None:
        y.addcmul_(x, skip.to(y.dtype))
    return y if gate is None else y.mul_(functional.silu(ordered(gate, y.dtype)))


def ordered(piece: Tensor, wide: torch.dtype) -> Tensor:
    """A piece (t, b, c) in the type `wide`, its channels side by side in memory."""
    if piece.stride(2) != 1:
        # Channels may lie a power of two apart, as in (b, c, t): read so, they would all fall into
        # a few sets of
        # the cache. Here the piece becomes short rows first, which are read in any order.
        piece = piece.permute(1, 2, 0).contiguous().permute(2, 0, 1).contiguous()
    return piece.to(wide)


def _differentiable(
    x: Tensor,
    dt: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    start: Tensor,
    skip: Tensor | None,
    gate: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    rows: int,
) -> tuple[Tensor, Tensor]:
    """`selective_scan_torch`, groups of rows one after the other."""
    dt = step_sizes(dt.to(start.dtype), dt_bias, dt_softplus)
    texts = (torch.split(text, rows, dim=1) for text in (x, dt, write, read))
    groups = zip(*texts, torch.split(start, rows), strict=True)
    scan: Any = _SelectiveScan.apply
    parts = [scan(*group, rates) for group in groups]
    y, last = parts[0]
    if len(parts) > 1:
        y, last = torch.cat([y for y, _ in parts], dim=1), torch.cat([last for _, last in parts])
    return _gated(y, x, skip, gate).to(x.dtype), last


class _SelectiveScan(torch.autograd.Function):
    """With u = dt x, and G_i = C_i dL/dy_i + exp(dt_{i+1} A) G_{i+1} for the state h_i,

        dL/dC_i = h_i dL/dy_i    dL/du_i = B_i G_i    dL/dB_i = u_i G_i    dL/d(dt_i A) = G_i
        exp(dt_i A) h_{i-1},

    each summed over what the factor is shared by. Powers of two are used: PyTorch computes them
    three times as fast as exponentials.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dt: Tensor,
        write: Tensor,
        read: Tensor,
        start: Tensor,
        rates: Tensor,
    ) -> tuple[Tensor, Tensor]:
        scan = _Scan((x, dt, write, read), rates, None, False, start.dtype)
        y, state = empty_outputs(x, start.dtype), start.clone(memory_format=torch.contiguous_format)
        starts = start.new_empty(len(scan.chunks(slice(0, len(x)))), *start.shape)
        for place, _, outputs in scan.run(state, starts):
            y[place] = outputs
        ctx.save_for_backward(x, dt, write, read, rates, starts)
        return y, state

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *texts, rates, starts = ctx.saved_tensors
        scan = _Scan(texts, rates, None, False, starts.dtype)
        all_grads, carried = [empty_outputs(text, starts.dtype) for text in texts], grads[1]
        grad_rates, gradients = torch.zeros_like(scan.rates), torch.empty_like(scan.state_buffer)
        for piece in reversed(scan.pieces):
            x, dt, write, read = scan.piece(piece)
            u, grad_y = dt * x, grads[0][piece].contiguous()
            grad_x, grad_dt = torch.empty_like(dt), torch.empty_like(dt)
            grad_write, grad_read = torch.empty_like(write), torch.empty_like(read)
            for chunk in reversed(scan.chunks(piece)):
                now = slice(chunk.start - piece.start, chunk.stop - piece.start)
                start = starts[chunk.start // CHUNK]
                decay, states = scan.states(dt[now], u[now], write[now], start)
                grad = gradients[: len(states)]
                torch.mul(grad_y[now].unsqueeze(2), read[now].unsqueeze(3), out=grad)
                grad[-1] += carried
                recur_back(decay, grad)
                carried = decay[0] * grad[0]
                torch.bmm(
                    _rows(grad_y[now]), _flat(states).transpose(1, 2), out=_rows(grad_read[now])
                )
                torch.bmm(_rows(u[now]), _flat(grad).transpose(1, 2), out=_rows(grad_write[now]))
                torch.bmm(_rows(write[now]), _flat(grad), out=_rows(grad_x[now]))
                grad *= decay
                grad[0] *= start
                grad[1:] *= states[:-1]
                torch.sum(torch.mul(grad, scan.rates, out=decay), dim=2, out=grad_dt[now])
                grad_rates += grad.mul_(dt[now].unsqueeze(2)).sum((0, 1))
            grad_dt.addcmul_(grad_x, x)
            grad_x *= dt
            parts = (grad_x, grad_dt, grad_write, grad_read)
            for grad, part in zip(all_grads, parts, strict=True):
                grad[piece] = part
        return *all_grads, carried, grad_rates.T


class _Scan:
    """The inputs of some rows, of which a piece at a time is brought into order, and buffers for a
    chunk's states."""

    def __init__(
        self,
        texts: Sequence[Tensor],
        rates: Tensor,
        dt_bias: Tensor | None,
        dt_softplus: bool,
        wide: torch.dtype,
    ) -> None:
        """`texts`: x, dt, write and read."""
        t, b, _ = texts[0].shape
        self.texts, self.dt_bias, self.dt_softplus, self.wide = texts, dt_bias, dt_softplus, wide
        self.rates = rates.T.to(wide).contiguous()
        self.powers = self.rates * LOG2_E
        self.pieces = _parts(slice(0, t), PIECE * CHUNK)
        self.decay_buffer = self.rates.new_empty(min(CHUNK, t), b, *self.rates.shape)
        self.state_buffer = torch.empty_like(self.decay_buffer)

    def chunks(self, piece: slice) -> list[slice]:
        """The chunks of a piece, or of a text."""
        return _parts(piece, CHUNK)

    def piece(self, place: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x, the sizes of the steps, write and read of a piece (steps, b, ...), wide and
        contiguous."""
        x, dt, write, read = (ordered(text[place], self.wide) for text in self.texts)
        dt = step_sizes(dt, self.dt_bias, self.dt_softplus)
        return x, dt.contiguous(), write.contiguous(), read.contiguous()

    def run(
        self, state: Tensor, starts: Tensor | None = None
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """The place, the x and the readouts (steps, b, d) of each piece.

        `state` advances; `starts` get it before each chunk.
        """
        for piece in self.pieces:
            x, dt, write, read = self.piece(piece)
            u, y = dt * x, torch.empty_like(dt)
            for chunk in self.chunks(piece):
                if starts is not None:
                    starts[chunk.start // CHUNK] = state
                now = slice(chunk.start - piece.start, chunk.stop - piece.start)
                _, states = self.states(dt[now], u[now], write[now], state)
                torch.bmm(_rows(read[now]), _flat(states), out=_rows(y[now]))
                state.copy_(states[-1])
            yield piece, x, y

    def states(self, dt: Tensor, u: Tensor, write: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """The decays exp(dt_i A) and the states h_i of a chunk (steps, b, n, d), for the next call
        to overwrite."""
        decay, states = self.decay_buffer[: len(dt)], self.state_buffer[: len(dt)]
        torch.exp2(torch.mul(dt.unsqueeze(2), self.powers, out=decay), out=decay)
        torch.mul(u.unsqueeze(2), write.unsqueeze(3), out=states)
        recur(decay, states, start)
        return decay, states


def _parts(steps: slice, size: int) -> list[slice]:
    """Slices of `size` and a remainder."""
    starts = range(steps.start, steps.stop, size)
    return [slice(start, min(start + size, steps.stop)) for start in starts]


def _flat(states: Tensor) -> Tensor:
    """(t, b, n, d) -> (t b, n, d)."""
    return states.view(-1, *states.shape[2:])


def _rows(vectors: Tensor) -> Tensor:
    """(t, b, n) -> (t b, 1, n)."""
    return vectors.view(-1, 1, vectors.shape[2])
