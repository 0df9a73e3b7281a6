"""`rwkv4_attention` in PyTorch: for CPU, and for gradients.

The reference exponents, and then the sums, are computed token by token, each a small operation on
the whole batch; everything else is done for many tokens at once: on CPU for as many as fit in a
core's cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.linear_scan.torch_impl import linear_scan_torch
from recallkit.kernels.rwkv4.reference import Rwkv4State

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_ELEMENTS = 1 << 17
"""Elements of k (tokens x rows x d) processed at a time on CPU: a dozen tensors of this size are in
memory at once."""
LEAST_TOKENS = 8
"""Least tokens of a chunk, whatever its elements: with fewer, the overhead of operations outweighs
the benefit of the cache."""


def rwkv4_attention_torch(
    k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, state: Rwkv4State, gate: Tensor | None
) -> tuple[Tensor, Rwkv4State]:
    """Shapes as in `rwkv4_attention`, the state finite and in the type of the computation."""
    narrow, wide = v.dtype, state.numerator.dtype
    if len(k) == 0:
        return torch.zeros_like(v), state
    decay, bonus, state = (
        decay.to(wide),
        bonus.to(wide),
        state._replace(exponent=state.exponent.detach()),
    )
    size = (
        max(LEAST_TOKENS, CHUNK_ELEMENTS // max(1, k[0].numel()))
        if k.device.type == "cpu"
        else len(k)
    )
    gates = torch.split(k if gate is None else gate, size)
    outputs = []
    with torch.autocast(k.device.type, enabled=False):
        for some_k, some_v, some_gates in zip(
            torch.split(k, size), torch.split(v, size), gates, strict=True
        ):
            compute = _one_token if len(some_k) == 1 else _weighted_values
            wkv, state = compute(some_k.to(wide), some_v.to(wide), decay, bonus, state)
            outputs.append(
                (wkv if gate is None else torch.sigmoid(some_gates.to(wide)) * wkv).to(narrow)
            )
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0], state


def _one_token(
    k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, state: Rwkv4State
) -> tuple[Tensor, Rwkv4State]:
    """`_weighted_values` for t = 1: the formula, in few operations."""
    numerator, denominator, exponent = state
    now = bonus + k
    top = torch.maximum(exponent, now.detach())
    of_past, of_now = torch.exp(exponent - top), torch.exp(now - top)
    wkv = torch.addcmul(of_now * v, of_past, numerator) / torch.addcmul(
        of_now, of_past, denominator
    )
    peak = torch.maximum(exponent - decay.detach(), k[0].detach())
    fading, arriving = torch.exp(exponent - peak - decay), torch.exp(k[0] - peak)
    return wkv, Rwkv4State(
        torch.addcmul(arriving * v[0], fading, numerator),
        torch.addcmul(arriving, fading, denominator),
        peak,
    )


def _weighted_values(
    k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, state: Rwkv4State
) -> tuple[Tensor, Rwkv4State]:
    """wkv (t, b, d), and the state after it.

    All exponents are relative to the largest one, so at most 0 up to rounding; every result is a
    ratio and does not depend on that choice, nor do gradients.
    """
    sums, peaks = torch.stack(state[:2]), _peaks(k.detach(), decay.detach(), state.exponent)
    # Subtract the two maxima first: their accumulated rounding errors are then part of `fading`,
    # and cancel.
    fading, arriving = torch.exp(peaks[:-1] - peaks[1:] - decay), torch.exp(k - peaks[1:])
    states = linear_scan_torch(
        fading.unsqueeze(1), torch.stack([arriving * v, arriving], dim=1), sums
    )
    past = torch.cat([sums.unsqueeze(0), states[:-1]])
    present = bonus + k
    top = torch.maximum(peaks[:-1], present.detach())
    of_past, of_present = torch.exp(peaks[:-1] - top), torch.exp(present - top)
    wkv = torch.addcmul(of_present * v, of_past, past[:, 0]) / torch.addcmul(
        of_present, of_past, past[:, 1]
    )
    # Copies: views would keep the states of all tokens.
    last = states[-1].clone()
    return wkv, Rwkv4State(last[0], last[1], peaks[-1].clone())


def _peaks(k: Tensor, decay: Tensor, start: Tensor) -> Tensor:
    """p_i = max(p_{i-1} - w, k_i): the largest exponent in the sums before each token and after the
    last (t + 1, b, d)."""
    peaks = k.new_empty(len(k) + 1, *start.shape)
    peaks[0] = start
    steps = peaks.unbind(0)
    for before, after, now in zip(steps[:-1], steps[1:], k.unbind(0), strict=True):
        torch.maximum(torch.sub(before, decay, out=after), now, out=after)
    return peaks
