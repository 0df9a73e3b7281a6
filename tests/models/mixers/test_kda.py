"""Kimi delta attention: the battery in one and several chunks, strong decays, Gated DeltaNet where decays agree, transformers' module."""

from __future__ import annotations

import pytest
import torch

from recallkit.models.mixers.gated_delta import GatedDelta
from recallkit.models.mixers.kda import KDA
from tests.models.mixers.battery import difference, inputs, randomised


def test_strong_decays_in_float32():
    """Decays of e^-40 and more of some channels beside none at all of others, over several chunks: sums of logarithms would cancel."""
    narrow = randomised(KDA(16, num_heads=2)).eval()
    with torch.no_grad():
        narrow.A_log.fill_(4.0)
        narrow.dt_bias.copy_(torch.tensor([1.0, -20.0]).repeat(8))
    wide = KDA(16, num_heads=2).double().eval()
    wide.load_state_dict(narrow.state_dict())
    u = inputs(wide, 300)[0]
    with torch.no_grad():
        assert difference(narrow(u.float()), wide.reference(u)) < 2e-5


def test_alike_decays_of_channels_are_those_of_heads():
    """Gated DeltaNet's recurrence: with the gate of the one undone in both, and the decays of a head spread over its channels."""
    kda, gated = (make(16, num_heads=2, key_factor=1.0, value_factor=1.0).double() for make in (KDA, GatedDelta))
    with torch.no_grad():
        kda.load_state_dict(gated.state_dict() | {"dt_bias": gated.dt_bias.repeat_interleave(8)}, strict=False)
        kda.decay_in.weight.copy_(torch.cat([gated.a_proj.weight, torch.zeros(6, 16)]))
        kda.decay_out.weight.copy_(torch.eye(2, 8).repeat_interleave(8, dim=0))
    kda._gated = gated._gated = lambda o, u: o
    u = inputs(kda, 70)[0]
    with torch.no_grad():
        assert difference(kda(u), gated(u)) < 1e-9


@pytest.mark.filterwarnings("ignore")
def test_it_equals_transformers():
    """Kimi Linear's mixer, with as many keys as values."""
    from transformers import KimiLinearConfig
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

    ours = randomised(KDA(16, num_heads=2, short_conv=3, eps=1e-6)).eval()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "rms_norm_eps": 1e-6}
    heads = {"linear_head_dim": 8, "linear_num_heads": 2, "linear_conv_kernel_dim": 3}
    theirs = KimiLinearDeltaAttention(KimiLinearConfig(**sizes, **heads, layer_types=["linear_attention"]), 0)
    names = {"b_proj": "b_proj", "conv1d": "conv1d", "out_proj": "o_proj", "norm": "o_norm", "gate_in": "g_a_proj", "gate_out": "g_b_proj"}
    names |= {"decay_in": "forget_gate.f_a_proj", "decay_out": "forget_gate.f_b_proj"}
    given = {f"{their}.weight": getattr(ours, our).weight for our, their in names.items()}
    given |= {f"{name}_proj.weight": part for name, part in zip("qkv", ours.qkv.weight.split(ours.widths), strict=True)}
    theirs.load_state_dict(given | {"forget_gate.dt_bias": ours.dt_bias, "forget_gate.A_log": ours.A_log.view(1, 1, -1, 1)})
    u = inputs(ours, 150)[0].float()
    with torch.no_grad():
        assert difference(ours(u), theirs.eval()(u)) < 5e-6
