"""Linear recurrences, one battery for all: chunks equal the recurrence, whole, in pieces and in
steps, from no forgetting to all of it."""

from __future__ import annotations

import itertools
import logging
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from recallkit.kernels import choice
from recallkit.kernels.recurrences import triton_impl
from recallkit.kernels.recurrences.api import (
    decayed_attention,
    delta_rule,
    gated_linear_attention,
    rwkv5_attention,
    rwkv7_attention,
)
from tests.kernels.checks import DEVICE, assert_close, draw, pairwise, relative_error
from tests.kernels.fla_stand_in import stand_in_for_the_library

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Recurrence:
    """`attend`: the operation; `others`: its inputs beside queries, keys and values, from b, h, t,
    k and a wide type."""

    attend: Callable[..., tuple[Tensor, Tensor]]
    others: Callable[..., Inputs]
    library: str

    def draw(self, b, h, t, k, v, dtype, *, std=1.0, strength=1.0) -> Inputs:
        """Inputs by name: the std of q and k; log decays of at most 0, times `strength`. Keys that
        are overwritten have length one."""
        wide = torch.promote_types(dtype, torch.float32)
        q, keys, values = (
            draw(b, h, t, width, std=s, dtype=wide, seed=i)
            for i, (width, s) in enumerate([(k, std), (k, std), (v, 1.0)])
        )
        if self.attend is delta_rule:
            keys = functional.normalize(keys, dim=-1)
        first = "r" if "rwkv" in self.attend.__name__ else "q"
        operands = {
            first: q.to(dtype),
            "k": keys.to(dtype),
            "v": values.to(dtype),
            **self.others(b, h, t, k, wide),
        }
        if strength != 1.0 and "log_decay" in operands:
            operands["log_decay"] = (
                operands["log_decay"] * strength
                if strength
                else torch.zeros_like(operands["log_decay"])
            )
            # Else states that do not fade are overwritten in part, and may grow.
            if "write" in operands:
                operands["write"] = operands["write"] * operands["log_decay"].exp()
        return operands | {
            name: operands[name].to(dtype) for name in ("erase", "write") if name in operands
        }

    def check(
        self,
        operands: Inputs,
        state: Tensor | None = None,
        *,
        impl: str = "torch",
        times: float = 1,
        **options: Any,
    ) -> None:
        """Against the reference in float64, of the inputs as they were rounded: o in the type of v,
        S in float32 at least."""
        o, after = self.attend(**operands, state=state, impl=impl, **options)
        wide = {name: x.double() for name, x in operands.items()}
        scale = {name: value for name, value in options.items() if name == "scale"}
        exact, exact_after = self.attend(
            **wide,
            state=None if state is None else state.double(),
            impl="reference",
            **scale,
        )
        assert o.dtype == operands["v"].dtype
        assert after.dtype == torch.promote_types(o.dtype, torch.float32)
        assert_close(o, exact, times=times)
        # What S is made of is not rounded.
        assert_close(after, exact_after, times=times)


def decays(*shape: int, dtype: torch.dtype) -> Tensor:
    return functional.logsigmoid(draw(*shape, dtype=dtype, seed=3))


def overwriting(b, h, t, k, dtype) -> Inputs:
    """As in RWKV-7: what is read has length one, what is written under is a share of it channel by
    channel."""
    erase = functional.normalize(draw(b, h, t, k, dtype=dtype, seed=4), dim=-1)
    return {
        "erase": erase,
        "write": torch.sigmoid(draw(b, h, t, k, dtype=dtype, seed=5)) * erase,
        "log_decay": decays(b, h, t, k, dtype=dtype),
    }


def strengths(b, h, t, k, dtype) -> Inputs:
    return {"strength": torch.sigmoid(draw(b, h, t, dtype=dtype, seed=6))}


KINDS = {
    "decayed, constant": Recurrence(
        decayed_attention,
        lambda b, h, t, k, w: {"log_decay": decays(h, dtype=w)},
        "simple_gla",
    ),
    "decayed, of tokens": Recurrence(
        decayed_attention,
        lambda b, h, t, k, w: {"log_decay": decays(b, h, t, dtype=w)},
        "simple_gla",
    ),
    "gated": Recurrence(
        gated_linear_attention,
        lambda b, h, t, k, w: {"log_decay": decays(b, h, t, k, dtype=w)},
        "gla",
    ),
    "rwkv5": Recurrence(
        rwkv5_attention,
        lambda b, h, t, k, w: {
            "log_decay": decays(h, k, dtype=w),
            "bonus": draw(h, k, dtype=w, seed=4),
        },
        "rwkv6",
    ),
    "rwkv7": Recurrence(rwkv7_attention, overwriting, "rwkv7"),
    "delta": Recurrence(delta_rule, strengths, "delta_rule"),
    "delta, of heads": Recurrence(
        delta_rule,
        lambda b, h, t, k, w: {**strengths(b, h, t, k, w), "log_decay": decays(b, h, t, dtype=w)},
        "gated_delta_rule",
    ),
    "delta, of channels": Recurrence(
        delta_rule,
        lambda b, h, t, k, w: {
            **strengths(b, h, t, k, w),
            "log_decay": decays(b, h, t, k, dtype=w),
        },
        "kda",
    ),
}


