"""Linear recurrences over time whose gradients are written out: the selective scan of Mamba, and the plain one.

Steps follow each other, and each is one multiply-add of the whole batch in place; all that does not depend on the step
before is done for many steps at once. Time comes first and the channels last: every operation runs along contiguous memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 6
"""Steps whose states stand in memory at once; of the others the backward pass finds those of each chunk's beginning."""
STEP_ELEMENTS = 1 << 16
"""Most elements of a state (rows x n x d) that a step on a CPU goes through: what is worked on stays in the cache."""
LOG2_E = 1 / math.log(2)


def selective_scan(x: Tensor, dt: Tensor, rates: Tensor, write: Tensor, read: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """h_i = exp(dt_i A) h_{i-1} + dt_i x_i B_i, y_i = C_i h_i: x, dt: (t, b, d); rates A: (d, n), negative; write B, read C: (t, b, n).

    `start`: the state h before the first step (b, n, d), zeros where None. Returns y (t, b, d) and the state after the last.
    """
    _, b, d = x.shape
    n = rates.shape[1]
    start = x.new_zeros(b, n, d) if start is None else start
    rows = max(1, STEP_ELEMENTS // (n * d)) if x.device.type == "cpu" else b
    groups = zip(*(torch.split(given, rows, dim=1) for given in (x, dt, write, read)), torch.split(start, rows), strict=True)
    with torch.autocast(x.device.type, enabled=False):
        parts = [_SelectiveScan.apply(torch.is_grad_enabled(), rates.T, *group) for group in groups]  # type: ignore[no-untyped-call]
    if len(parts) == 1:
        return parts[0][0], parts[0][1]
    return torch.cat([y for y, _ in parts], dim=1), torch.cat([last for _, last in parts])


def selective_scan_reference(x: Tensor, dt: Tensor, rates: Tensor, write: Tensor, read: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """The same, as the recurrence is written."""
    h, outputs = start.transpose(1, 2), []
    for i in range(len(x)):
        h = torch.exp(dt[i, :, :, None] * rates) * h + (dt[i] * x[i])[:, :, None] * write[i, :, None, :]
        outputs.append((h * read[i, :, None, :]).sum(-1))
    return torch.stack(outputs), h.transpose(1, 2)


def linear_scan(decay: Tensor, u: Tensor, start: Tensor) -> Tensor:
    """h_i = decay_i h_{i-1} + u_i, element by element, time first: decay, u: (t, ...), start: (...) -> all h (t, ...)."""
    states: Tensor = _LinearScan.apply(decay.expand_as(u), u, start)  # type: ignore[no-untyped-call]
    return states


class _LinearScan(torch.autograd.Function):
    """With G_i = dL/dh_i + decay_{i+1} G_{i+1}: dL/du = G, dL/ddecay_i = G_i h_{i-1}."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, u: Tensor, start: Tensor) -> Tensor:
        states = u.clone(memory_format=torch.contiguous_format)
        _recur(decay, states, start)
        ctx.save_for_backward(decay, states, start)
        return states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, states, start = ctx.saved_tensors
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        _recur_back(decay, grad)
        grad_decay = torch.empty_like(grad)
        torch.mul(grad[0], start, out=grad_decay[0])
        torch.mul(grad[1:], states[:-1], out=grad_decay[1:])
        return grad_decay, grad, decay[0] * grad[0]


class _SelectiveScan(torch.autograd.Function):
    """With u = dt x, and G_i = C_i dL/dy_i + exp(dt_{i+1} A) G_{i+1} for the state h_i,

        dL/dC_i = h_i dL/dy_i    dL/du_i = B_i G_i    dL/dB_i = u_i G_i    dL/d(dt_i A) = G_i exp(dt_i A) h_{i-1},

    each summed over what the factor is shared by. `keep`: whether the backward pass will ask for states. The powers are of two:
    PyTorch makes them three times as fast as those of e.
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
            _recur_back(decay, grad)
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
    """The steps in chunks, and the buffers in which the states of one chunk at a time are made."""

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
        _recur(decay, states, start)
        return decay, states


def _recur(decay: Tensor, u: Tensor, start: Tensor) -> None:
    """u_i += decay_i u_{i-1}, forward in time and in place."""
    state = start
    for now, factor in zip(u.unbind(0), decay.unbind(0), strict=True):
        state = now.addcmul_(factor, state)


def _recur_back(decay: Tensor, grad: Tensor) -> None:
    """grad_i += decay_{i+1} grad_{i+1}, backward in time and in place."""
    steps, factors = grad.unbind(0), decay.unbind(0)
    for i in range(len(steps) - 2, -1, -1):
        steps[i].addcmul_(factors[i + 1], steps[i + 1])


def _flat(states: Tensor) -> Tensor:
    """(t, b, n, d) -> (t b, n, d)."""
    return states.view(-1, *states.shape[2:])


def _rows(vectors: Tensor) -> Tensor:
    """(t, b, n) -> (t b, 1, n)."""
    return vectors.view(-1, 1, vectors.shape[2])
