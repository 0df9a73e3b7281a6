"""`token_nll` as the formula is written, in float64, all logits at once: the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor


class TokenNll(NamedTuple):
    """Per token, all of shape (n,)."""

    nll: Tensor  # float32, nats
    argmax: Tensor  # int64
    rank: Tensor  # int64, 0 = best


def token_nll_reference(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None
) -> TokenNll:
    """Shapes as in `token_nll`."""
    logits = hidden.double() @ weight.double().T
    if bias is not None:
        logits = logits + bias.double()
    target = logits.gather(1, targets.long()[:, None])
    nll = torch.logsumexp(logits, dim=1) - target[:, 0]
    return TokenNll(nll.float(), logits.argmax(dim=1), (logits > target).sum(dim=1))
