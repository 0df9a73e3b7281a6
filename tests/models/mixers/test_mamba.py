"""Mamba and Mamba-2: one value however computed, the gradients written out, and transformers' own modules."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from recallkit.models.mixers.mamba import DT_RANGE, Mamba
from recallkit.models.mixers.mamba2 import Mamba2
from recallkit.models.mixers.rwkv4 import previous_inputs
from tests.models.mixers.battery import check_mixer, difference, inputs, randomised


@pytest.mark.parametrize("options", [{}, {"state": 3, "expand": 1, "conv_kernel": 1, "dt_rank": 2}])
def test_mamba_keeps_what_every_mixer_keeps(options):
    check_mixer(lambda: Mamba(16, **options))


@pytest.mark.parametrize("options", [{"state": 8, "head_dim": 8}, {"state": 3, "expand": 1, "head_dim": 4, "groups": 2, "conv_kernel": 2}])
def test_mamba2_keeps_what_every_mixer_keeps(options):
    check_mixer(lambda: Mamba2(16, **options))


def test_previous_inputs():
    u, before = torch.arange(12.0).view(3, 2, 2), -torch.ones(2, 2)
    assert torch.equal(previous_inputs(u, before), torch.stack([before, u[0], u[1]]))
    assert torch.equal(previous_inputs(u.transpose(0, 1), before, time=1), torch.stack([before, u[0], u[1]], dim=1))


def test_steps_start_in_the_range_of_the_paper():
    torch.manual_seed(0)
    for bias in (Mamba(64).dt_proj.bias, Mamba2(64, head_dim=1).dt_bias):
        dt = functional.softplus(bias)
        assert DT_RANGE[0] * 0.99 < dt.min() < DT_RANGE[0] * 2
        assert DT_RANGE[1] / 2 < dt.max() < DT_RANGE[1] * 1.01


@pytest.mark.filterwarnings("ignore")
def test_mamba_equals_transformers():
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    theirs = MambaMixer(MambaConfig(hidden_size=16, state_size=5, conv_kernel=3, time_step_rank=2, num_hidden_layers=1), 0).eval()
    check_same(randomised(Mamba(16, state=5, conv_kernel=3, dt_rank=2)), theirs)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.filterwarnings("ignore")
def test_mamba2_equals_transformers(groups):
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    sizes = {"hidden_size": 16, "state_size": 6, "conv_kernel": 3, "num_heads": 4, "head_dim": 8, "n_groups": groups}
    theirs = Mamba2Mixer(Mamba2Config(**sizes, chunk_size=8, num_hidden_layers=1), 0).eval()
    check_same(randomised(Mamba2(16, state=6, conv_kernel=3, head_dim=8, groups=groups)), theirs)


def check_same(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    theirs.load_state_dict(ours.state_dict())
    u = inputs(ours, 37)[0].float()
    with torch.no_grad():
        assert difference(ours(u), theirs(u)) < 1e-5


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Mamba(8, state=0), "state is 0"),
        (lambda: Mamba(8, dt_rank=-1), "dt_rank is -1"),
        (lambda: Mamba2(8, head_dim=0), "head_dim is 0"),
        (lambda: Mamba2(8, head_dim=5), "16 channels are not 1 groups of heads of 5"),
        (lambda: Mamba2(8, head_dim=4, groups=3), "16 channels are not 3 groups"),
    ],
)
def test_options_that_do_not_fit(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_sizes_by_hand():
    assert Mamba(8, state=4).state_size(100) == 2 * 8 * 4
    assert Mamba2(8, state=4, head_dim=4).state_size(100) == 2 * 8 * 4
    mixer = Mamba(8, state=4, dt_rank=2)
    assert mixer.flops(1) == 2 * (8 * 32 + 16 * 10 + 2 * 16 + 16 * 8) + 16 + 16 * (2 * 4 + 7 * 4 + 5)
