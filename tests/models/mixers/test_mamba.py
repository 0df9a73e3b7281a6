"""Mamba and Mamba-2: one value however computed, the gradients written out, and transformers' own modules."""

from __future__ import annotations

import pytest
import torch

from recallkit.models.mixers.mamba import Mamba
from recallkit.models.mixers.mamba2 import Mamba2
from tests.models.mixers.battery import difference, inputs, randomised


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
