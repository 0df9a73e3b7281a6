"""Short convolutions, the filters of long ones, and mixers that are little more than a convolution."""

from __future__ import annotations

import cmath
import copy
import math
import pickle

import pytest
import torch

from recallkit.models.mixers import filters as filters_module
from recallkit.models.mixers.filters import ExplicitFilter, FilterConv, ImplicitFilter, ReluFilter
from recallkit.models.mixers.hyena import Hyena
from recallkit.models.mixers.long_conv import LongConv
from recallkit.models.mixers.short_conv import ShortConv
from tests.models.mixers.battery import check_mixer, difference


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


def test_the_window_of_an_implicit_filter_falls_to_a_hundredth_at_its_decays():
    """0.01 at 1.2 times the length in the first channel, at 0.3 in the last: Zoology's tables 8 and 15."""
    usual, papers = (ImplicitFilter(2, 101, **options).double() for options in ({}, {"fast_decay": 0.25, "slow_decay": 1.2}))
    papers.load_state_dict(usual.state_dict())
    with torch.no_grad():
        ratio = (papers(101) / usual(101)).T
    for place in (0, 25, 100):
        time = place / 100
        wanted = [0.01 ** (time / 1.2 - time / 1.5), 0.01 ** (time / 0.25 - time / 0.3)]
        assert ratio[place].tolist() == pytest.approx(wanted, rel=1e-9)
    with pytest.raises(ValueError, match="positive"):
        ImplicitFilter(2, 5, slow_decay=0.0)


def test_a_filter_of_listing_2_is_a_network_without_window():
    filters = ReluFilter(3, 20, width=5).double().requires_grad_(False)
    place = 7
    wave = cmath.exp(-2j * math.pi * 1e-4 * place / 20)
    x = torch.tensor([place / 19, wave.real, wave.imag], dtype=torch.float64)
    inner = (filters.hidden.weight @ x + filters.hidden.bias).clamp(min=0)
    assert difference(filters(13)[:, place], filters.last.weight @ inner + filters.last.bias) < 1e-12
    assert filters.flops(10) == 10 * (2 * 3 * 5 + 5 + 5 + 2 * 5 * 3 + 3)


def test_autocast_does_not_round_positions():
    filters = ImplicitFilter(4, 2048, features=33, frequency=14)
    wanted = filters(2048)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(filters(2048), wanted)


@pytest.fixture
def counted(monkeypatch):
    """How often the network of an implicit filter was run, a tuple of first and last place for each time."""
    made, make = [], ImplicitFilter._make
    monkeypatch.setattr(ImplicitFilter, "_make", lambda self, start, end: made.append((start, end)) or make(self, start, end))
    return made


def evaluated(max_length: int = 40, channels: int = 3) -> ImplicitFilter:
    return ImplicitFilter(channels, max_length, width=8).double().eval()


@torch.no_grad()
def test_taps_are_kept_and_are_those_that_would_be_made(counted, monkeypatch):
    monkeypatch.setattr(filters_module, "KEPT_AT_ONCE", 16)
    filters = evaluated()
    wanted = filters._make(0, 40).T
    counted.clear()
    for k in (5, 16, 3, 17, 33, 40, 1, 40):
        taps = filters(k)
        assert taps.shape == (3, k)
        assert difference(taps, wanted[:, :k]) < 1e-12
    assert counted == [(0, 16), (16, 32), (32, 40)]
    at_once = evaluated()
    at_once.load_state_dict(filters.state_dict())
    assert torch.equal(at_once(40), filters(40)), "a tap depends on what was asked for before"
    assert filters(0).shape == (3, 0)


@torch.no_grad()
def test_taps_of_other_weights_are_made_anew(counted):
    filters = evaluated()

    def assert_made_anew() -> None:
        counted.clear()
        taps = filters(9)
        assert counted
        assert torch.equal(taps, filters._make(0, 40)[:9].T)
        assert taps.dtype == filters.last.weight.dtype
        counted.clear()
        filters(9)
        assert not counted

    assert_made_anew()
    filters.last.weight *= 2
    assert_made_anew()
    filters.hidden[1].bias = torch.nn.Parameter(torch.ones(8, dtype=torch.float64))
    assert_made_anew()
    filters.load_state_dict(evaluated().state_dict())
    assert_made_anew()
    filters.load_state_dict(evaluated().state_dict(), assign=True)
    assert_made_anew()
    filters.frequency.data = filters.frequency.data + 1
    assert_made_anew()
    filters.float()
    assert_made_anew()
    filters.last.weight.data.zero_()  # which torch does not count
    filters.train().eval()
    assert_made_anew()


def test_taps_follow_training(counted):
    conv = FilterConv(ImplicitFilter(3, 20, width=8))
    optimizer, u = torch.optim.SGD(conv.parameters(), lr=0.1), torch.randn(2, 20, 3)
    for _ in range(2):
        with torch.no_grad():
            before = conv.eval()(u)
        loss = conv.train()(u).square().mean()
        assert loss.item() == pytest.approx(before.square().mean().item())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in conv.parameters())
        optimizer.step()
    conv.eval()
    conv(u).sum().backward()
    with torch.no_grad():
        conv(u)
    counted.clear()
    conv(u).sum().backward()
    assert counted, "kept taps have no gradient"
    counted.clear()
    conv.requires_grad_(False)(u.requires_grad_()).sum().backward()
    conv(u)
    assert len(counted) == 0


def test_kept_taps_go_with_nothing():
    filters = evaluated()
    with torch.inference_mode():
        filters(30)
    assert filters._kept is not None
    assert all("kept" not in name for name in filters.state_dict())
    for other in (copy.deepcopy(filters), pickle.loads(pickle.dumps(filters))):
        assert other._kept is None
        with torch.no_grad():
            other.last.weight *= 3
            assert difference(other(30), 3 * filters(30)) < 1e-12
    assert not filters.requires_grad_(False)(30).is_inference(), "it could not be saved for a backward pass"


def test_weights_of_inference_mode_are_not_kept():
    with torch.inference_mode():
        filters = evaluated()
        assert torch.equal(filters(9), filters._make(0, 9).T)
    assert filters._kept is None


@torch.no_grad()
def test_a_step_of_generation_makes_no_filter(counted):
    mixer = Hyena(4, max_length=40).eval()
    _, state = mixer.read(torch.randn(1, 8, 4), mixer.initial_state(1))
    for _ in range(10):
        _, state = mixer.step(torch.randn(1, 4), state)
    assert len(counted) == 1


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
