"""S4: HiPPO's matrices reconstruct what they read, NPLR is HiPPO in another basis, kernel and
recurrence are one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.polynomial import legendre

from recallkit.models.mixers.s4 import LowRankSSM, hippo_legs, normal_plus_low_rank
from recallkit.models.mixers.s4d import DiagonalSSM
from tests.models.mixers.battery import difference


def test_its_state_reconstructs_all_that_was_read():
    """By the midpoint rule; a cubic is what eight coefficients hold exactly."""

    def signal(t):
        return 1 + t - 0.5 * t**2 + 0.1 * t**3

    def slope(x, t):
        return (a @ x + b * signal(t)) / t

    (a, b), x, start, step = hippo_legs(8), torch.zeros(8, dtype=torch.float64), 1e-3, 1.5e-4
    x[0] = 1.0  # of the short time before the start, in which the signal was 1
    for i in range(round((3 - start) / step)):
        t = start + i * step
        x = x + step * slope(x + step / 2 * slope(x, t), t + step / 2)
    times = np.linspace(0.1, 3, 20)
    polynomials = legendre.legvander(2 * times / 3 - 1, 7) * np.sqrt(2 * np.arange(8) + 1)
    assert np.abs(polynomials @ x.numpy() - signal(times)).max() < 2e-3


@pytest.mark.parametrize("size", [2, 8, 64])
def test_nplr_is_hippo_in_another_basis(size):
    """The same moments B^* A^s B, which no change of basis alters, and real parts of -1/2 (S4,
    theorem 1)."""
    a, b = hippo_legs(size)
    poles, p, other_b = normal_plus_low_rank(size)
    assert torch.equal(poles.real, torch.full((size,), -0.5, dtype=torch.float64))
    assert (poles.imag[: size // 2] > 0).all()
    assert difference(poles.imag[: size // 2], -poles.imag.flip(0)[: size // 2]) < 1e-12
    dense = torch.diag(poles) - torch.outer(p, p.conj())
    scaled, other_scaled = a / size, dense / size
    for _ in range(4):
        assert torch.vdot(other_b, other_b).real.item() == pytest.approx(b.square().sum().item())
        moment, other = b @ scaled @ b, torch.vdot(other_b, other_scaled @ other_b)
        assert other.real.item() == pytest.approx(moment.item(), rel=1e-9)
        assert abs(other.imag.item()) < 1e-8 * abs(moment.item())
        scaled, other_scaled = scaled @ a / size, other_scaled @ dense / size


def test_a_new_layer_is_hippo():
    """Its real matrices have HiPPO's eigenvalues, -1 to -8: the diagonal alone, S4D-LegS, has
    not."""
    a, _, _ = LowRankSSM(1, 8).double().dense()
    results = torch.linalg.eigvals(a[0].detach())
    # Parameters are of 32 bits.
    assert sorted(results.real.tolist()) == pytest.approx(list(range(-8, 0)), abs=0.02)
    assert results.imag.abs().max() < 0.02


def test_without_the_term_of_rank_one_it_is_s4d():
    low_rank, diagonal = (
        LowRankSSM(3, 8).double(),
        DiagonalSSM(3, 4, discretization="bilinear").double(),
    )
    with torch.no_grad():
        low_rank.p.zero_()
        low_rank.b.copy_(torch.tensor([1.0, 0.0]).expand_as(low_rank.b))
        for name in ("log_decay", "frequency", "c", "log_dt"):
            getattr(diagonal, name).copy_(getattr(low_rank, name))
        assert difference(low_rank.kernel(50), diagonal.kernel(50)) < 1e-10


def test_reading_more_than_a_chunk(monkeypatch):
    monkeypatch.setattr("recallkit.models.mixers.s4d.READ_CHUNK", 64)
    ssm = LowRankSSM(2, 6).double()
    u = torch.randn(2, 300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        first, state = ssm.read(u[:, :100], ssm.initial_state(2))
        second, state = ssm.read(u[:, 100:], state)
        assert difference(torch.cat([first, second], dim=1), ssm.reference(u)) < 1e-9
        last, _ = ssm.step(u[:, 0], state)
        assert difference(last, ssm.reference(torch.cat([u, u[:, :1]], dim=1))[:, -1]) < 1e-9
