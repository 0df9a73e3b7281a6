"""The gated delta rule: the battery in one and in several chunks, what overwriting means, transformers' own module, decays that nearly close."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from recallkit.models.mixers.gated_delta import GatedDelta
from recallkit.models.mixers.mamba import DT_RANGE
from tests.models.mixers.battery import check_mixer, difference, inputs, randomised


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("chunk", [64, 8, 5])
def test_battery(gated, chunk, monkeypatch):
    monkeypatch.setattr(GatedDelta, "chunk", chunk)
    check_mixer(lambda: GatedDelta(16, num_heads=2, gated=gated))


@pytest.mark.parametrize("options", [{"key_factor": 0.5, "value_factor": 1.0}, {"num_heads": 1, "short_conv": 1, "value_factor": 0.25}])
def test_widths(options):
    check_mixer(lambda: GatedDelta(16, **options))


def plain(d=16, **options):
    """A mixer in float64 whose q, k and v are the same at every token that has the same input."""
    return randomised(GatedDelta(d, num_heads=2, short_conv=1, **options)).double()


def test_a_value_written_again_takes_the_place_of_the_one_before():
    """At a strength of one the state answers a key with the value that was written last, whatever stood there before."""
    mixer = plain(gated=False)
    with torch.no_grad():
        mixer.b_proj.weight.zero_()
        u = inputs(mixer, 3)[0]
        key = inputs(mixer, 1, seed=5)[0][0, 0]
        q, k, v = functional.silu(mixer.qkv.weight @ key * mixer.conv1d.weight[:, 0, 0]).split(mixer.widths)
        answers = {}
        for strength in (0.5, 1.0):
            # b_proj has no bias, so that one input feature, which nothing else reads, sets the strength.
            state = mixer.initial_state(1)["kv"].double()
            for value in (v + 1, v - 1):
                heads_k = functional.normalize(k.view(2, -1), dim=-1)
                found = (heads_k[:, None] @ state[0])[:, 0]
                state = state + strength * heads_k[..., None] * (value.view(2, -1) - found)[:, None]
            answers[strength] = (heads_k[:, None] @ state[0]).flatten()
        assert difference(answers[1.0], v - 1) < 1e-12
        assert difference(answers[0.5], 0.25 * (v + 1) + 0.5 * (v - 1)) < 1e-12
        del u, q
