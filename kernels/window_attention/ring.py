"""Rings of the latest keys or values: which position is in which slot, and how further ones are written.

With a window of 4 a row that has read 6 tokens has positions 4, 5, 2, 3 in slots 0 to 3: the next one, 6, overwrites slot 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor


class WindowState(NamedTuple):
    """The latest keys and values of each row in rings: the token at position p is in slot p % window.

    A slot that no token has reached yet may contain any finite numbers.
    """

    keys: Tensor  # (b, h, window, k), rotated
    values: Tensor  # (b, h, window, k)
    seen: Tensor  # (b,) int64: how many tokens each row has read


def empty_window(b: int, h: int, window: int, k: int, *, like: Tensor) -> WindowState:
    """The state before the first token: rings of zeros in the type and on the device of `like`."""
    ring = like.new_zeros(b, h, window, k)
    return WindowState(ring, ring.clone(), torch.zeros(b, dtype=torch.int64, device=like.device))


def positions_in_ring(seen: Tensor, window: int) -> Tensor:
    """seen (b,) -> (b, window): the position of each slot's token, the latest p < seen with p % window = slot; negative for none."""
    last = seen[:, None] - 1
    return last - (last - torch.arange(window, device=seen.device)).remainder(window)


def written_ring(ring: Tensor, x: Tensor, seen: Tensor, *, inplace: bool = False) -> Tensor:
    """ring (b, h, window, k) with the last of x (b, h, t, k), the entries at positions seen, ..., seen + t - 1, in their slots.

    A new ring, except with `inplace`.
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
