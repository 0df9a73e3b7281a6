"""`rwkv4_attention` as the recurrence in its paper, token by token, in the precision of its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.rwkv4.state import Rwkv4State

if TYPE_CHECKING:
    from torch import Tensor


def rwkv4_attention_reference(
    k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, state: Rwkv4State, gate: Tensor | None
) -> tuple[Tensor, Rwkv4State]:
    """Shapes as in `rwkv4_attention`, the state finite."""
    numerator, denominator, exponent = state
    outputs = []
    for i in range(len(k)):
        now = bonus + k[i]
        top = torch.maximum(exponent, now)
        of_past, of_now = torch.exp(exponent - top), torch.exp(now - top)
        y = (of_past * numerator + of_now * v[i]) / (of_past * denominator + of_now)
        outputs.append(y if gate is None else torch.sigmoid(gate[i]) * y)
        top = torch.maximum(exponent - decay, k[i])
        fading, arriving = torch.exp(exponent - decay - top), torch.exp(k[i] - top)
        numerator, denominator, exponent = fading * numerator + arriving * v[i], fading * denominator + arriving, top
    y = torch.stack(outputs).to(v.dtype) if outputs else torch.zeros_like(v)
    return y, Rwkv4State(numerator, denominator, exponent)