@pytest.fixture(params=KINDS)
def kind(request) -> Recurrence:
    return KINDS[request.param]


@pytest.mark.parametrize(
    ("sizes", "dtype", "std"),
    pairwise(
        # Tokens, around chunks of 16 and of 64, and widths of keys and of values.
        [
            (1, 8, 60),
            (2, 16, 1),
            (15, 24, 100),
            (17, 1, 16),
            (64, 16, 96),
            (65, 24, 8),
            (130, 24, 100),
        ],
        [torch.float64, torch.float32, torch.float16, torch.bfloat16],
        [1.0, 3.0],
    ),
)
def test_chunks_equal_the_recurrence(kind, sizes, dtype, std):
    kind.check(
        kind.draw(2, 2, *sizes, dtype, std=std),
        **({} if "rwkv" in kind.attend.__name__ else {"scale": 0.3}),
    )


@pytest.mark.parametrize("strength", [0.0, 0.01, 30.0, 400.0, math.inf])
def test_from_no_forgetting_to_all_of_it_in_any_chunks(kind, strength):
    """Log decays of 0, of -400, whose inverse overflows, and of minus infinity, from a state, of
    chunks that are full and not."""
    for t, chunk in ((64, 64), (70, 64), (70, 5), (70, 1000)):
        operands = kind.draw(2, 2, t, 8, 24, torch.float32, strength=strength)
        kind.check(operands, draw(2, 2, 8, 24, seed=t), chunk=chunk)


def test_a_thousand_slow_tokens_in_float32(kind):
    """Decays of 1 - 2^-12, as the slowest of RetNet's heads have them: rounded before they are
    multiplied, they would drift."""
    operands = kind.draw(1, 1, 1000, 8, 8, torch.float32)
    if "log_decay" in operands:
        operands["log_decay"] = torch.full_like(operands["log_decay"], math.log1p(-(2**-12)))
    kind.check(operands)


@pytest.mark.parametrize("chunk", [1, 5, 8])
def test_pieces_and_steps_are_the_whole(kind, chunk):
    """Whole = split at every offset of one chunk, = some tokens at once and the rest one by one, =
    a reference that is cut."""
    t = 2 * chunk + 3
    operands, state = kind.draw(1, 2, t, 4, 5, torch.float64), draw(1, 2, 4, 5, dtype=torch.float64)
    at_once = kind.attend(**operands, state=state, impl="torch", chunk=chunk)
    ways = [
        (impl, [offset, t - offset])
        for impl, offset in itertools.product(("torch", "reference"), range(chunk + 1))
    ]
    for impl, lengths in [*ways, ("torch", [chunk + 1] + [1] * (chunk + 2))]:
        outputs, start, after = [], 0, state
        for length in lengths:
            piece = {
                name: x[:, :, start : start + length] if x.ndim > 2 else x
                for name, x in operands.items()
            }
            o, after = kind.attend(**piece, state=after, impl=impl, chunk=chunk)
            outputs.append(o)
            start += length
        assert_same((torch.cat(outputs, 2), after), at_once)


def test_no_tokens_no_rows_and_any_strides(kind):
    state = draw(2, 2, 8, 60)
    for impl in ("torch", "reference"):
        o, after = kind.attend(**kind.draw(2, 2, 0, 8, 60, torch.float32), state=state, impl=impl)
        assert o.shape == (2, 2, 0, 60)
        assert torch.equal(after, state)
        o, after = kind.attend(**kind.draw(0, 2, 7, 8, 60, torch.float32), impl=impl)
        assert (o.shape, after.shape) == ((0, 2, 7, 60), (0, 2, 8, 60))
    operands = kind.draw(2, 2, 37, 8, 60, torch.float32)
    wanted, before = kind.attend(**operands, state=state, impl="torch"), state.clone()
    spread = {
        name: torch.stack([x, torch.full_like(x, math.nan)], -1)[..., 0]
        for name, x in operands.items()
    }
    assert_same(kind.attend(**spread, state=state, impl="torch"), wanted, most=1e-6)
    assert torch.equal(state, before)


