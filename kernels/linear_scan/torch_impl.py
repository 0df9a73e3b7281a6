"""`linear_scan` in PyTorch, its gradients written out: each token an in-place multiply-add of the
whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from recallkit.kernels.elementwise_recurrence import recur, recur_back

if TYPE_CHECKING:
    from torch import Tensor


def linear_scan_torch(decay: Tensor, u: Tensor, start: Tensor) -> Tensor:
    """Shapes as in `linear_scan`, or u (t, ...) with a decay that is broadcast to it and start
    (...); of one type, t > 0."""
    states: Tensor = _LinearScan.apply(decay.expand_as(u), u, start)  # type: ignore[no-untyped-call]
    return states


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
