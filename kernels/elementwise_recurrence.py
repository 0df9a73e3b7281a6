"""Linear recurrences over time, element by element: the common part of the PyTorch implementations
of the selective scan and of RWKV-4.

    h_i = a_i h_{i-1} + u_i

Steps are sequential, each an in-place multiply-add of the whole batch; time is the first axis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


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
