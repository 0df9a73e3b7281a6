"""Mamba-3: the battery in one and several chunks; what the trapezoidal rule and the turning state
are; long sums of angles."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from recallkit.models.mixers.mamba3 import Mamba3, turn_pairs
from tests.models.mixers.battery import difference, inputs, randomised


def actual(share, turn=0.0, rate=0.0):
    """A mixer of two heads in float64 with these arguments of lambda's sigmoid, theta's tanh and
    A's softplus for every token."""
    mixer = randomised(Mamba3(16, state=4, head_dim=16, rope_fraction=1.0)).double()
    with torch.no_grad():
        *_, rates, shares, turns = mixer.in_proj.weight.split(mixer.sizes)
        for rows, value in ((rates, rate), (shares, share), (turns, turn)):
            rows.zero_()
            rows[:, 0] = value
    return mixer


def test_shares_of_the_present_input_are_mamba_2s_rule():
    """With lambda = 1 and no turn: direct sums over all pairs of exp(sum of dt A) dt_j (C_i.B_j)
    x_j."""
    mixer = actual(40.0)
    u = inputs(mixer, 70)[0]
    u[..., 0] = 1
    with torch.no_grad():
        z, x, write, read, dt, *_ = mixer.in_proj(u).split(mixer.sizes, dim=-1)
        dt = functional.softplus(dt + mixer.dt_bias)
        sums = torch.cumsum(-math.log(2) * dt, dim=1)
        decays = (sums[:, :, None] - sums[:, None]).exp() * torch.ones(
            70,
            70,
            dtype=torch.float64,
        ).tril()[:, :, None]
        k = mixer.B_norm(write)[:, :, None] + mixer.B_bias
        q = mixer.C_norm(read)[:, :, None] + mixer.C_bias
        weights = torch.einsum("bihn,bjhn->bijh", q, k) * decays * dt[:, None]
        x = x.unflatten(-1, (2, 16))
        y = torch.einsum("bijh,bjhp->bihp", weights, x) + mixer.D[:, None] * x
        assert difference(mixer(u), mixer.out_proj(y.flatten(2) * functional.silu(z))) < 1e-9


def integral(share, steps):
    """The mixer's state, S, of an input sin(3 s) that decays at rate 1 from s = 0 to 1, as a
    multiple of what it is written with."""
    mixer = actual(share, rate=math.log(math.e - 1))
    with torch.no_grad():
        _, x, _, _, dt, *_ = mixer.in_proj.weight.split(mixer.sizes)
        x.zero_()
        dt.zero_()
        x[:, 1] = 1
        mixer.dt_bias.fill_(math.log(math.expm1(1 / steps)))
        mixer.B_norm.weight.zero_()
        u = torch.zeros(1, steps + 1, 16, dtype=torch.float64)
        u[..., 0], u[0, :, 1] = 1, torch.sin(torch.linspace(0, 3, steps + 1, dtype=torch.float64))
        results = mixer.read(u, mixer.initial_state(1))[1]["scan"] / mixer.B_bias[:, :, None]
    assert difference(results, results[:, :1, :1, :1].expand_as(results)) < 1e-12
    return float(results[0, 0, 0, 0])


def test_the_trapezoidal_rule_is_of_second_order():
    """With half shares, halved steps quarter the error; with the present input alone they halve
    it."""
    exact = (math.sin(3) - 3 * math.cos(3) + 3 / math.e) / 10
    for share, least, most in ((0.0, 3.9, 4.1), (40.0, 1.9, 2.1)):
        coarse, fine = (abs(integral(share, steps) - exact) for steps in (50, 100))
        assert least < coarse / fine < most


def test_a_turn_by_pi_tells_odd_from_even():
    """What was written changes its sign with every token of one kind and no other: their parity,
    which no decay can keep."""
    mixer = actual(40.0, rate=-40.0)
    with torch.no_grad():
        _, x, _, _, dt, _, _, turns = mixer.in_proj.weight.split(mixer.sizes)
        x[:, :2] = 0
        dt.zero_()
        turns[:, 1] = 40.0
        mixer.dt_bias.fill_(math.log(math.e - 1))
        mixer.B_norm.weight.zero_()
        mixer.C_norm.weight.zero_()
        u = torch.zeros(1, 6, 16, dtype=torch.float64)
        u[0, 0, 2:] = torch.arange(14)
        u[0, :, 0] = 1
        u[0, [1, 3, 4], 1] = 1
        state, read = mixer.initial_state(1), []
        for i in range(6):
            _, state = mixer.step(u[:, i], state)
            read.append(
                float(
                    torch.einsum(
                        "hn,bhnp->",
                        turn_pairs(mixer.C_bias, state["angle"][0]),
                        state["scan"],
                    ),
                ),
            )
    signs = torch.tensor([1, -1, -1, 1, -1, -1])
    assert abs(read[0]) > 1e-3
    assert difference(torch.tensor(read), read[0] * signs) < 5e-3, (
        "states fade by at least 1e-4 of a step"
    )
