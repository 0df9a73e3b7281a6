"""Attention whose probabilities are sparse: alpha-entmax of the scores in place of softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from recallkit.models.mixers.api import widened
from recallkit.models.mixers.attention import Attention
from recallkit.models.mixers.probability_maps import entmax

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.models.mixers.api import State


class EntmaxAttention(Attention):
    """Causal attention with the probability map alpha-entmax (Correia et al. 2019, arXiv
    1909.00015, with one alpha for all heads).

    y[i] = sum over j <= i of entmax_j(q[i] . k[j] / sqrt(k)) v[j]

    `alpha` 2 is sparsemax, 1 softmax, in between the map is less sparse. Which keys get weight
    depends on the data, so nothing is skipped: time and memory are of t^2, and PyTorch computes it
    everywhere. It is the second kind of sparse attention of Yun et al. 2020 (arXiv 2006.04862,
    section 2.3). Other options are those of `Attention`.
    """

    def __init__(self, d_model: int, *, alpha: float = 1.5, **options: Any) -> None:
        super().__init__(d_model, **options)
        if alpha < 1:
            raise ValueError(f"alpha is {alpha}: choose at least 1")
        self.alpha = alpha

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        places = torch.arange(q.shape[2], device=q.device)
        return self._weighted(q, k, v, self.sees(places[:, None], places))

    def weights_reference(self, scores: Tensor) -> Tensor:
        return entmax(scores, self.alpha)

    def attend_masked(self, q: Tensor, state: State) -> Tensor:
        return self._weighted(q, state["keys"], state["values"], self.seen_in(state, q.shape[2]))

    def _weighted(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = widened(q @ k.mT) / math.sqrt(self.head_width)
        return entmax(scores.masked_fill(~mask, -math.inf), self.alpha).to(v.dtype) @ v
