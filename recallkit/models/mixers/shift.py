"""Neighbours in time: the previous input of every channel, and sums of the last few, as many mixers begin with.

Time comes first here, as in `recallkit.models.mixers.scan`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor


def previous_inputs(u: Tensor, before: Tensor, time: int = 0) -> Tensor:
    """u: (t, b, d), or with the time at axis 1, before: (b, d), the input before the first -> as u: at i the input i - 1."""
    return torch.cat([before.to(u.dtype).unsqueeze(time), u.narrow(time, 0, u.shape[time] - 1)], dim=time)


def short_convolution(u: Tensor, taps: Tensor, bias: Tensor, history: Tensor | None = None) -> Tensor:
    """y_i = bias + sum_{s < k} taps[:, k - 1 - s] u_{i - s}, each channel by itself; inputs before `history` are zeros.

    u: (t, b, c); taps: (c, k), that of the present input last, as nn.Conv1d keeps them; history: (k - 1, b, c) -> (t, b, c).
    For a few taps this is two to three times faster than conv1d on a CPU, which wants the channels before the time.
    """
    if history is None:
        return _convolve(u, taps, bias)
    return _convolve(torch.cat([history.to(u.dtype), u]), taps, bias)[len(history) :]


def short_convolution_reference(u: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """The same without a history, as the sum says."""
    k = taps.shape[1]
    padded = torch.cat([u.new_zeros(k - 1, *u.shape[1:]), u])
    return torch.stack([bias + sum(taps[:, s] * padded[i + s] for s in range(k)) for i in range(len(u))])


def _convolve(u: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    y: Tensor = _ShortConvolution.apply(u, taps.T.contiguous(), bias)  # type: ignore[no-untyped-call]
    return y


class _ShortConvolution(torch.autograd.Function):
    """A multiply-add of the whole sequence for each tap; autograd alone would pad and copy a gradient for each."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(u, taps)
        y = torch.addcmul(bias, u, taps[-1])
        for lag in range(1, min(len(taps), len(u))):
            y[lag:].addcmul_(u[:-lag], taps[-1 - lag])
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (grad_y,) = grads
        u, taps = ctx.saved_tensors
        grad_u, grad_taps = grad_y * taps[-1], torch.zeros_like(taps)
        grad_taps[-1] = (grad_y * u).sum((0, 1))
        for lag in range(1, min(len(taps), len(u))):
            grad_u[:-lag].addcmul_(grad_y[lag:], taps[-1 - lag])
            grad_taps[-1 - lag] = (grad_y[lag:] * u[:-lag]).sum((0, 1))
        return grad_u, grad_taps, grad_y.sum((0, 1))