@pytest.mark.parametrize(("t", "chunk"), [(1, 4), (7, 4), (3, 8)])
def test_gradients_are_the_derivatives(kind, t, chunk):
    operands, state = kind.draw(1, 2, t, 2, 3, torch.float64), draw(1, 2, 2, 3, dtype=torch.float64)
    names, tensors = (
        list(operands),
        [x.detach().requires_grad_() for x in (*operands.values(), state)],
    )
    assert torch.autograd.gradcheck(
        lambda *values: kind.attend(
            **dict(zip(names, values[:-1], strict=True)),
            state=values[-1],
            impl="torch",
            chunk=chunk,
        ),
        tensors,
    )


def test_gradients_of_strong_decays_are_finite(kind):
    operands = {
        name: x.requires_grad_()
        for name, x in kind.draw(1, 2, 70, 8, 8, torch.float32, strength=400.0).items()
    }
    o, after = kind.attend(**operands)
    grads = torch.autograd.grad(
        o.square().mean() + after.square().mean(),
        list(operands.values()),
        allow_unused=True,
    )
    assert all(grad.isfinite().all() for grad in grads if grad is not None)


def test_what_does_not_fit_is_named(kind):
    operands = kind.draw(1, 2, 5, 8, 3, torch.float32)
    q, *_, last = operands
    wrong = {q: (1, 2, 5, 4), "v": (1, 5, 5, 3), "state": (1, 2, 3, 8), last: (7,)}
    for name, shape in wrong.items():
        with pytest.raises(ValueError, match=r"fit|must have shape"):
            kind.attend(**operands | {name: torch.zeros(shape)})
    for options, said in (({"chunk": 0}, "chunk is 0"), ({"impl": "fast"}, "impl must be one of")):
        with pytest.raises(ValueError, match=said):
            kind.attend(**operands, **options)
    with pytest.raises(ValueError, match="floating-point"):
        kind.attend(**operands | {"v": torch.zeros(1, 2, 5, 3, dtype=torch.int64)})


# What one is of another.


def test_what_they_are_of_each_other():
    """Decays of heads are those of each channel; strengths and decays of nothing; RWKV-7 without
    erasing, and under the key written."""
    state = draw(2, 3, 8, 12, dtype=torch.float64)

    def operands(name: str, t: int) -> Inputs:
        return KINDS[name].draw(2, 3, t, 8, 12, torch.float64)

    for t in (1, 31, 70):
        constant, tokens, gated = (
            operands("decayed, constant", t),
            operands("decayed, of tokens", t),
            operands("gated", t),
        )
        spread = constant["log_decay"][None, :, None].expand(2, 3, t)
        assert_same(
            decayed_attention(**constant, state=state),
            decayed_attention(**constant | {"log_decay": spread}, state=state),
        )
        channels = tokens["log_decay"][..., None].expand_as(tokens["k"])
        assert_same(
            decayed_attention(**tokens, state=state),
            gated_linear_attention(**tokens | {"log_decay": channels}, state=state),
        )
        heads, none = operands("delta, of heads", t), operands("delta", t)
        channels = heads["log_decay"][..., None].expand_as(heads["k"])
        assert_same(
            delta_rule(**heads, state=state),
            delta_rule(**heads | {"log_decay": channels}, state=state),
        )
        assert_same(
            delta_rule(**none, state=state),
            delta_rule(**none, log_decay=torch.zeros_like(none["strength"]), state=state),
        )
        five = operands("rwkv5", t)
        # R_i (S_{i-1} + k_i v_i / w) = (r_i / w) S_i.
        inverse = five | {"bonus": 1 / five["log_decay"].exp()}
        r, logs = (
            five["r"] / five["log_decay"].exp()[:, None],
            five["log_decay"][None, :, None].expand_as(five["k"]),
        )
        assert_same(
            rwkv5_attention(**inverse, state=state),
            gated_linear_attention(r, five["k"], five["v"], logs, state),
        )
        seven = operands("rwkv7", t)
        wanted = gated_linear_attention(
            seven["r"],
            seven["k"],
            seven["v"],
            seven["log_decay"],
            state,
        )
        for name in ("erase", "write"):
            assert_same(
                rwkv7_attention(**seven | {name: torch.zeros_like(seven[name])}, state=state),
                wanted,
            )
        k, b = seven["erase"], gated["k"][..., 0].sigmoid()
        alike = {
            "k": k,
            "v": b[..., None] * seven["v"],
            "erase": b[..., None] * seven["log_decay"].exp() * k,
            "write": k,
        }
        assert_same(
            rwkv7_attention(**seven | alike, state=state),
            delta_rule(seven["r"], k, seven["v"], b, seven["log_decay"], state),
        )


