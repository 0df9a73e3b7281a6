"""`short_conv` in PyTorch: a multiply-add of the whole sequence for each tap; for CPU, and for
gradients.

For a few taps this is two to three times faster than conv1d on a CPU, which needs channels before
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


def short_conv_torch(
    u: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    history: Tensor | None,
    activation: str | None,
    gate: Tensor | None,
) -> Tensor:
    """Shapes as in `short_conv` -> y alone."""
    wide = torch.float32
    for tensor in (u, taps, bias, history):
        wide = wide if tensor is None else torch.promote_types(wide, tensor.dtype)
    offset, before = (None if tensor is None else tensor.to(wide) for tensor in (bias, history))
    if u.shape[1] == 1:
        y = _single(u.to(wide), taps.to(wide).T, offset, before)
    else:
        y = _ShortConv.apply(u.to(wide), taps.to(wide).T.contiguous(), offset, before)  # type: ignore[no-untyped-call]
    in_place = not torch.is_grad_enabled()
    if activation == "silu":
        y = functional.silu(y, inplace=in_place)
    if gate is not None:
        y = y.mul_(gate) if in_place else y * gate
    return y.to(u.dtype)


def _single(u: Tensor, taps: Tensor, bias: Tensor | None, history: Tensor | None) -> Tensor:
    """The output of a single input as one sum, which is cheaper than a multiply-add for each
    tap."""
    y = (
        u * taps[-1]
        if history is None
        else (torch.cat([history, u], dim=1) * taps).sum(1, keepdim=True)
    )
    return y if bias is None else y + bias


class _ShortConv(torch.autograd.Function):
    """Inputs (b, t, c), taps (k, c), bias (c,), history (b, k - 1, c); autograd alone would pad and
    copy a gradient for each tap."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, taps: Tensor, bias: Tensor | None, history: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(u, taps, history)
        ctx.has_bias = bias is not None
        y = u * taps[-1] if bias is None else torch.addcmul(bias, u, taps[-1])
        for lag in range(1, len(taps)):
            tap = taps[-1 - lag]
            if lag < u.shape[1]:
                y[:, lag:].addcmul_(u[:, :-lag], tap)
            if history is not None:
                place = _reached(lag, history, u)
                y[:, :lag].addcmul_(history[:, place], tap)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad_y,) = grads
        u, taps, history = ctx.saved_tensors
        grad_u, grad_taps = grad_y * taps[-1], torch.zeros_like(taps)
        grad_taps[-1] = (grad_y * u).sum((0, 1))
        grad_history = None if history is None else torch.zeros_like(history)
        for lag in range(1, len(taps)):
            tap, grad_tap = taps[-1 - lag], grad_taps[-1 - lag]
            if lag < u.shape[1]:
                grad_u[:, :-lag].addcmul_(grad_y[:, lag:], tap)
                grad_tap += (grad_y[:, lag:] * u[:, :-lag]).sum((0, 1))
            if history is not None and grad_history is not None:
                place = _reached(lag, history, u)
                grad_history[:, place].addcmul_(grad_y[:, :lag], tap)
                grad_tap += (grad_y[:, :lag] * history[:, place]).sum((0, 1))
        return grad_u, grad_taps, grad_y.sum((0, 1)) if ctx.has_bias else None, grad_history


def _reached(lag: int, history: Tensor, u: Tensor) -> slice:
    """The slice of the history with the inputs that are `lag` before the first ones of u."""
    first = history.shape[1] - lag
    return slice(first, min(first + u.shape[1], history.shape[1]))
