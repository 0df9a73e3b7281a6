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
    """One real pole near zero and c = 1: dx/dt = u, so x after i steps of length dt is dt times the sum of the inputs."""
    ssm = DiagonalSSM(1, 1, discretization=discretization).double()
    with torch.no_grad():
        ssm.log_decay.fill_(math.log(1e-9))
        ssm.frequency.zero_()
        ssm.log_dt.fill_(math.log(0.25))
        ssm.c.copy_(torch.tensor([[[0.5, 0.0]]]))  # and its conjugate
        made = ssm(torch.tensor([1.0, 2, 3, 4], dtype=torch.float64).view(1, 4, 1))
    assert made.flatten().tolist() == pytest.approx([0.25, 0.75, 1.5, 2.5], rel=1e-6)


def test_zero_order_hold_is_exact_for_an_input_that_stands_still():
    """dx/dt = A x + 1 from x = 0 is (exp(A t) - 1) / A, whatever the steps."""
    ssm = DiagonalSSM(1, 1).double()
    big_a, dt, i = complex(-0.5, 3), 0.1, 30
    with torch.no_grad():
        ssm.frequency.fill_(big_a.imag)
        ssm.log_dt.fill_(math.log(dt))
        ssm.c.copy_(torch.tensor([[[1.0, 0.0]]]))
        made = ssm(torch.ones(1, i, 1, dtype=torch.float64))[0, -1, 0]
    wanted = 2 * ((torch.exp(torch.tensor(big_a * dt * i, dtype=torch.complex128)) - 1) / big_a).real
    assert float(made) == pytest.approx(float(wanted), rel=1e-6)


@pytest.mark.parametrize("t", [1, 2, 3, 4, 5, 16, 17, 63])
def test_a_kernel_is_the_response_to_an_impulse(t):
    ssm = DiagonalSSM(3, 4, discretization="bilinear").double()
    impulse = torch.zeros(1, t, 3, dtype=torch.float64)
    impulse[:, 0] = 1
    with torch.no_grad():
        assert difference(ssm.kernel(t).T.unsqueeze(0), ssm.reference(impulse)) < 1e-12


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


def test_h3_with_heads_of_one_and_no_memory_is_a_product_of_projections():
    mixer = H3(4, state=4).double()
    u = random(2, 9, 4)
    with torch.no_grad():
        mixer.shift.zero_()
        mixer.ssm.c.zero_()
        wanted = mixer.out_proj(mixer.q_proj(u) * mixer.shift_skip * mixer.k_proj(u) * mixer.v_proj(u) * mixer.skip)
        assert difference(mixer(u), wanted) < 1e-12


def test_h3_that_sums_is_linear_attention():
    """With a shift of nothing and poles that hold everything the heads' outputs are those of causal linear attention."""
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
        q, k, v = (layer(u).unflatten(-1, (2, 3)).transpose(1, 2) for layer in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
        wanted = mixer.out_proj(((q @ k.mT).tril() @ v).transpose(1, 2).flatten(2))
        assert difference(mixer(u), wanted) < 1e-8


def test_the_shift_of_h3_reaches_as_far_as_its_state():
    mixer = H3(2, state=4).double()
    u = random(1, 12, 2)
    other = u.clone()
    other[:, 3] += 1
    with torch.no_grad():
        mixer.ssm.c.zero_()
        changed = (mixer(other) != mixer(u)).any(-1).flatten().nonzero().flatten().tolist()
    assert changed == [3, 4, 5, 6]
