"""Short convolutions, the filters of long ones, and mixers that are little more than a
convolution."""

from __future__ import annotations

import cmath
import math

import pytest
import torch

from recallkit.models.mixers.filters import ExplicitFilter, ImplicitFilter
from recallkit.models.mixers.hyena import Hyena
from recallkit.models.mixers.long_conv import LongConv
from recallkit.models.mixers.s4d import S4D
from recallkit.models.mixers.short_conv import ShortConv
from tests.models.mixers.battery import difference


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kernel", [1, 3, 8, 9, 20])
@pytest.mark.parametrize("bias", [True, False])
def test_a_short_convolution_is_its_sum_and_contiguous_at_every_length(kernel, bias):
    """Also of inputs that are a part of others, as projections cut in two are."""
    conv = ShortConv(6, kernel, bias=bias).double().requires_grad_(False)
    for t in (1, 2, 9, 33):
        for u in (random(2, t, 6), random(2, t, 12)[..., 6:], random(6, t, 2).transpose(0, 2)):
            actual, (read, _) = conv(u), conv.read(u, conv.initial_state(2))
            assert actual.is_contiguous()
            assert read.is_contiguous()
            assert difference(actual, conv.reference(u)) < 1e-12
            assert difference(read, actual) < 1e-12


def test_an_implicit_filter_is_a_network_of_one_position():
    filters = ImplicitFilter(3, 20, frequency=2.5).double().requires_grad_(False)
    filters.frequency += random(64)
    taps, place = filters(13), 7
    wave = cmath.exp(-2j * math.pi * 1e-4 * place / 20)
    x = torch.tensor([place / 19, wave.real, wave.imag], dtype=torch.float64)
    for layer in filters.hidden:
        x = torch.sin(filters.frequency * (layer.weight @ x + layer.bias))
    slow, fast = (math.log(100) / share for share in (1.5, 0.3))
    windows = [math.exp(-rate * place / 19) for rate in (slow, (slow + fast) / 2, fast)]
    wanted = (filters.last.weight @ x) * torch.tensor(windows, dtype=torch.float64)
    assert difference(taps[:, place], wanted) < 1e-12
    assert difference(taps, filters(20)[:, :13]) < 1e-12


def test_the_window_of_an_implicit_filter_falls_to_a_hundredth_at_its_decays():
    """0.01 at 1.2 times the length in the first channel, at 0.3 in the last: Zoology's tables 8 and
    15."""
    usual, papers = (
        ImplicitFilter(2, 101, **options).double()
        for options in ({}, {"fast_decay": 0.25, "slow_decay": 1.2})
    )
    papers.load_state_dict(usual.state_dict())
    with torch.no_grad():
        ratio = (papers(101) / usual(101)).T
    for place in (0, 25, 100):
        time = place / 100
        wanted = [0.01 ** (time / 1.2 - time / 1.5), 0.01 ** (time / 0.25 - time / 0.3)]
        assert ratio[place].tolist() == pytest.approx(wanted, rel=1e-9)


def test_autocast_does_not_round_positions():
    filters = ImplicitFilter(4, 2048, frequency=14)
    wanted = filters(2048)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(filters(2048), wanted)


def test_a_filter_squashed_has_no_small_taps():
    filters = ExplicitFilter(1, 4, squash=0.5)
    with torch.no_grad():
        filters.taps.copy_(torch.tensor([[2.0, -0.4, -1.0, 0.5]]))
        assert filters(4).tolist() == [[1.5, 0, -0.5, 0]]


@pytest.mark.parametrize(
    "make",
    [lambda: Hyena(4, max_length=12), lambda: S4D(4, state=4), lambda: LongConv(4, max_length=12)],
)
def test_taps_of_constant_parameters_follow_every_change_of_these(make):
    """Written to, or replaced by other tensors; for other lengths; with gradients and in inference
    mode."""
    mixer = make().double()
    u = random(2, 9, 4)
    for change in ("none", "written", "replaced", "shorter", "gradients", "inference"):
        for name, parameter in list(mixer.named_parameters()):
            owner = mixer.get_submodule(name.rpartition(".")[0])
            if change == "written":
                with torch.no_grad():
                    parameter *= 1.25
            elif change == "replaced":
                setattr(
                    owner,
                    name.rpartition(".")[2],
                    torch.nn.Parameter(0.5 * parameter.detach()),
                )
        u = u[:, :7] if change == "shorter" else u
        with (
            torch.inference_mode()
            if change == "inference"
            else torch.set_grad_enabled(change == "gradients")
        ):
            once, again = mixer(u), mixer(u)
            wanted = mixer.reference(u)
        assert torch.equal(once, again)
        assert difference(once.detach(), wanted.detach()) < 1e-12
        assert once.requires_grad == (change == "gradients")


def test_a_filter_is_computed_once_for_many_texts():
    mixer, computed = Hyena(4, max_length=12), []
    mixer.filters.register_forward_hook(lambda *call: computed.append(call))
    with torch.no_grad():
        for t in (9, 9, 9, 5):
            mixer(random(2, t, 4).float())
    assert len(computed) == 2
    mixer(random(2, 5, 4).float())
    assert len(computed) == 3
