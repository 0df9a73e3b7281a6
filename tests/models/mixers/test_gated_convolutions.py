"""Gated convolutions: BaseConv as Zoology writes it, as Based checkpoints hold it and with
input-dependent filters, and Hyena."""

from __future__ import annotations

import pytest
import torch

from recallkit.models.mixers.base_conv import BaseConv
from recallkit.models.mixers.dynamic_conv import AutocorrelationConv, ProgrammaticConv
from recallkit.models.mixers.hyena import Hyena
from tests.models.mixers.battery import difference


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kind", [BaseConv, Hyena])
def test_the_options_of_a_filter_reach_it(kind):
    mixer = kind(4, max_length=9, frequency=14.0, fast_decay=0.25, slow_decay=1.2)
    filters = mixer.conv.filters if kind is BaseConv else mixer.filters
    assert (filters.fast_decay, filters.slow_decay) == (0.25, 1.2)
    assert filters.frequency.tolist() == [14.0] * 64


def test_base_conv_with_a_filter_of_one_is_a_product_of_two_maps():
    mixer = BaseConv(4, filter="short").double().requires_grad_(False)
    u = random(2, 9, 4)
    mixer.conv.conv.weight.copy_(torch.tensor([1.0, 0.0, 0.0]).expand(4, 1, 3))
    mixer.conv.conv.bias.fill_(0.25)
    before = torch.cat([torch.zeros(2, 2, 4, dtype=torch.float64), u[:, :-2]], 1)
    assert difference(mixer(u), mixer.gate(u) * (before + 0.25)) < 1e-12


def test_hyena_without_a_convolution_is_a_product_of_its_projections():
    mixer = Hyena(4, max_length=9, short_kernel=1).double().requires_grad_(False)
    u = random(2, 9, 4)
    mixer.filters.last.weight.zero_()
    mixer.skip.fill_(2.0)
    taps, bias = mixer.short_conv.conv.weight.flatten(), mixer.short_conv.conv.bias
    outer, inner, v = (mixer.in_proj(u) * taps + bias).chunk(3, -1)
    assert difference(mixer(u), mixer.out_proj(2 * outer * inner * v)) < 1e-12


def opened(mixer):
    """The mixer with its gate open and no bias: what comes out is what the filters bring."""
    with torch.no_grad():
        mixer.gate.weight.zero_()
        mixer.gate.bias.fill_(1)
        mixer.bias.zero_()
    return mixer.double().requires_grad_(False)


A, B, C, D, X = range(5)


def test_a_repeated_token_brings_the_token_after_its_latest_occurrence():
    ids = torch.tensor([[A, B, X, C, A, B, D, A, A]])
    brought = [None, None, None, None, B, X, None, B, A]
    y = opened(ProgrammaticConv(5))(torch.nn.functional.one_hot(ids, 5).double(), ids)[0]
    wanted = [torch.zeros(5) if token is None else torch.eye(5)[token] for token in brought]
    assert y.tolist() == torch.stack(wanted).tolist()


def test_autocorrelation_finds_the_period_of_a_sequence():
    """Of a sequence of period 5 the largest autocorrelation is at distance 5, so the filter brings
    the token that comes next."""
    ids = torch.arange(5).repeat(8).unsqueeze(0)
    mixer = opened(AutocorrelationConv(5, top=1))
    mixer.key.weight.copy_(torch.eye(5))
    actual = mixer(torch.nn.functional.one_hot(ids, 5).double())[0]
    assert actual[:5].abs().max() == 0
    assert actual[5:].argmax(-1).tolist() == [(i + 1) % 5 for i in range(5, 40)]
    assert torch.allclose(actual[5:].sum(-1), torch.ones(35, dtype=torch.float64))


@pytest.mark.parametrize(
    "make",
    [lambda: ProgrammaticConv(4), lambda: AutocorrelationConv(4, top=3)],
)
def test_chunks_of_positions_do_not_show(make, monkeypatch):
    mixer = make().double().requires_grad_(False)
    u, ids = random(2, 40, 4), torch.randint(6, (2, 40), generator=torch.Generator().manual_seed(0))
    wanted = mixer(u, ids)
    monkeypatch.setattr("recallkit.models.mixers.dynamic_conv.CHUNK", 7)
    assert difference(mixer(u, ids), wanted) < 1e-12
