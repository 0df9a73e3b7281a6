"""Rotary position embeddings: pairs of a head's entries rotated by angles proportional to the
position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.window_attention.state import rotate

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["rotary_width", "rotate", "rotate_reference"]


def rotary_width(head_width: int, fraction: float) -> int:
    """How many entries of a head, the first ones, are rotated. Raises ValueError for a fraction
    that leaves no pairs."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"rope_fraction is {fraction}, not a fraction of a head")
    width = int(head_width * fraction)
    if width % 2:
        problem = f"{width} entries, which cannot be paired"
        raise ValueError(f"rope_fraction {fraction} of a head of {head_width} is {problem}")
    return width


def rotate_reference(x: Tensor, position: int, *, base: float = 10000.0, width: int) -> Tensor:
    """x: (..., k) of one position, rotated as `rotate` does: each pair is a complex number,
    multiplied by e^(i angle)."""
    turned = x.clone()
    for i in range(width // 2):
        angle = torch.tensor(position * base ** (-2 * i / width), dtype=x.dtype)
        pair = torch.complex(x[..., i], x[..., i + width // 2]) * torch.polar(
            torch.ones_like(angle),
            angle,
        )
        turned[..., i], turned[..., i + width // 2] = pair.real, pair.imag
    return turned
