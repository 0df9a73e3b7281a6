"""State space models: kernels against recurrences and against closed forms, S4D, H3 and GSS."""

from __future__ import annotations

import math

import pytest
import torch

from recallkit.models.mixers.h3 import H3
from recallkit.models.mixers.s4d import DiagonalSSM
from tests.models.mixers.battery import difference


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
def test_an_integrator_sums_what_it_reads(discretization):
    """One real pole near zero and c = 1: dx/dt = u, so x after i steps of length dt is dt times the
    sum of the inputs."""
    ssm = DiagonalSSM(1, 1, discretization=discretization).double()
    with torch.no_grad():
        ssm.log_decay.fill_(math.log(1e-9))
        ssm.frequency.zero_()
        ssm.log_dt.fill_(math.log(0.25))
        ssm.c.copy_(torch.tensor([[[0.5, 0.0]]]))  # and its conjugate
        actual = ssm(torch.tensor([1.0, 2, 3, 4], dtype=torch.float64).view(1, 4, 1))
    assert actual.flatten().tolist() == pytest.approx([0.25, 0.75, 1.5, 2.5], rel=1e-6)


def test_reading_more_than_a_chunk(monkeypatch):
    monkeypatch.setattr("recallkit.models.mixers.s4d.READ_CHUNK", 64)
    ssm = DiagonalSSM(2, 3).double()
    u = random(2, 300, 2)
    with torch.no_grad():
        wanted = ssm(u)
        first, state = ssm.read(u[:, :5], ssm.initial_state(2))
        rest, state = ssm.read(u[:, 5:], state)
        stepped = ssm.initial_state(2)
        for i in range(300):
            _, stepped = ssm.step(u[:, i], stepped)
    assert difference(torch.cat([first, rest], 1), wanted) < 1e-10
    assert difference(state, stepped) < 1e-10


def test_h3_that_sums_is_linear_attention():
    """With a shift of nothing and poles that hold everything the heads' outputs are those of causal
    linear attention."""
    mixer = H3(6, state=2, head_dim=3).double()
    u = random(2, 9, 6)
    with torch.no_grad():
        mixer.shift.zero_()[:, 0] = 1
        mixer.shift_skip.zero_()
        mixer.skip.zero_()
        mixer.ssm.log_decay.fill_(-25)
        mixer.ssm.frequency.zero_()
        mixer.ssm.log_dt.zero_()
        mixer.ssm.c.copy_(torch.tensor([[[0.5, 0.0]], [[0.5, 0.0]]]))
        q, k, v = (
            layer(u).unflatten(-1, (2, 3)).transpose(1, 2)
            for layer in (mixer.q_proj, mixer.k_proj, mixer.v_proj)
        )
        wanted = mixer.out_proj(((q @ k.mT).tril() @ v).transpose(1, 2).flatten(2))
        assert difference(mixer(u), wanted) < 1e-8
