"""`delta_rule`: chunks equal the recurrence, with decays of heads, of channels and none; what overwriting means."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from recallkit.kernels.delta_rule.api import delta_rule
from recallkit.kernels.gated_linear_attention.api import gated_linear_attention
from tests.kernels.checks import assert_close, draw
from tests.kernels.recurrences import Inputs, Recurrence, of_all_sizes

KINDS = ("none", "heads", "channels")


def drawn(b, h, t, k, v, dtype, *, std=1.0, strength=1.0, kind="channels") -> Inputs:
    """Keys of length one, strengths between 0 and 1, log decays times `strength`."""
    wide = torch.promote_types(dtype, torch.float32)
    q, keys, values = (draw(b, h, t, width, std=s, dtype=wide, seed=i) for i, (width, s) in enumerate([(k, std), (k, 1.0), (v, 1.0)]))
    given = {"q": q.to(dtype), "k": functional.normalize(keys, dim=-1).to(dtype), "v": values.to(dtype)}
    given["strength"] = torch.sigmoid(draw(b, h, t, dtype=wide, seed=3))
    if kind != "none":
        given["log_decay"] = strength * functional.logsigmoid(draw(b, h, t, *([k] if kind == "channels" else []), dtype=wide, seed=4))
    return given


def of(kind: str) -> Recurrence:
    return Recurrence(delta_rule, lambda *sizes, **options: drawn(*sizes, kind=kind, **options))


of_all_kinds = pytest.mark.parametrize("kind", KINDS)


@of_all_kinds
@of_all_sizes
def test_torch_equals_reference(sizes, dtype, std, kind):
    of(kind).check(drawn(2, 2, *sizes, dtype, std=std, kind=kind), scale=0.3)


@of_all_kinds
@pytest.mark.parametrize("chunk", [1, 5, 16, 64, 1000])
def test_any_chunk_gives_the_result(chunk, kind):
    of(kind).check(drawn(1, 2, 70, 8, 24, torch.float32, kind=kind), torch.randn(1, 2, 8, 24), chunk=chunk)


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("strength", [0.01, 30.0, math.inf])
def test_from_little_forgetting_to_all_of_it(strength, kind):
    for t in (64, 70):
        of(kind).check(drawn(2, 2, t, 8, 24, torch.float32, strength=strength, kind=kind), torch.randn(2, 2, 8, 24))


def test_a_strength_of_two_mirrors_what_is_found():
    """Eigenvalues of -1, the end of what is bounded."""
    given = drawn(1, 2, 100, 8, 12, torch.float32, kind="none")
    given["strength"] = torch.full_like(given["strength"], 2.0)
    of("none").check(given, torch.randn(1, 2, 8, 12))


@pytest.mark.parametrize("t", [1, 31, 64])
def test_a_decay_of_a_head_is_one_of_each_of_its_channels(t):
    given, state = drawn(2, 3, t, 8, 12, torch.float64, kind="heads"), torch.randn(2, 3, 8, 12, dtype=torch.float64)
    spread = given | {"log_decay": given["log_decay"][..., None].expand_as(given["k"])}
    for one, other in zip(delta_rule(**given, state=state), delta_rule(**spread, state=state), strict=True):
        assert_close(one, other)


def test_without_decays_it_is_the_rule_with_decays_of_one():
    given = drawn(2, 3, 70, 8, 12, torch.float64, kind="none")
    for one, other in zip(delta_rule(**given), delta_rule(**given, log_decay=torch.zeros_like(given["strength"])), strict=True):
        assert_close(one, other)


def test_orthogonal_keys_are_never_overwritten():
    """Then it is gated linear attention of the values times their strengths."""
    given = drawn(1, 2, 8, 8, 12, torch.float64)
    given["k"] = torch.eye(8, dtype=torch.float64).expand(1, 2, 8, 8).flip(2)
    written = given["strength"][..., None] * given["v"]
    wanted = gated_linear_attention(given["q"], given["k"], written, given["log_decay"])
    for one, other in zip(delta_rule(**given), wanted, strict=True):
        assert_close(one, other)


def test_a_strength_of_one_leaves_the_latest_value_of_each_key():
    given = drawn(1, 1, 40, 8, 12, torch.float64, kind="none")
    which = torch.arange(40) % 5
    given |= {"k": torch.eye(8, dtype=torch.float64)[which][None, None], "strength": torch.ones(1, 1, 40, dtype=torch.float64)}
    _, state = delta_rule(**given)
    assert_close(state[0, 0, :5], given["v"][0, 0, 35:])
    assert not state[0, 0, 5:].any()


@of_all_kinds
@pytest.mark.parametrize("chunk", [1, 5, 8])
def test_pieces_and_steps_are_the_whole(chunk, kind):
    of(kind).check_cuts(chunk)


@of_all_kinds
def test_any_size_and_strides(kind):
    of(kind).check_sizes_and_strides()


@of_all_kinds
@pytest.mark.parametrize(("t", "chunk"), [(1, 4), (4, 4), (7, 4), (3, 8)])
def test_gradients_are_the_derivatives(t, chunk, kind):
    of(kind).check_gradients(t, chunk)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_gradients_of_strong_decays_are_finite(kind):
    given = {name: x.requires_grad_() for name, x in drawn(1, 2, 70, 8, 8, torch.float32, strength=400.0, kind=kind).items()}
    o, after = delta_rule(**given)
    grads = torch.autograd.grad(o.square().mean() + after.square().mean(), list(given.values()))
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"k": (1, 2, 5, 4)}, "do not fit"),
        ({"v": (1, 4, 5, 3)}, "the same number of heads, not 2 and 4"),
        ({"strength": (1, 2, 4)}, r"strength must be \(b, h, t\) = \(1, 2, 5\), not \(1, 2, 4\)"),
        ({"log_decay": (1, 2)}, r"log_decay must be \(b, h, t\) or \(b, h, t, k\) = \(1, 2, 5, 8\), not \(1, 2\)"),
        ({"state": (1, 2, 3, 8)}, r"the state must be \(b, h, k, v\) = \(1, 2, 8, 3\)"),
        ({"chunk": 0}, "chunk is 0"),
        ({"impl": "fast"}, "impl must be one of"),
    ],
)
def test_what_does_not_fit_is_named(changed, said):
    shapes = {"q": (1, 2, 5, 8), "k": (1, 2, 5, 8), "v": (1, 2, 5, 3), "strength": (1, 2, 5)} | changed
    given = {name: torch.zeros(value) if isinstance(value, tuple) else value for name, value in shapes.items()}
    with pytest.raises(ValueError, match=said):
        delta_rule(**given)


def test_without_the_library_a_kernel_says_what_to_install(monkeypatch, caplog):
    of("channels").check_without_the_library(monkeypatch, caplog)


@pytest.mark.parametrize(("kind", "family"), [("none", "delta_rule"), ("heads", "gated_delta_rule"), ("channels", "kda")])
def test_the_library_is_called_as_it_documents(kind, family, monkeypatch):
    from recallkit.kernels.delta_rule.triton_impl import delta_rule_triton

    of(kind).check_calls_of_the_library(monkeypatch, delta_rule_triton, family, (None,) if kind == "none" else ())


@pytest.mark.gpu
@of_all_kinds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("t", "widths", "strength"), [(1, (64, 64), 1.0), (17, (8, 60), 1.0), (130, (64, 100), 30.0), (1000, (128, 64), 0.1)]
)
def test_on_a_gpu_the_library_equals_the_reference(t, widths, strength, dtype, kind):
    of(kind).check_on_a_gpu(t, dtype, widths, strength)
