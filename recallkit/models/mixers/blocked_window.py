"""Blocked-window attention: each block of tokens sees itself alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.kernels.window_attention.torch_impl import attend_in_blocks
from recallkit.models.mixers.attention import Attention

if TYPE_CHECKING:
    from torch import Tensor


class BlockedWindow(Attention):
    """Attention inside blocks of `window` tokens: S(i) = {j <= i: floor(j / window) = floor(i /
    window)}.

    The blockwise form of local attention (Image Transformer, arXiv 1802.05751, section 3.2.1, and
    the first part of the "fixed" pattern of Sparse Transformers, arXiv 1904.10509, section 4.2).
    Other options are those of `Attention`.
    """

    window: int

    def __init__(self, d_model: int, *, window: int = 64, **options: Any) -> None:
        super().__init__(d_model, **options)
        if window < 1:
            raise ValueError(f"a block of {window} tokens sees nothing")
        self.window = window

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (keys <= queries) & (queries // self.window == keys // self.window)

    def num_pairs(self, t: int) -> int:
        blocks, rest = divmod(t, self.window)
        pairs = blocks * (self.window * (self.window + 1) // 2) + rest * (rest + 1) // 2
        return self.num_heads * pairs

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.shape[2] <= self.window:
            return super().attend(q, k, v)
        return attend_in_blocks(q, k, v, self.window, self.sees, previous=False)
