"""Gated linear attention: the battery, gates that nearly close, the mixer that it is with constant gates; recurrences on kernels."""

from __future__ import annotations

import math

import pytest
import torch

from recallkit.kernels.choice import preferring
from recallkit.models.mixers import make_mixer
from recallkit.models.mixers.gla import GLA
from tests.kernels.fla_stand_in import stand_in_for_the_library
from tests.models.mixers.battery import check_mixer, difference, inputs, randomised


@pytest.mark.parametrize("temperature", [16.0, 0.02])
def test_battery(temperature):
    """A low temperature closes gates to e^-50 and less: their products are zero in float32, and their inverses no numbers."""
    check_mixer(lambda: GLA(16, num_heads=2, gate_rank=4, temperature=temperature))


@pytest.mark.parametrize("factors", [(1.0, 2.0), (0.25, 0.5)])
def test_widths(factors):
    check_mixer(lambda: GLA(16, num_heads=2, key_factor=factors[0], value_factor=factors[1]))


def made(bias):
    """A mixer whose gates are all sigmoid(bias)^(1/16), for any input."""
    mixer = randomised(GLA(16, num_heads=2, gate_rank=4)).double()
    with torch.no_grad():
        mixer.decay_in.weight.zero_()
        mixer.decay_out.bias.fill_(bias)
    return mixer


@pytest.mark.parametrize("bias", [40.0, 0.0, -16.0])
def test_constant_gates_are_decays_of_linear_attention(bias):
    """Open gates forget nothing, others fade every key alike; direct sums over all pairs."""
    mixer = made(bias)
    u = inputs(mixer, 50)[0]
    gate = (1 / (1 + math.exp(-bias))) ** (1 / 16)
    with torch.no_grad():
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (mixer.q_proj(u), mixer.k_proj(u), mixer.v_proj(u)))
        apart = (torch.arange(50)[:, None] - torch.arange(50)).clamp(min=0)
        o = (q @ k.mT / math.sqrt(4) * gate ** apart.double()).tril() @ v
        normed = o / (o.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * mixer.norm.weight
        wanted = mixer.out_proj(torch.nn.functional.silu(mixer.g_proj(u)) * normed.transpose(1, 2).flatten(2))
        assert difference(mixer(u), wanted) < 1e-9


def test_a_closed_gate_forgets_all_before_it():
    """Where the gates of one token are zero, what follows is as if the sequence began with it."""
    mixer = made(0.0)
    with torch.no_grad():
        mixer.decay_in.weight.zero_()
        mixer.decay_in.weight[:, 0] = 1
        mixer.decay_out.weight.fill_(-1000)
        u = inputs(mixer, 40)[0]
        u[..., 0] = 0
        u[:, 21, 0] = 50
        assert difference(mixer(u)[:, 21:], mixer(u[:, 21:])) < 1e-9
        assert difference(mixer(u)[:, 20], mixer(u[:, 20:])[:, 0]) > 1e-3


def test_float32_of_a_thousand_tokens():
    narrow = randomised(GLA(16, num_heads=2)).eval()
    wide = GLA(16, num_heads=2).double().eval()
    wide.load_state_dict(narrow.state_dict())
    u = inputs(wide, 1000)[0]
    with torch.no_grad():
        assert difference(narrow(u.float()), wide(u)) < 1e-5


def test_states_stay_wide_where_weights_are_narrow():
    mixer = GLA(16).bfloat16()
    u = inputs(mixer, 20)[0].bfloat16()
    with torch.no_grad():
        y, state = mixer.read(u, mixer.initial_state(2))
    assert y.dtype == torch.bfloat16
    assert state["kv"].dtype == torch.float32
    assert GLA(64, num_heads=4).state_size(5) == 4 * 8 * 16


@pytest.mark.parametrize("options", [{"num_heads": 3}, {"key_factor": 0.0}, {"value_factor": 0.1}, {"gate_rank": 0}, {"temperature": 0}])
def test_options_that_do_not_fit(options):
    with pytest.raises(ValueError, match=r"num_heads|temperature"):
        GLA(16, **options)


@pytest.mark.parametrize(
    ("kind", "options", "kernel"),
    [
        ("gla", {"num_heads": 2}, "gla"),
        ("retnet", {"num_heads": 2}, "simple_gla"),
        ("rwkv5", {"head_size": 8}, "rwkv6"),
        ("rwkv7", {"head_size": 8}, "rwkv7"),
        ("mamba2", {"head_dim": 8, "state": 6, "groups": 2}, "simple_gla"),
        ("mamba3", {"head_dim": 8, "state": 6, "groups": 2}, "simple_gla"),
        ("delta_net", {"num_heads": 2}, "delta_rule"),
        ("gated_delta", {"num_heads": 2}, "gated_delta_rule"),
        ("kda", {"num_heads": 2}, "kda"),
    ],
)
def test_recurrences_reach_the_kernels(kind, options, kernel, monkeypatch):
    """The library that has them is not here: see what stands for it. Each mixer is as its reference, at once and token by token."""
    mixer = randomised(make_mixer(kind, 16, **options)).eval()
    u = inputs(mixer, 9)[0].float()
    with torch.no_grad():
        wanted = mixer.reference(u)
        called = stand_in_for_the_library(monkeypatch)
        with preferring("triton"):
            whole, state, stepped = mixer(u), mixer.initial_state(2), []
            for i in range(9):
                y, state = mixer.step(u[:, i], state)
                stepped.append(y)
    assert called == ["fused_recurrent_" + kernel] * 10
    assert difference(whole, wanted) < 2e-5
    assert difference(torch.stack(stepped, dim=1), wanted) < 2e-5