def test_without_forgetting_it_is_linear_attention_and_with_decays_retention():
    """All pairs at once: arXiv 2307.08621, equation 5."""
    operands = KINDS["decayed, constant"].draw(1, 2, 40, 6, 7, torch.float64)
    places = torch.arange(40, device=DEVICE)
    apart = (places[:, None] - places).clamp(min=0)
    for logs in (torch.zeros(2, device=DEVICE), torch.tensor([-1 / 31, -0.7], device=DEVICE)):
        scores = operands["q"] @ operands["k"].mT * torch.exp(logs.double()[:, None, None] * apart)
        actual, _ = decayed_attention(**operands | {"log_decay": logs.double()}, scale=2.0)
        assert_close(actual, 2 * scores.tril() @ operands["v"])


def test_a_strength_of_one_leaves_the_latest_value_of_each_key_and_of_two_mirrors():
    operands = KINDS["delta"].draw(1, 1, 40, 8, 12, torch.float64)
    keys = torch.eye(8, dtype=torch.float64, device=DEVICE)[torch.arange(40) % 5]
    operands |= {"k": keys[None, None], "strength": torch.ones_like(operands["strength"])}
    _, state = delta_rule(**operands)
    assert_close(state[0, 0, :5], operands["v"][0, 0, 35:])
    assert not state[0, 0, 5:].any()
    mirrored = KINDS["delta"].draw(1, 2, 100, 8, 12, torch.float32)
    # Eigenvalues of -1, the end of what is bounded.
    mirrored["strength"] = torch.full_like(mirrored["strength"], 2.0)
    KINDS["delta"].check(mirrored, draw(1, 2, 8, 12))


def test_a_state_can_swap_its_rows():
    """Taking e1 - e2 away under e1 - e2 exchanges two rows: what no decay does (arXiv 2503.14456,
    on tracking states)."""
    state = draw(1, 1, 4, 5, dtype=torch.float64)
    pair = state.new_tensor([1.0, -1.0, 0.0, 0.0]).expand(1, 1, 3, 4)
    none = torch.zeros_like(pair)
    _, after = rwkv7_attention(none, none, state.new_zeros(1, 1, 3, 5), pair, pair, none, state)
    assert_close(after, state[:, :, [1, 0, 2, 3]])


def test_weak_decays_after_or_beside_strong_ones_are_kept():
    """0.016 after a sum of 10240, which float32 keeps to 0.001; channels of which half forget at
    each token."""
    after = KINDS["decayed, of tokens"].draw(2, 1, 64, 8, 4, torch.float32)
    after["log_decay"] = torch.tensor([-320.0] * 32 + [-0.016] * 32, device=DEVICE).expand(2, 1, 64)
    beside = KINDS["gated"].draw(1, 2, 100, 8, 8, torch.float32)
    beside["log_decay"] = torch.where(draw(1, 2, 100, 8, seed=9) > 0, -300.0, -1e-3)
    KINDS["decayed, of tokens"].check(after)
    KINDS["gated"].check(beside, draw(1, 2, 8, 8), chunk=64)


