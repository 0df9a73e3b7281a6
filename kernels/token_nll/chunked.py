"""`token_nll` a few rows of logits at a time: the CPU path, and the plain CUDA one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.token_nll.api import TokenNll

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

CHUNK_LOGITS = 1 << 22
"""Float32 logits held at a time (16 MB): large enough for full-speed matrix products, small enough to stay near the cache."""


def _in_chunks(num_rows: int, vocab: int, device: torch.device, logits_of: Callable[[slice], Tensor], targets: Tensor) -> TokenNll:
    nll = torch.empty(num_rows, dtype=torch.float32, device=device)
    argmax = torch.empty(num_rows, dtype=torch.int64, device=device)
    rank = torch.empty(num_rows, dtype=torch.int64, device=device)
    step = max(1, CHUNK_LOGITS // vocab)
    for start in range(0, num_rows, step):
        rows = slice(start, start + step)
        logits = logits_of(rows)
        # Relative to the target's logit the NLL is a log-sum-exp and never a difference of two large numbers.
        ahead = logits - logits.gather(1, targets[rows].long()[:, None])
        nll[rows] = torch.logsumexp(ahead, dim=1)
        argmax[rows] = logits.argmax(dim=1)
        rank[rows] = (ahead > 0).sum(dim=1)
    return TokenNll(nll, argmax, rank)


def token_nll_chunked(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None) -> TokenNll:
    """Shapes as in `token_nll`."""
    # Half-precision operands are widened first: rounding logits to bf16 moves NLLs by 0.015 and flips argmaxes.
    wide = weight.float()
    wide_bias = None if bias is None else bias.float()

    def logits_of(rows: slice) -> Tensor:
        return torch.nn.functional.linear(hidden[rows].float(), wide, wide_bias)

    return _in_chunks(hidden.shape[0], weight.shape[0], hidden.device, logits_of, targets)


def logits_nll_chunked(logits: Tensor, targets: Tensor) -> TokenNll:
    """Shapes as in `logits_nll`."""
    return _in_chunks(logits.shape[0], logits.shape[1], logits.device, lambda rows: logits[rows].float(), targets)
