"""The state of RWKV-4's attention: two sums, and the exponent by which both are scaled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

NOTHING = -1e38
"""The exponent of sums without terms: exp(NOTHING - x) is 0 for every x, and NOTHING - NOTHING is not NaN."""


class Rwkv4State(NamedTuple):
    """Both sums over j < i of the next token, divided by exp(exponent); each (b, d), in float32 at least.

    The exponent is the largest in them, so that nothing overflows. States that differ only in the choice of exponent are equivalent.
    """

    numerator: Tensor
    denominator: Tensor
    exponent: Tensor


def empty_state(b: int, d: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None) -> Rwkv4State:
    """The state before the first token."""
    zeros = torch.zeros(b, d, dtype=dtype, device=device)
    return Rwkv4State(zeros, zeros.clone(), torch.full_like(zeros, NOTHING))
