"""`rwkv5_attention`: chunks equal the recurrence, with decays from none to all, and the bonus of the present token."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from recallkit.kernels.gated_linear_attention.api import gated_linear_attention
from recallkit.kernels.rwkv5.api import rwkv5_attention
from tests.kernels.checks import assert_close, draw
from tests.kernels.recurrences import Inputs, Recurrence, of_all_sizes


def drawn(b, h, t, k, v, dtype, *, std=1.0, strength=1.0) -> Inputs:
    wide = torch.promote_types(dtype, torch.float32)
    r, keys, values = (draw(b, h, t, width, std=s, dtype=dtype, seed=i) for i, (width, s) in enumerate([(k, std), (k, std), (v, 1.0)]))
    decays, bonus = strength * functional.logsigmoid(draw(h, k, dtype=wide, seed=3)), draw(h, k, dtype=wide, seed=4)
    return {"r": r, "k": keys, "v": values, "log_decay": decays, "bonus": bonus}


RWKV5 = Recurrence(rwkv5_attention, drawn)


@of_all_sizes
def test_torch_equals_reference(sizes, dtype, std):
    RWKV5.check(drawn(2, 2, *sizes, dtype, std=std))


@pytest.mark.parametrize("strength", [0.0, 0.01, 30.0, 400.0, math.inf])
def test_from_no_forgetting_to_all_of_it(strength):
    """Log decays of 0, of -400, whose inverse overflows in float64, and of minus infinity, of chunks that are full and not."""
    for t in (64, 70):
        given = drawn(2, 2, t, 8, 24, torch.float32)
        given["log_decay"] = given["log_decay"] * strength if strength else torch.zeros_like(given["log_decay"])
        RWKV5.check(given, torch.randn(2, 2, 8, 24))


def test_a_thousand_slow_tokens_in_float32():
    given = drawn(1, 1, 1000, 8, 8, torch.float32)
    given["log_decay"] = torch.full_like(given["log_decay"], math.log1p(-(2**-12)))
    RWKV5.check(given)


def test_without_decay_and_a_bonus_of_one_it_is_linear_attention():
    given = drawn(2, 2, 75, 8, 12, torch.float64)
    given |= {"log_decay": torch.zeros(2, 8, dtype=torch.float64), "bonus": torch.ones(2, 8, dtype=torch.float64)}
    assert_close(rwkv5_attention(**given)[0], (given["r"] @ given["k"].mT).tril() @ given["v"])


def test_a_bonus_of_the_decays_inverse_is_gated_linear_attention():
    """r_i (S_{i-1} + k_i v_i / w) = (r_i / w) S_i."""
    given = drawn(2, 2, 40, 8, 12, torch.float64, strength=0.3)
    decays = given["log_decay"].exp()
    inverse = given | {"bonus": 1 / decays}
    spread = given["log_decay"][None, :, None].expand(2, 2, 40, 8)
    wanted = gated_linear_attention(given["r"] / decays[:, None], given["k"], given["v"], spread)
    for one, other in zip(rwkv5_attention(**inverse), wanted, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("chunk", [1, 5, 8])
def test_pieces_and_steps_are_the_whole(chunk):
    RWKV5.check_cuts(chunk)


def test_any_size_and_strides():
    RWKV5.check_sizes_and_strides()


@pytest.mark.parametrize(("t", "chunk"), [(1, 4), (4, 4), (7, 4), (3, 8)])
def test_gradients_are_the_derivatives(t, chunk):
    RWKV5.check_gradients(t, chunk)


def test_gradients_of_strong_decays_are_finite():
    given = {name: x.requires_grad_() for name, x in drawn(1, 2, 70, 8, 8, torch.float32, strength=400.0).items()}
    o, after = rwkv5_attention(**given)
    grads = torch.autograd.grad(o.square().mean() + after.square().mean(), list(given.values()))
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"k": (1, 2, 5, 4)}, r"do not fit: r \(1, 2, 5, 8\)"),
        ({"v": (1, 4, 5, 3)}, "the same number of heads, not 2 and 4"),
        ({"log_decay": (2,)}, r"log_decay and bonus must be \(h, k\) = \(2, 8\), not \(2,\) and \(2, 8\)"),
        ({"bonus": (8, 2)}, "log_decay and bonus"),
        ({"state": (1, 2, 3, 8)}, r"the state must be \(b, h, k, v\) = \(1, 2, 8, 3\)"),
        ({"chunk": 0}, "chunk is 0"),
        ({"impl": "fast"}, "impl must be one of"),
    ],
)
def test_what_does_not_fit_is_named(changed, said):
    shapes = {"r": (1, 2, 5, 8), "k": (1, 2, 5, 8), "v": (1, 2, 5, 3), "log_decay": (2, 8), "bonus": (2, 8)} | changed
    given = {name: torch.zeros(value) if isinstance(value, tuple) else value for name, value in shapes.items()}
    with pytest.raises(ValueError, match=said):
        rwkv5_attention(**given)


def test_without_the_library_a_kernel_says_what_to_install(monkeypatch, caplog):
    RWKV5.check_without_the_library(monkeypatch, caplog)


def test_the_library_is_called_as_it_documents(monkeypatch):
    from recallkit.kernels.rwkv5.triton_impl import rwkv5_attention_triton

    RWKV5.check_calls_of_the_library(monkeypatch, rwkv5_attention_triton, "rwkv6")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("t", "widths", "strength"), [(1, (64, 64), 1.0), (17, (8, 60), 1.0), (130, (24, 100), 30.0), (1000, (128, 64), 0.1)]
)
def test_on_a_gpu_the_library_equals_the_reference(t, widths, strength, dtype):
    RWKV5.check_on_a_gpu(t, dtype, widths, strength)


@pytest.mark.gpu
def test_on_a_gpu_offsets_may_pass_2_31():
    RWKV5.check_large_offsets()
