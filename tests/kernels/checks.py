"""What the tests of kernels share: where they run, awkward lengths, and how far from the exact
result is too far."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where kernels are tested; on CPU they are interpreted, in float32 alone."""

LENGTHS = (1, 15, 17, 63, 64, 65, 130, 257)

of_the_compiler = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore:flex_attention called without:UserWarning",
)
"""For tests in which torch compiles FlexAttention: warnings that are no business of ours."""

TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 5e-3}
"""Largest relative error in the Euclidean norm against the exact result, by the type of the
inputs."""


def pairwise(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Combinations of one value of each axis, few, in which any two values of different axes meet:
    of 4 x 2 x 7 values 28, not 56."""
    places = list(itertools.product(*(range(len(axis)) for axis in axes)))
    missing = {pair for chosen in places for pair in itertools.combinations(enumerate(chosen), 2)}
    results = []
    while missing:
        best = max(
            places,
            key=lambda chosen: sum(
                pair in missing for pair in itertools.combinations(enumerate(chosen), 2)
            ),
        )
        missing.difference_update(itertools.combinations(enumerate(best), 2))
        results.append(tuple(axis[place] for axis, place in zip(axes, best, strict=True)))
    return results


def relative_error(out: Tensor, exact: Tensor) -> float:
    """||out - exact|| / ||exact||, in float64; NaN where anything is not a number."""
    out, exact = out.double().cpu(), exact.double().cpu()
    assert out.shape == exact.shape, f"{tuple(out.shape)} instead of {tuple(exact.shape)}"
    return float(
        torch.linalg.vector_norm(out - exact) / torch.linalg.vector_norm(exact).clamp_min(1e-300),
    )


def assert_close(
    out: Tensor,
    exact: Tensor,
    *,
    dtype: torch.dtype | None = None,
    times: float = 1,
) -> None:
    """That a result computed from inputs of `dtype` (its own where None) is as near to the exact
    one as `TOLERANCES` wants."""
    error, most = relative_error(out, exact), times * TOLERANCES[dtype or out.dtype]
    assert error <= most, f"off by {error:.2g}, at most {most:.2g}"


def draw(
    *shape: int,
    std: float = 1.0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Tensor:
    """Normal numbers, the same for the same shape and seed, on the device that kernels run on."""
    generator = torch.Generator().manual_seed(
        seed * 1_000_003 + sum(31**i * size for i, size in enumerate(shape)) % 2**31,
    )
    return (
        (std * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype).to(DEVICE)
    )
