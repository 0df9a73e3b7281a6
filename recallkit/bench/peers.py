"""The implementations that operations are compared with: PyTorch's own, the formula as it is usually written, and public libraries.

A library that is not installed raises ImportError where it is called, and its row says so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812

if TYPE_CHECKING:
    from torch import Tensor


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's causal softmax attention (FlashAttention on a GPU in half precision); all (b, h, t, k)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked_softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The same with a mask (t, t) or (b, 1, t, t) of all pairs."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def eager_nll(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All logits, in float32, then NLL, argmax and rank: what `token_nll` computes without materialising them."""
    logits = (hidden @ weight.T).float()
    target = logits.gather(1, targets[:, None])
    return F.cross_entropy(logits, targets, reduction="none"), logits.argmax(1), (logits > target).sum(1)


def liger_nll(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Liger-Kernel's linear layer with cross-entropy: the NLL only."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    loss: Tensor = LigerFusedLinearCrossEntropyLoss(reduction="none")(weight, hidden, targets)
    return loss


def cut_nll(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Cut Cross-Entropy: the NLL only."""
    from cut_cross_entropy import linear_cross_entropy

    loss: Tensor = linear_cross_entropy(hidden, weight, targets, reduction="none")
    return loss


def taylor_by_cumulative_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Based's linear attention by cumulative sums of all features times all values, as listed in papers; O(t f^2 v) of memory."""
    q, k, v = _taylor_features(q)[..., None, :], _taylor_features(k)[..., None, :], v[..., None]
    return (q * (k * v).cumsum(2)).sum(-1) / ((q * k.cumsum(2)).sum(-1) + 1e-12)


def taylor_step(q: Tensor, k: Tensor, v: Tensor, kv: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One more token, as listed in papers: kv (b, h, v, features) and sums (b, h, features) of all 1 + f + f^2 features."""
    q, k = _taylor_features(q), _taylor_features(k)
    kv, sums = kv + k[..., None, :] * v[..., None], sums + k
    return (q[..., None, :] * kv).sum(-1) / ((q * sums).sum(-1, keepdim=True) + 1e-12), kv, sums


def taylor_state(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The state of `taylor_step` after the tokens k (b, h, t, f), v (b, h, t, v)."""
    features = _taylor_features(k)
    return v.transpose(-1, -2) @ features, features.sum(2)


def _taylor_features(x: Tensor) -> Tensor:
    """[1, x / f^(1/4), x x^T / sqrt(2 f)]."""
    f = x.shape[-1]
    products = (x[..., :, None] * x[..., None, :]).flatten(-2)
    return torch.cat([torch.ones_like(x[..., :1]), x / f**0.25, products / math.sqrt(2 * f)], dim=-1)


def fla_based(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """flash-linear-attention's kernel of Based; (b, t, h, k)."""
    from fla.ops.based import parallel_based

    y: Tensor = parallel_based(q, k, v)
    return y


def ring_step(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slot: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Sliding-window decoding in PyTorch: rotation, index_copy into the rings (b, h, w, k), attention. q, k, v: (b, h, 1, k)."""
    q, k = _turned(q, cos, sin), _turned(k, cos, sin)
    keys.index_copy_(2, slot, k)
    values.index_copy_(2, slot, v)
    return F.scaled_dot_product_attention(q, keys, values)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def scan_step_by_step(x: Tensor, dt: Tensor, rates: Tensor, write: Tensor, read: Tensor) -> Tensor:
    """The selective scan as its recurrence is written, a few small operations per token; time is the first axis."""
    h, outputs = x.new_zeros(*x.shape[1:], rates.shape[1], dtype=torch.float32), []
    for i in range(len(x)):
        h = torch.exp(dt[i, :, :, None] * rates) * h + (dt[i] * x[i])[:, :, None] * write[i, :, None, :]
        outputs.append((h * read[i, :, None, :]).sum(-1))
    return torch.stack(outputs)


def gated_conv1d(u: Tensor, taps: Tensor, gate: Tensor) -> Tensor:
    """silu of PyTorch's depthwise convolution, times a gate; u, gate (b, t, c), taps (c, k), the latest input's last."""
    t = u.shape[1]
    mixed = F.conv1d(u.transpose(1, 2), taps[:, None], padding=taps.shape[1] - 1, groups=len(taps))[..., :t]
    return F.silu(mixed.transpose(1, 2)) * gate


def fft_conv(u: Tensor, filters: Tensor) -> Tensor:
    """A long convolution by three transforms of twice the length; u (b, t, c), filters (c, t)."""
    n = 2 * u.shape[1]
    spectrum = torch.fft.rfft(u.float(), n=n, dim=1) * torch.fft.rfft(filters.float(), n=n).T
    y: Tensor = torch.fft.irfft(spectrum, n=n, dim=1)[:, : u.shape[1]].to(u.dtype)
    return y
