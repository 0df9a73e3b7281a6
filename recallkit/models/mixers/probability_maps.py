"""Maps from scores to probabilities: softmax, sparsemax and all alpha-entmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

BISECTIONS = 60
"""Halvings of the interval of the threshold, which begins at most 1 wide: float64's precision."""


def entmax(scores: Tensor, alpha: float) -> Tensor:
    """alpha-entmax over the last axis, whatever its shape: probabilities of the scores' type, exact
    zeros among them where alpha > 1.

    p[j] = max(0, (alpha - 1) v[j] - tau)^(1 / (alpha - 1)) with tau such that they add up to 1
    (Peters et al. 2019, arXiv 1905.05702; Correia et al. 2019, arXiv 1909.00015, for attention; Yun
    et al. 2020, arXiv 2006.04862, appendix B.3). 1 is softmax, 2 sparsemax (Martins and Astudillo
    2016, arXiv 1602.02068). sparselin-gen of lambda (appendix B.2) is `entmax(v / (1 - lambda),
    2)`. Scores of -inf get 0; each row needs one that is finite. tau is found by bisection, in
    float32 or wider. Raises ValueError for alpha < 1.
    """
    if alpha < 1:
        raise ValueError(f"alpha-entmax is defined for alpha of at least 1, not {alpha}")
    if alpha == 1:
        return torch.softmax(scores, dim=-1)
    weights: Tensor = _Entmax.apply(scores, alpha)  # type: ignore[no-untyped-call]
    return weights


class _Entmax(torch.autograd.Function):
    """The derivative is that of a Jacobian diag(s) - s s^T / sum(s) with s = p^(2 - alpha) where p
    > 0."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: float) -> Tensor:
        wide = scores.double() if scores.dtype == torch.float64 else scores.float()
        # The largest is made 0. Then tau is between -1, where the largest alone has 1, and -n^(1 -
        # alpha), where none has more than 1 / n.
        shifted = (alpha - 1) * (wide - wide.amax(-1, keepdim=True))
        low = torch.full_like(shifted[..., :1], -1.0)
        high = torch.full_like(low, -(wide.shape[-1] ** (1.0 - alpha)))
        for _ in range(BISECTIONS if wide.dtype == torch.float64 else BISECTIONS // 2):
            middle = (low + high) / 2
            is_low = (shifted - middle).clamp(min=0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) >= 1
            low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
        weights = (shifted - low).clamp(min=0).pow(1 / (alpha - 1))
        weights = (weights / weights.sum(-1, keepdim=True)).to(scores.dtype)
        ctx.save_for_backward(weights)
        ctx.alpha = alpha
        return weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        slopes = torch.where(weights > 0, weights, 1.0).pow(2 - ctx.alpha) * (weights > 0)
        mean = (slopes * grads[0]).sum(-1, keepdim=True) / slopes.sum(-1, keepdim=True)
        return slopes * (grads[0] - mean), None
