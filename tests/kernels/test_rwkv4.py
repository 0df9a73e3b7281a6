"""`rwkv4_attention`: PyTorch's and the kernel equal the float64 recurrence, whole, in pieces and
step by step, at any exponent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from recallkit.kernels.rwkv4.api import rwkv4_attention
from recallkit.kernels.rwkv4.reference import NOTHING, Rwkv4State, empty_state
from recallkit.models.mixers.rwkv4 import RWKV4
from tests.kernels.battery import StatefulBattery, exactly
from tests.kernels.checks import DEVICE, assert_close, draw, pairwise
from tests.kernels.compilation import Case, assert_compiles

TIMED = ("k", "v", "gate")


def operands(
    t: int,
    b: int,
    d: int,
    dtype: torch.dtype = torch.float64,
    *,
    std: float = 1.0,
    decay: float | None = None,
) -> dict[str, Tensor]:
    """The arguments by name, the state by its parts; those that have a time have the type `dtype`,
    others float32 at least. `std`: of k."""
    wide = torch.promote_types(dtype, torch.float32)
    actual = {"k": draw(t, b, d, std=std, dtype=dtype), "v": draw(t, b, d, dtype=dtype, seed=1)}
    actual["decay"] = torch.exp(draw(d, std=3, dtype=wide, seed=2) - 2)
    if decay is not None:
        actual["decay"].fill_(decay)
    actual["bonus"] = draw(d, dtype=wide, seed=3)
    numerator, denominator, exponent = (draw(b, d, dtype=wide, seed=seed) for seed in (4, 5, 6))
    actual |= Rwkv4State(numerator, denominator.square() + 0.1, std * exponent)._asdict()
    return actual | {"gate": draw(t, b, d, dtype=dtype, seed=7)}


def run(arguments: Mapping[str, Any], impl: str) -> tuple[Tensor, ...]:
    """y and the three parts of the last state."""
    state = (
        Rwkv4State(*(arguments[name] for name in Rwkv4State._fields))
        if "exponent" in arguments
        else None
    )
    others = {name: value for name, value in arguments.items() if name not in Rwkv4State._fields}
    y, last = rwkv4_attention(**others, state=state, impl=impl)
    return y, *last


def by_definition(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, **state: Tensor) -> Tensor:
    """wkv as the quotient of two sums over all tokens before."""
    outputs = []
    for i in range(len(k)):
        weights = [torch.exp(-(i - 1 - j) * decay + k[j]) for j in range(i)] + [
            torch.exp(bonus + k[i]),
        ]
        above, below = sum(w * v[j] for j, w in enumerate(weights)), sum(weights)
        if state:
            faded = torch.exp(state["exponent"] - i * decay)
            above, below = above + faded * state["numerator"], below + faded * state["denominator"]
        outputs.append(above / below)
    return torch.stack(outputs)


class TestRwkv4(StatefulBattery):
    time: ClassVar = dict.fromkeys(TIMED, 0)
    rows: ClassVar = dict.fromkeys(TIMED, 1) | dict.fromkeys(Rwkv4State._fields, 0)
    options: ClassVar = ("gate",)
    state: ClassVar = Rwkv4State._fields
    sizes: ClassVar = [(1, 1, 1), (5, 2, 3), (17, 1, 33), (65, 2, 40), (130, 1, 7)]
    triton_sizes: ClassVar = [(1, 2, 33), (17, 1, 40), (5, 2, 3), (8, 1, 32), (2, 1, 1), (65, 1, 5)]
    times: ClassVar = 2
    small_chunks: ClassVar = {
        "recallkit.kernels.rwkv4.torch_impl.LEAST_TOKENS": 1,
        "recallkit.kernels.rwkv4.torch_impl.CHUNK_ELEMENTS": 12,
    }
    traced: ClassVar = ("recallkit.kernels.rwkv4.triton_impl.rwkv4_attention_triton",)
    mixers: ClassVar = {
        f"layer {layer}": lambda layer=layer: RWKV4(6, layer=layer, num_layers=2)
        for layer in (0, 1)
    }
    misfits: ClassVar = [
        ({"k": (4, 3)}, r"k must be \(t, b, d\), not of shape \(4, 3\)"),
        ({"k": (4, 2, 6)}, r"v must have shape \(4, 2, 6\), not \(4, 2, 5\)"),
        ({"v": (4, 1, 5)}, r"v must have shape \(4, 2, 5\), not \(4, 1, 5\)"),
        ({"gate": (4, 2, 1)}, r"gate must have shape \(4, 2, 5\)"),
        ({"decay": (2, 5)}, r"decay must have shape \(5,\)"),
        ({"bonus": (1,)}, r"bonus must have shape \(5,\)"),
        ({"numerator": (5, 2)}, r"the state's numerator must have shape \(2, 5\), not \(5, 2\)"),
        ({"v": torch.zeros(4, 2, 5, dtype=torch.int64)}, "floating-point tensors, not torch.int64"),
    ]

    def operands(self, t, b, d, *, dtype):
        return operands(t, b, d, dtype)

    def some(self, t, b=2, dtype=torch.float32):
        return operands(t, b, 5, dtype)

    def run(self, arguments, impl):
        return run(arguments, impl)

    def traceable(self):
        arguments = self.some(2)
        tensors = tuple(arguments[name] for name in ("k", "v", "decay", "bonus", "gate"))
        return [
            [
                (*tensors, *(arguments[name] for name in self.state)),
                (*tensors[:4], None, None, None, None),
            ],
        ]

    def assert_states_close(self, state, exact, *, times=1):
        """The same sums; what rounding moves their exponent by, the sums make up for."""
        state, exact = Rwkv4State(*state), Rwkv4State(*exact)
        torch.testing.assert_close(
            state.exponent.double(),
            exact.exponent.double(),
            rtol=2e-5 * times,
            atol=1e-5,
        )
        moved = torch.exp(state.exponent.double() - exact.exponent.double())
        for mine, theirs in zip(state[:2], exact[:2], strict=True):
            assert_close(mine * moved, theirs, dtype=state.exponent.dtype, times=times)

    def differentiable(self, arguments, impl):
        """y and the sums themselves: what these are divided by is a constant."""
        exponent = arguments.get("exponent")
        others = {name: value for name, value in arguments.items() if name != "exponent"}

        def attend(*values):
            y, *last = self.run(
                dict(zip(others, values, strict=True))
                | ({} if exponent is None else {"exponent": exponent}),
                impl,
            )
            return y, *(part * torch.exp(last[2]) for part in last[:2])

        return attend, list(others.values())


BATTERY = TestRwkv4()


@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_by_hand(impl):
    """Keys of 0, a weight halved with each token, no bonus: 1, (1 + 0) / 2, (1/2 + 0 + 0) / (1/2 +
    1 + 1)."""
    v = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).view(3, 1, 1)
    halved, none, three = (v.new_tensor([x]) for x in (math.log(2), 0.0, math.log(3)))
    y, last = rwkv4_attention(0 * v, v, halved, none, impl=impl)
    assert y.flatten().tolist() == pytest.approx([1.0, 0.5, 0.2])
    # 1/4 + 0 + 0 over 1/4 + 1/2 + 1, the exponent that of the last.
    assert [x.item() for x in last] == pytest.approx([0.25, 1.75, 0.0])
    y, _ = rwkv4_attention(0 * v, v, halved, three, gate=0 * v, impl=impl)
    assert y.flatten().tolist() == pytest.approx([1 / 2, 1 / 8, 1 / 2 / (1 / 2 + 1 + 3) / 2])


@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_it_is_its_definition(impl):
    arguments = operands(12, 2, 3)
    gate = torch.sigmoid(arguments.pop("gate"))
    torch.testing.assert_close(run(arguments, impl)[0], by_definition(**arguments))
    torch.testing.assert_close(
        run(arguments | {"gate": torch.logit(gate)}, impl)[0],
        gate * by_definition(**arguments),
    )
    torch.testing.assert_close(
        run(BATTERY.bare(arguments), impl)[0],
        by_definition(**BATTERY.bare(arguments)),
    )


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
def test_the_first_token_is_its_value(impl):
    arguments = BATTERY.bare(operands(1, 2, 5, torch.float32))
    y, last = rwkv4_attention(**arguments, impl=impl)
    assert_close(y, arguments["v"])
    assert torch.equal(last.exponent, arguments["k"][0])
    assert torch.equal(last.denominator, torch.ones_like(last.denominator))
    assert torch.equal(last.numerator, arguments["v"][0])


@pytest.mark.parametrize(
    ("decay", "std", "impl"),
    pairwise(
        [0.0, 1e-6, 0.01, 0.5, 20.0, 1e4, 2e17],
        [1.0, 3.0, 30.0, 5000.0],
        ["torch", "triton"],
    ),
)
def test_strong_and_weak_decays_and_keys_of_any_size(decay, std, impl):
    """At 5000 neighbours of float32 are 0.0005 apart, and powers of what is rounded to them as
    far."""
    t = 70 if impl == "torch" else 14
    arguments = operands(t, 1, 6, torch.float32, std=std, decay=decay)
    for chosen in (arguments, BATTERY.bare(arguments)):
        BATTERY.check(chosen, impl, times=2 if std <= 30 else 500)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_what_rounding_does_to_the_exponent_the_sums_make_up_for(impl):
    """A heavy sum fades token after token: 0.001 is subtracted from 90, where float32 is spaced by
    8e-6, and the error adds up."""
    arguments = BATTERY.bare(operands(70, 1, 8, torch.float32, decay=1.003e-3))
    arguments["k"][0], arguments["k"][1:] = 90.0, arguments["k"][1:] + 87
    BATTERY.check(arguments, impl, times=2)


def test_large_keys_give_finite_gradients():
    for t in (1, 30):
        arguments = BATTERY.bare(operands(t, 1, 3, torch.float32, std=200.0))
        for value in arguments.values():
            value.requires_grad_()
        y, last = rwkv4_attention(**arguments)
        (y.square().sum() + last.numerator.square().sum()).backward()
        assert all(value.grad.isfinite().all() for value in arguments.values())


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
@pytest.mark.parametrize("t", [1, 6])
@pytest.mark.parametrize("hidden", [0, 1])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_states_without_terms_are_one(impl, t, hidden):
    """Also where the first token adds none, so that there is nothing to divide by."""
    arguments = BATTERY.bare(operands(t, 1, 5, torch.float32))
    arguments["k"][:hidden] = -math.inf
    wanted, wanted_last = rwkv4_attention(**arguments, impl=impl)
    assert wanted[:hidden].isnan().all()
    assert wanted[hidden:].isfinite().all()
    none = empty_state(1, 5, device=DEVICE)
    for exponent in (NOTHING, -math.inf):
        y, last = rwkv4_attention(
            **arguments,
            state=none._replace(exponent=torch.full_like(none.exponent, exponent)),
            impl=impl,
        )
        assert torch.equal(y[hidden:], wanted[hidden:])
        assert all(
            torch.equal(mine, theirs) for mine, theirs in zip(last, wanted_last, strict=True)
        )


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
def test_tokens_that_weigh_nothing_change_nothing(impl):
    """k = -inf: their y is what was before, and with no decay the next one's as well."""
    arguments = BATTERY.bare(operands(6, 1, 3, torch.float32, decay=0.0))
    for hidden in (2, 5):
        arguments["k"][hidden] = -math.inf
    y, last = rwkv4_attention(**arguments, impl=impl)
    visible = [0, 1, 3, 4]
    others, others_last = rwkv4_attention(
        **arguments | {name: arguments[name][visible] for name in ("k", "v")},
        impl=impl,
    )
    assert_close(y[visible], others)
    assert_close(y[5], others_last.numerator / others_last.denominator)
    BATTERY.assert_states_close(last, others_last)


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_gates_close_and_open(impl):
    arguments = operands(6, 1, 4, torch.float32)
    plain = run(arguments | {"gate": None}, impl)[0]
    arguments["gate"] = torch.tensor([-1000.0, -100.0, 0.0, 1000.0], device=DEVICE).expand(6, 1, 4)
    y, *_ = run(arguments, impl)
    assert not y[..., :2].abs().gt(1e-40).any()
    assert_close(y[..., 2:], plain[..., 2:] * torch.tensor([0.5, 1.0], device=DEVICE))


