"""flash-linear-attention, which the extra `gpu` installs: the kernels that gated linear recurrences run on GPUs with.

It is imported when its first kernel runs, never before. Its tensors are (b, t, h, width), its states (b, h, k, v) in float32;
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
"""Up to as many tokens are done one by one, in float32 throughout, as in the library's own layers."""


def obstacle(*tensors: Tensor) -> str | None:
    """Why the library cannot do an operation on these queries, keys and values, if it cannot."""
    if not installed():
        return "it needs flash-linear-attention: pip install 'recallkit[gpu]'"
    if len({tensor.dtype for tensor in tensors}) > 1:
        return f"it wants one type of all, not {', '.join(str(tensor.dtype)[6:] for tensor in tensors)}"
    return None


def slowness(q: Tensor) -> str | None:
    """Why PyTorch is to be preferred for these queries (b, h, t, k), if it is."""
    if q.dtype == torch.float32 and q.shape[2] > RECURRENT_TOKENS:
        return "flash-linear-attention rounds the products of float32 chunks to TF32, and its exact kernels go token by token"
    return None


def operation(family: str, name: str, q: Tensor) -> Any:
    """The function of `fla.ops.<family>` for these queries (b, h, t, k): in chunks, or one token after the other."""
    recurrent = q.dtype == torch.float32 or q.shape[2] <= RECURRENT_TOKENS
    return getattr(importlib.import_module(f"fla.ops.{family}"), ("fused_recurrent_" if recurrent else "chunk_") + name)


def installed() -> bool:
    """Whether the library is there."""
    return _INSTALLED
