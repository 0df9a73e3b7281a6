"""Attention with alpha-entmax: softmax attention at alpha 1, few keys with weight at 2."""

from __future__ import annotations

import torch

from recallkit.models.mixers.attention import Attention
from recallkit.models.mixers.entmax_attention import EntmaxAttention
from tests.models.mixers.battery import difference, inputs

D = 16


def test_alpha_one_is_attention():
    torch.manual_seed(0)
    mixer, whole = (kind.double().requires_grad_(False) for kind in (EntmaxAttention(D, alpha=1.0), Attention(D)))
    whole.load_state_dict(mixer.state_dict())
    u, _ = inputs(mixer, 20)
    assert difference(mixer(u), whole(u)) < 1e-12


def test_a_clear_match_is_the_only_key_that_counts():
    """Sparsemax of a margin of at least 1 is the hardmax: the output does not change where other values do."""
    mixer = EntmaxAttention(D, alpha=2.0, num_heads=1, rope_fraction=0.0).double().requires_grad_(False)
    q = torch.zeros(1, 1, 3, D, dtype=torch.float64)
    k, v = torch.zeros_like(q), torch.randn(1, 1, 3, D, dtype=torch.float64)
    q[..., 0], k[0, 0, 1, 0] = 2.0, 2.1
    made = mixer.attend(q, k, v)[0, 0]
    assert torch.equal(made[1], v[0, 0, 1])
    assert torch.equal(made[2], v[0, 0, 1])
    assert torch.equal(made[0], v[0, 0, 0])
