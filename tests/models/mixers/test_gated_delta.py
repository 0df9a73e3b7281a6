"""The gated delta rule: the battery in one and several chunks, strong decays, transformers' own module."""

from __future__ import annotations

import pytest
import torch

from recallkit.models.mixers.gated_delta import GatedDelta
from tests.models.mixers.battery import difference, inputs, randomised


def test_strong_decays_in_float32():
    """Decays of e^-40 and more beside none at all, over several chunks: sums of their logarithms would cancel."""
    narrow = randomised(GatedDelta(16, num_heads=2)).eval()
    with torch.no_grad():
        narrow.A_log.copy_(torch.tensor([4.0, -20.0]))
        narrow.dt_bias.fill_(1.0)
    wide = GatedDelta(16, num_heads=2).double().eval()
    wide.load_state_dict(narrow.state_dict())
    u = inputs(wide, 300)[0]
    with torch.no_grad():
        assert difference(narrow(u.float()), wide.reference(u)) < 2e-5


@pytest.mark.filterwarnings("ignore")
def test_it_equals_transformers():
    """Qwen3-Next's mixer with as many heads of values as of keys; its rows are ordered by heads, then q, k, v, gate."""
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    ours = randomised(GatedDelta(16, num_heads=2, short_conv=3, eps=1e-6)).eval()
    sizes = {"linear_key_head_dim": 6, "linear_value_head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 2}
    layers = {"num_hidden_layers": 1, "layer_types": ["linear_attention"]}
    theirs = Qwen3NextGatedDeltaNet(Qwen3NextConfig(hidden_size=16, linear_conv_kernel_dim=3, rms_norm_eps=1e-6, **sizes, **layers), 0)
    parts = [part.view(2, -1, 16) for part in (*ours.qkv.weight.split(ours.widths), ours.g_proj.weight)]
    same = {name: value for name, value in ours.state_dict().items() if name in theirs.state_dict()}
    same["in_proj_qkvz.weight"] = torch.cat(parts, dim=1).flatten(0, 1)
    same["in_proj_ba.weight"] = torch.stack([ours.b_proj.weight, ours.a_proj.weight], dim=1).flatten(0, 1)
    theirs.load_state_dict(same)
    u = inputs(ours, 150)[0].float()
    with torch.no_grad():
        assert difference(ours(u), theirs.eval()(u)) < 5e-6
