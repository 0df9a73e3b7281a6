"""flash-linear-attention, installed by the extra `gpu`: the GPU kernels of gated linear recurrences.

It is imported when one of its kernels first runs. Its tensors are (b, t, h, width), its states (b, h, k, v) in float32;
it tunes itself, so that the last bit of a result may differ between GPUs.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

_INSTALLED = importlib.util.find_spec("fla") is not None

RECURRENT_TOKENS = 64
"""Texts of at most this many tokens are processed one by one, entirely in float32, as in the library's own layers."""


def obstacle(*tensors: Tensor) -> str | None:
    """Why the library cannot process these queries, keys and values; None where it can."""
    if not installed():
        return "it needs flash-linear-attention: pip install 'recallkit-lm[gpu]'"
    if len({tensor.dtype for tensor in tensors}) > 1:
        return f"it needs one type for all, not {', '.join(str(tensor.dtype)[6:] for tensor in tensors)}"
    return None


def slowness(q: Tensor) -> str | None:
    """Why PyTorch is preferable for these queries (b, h, t, k); None where it is not."""
    if q.dtype == torch.float32 and q.shape[2] > RECURRENT_TOKENS:
        return "flash-linear-attention rounds the products of float32 chunks to TF32, and its exact kernels go token by token"
    return None


def operation(family: str, name: str, q: Tensor) -> Any:
    """The function of `fla.ops.<family>` for these queries (b, h, t, k): in chunks, or token by token."""
    recurrent = q.dtype == torch.float32 or q.shape[2] <= RECURRENT_TOKENS
    return getattr(importlib.import_module(f"fla.ops.{family}"), ("fused_recurrent_" if recurrent else "chunk_") + name)


def installed() -> bool:
    """Whether the library is installed."""
    return _INSTALLED
