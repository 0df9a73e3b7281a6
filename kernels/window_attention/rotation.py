"""Rotary position embeddings: pairs of a head's entries rotated by angles proportional to the position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def rotate(x: Tensor, positions: Tensor, *, base: float = 10000.0, width: int) -> Tensor:
    """x: (b, h, t, k), positions: (t,) or (b, t) -> x with the first `width` entries of every head rotated, in the type of `x`.

    Half-split, as in Llama, GPT-NeoX and FlashAttention: entry i is paired with entry i + width/2 and the pair is rotated by
    position * base^(-2 i / width) (RoFormer, arXiv 2104.09864, equation 15). Other entries are unchanged.
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
    """Radians per position by which each of width / 2 pairs is rotated, the fastest first; float64."""
    half = width // 2
    return base ** (-torch.arange(half, dtype=torch.float64, device=device) / half)
