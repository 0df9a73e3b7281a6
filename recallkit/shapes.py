"""The letters used for array shapes, and named aliases for signatures.

    b      sequences in a batch            t      ids in a sequence (predictions: t - 1)
    n      tokens, flat                    d      width of a model
    vocab  entries of the vocabulary       s      sequences

The aliases say dtype and shape to a reader; tests check them with jaxtyping's own machinery where it pays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import torch

    TokenIds: TypeAlias = "np.ndarray"  # (n,) uint16 or uint32
    Offsets: TypeAlias = "np.ndarray"  # (s + 1,) int64
    Nll: TypeAlias = "np.ndarray"  # (n,) float32, nats
    Hidden: TypeAlias = "torch.Tensor"  # (b, t, d)
    Logits: TypeAlias = "torch.Tensor"  # (n, vocab)
