"""`decayed_attention`: chunks equal the recurrence, with constant decays and with those of tokens, for heads that share keys and not."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from recallkit.kernels.decayed_attention.api import decayed_attention
from tests.kernels.checks import assert_close, draw, relative_error
from tests.kernels.recurrences import Inputs, Recurrence, of_all_sizes, stand_in_for_the_library


def constant(b, h, t, k, v, dtype, *, std=1.0, strength=1.0) -> Inputs:
    q, keys, values = (draw(b, h, t, width, std=s, dtype=dtype, seed=i) for i, (width, s) in enumerate([(k, std), (k, std), (v, 1.0)]))
    return {"q": q, "k": keys, "v": values, "log_decay": strength * functional.logsigmoid(draw(h, dtype=_wide(dtype)))}


def of_tokens(b, h, t, k, v, dtype, *, std=1.0, strength=1.0) -> Inputs:
    decays = strength * functional.logsigmoid(draw(b, h, t, dtype=_wide(dtype), seed=3))
    return constant(b, h, t, k, v, dtype, std=std) | {"log_decay": decays}


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


KINDS = pytest.mark.parametrize(
    "kind", [Recurrence(decayed_attention, constant), Recurrence(decayed_attention, of_tokens)], ids=["constant", "tokens"]
)


@KINDS
@of_all_sizes
def test_torch_equals_reference(kind, sizes, dtype, std):
    kind.check(kind.draw(2, 2, *sizes, dtype, std=std), scale=0.3)


@KINDS
@pytest.mark.parametrize("strength", [0.0, 0.01, 30.0, math.inf])
def test_from_no_forgetting_to_all_of_it(kind, strength):
    """Log decays of 0, of -30 and beyond, and of minus infinity, from a state, of a chunk that is full and one that is not."""
    for t in (64, 70):
        given = kind.draw(2, 2, t, 8, 24, torch.float32, strength=1.0)
        given["log_decay"] = given["log_decay"] * strength if strength else torch.zeros_like(given["log_decay"])
        kind.check(given, torch.randn(2, 2, 8, 24))


@pytest.mark.parametrize("t", [1, 31, 64, 100])
def test_decays_of_tokens_that_are_all_the_same_are_constant_ones(t):
    given = constant(2, 3, t, 8, 12, torch.float64)
    state = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    spread = given | {"log_decay": given["log_decay"][None, :, None].expand(2, 3, t)}
    for one, other in zip(decayed_attention(**given, state=state), decayed_attention(**spread, state=state), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("t", [1, 50])
@pytest.mark.parametrize("groups", [1, 2])
def test_heads_that_share_queries_and_keys(groups, t, monkeypatch):
    stand_in_for_the_library(monkeypatch)
    given = of_tokens(2, 4, t, 8, 12, torch.float64)
    given |= {name: given[name][:, :groups] for name in "qk"}
    repeated = given | {name: torch.stack([given[name][:, h * groups // 4] for h in range(4)], 1) for name in "qk"}
    for impl in ("torch", "reference"):
        for one, other in zip(decayed_attention(**given, impl=impl), decayed_attention(**repeated, impl="reference"), strict=True):
            assert_close(one, other)
    narrow = {name: x.float() for name, x in given.items()}
    with torch.no_grad():
        Recurrence(decayed_attention, of_tokens).check(narrow, impl="triton")


def test_without_forgetting_it_is_linear_attention_and_with_decays_retention():
    """Two closed forms, all pairs at once: arXiv 2307.08621, equation 5."""
    given = constant(1, 2, 40, 6, 7, torch.float64)
    apart = (torch.arange(40)[:, None] - torch.arange(40)).clamp(min=0)
    for logs in (torch.zeros(2), torch.tensor([-1 / 31, -0.7])):
        scores = given["q"] @ given["k"].mT * torch.exp(logs.double()[:, None, None] * apart)
        made, _ = decayed_attention(**given | {"log_decay": logs.double()}, scale=2.0)
        assert_close(made, 2 * scores.tril() @ given["v"])


def test_small_steps_after_large_ones_keep_their_decays():
    """The last 32 tokens decay by 0.016 each, after a sum of 10240, which float32 keeps to 0.001: differences of sums would cancel."""
    given = of_tokens(2, 1, 64, 8, 4, torch.float32)
    given["log_decay"] = torch.tensor([-320.0] * 32 + [-0.016] * 32).expand(2, 1, 64)
    o, after = decayed_attention(**given)
    exact, exact_after = Recurrence(decayed_attention, of_tokens).exact(given)
    assert_close(o[:, :, 32:], exact[:, :, 32:])
    assert_close(after, exact_after)


def test_a_thousand_slow_tokens_in_float32():
    """Decays of 1 - 2^-12, as the slowest of RetNet's heads have them: rounded before they are multiplied, they would drift."""
    for given in (constant(1, 1, 1000, 8, 8, torch.float32), of_tokens(1, 1, 1000, 8, 8, torch.float32)):
        given["log_decay"] = torch.full_like(given["log_decay"], math.log1p(-(2**-12)))
        Recurrence(decayed_attention, constant).check(given)


