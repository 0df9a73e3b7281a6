"""Mamba and Mamba-2: one value however computed, the gradients written out, and transformers' own modules."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from recallkit.models.mixers import scan
from recallkit.models.mixers.mamba import DT_RANGE, Mamba
from recallkit.models.mixers.mamba2 import Mamba2, ssd
from recallkit.models.mixers.scan import linear_scan, selective_scan, selective_scan_reference
from recallkit.models.mixers.shift import previous_inputs, short_convolution, short_convolution_reference
from tests.models.mixers.battery import check_mixer, difference, inputs, randomised


@pytest.mark.parametrize("options", [{}, {"state": 3, "expand": 1, "conv_kernel": 1, "dt_rank": 2}])
def test_mamba_keeps_what_every_mixer_keeps(options):
    check_mixer(lambda: Mamba(16, **options))


@pytest.mark.parametrize("options", [{"state": 8, "head_dim": 8}, {"state": 3, "expand": 1, "head_dim": 4, "groups": 2, "conv_kernel": 2}])
def test_mamba2_keeps_what_every_mixer_keeps(options):
    check_mixer(lambda: Mamba2(16, **options))


def scan_inputs(t: int = 5, b: int = 2, d: int = 3, n: int = 2) -> list[torch.Tensor]:
    """x, dt, rates, write, read, start."""
    draw = torch.Generator().manual_seed(0)
    shapes = [(t, b, d), (t, b, d), (d, n), (t, b, n), (t, b, n), (b, n, d)]
    x, dt, rates, write, read, start = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes)
    return [x, functional.softplus(dt), -torch.exp(rates), write, read, start]


def test_a_scan_by_hand():
    """x = 1, B = 1 and exp(dt A) = 1/2: the state is 1, 1 1/2, 1 3/4; C reads it once, twice, not at all."""
    one = torch.ones(3, 1, 1, dtype=torch.float64)
    read = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64).view(3, 1, 1)
    y, last = selective_scan(one, one, torch.full((1, 1), -math.log(2), dtype=torch.float64), one, read)
    torch.testing.assert_close(y.flatten(), torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64))
    assert last.item() == pytest.approx(1.75)


@pytest.mark.parametrize("t", [1, 2, 3, 8])
def test_gradients_of_the_selective_scan_are_its_derivatives(monkeypatch, t):
    monkeypatch.setattr(scan, "CHUNK", 3)
    assert torch.autograd.gradcheck(selective_scan, [given.requires_grad_() for given in scan_inputs(t)])


@pytest.mark.parametrize("t", [1, 2, 5])
def test_gradients_of_the_linear_scan_are_its_derivatives(t):
    draw = torch.Generator().manual_seed(0)
    shapes = [(t, 1, 3), (t, 2, 3), (2, 3)]
    given = [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(linear_scan, given)
    decay, u, state = given
    for i, made in enumerate(linear_scan(*given)):
        state = decay[i] * state + u[i]
        torch.testing.assert_close(made, state)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_rows_are_scanned_in_groups_as_at_once(monkeypatch, rows):
    given = scan_inputs(t=9, b=5)
    monkeypatch.setattr(scan, "STEP_ELEMENTS", rows * 3 * 2)
    for made, expected in zip(selective_scan(*given), selective_scan_reference(*given), strict=True):
        assert difference(made, expected) < 1e-12


def test_decays_to_nothing_leave_no_nan():
    """Steps so long that every earlier state is gone: y_i = dt x_i (B_i C_i), and all gradients are finite."""
    x, dt, rates, write, read, start = (given.float() for given in scan_inputs(t=20))
    given = [x, dt * 1e4, rates, write, read, start]
    for tensor in given:
        tensor.requires_grad_()
    y, _ = selective_scan(*given)
    torch.testing.assert_close(y, given[1] * x * (write * read).sum(-1, keepdim=True))
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(y.square().mean(), given))


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("t", [1, 3, 6])
def test_short_convolution(t, k):
    draw = torch.Generator().manual_seed(0)
    u, taps, bias, history = (torch.randn(s, generator=draw, dtype=torch.float64) for s in ((t, 2, 3), (3, k), (3,), (k - 1, 2, 3)))
    padded = functional.pad(u.permute(1, 2, 0), (k - 1, 0))
    wanted = functional.conv1d(padded, taps.unsqueeze(1), bias, groups=3).permute(2, 0, 1)
    torch.testing.assert_close(short_convolution(u, taps, bias), wanted)
    torch.testing.assert_close(short_convolution_reference(u, taps, bias), wanted)
    both = short_convolution(torch.cat([history, u]), taps, bias)[k - 1 :]
    torch.testing.assert_close(short_convolution(u, taps, bias, history), both)
    assert torch.autograd.gradcheck(short_convolution, [given.requires_grad_() for given in (u, taps, bias)])


def test_previous_inputs():
    u, before = torch.arange(12.0).view(3, 2, 2), -torch.ones(2, 2)
    assert torch.equal(previous_inputs(u, before), torch.stack([before, u[0], u[1]]))
    assert torch.equal(previous_inputs(u.transpose(0, 1), before, time=1), torch.stack([before, u[0], u[1]], dim=1))


def test_ssd_with_one_rate_a_head_is_the_selective_scan():
    """Two programs for one recurrence: A the same for all channels and states, chunks of 4 with one of them not full."""
    x, dt, _, write, read, start = scan_inputs(t=11, d=3, n=5)
    dt, rate = dt[..., :1], torch.tensor([-0.7], dtype=torch.float64)
    wanted, wanted_last = selective_scan(x, dt.expand_as(x).contiguous(), rate.expand(3, 5), write, read, start)
    made, last = ssd(x.unsqueeze(2), dt, rate, write.unsqueeze(2), read.unsqueeze(2), start.unsqueeze(1), 4)
    assert difference(made.squeeze(2), wanted) < 1e-12
    assert difference(last.squeeze(1), wanted_last) < 1e-12


def test_short_steps_after_long_ones_keep_their_decays():
    """The last 32 tokens take steps of -0.016 after a running sum of -10240, which float32 keeps to 0.001: differences would cancel."""
    draw = torch.Generator().manual_seed(0)
    x, write, read = (torch.randn(shape, generator=draw) for shape in ((64, 2, 1, 4), (64, 2, 1, 8), (64, 2, 1, 8)))
    dt = torch.tensor([20.0] * 32 + [1e-3] * 32).view(64, 1, 1).expand(64, 2, 1)
    given = (x, dt, torch.tensor([-16.0]), write, read)
    wanted, wanted_last = selective_scan_reference(
        x[:, :, 0].double(),
        dt.double().expand(64, 2, 4),
        torch.full((4, 8), -16.0, dtype=torch.float64),
        write[:, :, 0].double(),
        read[:, :, 0].double(),
        torch.zeros(2, 8, 4, dtype=torch.float64),
    )
    made, last = ssd(*given, None, 64)
    assert made.dtype == last.dtype == torch.float32
    assert difference(made[32:, :, 0], wanted[32:]) < 5e-6
    assert difference(made[:, :, 0], wanted) < 5e-6
    assert difference(last[:, 0], wanted_last) < 5e-6


def test_ssd_that_forgets_nothing_is_linear_attention():
    x, dt, _, write, read, _ = scan_inputs(t=9, d=3, n=2)
    scores = torch.einsum("ibn,jbn->bij", read, write).tril()
    wanted = torch.einsum("bij,jbd->ibd", scores, dt[..., :1] * x)
    made, _ = ssd(x.unsqueeze(2), dt[..., :1], torch.zeros(1, dtype=torch.float64), write.unsqueeze(2), read.unsqueeze(2), None, 4)
    assert difference(made.squeeze(2), wanted) < 1e-12


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