@pytest.mark.parametrize("config", [0, 1])
def test_every_configuration_gives_the_result(config):
    from recallkit.kernels.rwkv4.triton_impl import WALK, rwkv4_attention_triton

    assert len(WALK.configs) == 2
    arguments = operands(9, 1, 40, torch.float32)
    exact, *exact_state = run(exactly(arguments), "reference")
    tensors = (
        arguments[name] for name in ("k", "v", "decay", "bonus", "gate", *Rwkv4State._fields)
    )
    y, last = rwkv4_attention_triton(*tensors, config)
    assert_close(y, exact)
    BATTERY.assert_states_close(last, exact_state)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_what_is_no_number_stays_where_it_is(impl):
    arguments = operands(6, 2, 4, torch.float32)
    arguments["k"][3, 1, 2] = math.nan
    arguments["exponent"][0, 0] = math.nan
    y, numerator, *_ = run(arguments, impl)
    broken = torch.zeros(6, 2, 4, dtype=torch.bool, device=DEVICE)
    broken[3:, 1, 2] = broken[:, 0, 0] = True
    assert torch.equal(y.isnan(), broken)
    assert torch.equal(numerator.isnan(), broken[-1])


KERNEL = "recallkit.kernels.rwkv4.triton_impl"


def compiled_cases() -> list[Case]:
    """A text in both configurations, bf16, fp32 and fp16; one row without options; a step."""
    sizes = {"t": 2048, "b": 16, "d": 2048} | {
        f"{name}_{axis}": 32768 if axis == "t" else 2048 for name in TIMED for axis in "tb"
    }
    wide = dict.fromkeys(
        [
            f"{name}_ptr"
            for name in ("decay", "bonus", "numerator", "denominator", "exponent", "last")
        ],
        "*fp32",
    )
    options = {"HAS_STATE": True, "HAS_GATE": True}

    def case(kind: str, config: int, **other: object) -> Case:
        narrow = dict.fromkeys(("k_ptr", "v_ptr", "gate_ptr", "y_ptr"), f"*{kind}")
        return Case(
            f"{KERNEL}:weighted_values_kernel",
            sizes | wide | narrow | options | other,
            f"{KERNEL}:WALK",
            config,
        )

    bare = {"b": 1, "HAS_STATE": False, "HAS_GATE": False}
    return [case("bf16", 0), case("fp32", 1), case("fp16", 0, **bare), case("bf16", 1, t=1)]


