"""`rwkv4_attention` as the recurrence in its paper, token by token, in the precision of its
inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

NOTHING = -1e38
"""The exponent of sums without terms: exp(NOTHING - x) is 0 for every x, and NOTHING - NOTHING is
not NaN."""


class Rwkv4State(NamedTuple):
    """Both sums over j < i of the next token, divided by exp(exponent); each (b, d), in float32 at
    least.

    The exponent is the largest in them, so that nothing overflows. States that differ only in the
    choice of exponent are equivalent.
    """

    numerator: Tensor
    denominator: Tensor
    exponent: Tensor


def empty_state(
    b: int, d: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Rwkv4State:
    """The state before the first token."""
    zeros = torch.zeros(b, d, dtype=dtype, device=device)
    return Rwkv4State(zeros, zeros.clone(), torch.full_like(zeros, NOTHING))


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
        numerator, denominator, exponent = (
            fading * numerator + arriving * v[i],
            fading * denominator + arriving,
            top,
        )
    y = torch.stack(outputs).to(v.dtype) if outputs else torch.zeros_like(v)
    return y, Rwkv4State(numerator, denominator, exponent)
