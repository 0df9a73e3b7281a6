"""GAU: by the battery, by hand on two tokens, and what its departures from the paper are."""

from __future__ import annotations

import torch
from torch.nn import functional

from recallkit.models.mixers.gau import GAU
from tests.models.mixers.battery import difference, randomised


def test_two_tokens_by_hand():
    torch.manual_seed(0)
    mixer = randomised(GAU(3, key_dim=2)).double().requires_grad_(False)
    u = torch.randn(1, 2, 3, dtype=torch.float64)
    hidden = functional.silu(u[0] @ mixer.in_proj.weight.T)
    g, v, z = hidden[:, :6], hidden[:, 6:12], hidden[:, 12:]
    q, k = z * mixer.scale[0] + mixer.offset[0], z * mixer.scale[1] + mixer.offset[1]
    turn = torch.polar(torch.ones(2, dtype=torch.float64), torch.arange(2, dtype=torch.float64))
    q, k = torch.view_as_complex(q.contiguous()) * turn, torch.view_as_complex(k.contiguous()) * turn
    scores = (q[:, None] * k[None].conj()).real.clamp(min=0) / torch.tensor([[1.0], [2.0]])
    wanted = (g * torch.stack([scores[0, 0] ** 2 * v[0], scores[1, 0] ** 2 * v[0] + scores[1, 1] ** 2 * v[1]])) @ mixer.out_proj.weight.T
    assert difference(mixer(u)[0], wanted) < 1e-12


def test_two_units_have_the_parameters_of_a_transformers_layer():
    """Attention 4 d^2 and an MLP 8 d^2, section 2.2; less keys of 128 entries and their scales."""
    d = 512
    unit = sum(parameter.numel() for parameter in GAU(d).parameters())
    assert unit == 6 * d * d + 128 * d + 4 * 128
