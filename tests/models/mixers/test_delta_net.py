"""The delta rule: the battery in one and several chunks, and what overwriting means; its mixers on kernels."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from recallkit.models.mixers.delta_net import DeltaNet
from tests.models.mixers.battery import difference, inputs, randomised


def separated(strength):
    """A mixer in float64 whose k depends on the first 8 inputs, v on the last 8; the strength of tokens whose first input is 1."""
    mixer = randomised(DeltaNet(16, num_heads=2, short_conv=1)).double()
    with torch.no_grad():
        _, k, v = mixer.qkv.weight.split(mixer.widths)
        k[:, 8:], v[:, :8] = 0, 0
        mixer.b_proj.weight.zero_()
        mixer.b_proj.weight[:, 0] = math.log(strength / (1 - strength)) if strength < 1 else 100.0
    return mixer


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_a_value_written_again_takes_the_place_of_the_one_before(strength):
    """At a strength of one the state answers a key with the latest value alone; at a half with half of what it lacked, each time."""
    mixer, u = separated(strength), inputs(separated(strength), 3, batch=1)[0]
    u[..., 0] = 1
    u[:, 2, :8] = u[:, 0, :8]  # the third token has the key of the first
    with torch.no_grad():
        _, k, v = functional.silu(mixer.qkv(u) * mixer.conv1d.weight[:, 0, 0]).split(mixer.widths, dim=-1)
        k = functional.normalize(k.unflatten(-1, (2, -1)), dim=-1)
        v = v.unflatten(-1, (2, -1))
        before, after = (mixer.read(u[:, :length], mixer.initial_state(1))[1]["kv"] for length in (2, 3))
        found = [torch.einsum("bhk,bhkv->bhv", k[:, 0], state) for state in (before, after)]
    assert difference(found[1], strength * v[:, 2] + (1 - strength) * found[0]) < 1e-4, "k is divided by sqrt(|k|^2 + 1e-6)"
    assert difference(found[0], v[:, 0]) > 0.1, "the second key disturbs the first, or it shows nothing"
