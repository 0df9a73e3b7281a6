"""The result of `token_nll` and `logits_nll`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class TokenNll(NamedTuple):
    """Per token, all of shape (n,)."""

    nll: Tensor  # float32, nats
    argmax: Tensor  # int64
    rank: Tensor  # int64, 0 = best
