"""`selective_scan` in PyTorch, its gradients written out: for CPU, and for gradients.

Steps are sequential, each an in-place multiply-add of the whole batch; everything that does not depend on the previous
step is computed for many steps at once. Time is the first axis and channels the last, so that operations run along contiguous memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from recallkit.kernels.elementwise_recurrence import recur, recur_back

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 6
"""Steps per chunk. The states of one chunk are in memory at once; for the others only the state at the chunk's beginning is kept."""
STEP_ELEMENTS = 1 << 16
"""Most elements of a state (rows x n x d) in a step on CPU, so that the working set stays in the cache."""
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
) -> tuple[Tensor, Tensor]:
    """Shapes as in `selective_scan`."""
    narrow = x.dtype
    x, dt, rates, write, read, start = _widened(x, dt, rates, write, read, start)
    _, b, d = x.shape
    n = rates.shape[1]
    state = x.new_zeros(b, n, d) if start is None else start
    rows = max(1, STEP_ELEMENTS // (n * d)) if x.device.type == "cpu" else max(1, b)
    groups = zip(*(torch.split(given, rows, dim=1) for given in (x, dt, write, read)), torch.split(state, rows), strict=True)
    with torch.autocast(x.device.type, enabled=False):
        parts = [_SelectiveScan.apply(torch.is_grad_enabled(), rates.T, *group) for group in groups]  # type: ignore[no-untyped-call]
        y, last = parts[0]
        if len(parts) > 1:
            y, last = torch.cat([y for y, _ in parts], dim=1), torch.cat([last for _, last in parts])
        return _gated(y, x, skip, gate).to(narrow), last


def selective_scan_step_torch(
    x: Tensor,
    dt: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    start: Tensor | None,
    skip: Tensor | None,
    gate: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """A single step from a state, with t = 1 in the shapes of `selective_scan`: the formula, all at once."""
    narrow = x.dtype
    x, dt, rates, write, read, start = _widened(x, dt, rates, write, read, start)
    assert start is not None
    with torch.autocast(x.device.type, enabled=False):
        decay = torch.exp2(dt.transpose(0, 1) * (rates.T * LOG2_E))
        last = torch.addcmul(decay * start, write[0].unsqueeze(2), (dt * x)[0].unsqueeze(1))
        y = torch.bmm(read[0].unsqueeze(1), last).transpose(0, 1)
        return _gated(y, x, skip, gate).to(narrow), last


def _widened(
    x: Tensor, dt: Tensor, rates: Tensor, write: Tensor, read: Tensor, start: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """All in the widest of their types, at least float32."""
    wide = torch.float32
    for given in (x, dt, rates, write, read) if start is None else (x, dt, rates, write, read, start):
        wide = torch.promote_types(wide, given.dtype)
    return x.to(wide), dt.to(wide), rates.to(wide), write.to(wide), read.to(wide), None if start is None else start.to(wide)


def _gated(y: Tensor, x: Tensor, skip: Tensor | None, gate: Tensor | None) -> Tensor:
    """(y + skip x) silu(gate); without gradients y is overwritten."""
    if torch.is_grad_enabled():
        y = y if skip is None else y + skip * x
        return y if gate is None else y * functional.silu(gate.to(y.dtype))
    if skip is not None:
        y.addcmul_(x, skip.to(y.dtype))
    return y if gate is None else y.mul_(functional.silu(gate.to(y.dtype)))


class _SelectiveScan(torch.autograd.Function):
    """With u = dt x, and G_i = C_i dL/dy_i + exp(dt_{i+1} A) G_{i+1} for the state h_i,

        dL/dC_i = h_i dL/dy_i    dL/du_i = B_i G_i    dL/dB_i = u_i G_i    dL/d(dt_i A) = G_i exp(dt_i A) h_{i-1},

    each summed over what the factor is shared by. `keep`: whether the backward pass needs states. Powers of two are used:
    PyTorch computes them three times as fast as exponentials.
    """

    @staticmethod
    def forward(
        ctx: Any, keep: bool, rates: Tensor, x: Tensor, dt: Tensor, write: Tensor, read: Tensor, start: Tensor
    ) -> tuple[Tensor, Tensor]:
        rates, x, dt, write, read = (given.contiguous() for given in (rates, x, dt, write, read))
        chunks = _Chunks(rates, x, dt, write)
        y, state = torch.empty_like(x), start.clone()
        starts = x.new_empty(len(chunks.places) if keep else 0, *start.shape)
        for number, place in enumerate(chunks.places):
            if keep:
                starts[number] = state
            _, states = chunks.states(place, state)
            torch.bmm(_rows(read[place]), _flat(states), out=_rows(y[place]))
            state.copy_(states[-1])
        ctx.save_for_backward(rates, x, dt, write, read, starts)
        return y, state

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rates, x, dt, write, read, starts = ctx.saved_tensors
        chunks = _Chunks(rates, x, dt, write)
        grad_y, carried = grads[0].contiguous(), grads[1]
        grad_u, grad_dt, grad_write, grad_read = (torch.empty_like(given) for given in (x, dt, write, read))
        grad_rates, gradients = torch.zeros_like(rates), torch.empty_like(chunks.state_buffer)
        for number, place in reversed(list(enumerate(chunks.places))):
            decay, states = chunks.states(place, starts[number])
            grad = gradients[: len(states)]
            torch.mul(grad_y[place].unsqueeze(2), read[place].unsqueeze(3), out=grad)
            grad[-1] += carried
            recur_back(decay, grad)
            carried = decay[0] * grad[0]
            torch.bmm(_rows(grad_y[place]), _flat(states).transpose(1, 2), out=_rows(grad_read[place]))
            torch.bmm(_rows(chunks.u[place]), _flat(grad).transpose(1, 2), out=_rows(grad_write[place]))
            torch.bmm(_rows(write[place]), _flat(grad), out=_rows(grad_u[place]))
            grad *= decay
            grad[0] *= starts[number]
            grad[1:] *= states[:-1]
            torch.sum(torch.mul(grad, rates, out=decay), dim=2, out=grad_dt[place])
            grad_rates += grad.mul_(dt[place].unsqueeze(2)).sum((0, 1))
        grad_dt.addcmul_(grad_u, x)
        return None, grad_rates, grad_u.mul_(dt), grad_dt, grad_write, grad_read, carried


class _Chunks:
    """The steps in chunks, and the buffers for the states of one chunk at a time."""

    def __init__(self, rates: Tensor, x: Tensor, dt: Tensor, write: Tensor) -> None:
        self.rates, self.u, self.dt, self.write = rates * LOG2_E, dt * x, dt, write
        t, b, d = x.shape
        self.places = [slice(start, min(start + CHUNK, t)) for start in range(0, t, CHUNK)]
        self.decay_buffer = x.new_empty(min(CHUNK, t), b, len(rates), d)
        self.state_buffer = torch.empty_like(self.decay_buffer)

    def states(self, place: slice, start: Tensor) -> tuple[Tensor, Tensor]:
        """The decays exp(dt_i A) and the states h_i of a chunk (steps, b, n, d); the next call writes over them."""
        length = place.stop - place.start
        decay, states = self.decay_buffer[:length], self.state_buffer[:length]
        torch.exp2(torch.mul(self.dt[place].unsqueeze(2), self.rates, out=decay), out=decay)
        torch.mul(self.u[place].unsqueeze(2), self.write[place].unsqueeze(3), out=states)
        recur(decay, states, start)
        return decay, states


def _flat(states: Tensor) -> Tensor:
    """(t, b, n, d) -> (t b, n, d)."""
    return states.view(-1, *states.shape[2:])


def _rows(vectors: Tensor) -> Tensor:
    """(t, b, n) -> (t b, 1, n)."""
    return vectors.view(-1, 1, vectors.shape[2])
