"""alpha-entmax: the papers' closed forms, the optimum that defines it, its derivative."""

from __future__ import annotations

import math

import pytest
import torch

from recallkit.models.mixers.probability_maps import entmax

ALPHAS = [1.0, 1.2, 1.5, 2.0, 3.0]


def scores(*shape, scale=1.0, seed=0):
    return scale * torch.randn(
        *shape,
        generator=torch.Generator().manual_seed(seed),
        dtype=torch.float64,
    )


def test_sparsemax_is_the_projection_onto_the_simplex_by_sorting():
    """Martins and Astudillo 2016, algorithm 1."""
    for scale in (0.1, 1.0, 10.0):
        v = scores(50, 9, scale=scale)
        ordered = v.sort(descending=True).values
        sums = ordered.cumsum(1)
        sizes = torch.arange(1, 10)
        support = (1 + sizes * ordered > sums).sum(1, keepdim=True)
        tau = (sums.gather(1, support - 1) - 1) / support
        assert torch.allclose(entmax(v, 2.0), (v - tau).clamp(min=0), atol=1e-12)


def test_probabilities_by_hand():
    assert entmax(torch.tensor([0.5, 0.0, -2.0]), 2.0).tolist() == pytest.approx([0.75, 0.25, 0.0])
    # alpha = 1.5: p = max(0, v / 2 - tau)^2. Two equal scores, one far below; then 0.8^2 + 0.6^2 =
    # 1, with tau = -0.8.
    assert entmax(torch.tensor([1.0, 1.0, -9.0]), 1.5).tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert entmax(torch.tensor([0.0, -0.4]), 1.5).tolist() == pytest.approx([0.64, 0.36])
    assert entmax(torch.tensor([7.0]), 1.5).tolist() == [1.0]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradients_types_and_masks(alpha):
    v = scores(3, 5, scale=0.7, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: entmax(x, alpha), v)
    hidden = v.detach().clone()
    hidden[:, 3:] = -math.inf
    assert torch.allclose(entmax(hidden, alpha)[:, :3], entmax(hidden[:, :3], alpha), atol=1e-12)
    assert (entmax(hidden, alpha)[:, 3:] == 0).all()
    for dtype in (torch.float32, torch.bfloat16):
        actual = entmax(v.detach().to(dtype), alpha)
        assert actual.dtype == dtype
        assert torch.allclose(
            actual.double(),
            entmax(v.detach(), alpha),
            atol=1e-6 if dtype == torch.float32 else 2e-2,
        )


def test_an_alpha_below_1_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        entmax(torch.zeros(3), 0.5)


@pytest.mark.slow
def test_values_and_gradients_of_the_authors_package():
    authors = pytest.importorskip("entmax", reason="needs the authors' package: pip install entmax")
    for alpha, theirs in (
        (1.5, authors.entmax15),
        (2.0, authors.sparsemax),
        (1.3, lambda x, dim: authors.entmax_bisect(x, 1.3, dim, 100)),
    ):
        for scale in (0.1, 1.0, 30.0):
            mine, other = (scores(20, 300, scale=scale).requires_grad_() for _ in range(2))
            weights = scores(20, 300, seed=2)
            actual, wanted = entmax(mine, alpha), theirs(other, dim=-1)
            assert torch.allclose(actual, wanted, atol=1e-11)
            (actual * weights).sum().backward()
            (wanted * weights).sum().backward()
            assert torch.allclose(mine.grad, other.grad, atol=1e-9)
