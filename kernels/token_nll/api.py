"""`token_nll`: what scoring needs of the last layer, without ever holding tokens x vocabulary.

z = h W^T + b            nll = logsumexp(z) - z[y]           (nats)
argmax = the lowest id of the largest logit        rank = number of logits larger than z[y]  (0 = best, ties share)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import torch

Impl = Literal["auto", "reference", "chunked"]


class TokenNll(NamedTuple):
    """Per token, all of shape (n,)."""

    nll: torch.Tensor  # float32, nats
    argmax: torch.Tensor  # int64
    rank: torch.Tensor  # int64, 0 = best


def token_nll(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, *, bias: torch.Tensor | None = None, impl: Impl = "auto"
) -> TokenNll:
    """NLL, argmax and rank of `targets` under the linear layer (`weight`, `bias`) applied to `hidden`.

    Shapes: hidden (n, d), weight (vocab, d), bias (vocab,) or None, targets (n,) integer in [0, vocab). Logits are
    computed and reduced in float32 whatever the dtype of the inputs (`reference`: float64).
    `impl`: "reference" holds all logits, "chunked" a few rows at a time, "auto" is "chunked".
    Raises ValueError for shapes or an implementation that do not fit.
    """
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(f"hidden (n, d) and weight (vocab, d) do not fit: {tuple(hidden.shape)}, {tuple(weight.shape)}")
    if targets.shape != hidden.shape[:1]:
        raise ValueError(f"targets must have shape ({hidden.shape[0]},), not {tuple(targets.shape)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape ({weight.shape[0]},), not {tuple(bias.shape)}")
    if impl == "reference":
        from recallkit.kernels.token_nll.reference import token_nll_reference

        return token_nll_reference(hidden, weight, targets, bias)
    if impl in ("auto", "chunked"):
        from recallkit.kernels.token_nll.chunked import token_nll_chunked

        return token_nll_chunked(hidden, weight, targets, bias)
    raise ValueError(f"impl must be auto, reference or chunked, not {impl!r}")


def logits_nll(logits: torch.Tensor, targets: torch.Tensor) -> TokenNll:
    """The same from logits (n, vocab) that a model computed itself; reduced in float32 a few rows at a time."""
    from recallkit.kernels.token_nll.chunked import logits_nll_chunked

    return logits_nll_chunked(logits, targets)
