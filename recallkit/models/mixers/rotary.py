"""Rotary position embeddings: pairs of a head's entries turned by angles that grow with the position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.models.mixers.api import widened

if TYPE_CHECKING:
    from torch import Tensor


def rotary_width(head_width: int, fraction: float) -> int:
    """How many entries of a head, the first ones, are rotated. Raises ValueError for a share that leaves none to pair."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"rope_fraction is {fraction}, no share of a head")
    width = int(head_width * fraction)
    if width % 2:
        raise ValueError(f"rope_fraction {fraction} of a head of {head_width} is {width} entries, which are no pairs")
    return width


def rotate(x: Tensor, positions: Tensor, *, base: float = 10000.0, width: int) -> Tensor:
    """x: (b, h, t, k), positions: (t,) or (b, t) -> x with the first `width` entries of every head rotated, in the type of `x`.

    Half-split, as Llama, GPT-NeoX and FlashAttention do: entry i is paired with entry i + width/2 and the pair is turned by
    position * base^(-2 i / width) (RoFormer, arXiv 2104.09864, equation 15). What is not rotated stays as it is.
    Angles are computed in float64: in float32 they would be off by 1e-2 at position 1e5.
    """
    if width == 0:
        return x
    half = width // 2
    frequencies = base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angles = positions.to(torch.float64)[..., None] * frequencies
    if angles.dim() == 3:
        angles = angles[:, None]
    first, second = widened(x[..., :half]), widened(x[..., half:width])
    cos, sin = angles.cos().to(first.dtype), angles.sin().to(first.dtype)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
    return turned if width == x.shape[-1] else torch.cat([turned, x[..., width:]], dim=-1)


def rotate_reference(x: Tensor, position: int, *, base: float = 10000.0, width: int) -> Tensor:
    """x: (..., k) of one position, rotated as `rotate` does: each pair is a complex number, multiplied by e^(i angle)."""
    turned = x.clone()
    for i in range(width // 2):
        angle = torch.tensor(position * base ** (-2 * i / width), dtype=x.dtype)
        pair = torch.complex(x[..., i], x[..., i + width // 2]) * torch.polar(torch.ones_like(angle), angle)
        turned[..., i], turned[..., i + width // 2] = pair.real, pair.imag
    return turned
