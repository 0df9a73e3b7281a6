"""`gated_linear_attention`: chunks equal the recurrence, with gates from open to closed."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from recallkit.kernels.decayed_attention.api import decayed_attention
from recallkit.kernels.gated_linear_attention.api import gated_linear_attention
from tests.kernels.checks import assert_close, draw
from tests.kernels.recurrences import Inputs, Recurrence, of_all_sizes


def drawn(b, h, t, k, v, dtype, *, std=1.0, strength=1.0) -> Inputs:
    q, keys, values = (draw(b, h, t, width, std=s, dtype=dtype, seed=i) for i, (width, s) in enumerate([(k, std), (k, std), (v, 1.0)]))
    decays = functional.logsigmoid(draw(b, h, t, k, dtype=torch.promote_types(dtype, torch.float32), seed=3))
    return {"q": q, "k": keys, "v": values, "log_decay": strength * decays}


GLA = Recurrence(gated_linear_attention, drawn)


@of_all_sizes
def test_torch_equals_reference(sizes, dtype, std):
    GLA.check(drawn(2, 2, *sizes, dtype, std=std), scale=0.3)


@pytest.mark.parametrize("chunk", [1, 5, 16, 64, 1000])
def test_any_chunk_gives_the_result(chunk):
    GLA.check(drawn(1, 2, 70, 8, 24, torch.float32), chunk=chunk)


@pytest.mark.parametrize("strength", [0.0, 0.01, 30.0, math.inf])
@pytest.mark.parametrize("chunk", [16, 64])
def test_from_no_forgetting_to_all_of_it(strength, chunk):
    """Log decays of 0, of -30 and beyond, and of minus infinity, from a state, of chunks that are full and not."""
    for t in (64, 70):
        given = drawn(2, 2, t, 8, 24, torch.float32)
        given["log_decay"] = given["log_decay"] * strength if strength else torch.zeros_like(given["log_decay"])
        GLA.check(given, torch.randn(2, 2, 8, 24), chunk=chunk)


def test_open_and_closed_gates_side_by_side():
    """Every token closes half of the channels' gates; float32 forgets what the closed ones held and keeps the rest."""
    given = drawn(1, 2, 100, 8, 8, torch.float32)
    given["log_decay"] = torch.where(draw(1, 2, 100, 8, seed=9) > 0, -300.0, -1e-3)
    GLA.check(given, torch.randn(1, 2, 8, 8), chunk=64)


def test_a_thousand_slow_tokens_in_float32():
    given = drawn(1, 1, 1000, 8, 8, torch.float32)
    given["log_decay"] = torch.full_like(given["log_decay"], math.log1p(-(2**-12)))
    GLA.check(given)


@pytest.mark.parametrize("t", [1, 31, 64])
def test_channels_that_forget_alike_are_decayed_attention(t):
    given = drawn(2, 3, t, 8, 12, torch.float64)
    state = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    logs = given["log_decay"][..., 0]
    alike = given | {"log_decay": logs[..., None].expand_as(given["k"])}
    wanted = decayed_attention(given["q"], given["k"], given["v"], logs, state, scale=0.5)
    for one, other in zip(gated_linear_attention(**alike, state=state, scale=0.5), wanted, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("chunk", [1, 5, 8])
def test_pieces_and_steps_are_the_whole(chunk):
    GLA.check_cuts(chunk)


def test_any_size_and_strides():
    GLA.check_sizes_and_strides()


@pytest.mark.parametrize(("t", "chunk"), [(1, 4), (4, 4), (7, 4), (3, 8)])
def test_gradients_are_the_derivatives(t, chunk):
    GLA.check_gradients(t, chunk)


def test_gradients_of_strong_decays_are_finite():
    given = {name: x.requires_grad_() for name, x in drawn(1, 2, 70, 8, 8, torch.float32, strength=400.0).items()}
    o, after = gated_linear_attention(**given)
    grads = torch.autograd.grad(o.square().mean() + after.square().mean(), list(given.values()))
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"k": (1, 2, 5, 4)}, "do not fit"),
        ({"v": (1, 4, 5, 3)}, "the same number of heads, not 2 and 4"),
        ({"log_decay": (1, 2, 5)}, r"log_decay must have the shape of k, \(1, 2, 5, 8\), not \(1, 2, 5\)"),
        ({"state": (1, 2, 3, 8)}, r"the state must be \(b, h, k, v\) = \(1, 2, 8, 3\)"),
        ({"chunk": 0}, "chunk is 0"),
        ({"impl": "fast"}, "impl must be one of"),
    ],
)
def test_what_does_not_fit_is_named(changed, said):
    shapes = {"q": (1, 2, 5, 8), "k": (1, 2, 5, 8), "v": (1, 2, 5, 3), "log_decay": (1, 2, 5, 8)} | changed
    given = {name: torch.zeros(value) if isinstance(value, tuple) else value for name, value in shapes.items()}
    with pytest.raises(ValueError, match=said):
        gated_linear_attention(**given)


def test_without_the_library_a_kernel_says_what_to_install(monkeypatch, caplog):
    GLA.check_without_the_library(monkeypatch, caplog)


def test_the_library_is_called_as_it_documents(monkeypatch):
    from recallkit.kernels.gated_linear_attention.triton_impl import gated_linear_attention_triton

    GLA.check_calls_of_the_library(monkeypatch, gated_linear_attention_triton, "gla")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("t", "widths", "strength"), [(1, (64, 64), 1.0), (17, (8, 60), 1.0), (130, (24, 100), 30.0), (1000, (128, 64), 0.1)]
)
def test_on_a_gpu_the_library_equals_the_reference(t, widths, strength, dtype):
    GLA.check_on_a_gpu(t, dtype, widths, strength)


@pytest.mark.gpu
def test_on_a_gpu_offsets_may_pass_2_31():
    GLA.check_large_offsets()
