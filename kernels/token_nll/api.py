"""`token_nll`: NLL, argmax and rank from the last layer, without materialising tokens x vocabulary
logits.

z = h W^T + b            nll = logsumexp(z) - z[y]           (nats) argmax = the lowest id of the
largest logit        rank = number of logits larger than z[y]  (0 = best, ties share)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.choice import Impl, choose
from recallkit.kernels.token_nll import reference, torch_impl
from recallkit.kernels.token_nll.reference import TokenNll

if TYPE_CHECKING:
    from torch import Tensor

_HALVES = (torch.float16, torch.bfloat16)


def token_nll(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    impl: Impl = "auto",
) -> TokenNll:
    """NLL, argmax and rank of `targets` under the linear layer (`weight`, `bias`) applied to
    `hidden`. Nothing is differentiated.

    Shapes: hidden (n, d), weight (vocab, d), bias (vocab,) or None, targets (n,) integers below
    vocab. Rows with a negative target are skipped: their NLL is 0 and their rank -1. Logits are
    computed and reduced in float32 whatever the dtype of the inputs (float64 where an input is, and
    in `reference`). A row's result depends on no other row.
    `impl`: "reference" materialises all logits, "torch" tiles of them, "triton" none; `auto`
    chooses it on a GPU in half precision. Raises ValueError for shapes, targets or an
    implementation that do not fit; on a GPU a target of at least vocab gives NaN.
    """
    _check(hidden, weight, targets, bias)
    mixed = (
        None
        if hidden.dtype == weight.dtype
        else f"hidden is {hidden.dtype} and weight {weight.dtype}"
    )
    wide = None if hidden.dtype in _HALVES else "products in full precision are faster in PyTorch"
    with torch.no_grad():
        chosen = choose(
            "token_nll", impl, hidden, weight, targets, bias, unsupported=mixed, slower=wide
        )
        if chosen == "triton":
            from recallkit.kernels.token_nll.triton_impl import token_nll_triton

            return TokenNll(*token_nll_triton(hidden, weight, targets, bias))
        compute = torch_impl.token_nll_torch if chosen == "torch" else reference.token_nll_reference
        has_target = targets >= 0
        nll, argmax, rank = compute(hidden, weight, targets.clamp(min=0), bias)
        return TokenNll(torch.where(has_target, nll, 0), argmax, torch.where(has_target, rank, -1))


def logits_nll(logits: Tensor, targets: Tensor) -> TokenNll:
    """The same from logits (n, vocab) that a model computed itself; reduced in float32 a few rows
    at a time."""
    return torch_impl.logits_nll_torch(logits, targets)


def _check(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None) -> None:
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"hidden (n, d) and weight (vocab, d) do not fit: {tuple(hidden.shape)}, "
            f"{tuple(weight.shape)}"
        )
    if targets.shape != hidden.shape[:1] or targets.dtype.is_floating_point:
        raise ValueError(
            f"targets must be integers of shape ({hidden.shape[0]},), not {targets.dtype} of "
            f"{tuple(targets.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape ({weight.shape[0]},), not {tuple(bias.shape)}")
    # On a GPU, checking would synchronise with it.
    if (
        targets.device.type == "cpu"
        and len(targets)
        and not torch.compiler.is_compiling()
        and int(targets.max()) >= len(weight)
    ):
        raise ValueError(f"target {int(targets.max())} is not in a vocabulary of {len(weight)}")
