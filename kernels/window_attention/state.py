"""Rings of the latest keys or values, which position is in which slot and how further ones are
written; rotation by positions.

With a window of 4 a row that has read 6 tokens has positions 4, 5, 2, 3 in slots 0 to 3: the next
one, 6, overwrites slot 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor


class WindowState(NamedTuple):
    """The latest keys and values of each row in rings: the token at position p is in slot p %
    window.

    A slot that no token has reached yet may contain any finite numbers.
    """

    keys: Tensor  # (b, h, window, k), rotated
    values: Tensor  # (b, h, window, k)
    num_read: Tensor  # (b,) int64: how many tokens each row has read


def empty_window(b: int, h: int, window: int, k: int, *, like: Tensor) -> WindowState:
    """The state before the first token: rings of zeros in the type and on the device of `like`."""
    ring = like.new_zeros(b, h, window, k)
    return WindowState(ring, ring.clone(), torch.zeros(b, dtype=torch.int64, device=like.device))


def positions_in_ring(num_read: Tensor, window: int) -> Tensor:
    """num_read (b,) -> (b, window): the position of each slot's token, the latest p < num_read with
    p % window = slot; negative for none."""
    last = num_read[:, None] - 1
    return last - (last - torch.arange(window, device=num_read.device)).remainder(window)


def written_ring(ring: Tensor, x: Tensor, num_read: Tensor, *, inplace: bool = False) -> Tensor:
    """ring (b, h, window, k) with the last of x (b, h, t, k), the entries at positions num_read,
    ..., num_read + t - 1, in their slots.

    A new ring, except with `inplace`.
    """
    window, t = ring.shape[2], x.shape[2]
    latest = x[:, :, -window:].transpose(1, 2)
    rows = torch.arange(len(num_read), device=num_read.device)[:, None]
    slots = (
        num_read[:, None] + torch.arange(t - latest.shape[1], t, device=num_read.device)
    ) % window
    if inplace:
        written = ring
    elif latest.shape[1] == window:
        written = ring.new_empty(ring.shape)
    else:
        written = ring.clone(memory_format=torch.contiguous_format)
    written[rows, :, slots] = latest
    return written


def rotate(x: Tensor, positions: Tensor, *, base: float = 10000.0, width: int) -> Tensor:
    """x: (b, h, t, k), positions: (t,) or (b, t) -> x with the first `width` entries of every head
    rotated, in the type of `x`.

    Half-split, as in Llama, GPT-NeoX and FlashAttention: entry i is paired with entry i + width/2
    and the pair is rotated by position * base^(-2 i / width) (RoFormer, arXiv 2104.09864, equation
    15). Other entries are unchanged.
    Angles are computed in float64: in float32 they would be off by 1e-2 at position 1e5.
    """
    if width == 0:
        return x
    half = width // 2
    angles = positions.to(torch.float64)[..., None] * frequencies(base, width, x.device)
    if angles.dim() == 3:
        angles = angles[:, None]
    wide = torch.promote_types(x.dtype, torch.float32)
    first, second = x[..., :half].to(wide), x[..., half:width].to(wide)
    cos, sin = angles.cos().to(wide), angles.sin().to(wide)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
    return turned if width == x.shape[-1] else torch.cat([turned, x[..., width:]], dim=-1)


def frequencies(base: float, width: int, device: torch.device) -> Tensor:
    """Radians per position by which each of width / 2 pairs is rotated, the fastest first;
    float64."""
    half = width // 2
    return base ** (-torch.arange(half, dtype=torch.float64, device=device) / half)
