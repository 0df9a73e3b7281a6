"""Gated linear attention: the battery, gates that nearly close, the mixer that it is with constant
gates; recurrences on kernels."""

from __future__ import annotations

import math

import pytest
import torch

from recallkit.models.mixers.gla import GLA
from tests.models.mixers.battery import difference, inputs, randomised


def actual(bias):
    """A mixer whose gates are all sigmoid(bias)^(1/16), for any input."""
    mixer = randomised(GLA(16, num_heads=2, gate_rank=4)).double()
    with torch.no_grad():
        mixer.decay_in.weight.zero_()
        mixer.decay_out.bias.fill_(bias)
    return mixer


@pytest.mark.parametrize("bias", [40.0, 0.0, -16.0])
def test_constant_gates_are_decays_of_linear_attention(bias):
    """Open gates forget nothing, others fade every key alike; direct sums over all pairs."""
    mixer = actual(bias)
    u = inputs(mixer, 50)[0]
    gate = (1 / (1 + math.exp(-bias))) ** (1 / 16)
    with torch.no_grad():
        q, k, v = (
            part.unflatten(-1, (2, -1)).transpose(1, 2)
            for part in (mixer.q_proj(u), mixer.k_proj(u), mixer.v_proj(u))
        )
        apart = (torch.arange(50)[:, None] - torch.arange(50)).clamp(min=0)
        o = (q @ k.mT / math.sqrt(4) * gate ** apart.double()).tril() @ v
        normed = o / (o.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * mixer.norm.weight
        wanted = mixer.out_proj(
            torch.nn.functional.silu(mixer.g_proj(u)) * normed.transpose(1, 2).flatten(2),
        )
        assert difference(mixer(u), wanted) < 1e-9


def test_a_closed_gate_forgets_all_before_it():
    """Where the gates of one token are zero, what follows is as if the sequence began with it."""
    mixer = actual(0.0)
    with torch.no_grad():
        mixer.decay_in.weight.zero_()
        mixer.decay_in.weight[:, 0] = 1
        mixer.decay_out.weight.fill_(-1000)
        u = inputs(mixer, 40)[0]
        u[..., 0] = 0
        u[:, 21, 0] = 50
        assert difference(mixer(u)[:, 21:], mixer(u[:, 21:])) < 1e-9
        assert difference(mixer(u)[:, 20], mixer(u[:, 20:])[:, 0]) > 1e-3