@pytest.mark.slow
def test_compiled_for_a_gpu_nothing_spills_and_inputs_are_loaded_ahead():
    results = assert_compiles(compiled_cases(), matrix=None)
    # Five of a token in each of the loops: three powers, the gate's, a division; one to find the
    # row.
    assert results[0].instructions["MUFU"] <= 5 * (4 + 1) + 1
    assert all(resources.registers <= 80 for resources in results), (
        "fewer than 24 warps fit into a multiprocessor"
    )
    assert all(resources.instructions.get("LDGSTS") for resources in results[:-1]), (
        "the inputs of a text are not loaded ahead"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(257, 3, 100), (2048, 4, 2048), (65537, 1, 64), (1, 64, 5120)])
@pytest.mark.parametrize("std", [1.0, 30.0])
def test_on_a_gpu_triton_equals_torch(sizes, dtype, std):
    arguments = operands(*sizes, dtype, std=std)
    y, *last = run(arguments, "triton")
    exact, *exact_last = run(exactly(arguments), "torch")
    # Each token rounds sums and exponent once, in PyTorch's float32 as here: after 65,537 tokens
    # sums are off by 7e-4.
    assert_close(y, exact, times=max(10, sizes[0] / 500) if dtype == torch.float32 else 1)
    BATTERY.assert_states_close(last, exact_last, times=max(20, sizes[0] / 100))


@pytest.mark.gpu
def test_on_a_gpu_offsets_past_two_billion():
    t, b, d = 65537, 9, 4096
    k, v = (torch.randn(t, b, d, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    decay, bonus = torch.rand(d, device=DEVICE), torch.randn(d, device=DEVICE)
    y, last = rwkv4_attention(k, v, decay, bonus, gate=k, impl="triton")
    k, v = (x[:, 8:].contiguous() for x in (k, v))
    alone, alone_last = rwkv4_attention(k, v, decay, bonus, gate=k, impl="triton")
    assert torch.equal(y[:, 8:], alone)
    assert all(torch.equal(mine[8:], theirs) for mine, theirs in zip(last, alone_last, strict=True))
