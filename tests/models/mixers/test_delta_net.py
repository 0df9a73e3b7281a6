"""The delta rule, with decays of heads (Gated DeltaNet) and of channels (KDA): overwriting, strong
decays, transformers' modules."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from recallkit.models.mixers.delta_net import DeltaNet
from recallkit.models.mixers.gated_delta import GatedDelta
from recallkit.models.mixers.kda import KDA
from tests.models.mixers.battery import difference, inputs, randomised


def separated(strength):
    """A mixer in float64 whose k depends on the first 8 inputs, v on the last 8; the strength of
    tokens whose first input is 1."""
    mixer = randomised(DeltaNet(16, num_heads=2, short_conv=1)).double()
    with torch.no_grad():
        _, k, v = mixer.qkv.weight.split(mixer.widths)
        k[:, 8:], v[:, :8] = 0, 0
        mixer.b_proj.weight.zero_()
        mixer.b_proj.weight[:, 0] = math.log(strength / (1 - strength)) if strength < 1 else 100.0
    return mixer


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_a_value_written_again_takes_the_place_of_the_one_before(strength):
    """At a strength of one the state answers a key with the latest value alone; at a half with half
    of what it lacked, each time."""
    mixer, u = separated(strength), inputs(separated(strength), 3, batch=1)[0]
    u[..., 0] = 1
    u[:, 2, :8] = u[:, 0, :8]  # the third token has the key of the first
    with torch.no_grad():
        _, k, v = functional.silu(mixer.qkv(u) * mixer.conv1d.weight[:, 0, 0]).split(
            mixer.widths,
            dim=-1,
        )
        k = functional.normalize(k.unflatten(-1, (2, -1)), dim=-1)
        v = v.unflatten(-1, (2, -1))
        before, after = (
            mixer.read(u[:, :length], mixer.initial_state(1))[1]["kv"] for length in (2, 3)
        )
        results = [torch.einsum("bhk,bhkv->bhv", k[:, 0], state) for state in (before, after)]
    assert difference(results[1], strength * v[:, 2] + (1 - strength) * results[0]) < 1e-4, (
        "k is divided by sqrt(|k|^2 + 1e-6)"
    )
    assert difference(results[0], v[:, 0]) > 0.1, (
        "the second key disturbs the first, or it shows nothing"
    )


@pytest.mark.parametrize(
    ("kind", "rates", "steps"),
    [
        (GatedDelta, torch.tensor([4.0, -20.0]), torch.tensor(1.0)),
        (KDA, torch.tensor(4.0), torch.tensor([1.0, -20.0]).repeat(8)),
    ],
)
def test_strong_decays_in_float32(kind, rates, steps):
    """Decays of e^-40 and more of some heads or channels beside none at all, over several chunks:
    sums of logarithms would cancel."""
    narrow = randomised(kind(16, num_heads=2)).eval()
    with torch.no_grad():
        narrow.A_log.copy_(rates)
        narrow.dt_bias.copy_(steps)
    wide = kind(16, num_heads=2).double().eval()
    wide.load_state_dict(narrow.state_dict())
    u = inputs(wide, 300)[0]
    with torch.no_grad():
        assert difference(narrow(u.float()), wide.reference(u)) < 2e-5


def test_alike_decays_of_channels_are_those_of_heads():
    """Gated DeltaNet's recurrence: with the gate of the one undone in both, and the decays of a
    head spread over its channels."""
    kda, gated = (
        make(16, num_heads=2, key_factor=1.0, value_factor=1.0).double()
        for make in (KDA, GatedDelta)
    )
    with torch.no_grad():
        kda.load_state_dict(
            gated.state_dict() | {"dt_bias": gated.dt_bias.repeat_interleave(8)},
            strict=False,
        )
        kda.decay_in.weight.copy_(torch.cat([gated.a_proj.weight, torch.zeros(6, 16)]))
        kda.decay_out.weight.copy_(torch.eye(2, 8).repeat_interleave(8, dim=0))
    kda._gated = gated._gated = lambda o, u: o
    u = inputs(kda, 70)[0]
    with torch.no_grad():
        assert difference(kda(u), gated(u)) < 1e-9


@pytest.mark.filterwarnings("ignore")
def test_kda_equals_transformers():
    """Kimi Linear's mixer, with as many keys as values."""
    from transformers import KimiLinearConfig
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

    ours = randomised(KDA(16, num_heads=2, short_conv=3, eps=1e-6)).eval()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "rms_norm_eps": 1e-6}
    heads = {"linear_head_dim": 8, "linear_num_heads": 2, "linear_conv_kernel_dim": 3}
    theirs = KimiLinearDeltaAttention(
        KimiLinearConfig(**sizes, **heads, layer_types=["linear_attention"]),
        0,
    )
    names = {
        "b_proj": "b_proj",
        "conv1d": "conv1d",
        "out_proj": "o_proj",
        "norm": "o_norm",
        "gate_in": "g_a_proj",
        "gate_out": "g_b_proj",
    }
    names |= {"decay_in": "forget_gate.f_a_proj", "decay_out": "forget_gate.f_b_proj"}
    operands = {f"{their}.weight": getattr(ours, our).weight for our, their in names.items()}
    operands |= {
        f"{name}_proj.weight": part
        for name, part in zip("qkv", ours.qkv.weight.split(ours.widths), strict=True)
    }
    theirs.load_state_dict(
        operands
        | {"forget_gate.dt_bias": ours.dt_bias, "forget_gate.A_log": ours.A_log.view(1, 1, -1, 1)},
    )
    u = inputs(ours, 150)[0].float()
    with torch.no_grad():
        assert difference(ours(u), theirs.eval()(u)) < 5e-6


@pytest.mark.filterwarnings("ignore")
def test_gated_delta_equals_transformers():
    """Qwen3-Next's mixer with as many heads of values as of keys; its rows are ordered by heads,
    then q, k, v, gate."""
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    ours = randomised(GatedDelta(16, num_heads=2, short_conv=3, eps=1e-6)).eval()
    sizes = {
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 12,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
    }
    layers = {"num_hidden_layers": 1, "layer_types": ["linear_attention"]}
    theirs = Qwen3NextGatedDeltaNet(
        Qwen3NextConfig(
            hidden_size=16,
            linear_conv_kernel_dim=3,
            rms_norm_eps=1e-6,
            **sizes,
            **layers,
        ),
        0,
    )
    parts = [
        part.view(2, -1, 16) for part in (*ours.qkv.weight.split(ours.widths), ours.g_proj.weight)
    ]
    same = {name: value for name, value in ours.state_dict().items() if name in theirs.state_dict()}
    same["in_proj_qkvz.weight"] = torch.cat(parts, dim=1).flatten(0, 1)
    same["in_proj_ba.weight"] = torch.stack(
        [ours.b_proj.weight, ours.a_proj.weight],
        dim=1,
    ).flatten(0, 1)
    theirs.load_state_dict(same)
    u = inputs(ours, 150)[0].float()
    with torch.no_grad():
        assert difference(ours(u), theirs.eval()(u)) < 5e-6
