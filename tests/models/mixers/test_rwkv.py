"""RWKV-4, RWKV-5, RWKV-7 and their channel mixing: one value however computed, extreme decays,
transformers' own modules."""

from __future__ import annotations

import pytest
import torch

from recallkit.models.mixers.rwkv4 import RWKV4
from recallkit.models.mixers.rwkv5 import RWKV5
from recallkit.models.mixers.rwkv7 import RWKV7
from recallkit.models.mixers.rwkv_channel_mix import RWKVChannelMix
from tests.models.mixers.battery import difference, inputs, randomised


@pytest.mark.parametrize("make", [lambda: RWKV4(16), lambda: RWKV5(16, head_size=8)])
def test_a_rate_beyond_float32_is_forgetting_at_once(make):
    """exp(100) is infinite in float32, and 0 times it no number: some channels' decays are zero,
    others stay as they were."""
    mixer = randomised(make())
    with torch.no_grad():
        mixer.time_decay.view(-1)[::2] = 100.0
    u = inputs(mixer, 70)[0]
    actual = mixer(u.float())
    actual.square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())
    with torch.no_grad():
        state, stepped = mixer.initial_state(2), []
        for i in range(70):
            y, state = mixer.step(u[:, i].float(), state)
            stepped.append(y)
        wanted = mixer.double().reference(u)
        assert difference(actual, wanted) < 2e-5
        assert difference(torch.stack(stepped, dim=1), wanted) < 2e-5


@pytest.mark.filterwarnings("ignore")
def test_rwkv4_equals_transformers():
    from transformers import RwkvConfig
    from transformers.models.rwkv.modeling_rwkv import RwkvSelfAttention

    ours, theirs = (
        randomised(RWKV4(16)),
        RwkvSelfAttention(RwkvConfig(hidden_size=16, num_hidden_layers=1)).eval(),
    )
    theirs.load_state_dict(their_names(ours, theirs))
    u = inputs(ours, 37)[0].float()
    with torch.no_grad():
        assert difference(ours(u), theirs(u)[0]) < 1e-5


@pytest.mark.filterwarnings("ignore")
def test_channel_mixing_equals_transformers():
    from transformers import RwkvConfig
    from transformers.models.rwkv.modeling_rwkv import RwkvFeedForward

    ours = randomised(RWKVChannelMix(16, 24))
    theirs = RwkvFeedForward(
        RwkvConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=1),
    ).eval()
    theirs.load_state_dict(their_names(ours, theirs))
    u = normal(37).float()
    with torch.no_grad():
        assert difference(ours(u), theirs(u)[0]) < 1e-5


def normal(t: int) -> torch.Tensor:
    """Two sequences of t inputs of 16 channels."""
    return torch.randn(2, t, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def their_names(ours: torch.nn.Module, theirs: torch.nn.Module) -> dict[str, torch.Tensor]:
    shapes = {name: value.shape for name, value in theirs.state_dict().items()}
    renamed = {
        name.replace("out_proj", "output"): value for name, value in ours.state_dict().items()
    }
    return {name: value.view(shapes[name]) for name, value in renamed.items()}


def test_channel_mixing_goes_on_from_its_state():
    mix = randomised(RWKVChannelMix(16, 24)).double()
    u = normal(12)
    at_once, state, parts = mix(u), mix.initial_state(2), []
    for part in u.split([1, 4, 7], dim=1):
        y, new = mix.read(part, state)
        assert new is not state
        state = new
        parts.append(y)
    assert difference(torch.cat(parts, dim=1).detach(), at_once.detach()) < 1e-12
    changed = u.clone()
    changed[:, 5] += 1
    assert torch.equal(mix(changed)[:, :5], at_once[:, :5])
    assert not torch.allclose(mix(changed)[:, 6], at_once[:, 6])
    assert torch.equal(mix(changed)[:, 7:], at_once[:, 7:])


@pytest.mark.parametrize("mixer", [RWKV4(16), RWKV5(16, head_size=8), RWKV7(16, head_size=8)])
def test_a_mixer_at_its_start_is_silent_and_learns(mixer):
    u = inputs(mixer, 9)[0].float()
    assert not mixer(u).any()
    (mixer(u) - u).square().mean().backward()
    assert mixer.out_proj.weight.grad.abs().max() > 0


def test_a_rate_of_one_replaces_what_rwkv7_finds_under_its_key():
    """Where nothing fades and the key that is erased is the one that is written, the state answers
    it with the latest value alone."""
    mixer = randomised(RWKV7(16, head_size=8, rate_rank=2, gate_rank=2)).double()
    with torch.no_grad():
        for linear, bias in ((mixer.decay_out, -40.0), (mixer.rate_out, 40.0)):
            linear.weight.zero_()
            linear.bias.fill_(bias)
        mixer.time_mix.zero_()
        mixer.key_scale.fill_(1)
        u = inputs(mixer, 5, batch=1)[0]
        k, v = (project(u[:, -1]).unflatten(-1, (2, 8)) for project in (mixer.key, mixer.value))
        state = mixer.read(u, mixer.initial_state(1))[1]["kv"]
    length = torch.linalg.vector_norm(k, dim=-1, keepdim=True)
    assert difference(torch.einsum("bhk,bhkv->bhv", k / length, state), length * v) < 1e-9
