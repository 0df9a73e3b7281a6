"""Linear recurrences over time, element by element: the common part of the PyTorch implementations of the selective scan and of RWKV-4.

    h_i = a_i h_{i-1} + u_i

Steps are sequential, each an in-place multiply-add of the whole batch; time is the first axis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor


def linear_scan(decay: Tensor, u: Tensor, start: Tensor) -> Tensor:
    """h_i = decay_i h_{i-1} + u_i, differentiable: u: (t, ...), decay: broadcast to it, start: (...) -> all h (t, ...); t > 0."""
    states: Tensor = _LinearScan.apply(decay.expand_as(u), u, start)  # type: ignore[no-untyped-call]
    return states


def recur(decay: Tensor, u: Tensor, start: Tensor) -> None:
    """u_i += decay_i u_{i-1}, forward in time and in place."""
    state = start
    for now, factor in zip(u.unbind(0), decay.unbind(0), strict=True):
        state = now.addcmul_(factor, state)


def recur_back(decay: Tensor, grad: Tensor) -> None:
    """grad_i += decay_{i+1} grad_{i+1}, backward in time and in place."""
    steps, factors = grad.unbind(0), decay.unbind(0)
    for i in range(len(steps) - 2, -1, -1):
        steps[i].addcmul_(factors[i + 1], steps[i + 1])


class _LinearScan(torch.autograd.Function):
    """With G_i = dL/dh_i + decay_{i+1} G_{i+1}: dL/du = G, dL/ddecay_i = G_i h_{i-1}."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, u: Tensor, start: Tensor) -> Tensor:
        states = u.clone(memory_format=torch.contiguous_format)
        recur(decay, states, start)
        ctx.save_for_backward(decay, states, start)
        return states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, states, start = ctx.saved_tensors
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        recur_back(decay, grad)
        grad_decay = torch.empty_like(grad)
        torch.mul(grad[0], start, out=grad_decay[0])
        torch.mul(grad[1:], states[:-1], out=grad_decay[1:])
        return grad_decay, grad, decay[0] * grad[0]