@pytest.mark.parametrize("t", [1, 50])
@pytest.mark.parametrize("groups", [1, 2])
def test_heads_that_share_queries_and_keys(groups, t, monkeypatch):
    stand_in_for_the_library(monkeypatch)
    kind = KINDS["decayed, of tokens"]
    operands = kind.draw(2, 4, t, 8, 12, torch.float64)
    operands |= {name: operands[name][:, :groups] for name in "qk"}
    of_head = [head * groups // 4 for head in range(4)]
    repeated = operands | {name: operands[name][:, of_head] for name in "qk"}
    for impl in ("torch", "reference"):
        assert_same(
            decayed_attention(**operands, impl=impl),
            decayed_attention(**repeated, impl="reference"),
        )
    with torch.no_grad():
        kind.check({name: x.float() for name, x in operands.items()}, impl="triton")


def test_autocast_narrows_nothing(kind):
    operands = kind.draw(1, 2, 70, 8, 8, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        o, _ = kind.attend(**operands)
    assert relative_error(o, kind.attend(**operands)[0]) == 0


# flash-linear-attention, which tests do not have.


def test_without_the_library_a_kernel_says_what_to_install(kind, monkeypatch, caplog):
    """`auto` takes PyTorch and says why; the library is not imported for that."""
    monkeypatch.setattr(triton_impl, "installed", lambda: False)
    operands = kind.draw(1, 2, 5, 8, 8, torch.float32)
    with (
        torch.no_grad(),
        pytest.raises(
            ValueError,
            match=r"impl='triton' cannot run: it needs .*pip install 'recallkit-lm\[gpu\]'",
        ),
    ):
        kind.attend(**operands, impl="triton")
    choice.say_once.cache_clear()
    with caplog.at_level(logging.INFO, "recallkit.kernels"), torch.no_grad():
        assert_same(kind.attend(**operands), kind.attend(**operands, impl="torch"), most=0)
    assert "torch, because it needs flash-linear-attention" in caplog.text
    assert "fla" not in sys.modules


def test_the_library_is_called_as_it_documents(kind, monkeypatch):
    """Its chunked kernel or the recurrent one, traced and not, with a state and without."""
    called = stand_in_for_the_library(monkeypatch)
    state = draw(2, 2, 8, 12)
    ways = [(1, torch.float32, "fused_recurrent"), (64, torch.bfloat16, "fused_recurrent")]
    with torch.inference_mode():
        for t, dtype, way in [
            *ways,
            (65, torch.bfloat16, "chunk"),
            (65, torch.float32, "fused_recurrent"),
        ]:
            for start in (None, state):
                kind.check(kind.draw(2, 2, t, 8, 12, dtype), start, impl="triton")
                assert called.pop() == f"{way}_{kind.library}"
    operands = kind.draw(2, 2, 5, 8, 12, torch.float32)
    check_traced(kind, operands, state)
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match="one type for all, not float32, float32, bfloat16"),
    ):
        kind.attend(**operands | {"v": operands["v"].bfloat16()}, impl="triton")
    with pytest.raises(ValueError, match="no backward pass"):
        kind.attend(**{name: x.requires_grad_() for name, x in operands.items()}, impl="triton")


def test_the_librarys_operation_is_one_that_torch_can_trace(monkeypatch):
    stand_in_for_the_library(monkeypatch)
    operands = [
        x.transpose(1, 2) for x in KINDS["gated"].draw(2, 2, 3, 8, 12, torch.float32).values()
    ]
    for state in (None, draw(2, 2, 8, 12)):
        torch.library.opcheck(triton_impl.fla_operation, ("gla", "", operands, state, 0.5))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("t", "widths", "strength"),
    [(1, (64, 64), 1.0), (17, (64, 64), 1.0), (130, (64, 128), 30.0), (1000, (64, 64), 0.1)],
)
def test_on_a_gpu_the_library_equals_the_reference(kind, t, widths, strength, dtype):
    pytest.importorskip("fla")
    strength = 0.1 if kind.attend is rwkv7_attention else strength  # weak decays, as in the mixer
    operands, state = kind.draw(2, 4, t, *widths, dtype, strength=strength), draw(2, 4, *widths)
    with torch.no_grad():
        for start in (None, state):
            kind.check(operands, start, impl="triton", times=2)
    check_traced(kind, operands, state)


@pytest.mark.gpu
def test_on_a_gpu_offsets_may_pass_2_31():
    """More than 2^31 entries of each input: the last row is as if alone."""
    pytest.importorskip("fla")
    for name in ("decayed, of tokens", "gated", "rwkv5"):
        one = KINDS[name].draw(1, 16, 4096, 64, 64, torch.bfloat16)
        many = {name: x.expand(513, *x.shape[1:]) if x.ndim > 2 else x for name, x in one.items()}
        with torch.no_grad():
            o, state = KINDS[name].attend(**many, impl="triton")
            alone = KINDS[name].attend(**one, impl="triton")
        for row in (0, 511, 512):
            assert_same((o[row : row + 1], state[row : row + 1]), alone, most=0)


def check_traced(kind: Recurrence, operands: Inputs, state: Tensor) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda **inputs: kind.attend(**inputs, state=state, impl="triton"),
        backend="aot_eager",
        fullgraph=True,
    )
    with torch.inference_mode():
        assert_same(
            compiled(**operands),
            kind.attend(**operands, state=state, impl="triton"),
            most=0,
        )


def assert_same(
    actual: tuple[Tensor, Tensor],
    wanted: tuple[Tensor, Tensor],
    most: float = 1e-12,
) -> None:
    for one, other in zip(actual, wanted, strict=True):
        assert relative_error(one, other) <= most
