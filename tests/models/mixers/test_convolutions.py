"""Causal convolutions, short and long: what they sum, their filters, and mixers that are little more than a convolution."""

from __future__ import annotations

import cmath
import math

import pytest
import torch

from recallkit.models.mixers.fft_conv import causal_conv, causal_conv_reference, direct_conv, fast_length, fft_conv
from recallkit.models.mixers.filters import ExplicitFilter, ImplicitFilter
from recallkit.models.mixers.long_conv import LongConv
from recallkit.models.mixers.short_conv import ShortConv
from tests.models.mixers.battery import check_mixer, difference


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_convolution_counted_by_hand():
    u = torch.tensor([[[1.0], [2.0], [3.0]]])
    made = causal_conv(u, torch.tensor([[10.0, 1.0, 0.5, 7.0]]))
    assert made.flatten().tolist() == [10, 20 + 1, 30 + 2 + 0.5]


@pytest.mark.parametrize("t", [1, 2, 3, 8, 9, 31, 64, 65])
@pytest.mark.parametrize("taps", [1, 3, 8, 9, 20, 65])
def test_every_way_gives_the_sum(t, taps):
    u, filters = random(2, t, 5), random(5, taps, seed=1)
    wanted = causal_conv_reference(u, filters)
    assert difference(causal_conv(u, filters), wanted) < 1e-12
    for way in (fft_conv, direct_conv):
        assert difference(way(u.mT, filters[:, :t]).mT, wanted) < 1e-12


def test_transforms_are_at_least_as_long_as_asked_for_and_of_fast_lengths():
    for n in range(1, 300):
        length = fast_length(n)
        assert n <= length < 2 * n
        odd = length
        while odd % 2 == 0:
            odd //= 2
        assert odd in (1, 3, 5)


def test_half_precision_inputs_are_summed_in_single():
    u = torch.full((1, 600, 1), 1.0, dtype=torch.bfloat16)
    assert causal_conv(u, torch.ones(1, 600)).flatten()[-1].item() == pytest.approx(600, abs=1e-2)
    with torch.autocast("cpu", torch.bfloat16):
        assert causal_conv(u.float(), torch.ones(1, 3, dtype=torch.bfloat16)).dtype == torch.float32


def test_a_short_convolution_is_that_of_torch():
    conv = ShortConv(6, 4).double()
    u = random(2, 9, 6)
    wanted = torch.nn.functional.conv1d(u.mT, conv.conv.weight, conv.conv.bias, padding=3, groups=6)[..., :9].mT
    for made in (conv(u), conv.reference(u)):
        assert difference(made.detach(), wanted.detach()) < 1e-12


@pytest.mark.parametrize("kernel", [1, 3, 8, 9, 20])
@pytest.mark.parametrize("bias", [True, False])
def test_a_short_convolution_is_its_sum_and_contiguous_at_every_length(kernel, bias):
    """Also of inputs that are a part of others, as projections cut in two are."""
    conv = ShortConv(6, kernel, bias=bias).double().requires_grad_(False)
    for t in (1, 2, 9, 33):
        for u in (random(2, t, 6), random(2, t, 12)[..., 6:], random(6, t, 2).transpose(0, 2)):
            made, (read, _) = conv(u), conv.read(u, conv.initial_state(2))
            assert made.is_contiguous()
            assert read.is_contiguous()
            assert difference(made, conv.reference(u)) < 1e-12
            assert difference(read, made) < 1e-12


def test_a_short_convolution_reads_on_from_its_history():
    conv = ShortConv(6, 4).double().requires_grad_(False)
    u = random(2, 9, 6)
    history, outputs, start = conv.initial_state(2), [], 0
    for size in (1, 2, 5, 1):
        y, history = conv.read(u[:, start : start + size], history)
        outputs.append(y)
        start += size
    assert difference(torch.cat(outputs, 1), conv(u)) < 1e-12


def test_one_tap_needs_no_history():
    conv = ShortConv(3, 1)
    y, history = conv.read(torch.ones(2, 1, 3), conv.initial_state(2))
    assert history.shape == (2, 0, 3)
    assert torch.allclose(y[:, 0], conv.conv.weight.flatten() + conv.conv.bias)


@pytest.mark.parametrize("bands", [1, 4])
def test_an_implicit_filter_is_a_network_of_one_position(bands):
    filters = ImplicitFilter(3, 20, features=2 * bands + 1, width=4, frequency=2.5, shift=0.1).double().requires_grad_(False)
    filters.frequency += random(4)
    made = filters(13)
    place = 7
    turns = [1e-4 + k * (bands - 1 - 1e-4) / max(bands - 1, 1) for k in range(bands)]
    waves = [cmath.exp(-2j * math.pi * f * place / 20) for f in turns]
    x = torch.tensor([place / 19, *(w.real for w in waves), *(w.imag for w in waves)], dtype=torch.float64)
    for layer in filters.hidden:
        x = torch.sin(filters.frequency * (layer.weight @ x + layer.bias))
    rates = [math.log(100) / share for share in (1.5, 0.3)]
    windows = [math.exp(-rate * place / 19) + 0.1 for rate in (rates[0], sum(rates) / 2, rates[1])]
    wanted = (filters.last.weight @ x) * torch.tensor(windows, dtype=torch.float64)
    assert difference(made[:, place], wanted) < 1e-12
    assert torch.equal(made, filters(20)[:, :13])


def test_autocast_does_not_round_positions():
    filters = ImplicitFilter(4, 2048, features=33, frequency=14)
    wanted = filters(2048)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(filters(2048), wanted)


def test_filters_of_wrong_lengths_are_refused():
    for filters in (ExplicitFilter(2, 5), ImplicitFilter(2, 5)):
        with pytest.raises(ValueError, match="6 tokens are more than the filter's max_length 5"):
            filters(6)
    with pytest.raises(ValueError, match="at least 1 tap"):
        ExplicitFilter(2, 0)
    with pytest.raises(ValueError, match="odd number"):
        ImplicitFilter(2, 5, features=4)
    with pytest.raises(ValueError, match="at least 1 tap"):
        ShortConv(2, 0)


@pytest.mark.parametrize("options", [{}, {"filter": "implicit"}, {"squash": 0.01, "glu": False}])
def test_long_conv(options):
    check_mixer(lambda: LongConv(8, max_length=40, **options))


def test_a_filter_squashed_has_no_small_taps():
    filters = ExplicitFilter(1, 4, squash=0.5)
    with torch.no_grad():
        filters.taps.copy_(torch.tensor([[2.0, -0.4, -1.0, 0.5]]))
        assert filters(4).tolist() == [[1.5, 0, -0.5, 0]]


def test_long_conv_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="squash"):
        LongConv(4, filter="implicit", squash=0.1)
    with pytest.raises(ValueError, match="squash"):
        LongConv(4, squash=-0.1)
    with pytest.raises(ValueError, match="explicit"):
        LongConv(4, filter="short")
    with pytest.raises(ValueError, match="max_length 5"):
        LongConv(4, max_length=5)(torch.zeros(1, 6, 4))