@KINDS
@pytest.mark.parametrize("chunk", [1, 5, 8])
def test_pieces_and_steps_are_the_whole(kind, chunk):
    kind.check_cuts(chunk)


@KINDS
def test_any_size_and_strides(kind):
    kind.check_sizes_and_strides()


@KINDS
@pytest.mark.parametrize(("t", "chunk"), [(1, 4), (4, 4), (7, 4), (3, 8)])
def test_gradients_are_the_derivatives(kind, t, chunk):
    kind.check_gradients(t, chunk)


@KINDS
def test_gradients_of_strong_decays_are_finite(kind):
    given = {name: x.requires_grad_() for name, x in kind.draw(1, 2, 70, 8, 8, torch.float32, strength=400.0).items()}
    o, after = decayed_attention(**given)
    grads = torch.autograd.grad(o.square().mean() + after.square().mean(), list(given.values()))
    assert all(grad.isfinite().all() for grad in grads)


def test_autocast_narrows_nothing():
    given = of_tokens(1, 2, 70, 8, 8, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        o, _ = decayed_attention(**given)
    assert relative_error(o, decayed_attention(**given)[0]) == 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"q": (1, 2, 5, 4)}, r"do not fit: q \(1, 2, 5, 4\)"),
        ({"v": (1, 2, 4, 3)}, "do not fit"),
        ({"v": (1, 3, 5, 3)}, "not a multiple"),
        ({"log_decay": (3,)}, r"log_decay must be \(h,\) = \(2,\) or \(b, h, t\) = \(1, 2, 5\), not \(3,\)"),
        ({"log_decay": (1, 2, 1)}, "log_decay"),
        ({"state": (1, 2, 3, 8)}, r"the state must be \(b, h, k, v\) = \(1, 2, 8, 3\)"),
        ({"chunk": 0}, "chunk is 0"),
        ({"impl": "fast"}, "impl must be one of"),
    ],
)
def test_what_does_not_fit_is_named(changed, said):
    shapes = {"q": (1, 2, 5, 8), "k": (1, 2, 5, 8), "v": (1, 2, 5, 3), "log_decay": (2,)} | changed
    given = {name: torch.zeros(value) if isinstance(value, tuple) else value for name, value in shapes.items()}
    with pytest.raises(ValueError, match=said):
        decayed_attention(**given)


def test_integers_are_no_queries():
    with pytest.raises(ValueError, match="floating-point"):
        decayed_attention(torch.zeros(1, 1, 2, 3, dtype=torch.int64), torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 2, 3), torch.zeros(1))


@KINDS
def test_without_the_library_a_kernel_says_what_to_install(kind, monkeypatch, caplog):
    kind.check_without_the_library(monkeypatch, caplog)


@KINDS
def test_the_library_is_called_as_it_documents(kind, monkeypatch):
    from recallkit.kernels.decayed_attention.triton_impl import decayed_attention_triton

    kind.check_calls_of_the_library(monkeypatch, decayed_attention_triton, "simple_gla")


@pytest.mark.gpu
@KINDS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("t", "widths", "strength"), [(1, (64, 64), 1.0), (17, (8, 60), 1.0), (130, (24, 100), 30.0), (1000, (128, 64), 0.1)]
)
def test_on_a_gpu_the_library_equals_the_reference(kind, t, widths, strength, dtype):
    kind.check_on_a_gpu(t, dtype, widths, strength)


@pytest.mark.gpu
@KINDS
def test_on_a_gpu_offsets_may_pass_2_31(kind):
    kind.check_large_offsets()
