"""Rings of the latest keys or values: which position stands in which slot, and how further ones are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def positions_in_ring(seen: Tensor, window: int) -> Tensor:
    """seen (b,) -> (b, window): the position of each slot's token, the latest p < seen with p % window = slot; negative for none."""
    last = seen[:, None] - 1
    return last - (last - torch.arange(window, device=seen.device)).remainder(window)


def written_ring(ring: Tensor, x: Tensor, seen: Tensor, *, inplace: bool = False) -> Tensor:
    """ring (b, h, window, k) with the last of x (b, h, t, k), the entries at positions seen, ..., seen + t - 1, in their slots.

    A new ring, but for `inplace`.
    """
    window, t = ring.shape[2], x.shape[2]
    latest = x[:, :, -window:].transpose(1, 2)
    rows = torch.arange(len(seen), device=seen.device)[:, None]
    slots = (seen[:, None] + torch.arange(t - latest.shape[1], t, device=seen.device)) % window
    if inplace:
        written = ring
    elif latest.shape[1] == window:
        written = ring.new_empty(ring.shape)
    else:
        written = ring.clone(memory_format=torch.contiguous_format)
    written[rows, :, slots] = latest
    return written
