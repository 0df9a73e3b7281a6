"""`rwkv4_attention`: PyTorch's and the kernel equal the float64 recurrence, whole, in pieces and step by step, at any exponent."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from recallkit.kernels.choice import preferring
from recallkit.kernels.elementwise_recurrence import linear_scan
from recallkit.kernels.rwkv4 import torch_impl
from recallkit.kernels.rwkv4.api import rwkv4_attention
from recallkit.kernels.rwkv4.reference import NOTHING, Rwkv4State, empty_state
from recallkit.models.mixers.rwkv4 import RWKV4
from tests.kernels.checks import DEVICE, TOLERANCES, assert_close, draw, pairwise
from tests.kernels.compilation import Case, assert_compiles

TIMED = ("k", "v", "gate")


def given(
    t: int, b: int, d: int, dtype: torch.dtype = torch.float64, *, std: float = 1.0, options: bool = True, decay: float | None = None
) -> dict[str, Tensor | Rwkv4State]:
    """The arguments by name; those that have a time have the type `dtype`, all others float32 at least. `std`: of k."""
    wide = torch.promote_types(dtype, torch.float32)
    made: dict[str, Tensor | Rwkv4State] = {"k": draw(t, b, d, std=std, dtype=dtype), "v": draw(t, b, d, dtype=dtype, seed=1)}
    made["decay"] = (
        torch.exp(draw(d, std=3, dtype=wide, seed=2) - 2) if decay is None else torch.full((d,), decay, dtype=wide, device=DEVICE)
    )
    made["bonus"] = draw(d, dtype=wide, seed=3)
    if options:
        numerator, denominator, exponent = (draw(b, d, dtype=wide, seed=seed) for seed in (4, 5, 6))
        made["state"] = Rwkv4State(numerator, denominator.square() + 0.1, std * exponent)
        made["gate"] = draw(t, b, d, dtype=dtype, seed=7)
    return made


def doubled(arguments):
    return {name: Rwkv4State(*(x.double() for x in value)) if name == "state" else value.double() for name, value in arguments.items()}


def assert_state_close(state: Rwkv4State, exact: Rwkv4State, *, times: float = 1) -> None:
    """The same sums; what rounding moves their exponent by, the sums make up for."""
    torch.testing.assert_close(state.exponent.double(), exact.exponent, rtol=1e-5, atol=1e-5)
    moved = torch.exp(state.exponent.double() - exact.exponent)
    for mine, theirs in zip(state[:2], exact[:2], strict=True):
        assert_close(mine * moved, theirs, dtype=state.exponent.dtype, times=times)


def check(arguments, impl: str, *, times: float = 1) -> None:
    """y and the last state against the recurrence in float64."""
    exact_y, exact_last = rwkv4_attention(**doubled(arguments), impl="reference")
    y, last = rwkv4_attention(**arguments, impl=impl)
    dtype = arguments["v"].dtype
    assert y.dtype == dtype
    assert {part.dtype for part in last} == {torch.promote_types(dtype, torch.float32)}
    assert_close(y, exact_y, times=times)
    # Nothing but the inputs is rounded to half precision: the state is as exact as float32 is.
    assert_state_close(last, exact_last, times=times)


def part(arguments, steps: slice, state: Rwkv4State):
    return {name: value[steps] if name in TIMED else value for name, value in arguments.items()} | {"state": state}


def check_gradients(arguments, impl: str) -> None:
    """Those of y and of the sums themselves: what these are divided by is a constant."""
    state = arguments.pop("state", None)
    names, sums = list(arguments), list(state[:2]) if state else []

    def attend(*values: Tensor) -> tuple[Tensor, ...]:
        begin = Rwkv4State(*values[len(names) :], state.exponent) if state else None
        y, last = rwkv4_attention(**dict(zip(names, values, strict=False)), state=begin, impl=impl)
        return y, last.numerator * torch.exp(last.exponent), last.denominator * torch.exp(last.exponent)

    assert torch.autograd.gradcheck(attend, [value.clone().requires_grad_() for value in (*arguments.values(), *sums)])


def by_definition(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, state: Rwkv4State | None = None) -> Tensor:
    """wkv as the quotient of two sums over all tokens before."""
    outputs = []
    for i in range(len(k)):
        weights = [torch.exp(-(i - 1 - j) * decay + k[j]) for j in range(i)] + [torch.exp(bonus + k[i])]
        above, below = sum(w * v[j] for j, w in enumerate(weights)), sum(weights)
        if state is not None:
            faded = torch.exp(state.exponent - i * decay)
            above, below = above + faded * state.numerator, below + faded * state.denominator
        outputs.append(above / below)
    return torch.stack(outputs)


@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_by_hand(impl):
    """Keys of 0, a weight halved with each token, no bonus: 1, (1 + 0) / 2, (1/2 + 0 + 0) / (1/2 + 1 + 1)."""
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
    arguments = given(12, 2, 3)
    gate = torch.sigmoid(arguments.pop("gate"))
    torch.testing.assert_close(rwkv4_attention(**arguments, impl=impl)[0], by_definition(**arguments))
    torch.testing.assert_close(rwkv4_attention(**arguments, gate=torch.logit(gate), impl=impl)[0], gate * by_definition(**arguments))
    arguments.pop("state")
    torch.testing.assert_close(rwkv4_attention(**arguments, impl=impl)[0], by_definition(**arguments))


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
def test_the_first_token_is_its_value(impl):
    arguments = given(1, 2, 5, torch.float32, options=False)
    y, last = rwkv4_attention(**arguments, impl=impl)
    assert_close(y, arguments["v"])
    assert torch.equal(last.exponent, arguments["k"][0])
    assert torch.equal(last.denominator, torch.ones_like(last.denominator))
    assert torch.equal(last.numerator, arguments["v"][0])


@pytest.mark.parametrize(
    ("sizes", "dtype", "options"), pairwise([(1, 1, 1), (5, 2, 3), (17, 1, 33), (65, 2, 40), (130, 1, 7)], list(TOLERANCES), [False, True])
)
def test_torch_equals_reference(sizes, dtype, options):
    check(given(*sizes, dtype, options=options), "torch", times=2)


@pytest.mark.parametrize("t", range(1, 18))
def test_torch_at_every_short_length(t):
    check(given(t, 2, 3), "torch")


@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_chunks_are_the_whole(monkeypatch, tokens):
    monkeypatch.setattr(torch_impl, "LEAST_TOKENS", 1)
    monkeypatch.setattr(torch_impl, "CHUNK_ELEMENTS", tokens * 2 * 3)
    for t in (1, 3, 8, 9):
        check(given(t, 2, 3), "torch")
    check_gradients(given(5, 2, 3), "torch")


@pytest.mark.parametrize(
    ("decay", "std", "impl"), pairwise([0.0, 1e-6, 0.01, 0.5, 20.0, 1e4, 2e17], [1.0, 3.0, 30.0, 5000.0], ["torch", "triton"])
)
def test_strong_and_weak_decays_and_keys_of_any_size(decay, std, impl):
    """At 5000 neighbours of float32 are 0.0005 apart, and powers of what is rounded to them as far."""
    t = 70 if impl == "torch" else 14
    for options in (False, True):
        check(given(t, 1, 6, torch.float32, std=std, decay=decay, options=options), impl, times=2 if std <= 30 else 500)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_what_rounding_does_to_the_exponent_the_sums_make_up_for(impl):
    """A heavy sum fades token after token: 0.001 is subtracted from 90, where float32 is spaced by 8e-6, and the error adds up."""
    arguments = given(70, 1, 8, torch.float32, decay=1.003e-3, options=False)
    arguments["k"][0], arguments["k"][1:] = 90.0, arguments["k"][1:] + 87
    check(arguments, impl, times=2)


@pytest.mark.parametrize("t", [1, 2, 5])
@pytest.mark.parametrize("impl", ["torch", "reference"])
@pytest.mark.parametrize("options", [False, True])
def test_gradients_are_the_derivatives(t, impl, options):
    check_gradients(given(t, 2, 3, options=options), impl)


def test_large_keys_give_finite_gradients():
    for t in (1, 30):
        arguments = given(t, 1, 3, torch.float32, std=200.0, options=False)
        for value in arguments.values():
            value.requires_grad_()
        y, last = rwkv4_attention(**arguments)
        (y.square().sum() + last.numerator.square().sum()).backward()
        assert all(value.grad.isfinite().all() for value in arguments.values())


@pytest.mark.parametrize("t", [1, 2, 5])
def test_gradients_of_the_linear_scan_are_its_derivatives(t):
    decay, u, state = (draw(*shape, dtype=torch.float64).requires_grad_() for shape in ((t, 1, 3), (t, 2, 3), (2, 3)))
    assert torch.autograd.gradcheck(linear_scan, (decay, u, state))
    for i, made in enumerate(linear_scan(decay, u, state)):
        state = decay[i] * state + u[i]
        torch.testing.assert_close(made, state)


@pytest.mark.parametrize(("impl", "offsets"), [("torch", range(10)), ("triton", (0, 1, 4, 6))])
def test_a_text_in_two_pieces_is_the_whole(impl, offsets):
    arguments = given(9, 1, 5, torch.float32)
    exact_y, exact_last = rwkv4_attention(**doubled(arguments), impl="reference")
    for offset in offsets:
        first, state = rwkv4_attention(**part(arguments, slice(0, offset), arguments["state"]), impl=impl)
        second, last = rwkv4_attention(**part(arguments, slice(offset, 9), state), impl=impl)
        assert_close(torch.cat([first, second]), exact_y)
        assert_state_close(last, exact_last)


@pytest.mark.parametrize("impl", ["torch", "triton", "reference"])
def test_a_beginning_and_then_steps_are_the_whole(impl):
    arguments = given(9, 2, 5, torch.float32)
    exact_y, exact_last = rwkv4_attention(**doubled(arguments), impl="reference")
    y, state = rwkv4_attention(**part(arguments, slice(0, 5), arguments["state"]), impl=impl)
    outputs = [y]
    for i in range(5, 9):
        before = [x.clone() for x in state]
        y, new = rwkv4_attention(**part(arguments, slice(i, i + 1), state), impl=impl)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(before, state, strict=True)), "a state that was given has changed"
        state = new
        outputs.append(y)
    assert_close(torch.cat(outputs), exact_y)
    assert_state_close(state, exact_last, times=2)


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
@pytest.mark.parametrize("t", [1, 6])
@pytest.mark.parametrize("hidden", [0, 1])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_states_without_terms_are_one(impl, t, hidden):
    """Also where the first token adds none, so that there is nothing to divide by."""
    arguments = given(t, 1, 5, torch.float32, options=False)
    arguments["k"][:hidden] = -math.inf
    wanted, wanted_last = rwkv4_attention(**arguments, impl=impl)
    assert wanted[:hidden].isnan().all()
    assert wanted[hidden:].isfinite().all()
    none = empty_state(1, 5, device=DEVICE)
    for exponent in (NOTHING, -math.inf):
        y, last = rwkv4_attention(**arguments, state=none._replace(exponent=torch.full_like(none.exponent, exponent)), impl=impl)
        assert torch.equal(y[hidden:], wanted[hidden:])
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(last, wanted_last, strict=True))


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
def test_tokens_that_weigh_nothing_change_nothing(impl):
    """k = -inf: their y is what was before, and with no decay the next one's as well."""
    arguments = given(6, 1, 3, torch.float32, decay=0.0, options=False)
    for hidden in (2, 5):
        arguments["k"][hidden] = -math.inf
    y, last = rwkv4_attention(**arguments, impl=impl)
    seen = [0, 1, 3, 4]
    others, others_last = rwkv4_attention(**arguments | {name: arguments[name][seen] for name in ("k", "v")}, impl=impl)
    assert_close(y[seen], others)
    assert_close(y[5], others_last.numerator / others_last.denominator)
    assert_state_close(last, Rwkv4State(*(x.double() for x in others_last)))


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_gates_close_and_open(impl):
    arguments = given(6, 1, 4, torch.float32)
    plain = rwkv4_attention(**arguments | {"gate": None}, impl=impl)[0]
    arguments["gate"] = torch.tensor([-1000.0, -100.0, 0.0, 1000.0], device=DEVICE).expand(6, 1, 4)
    y, _ = rwkv4_attention(**arguments, impl=impl)
    assert not y[..., :2].abs().gt(1e-40).any()
    assert_close(y[..., 2:], plain[..., 2:] * torch.tensor([0.5, 1.0], device=DEVICE))


# The kernel for GPUs: interpreted where there is none.


@pytest.mark.parametrize("sizes", [(1, 2, 33), (17, 1, 40), (5, 2, 3), (8, 1, 32), (2, 1, 1), (65, 1, 5)])
@pytest.mark.parametrize("options", [False, True])
def test_triton_equals_reference(sizes, options):
    check(given(*sizes, torch.float32, options=options), "triton", times=2)


@pytest.mark.parametrize("config", [0, 1])
def test_every_configuration_gives_the_result(config):
    from recallkit.kernels.rwkv4.triton_impl import WALK, rwkv4_attention_triton

    assert len(WALK.configs) == 2
    arguments = given(9, 1, 40, torch.float32)
    exact_y, exact_last = rwkv4_attention(**doubled(arguments), impl="reference")
    tensors = (arguments[name] for name in ("k", "v", "decay", "bonus", "gate"))
    y, last = rwkv4_attention_triton(*tensors, *arguments["state"], config)
    assert_close(y, exact_y)
    assert_state_close(Rwkv4State(*last), exact_last)


def test_triton_takes_each_option_alone():
    arguments = given(5, 1, 4, torch.float32)
    for name in ("state", "gate"):
        check({key: value for key, value in arguments.items() if key != name}, "triton")
    check(arguments | {"gate": arguments["k"], "v": arguments["k"]}, "triton")


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_any_strides(impl):
    """Thirds of a projection, texts before the time, channels that are not side by side."""
    arguments = given(6, 2, 8, torch.float32)
    wanted = rwkv4_attention(**arguments, impl=impl)
    thirds = dict(zip(TIMED, torch.cat([arguments[name] for name in TIMED], dim=-1).chunk(3, -1), strict=True))
    texts_first = {name: arguments[name].transpose(0, 1).contiguous().transpose(0, 1) for name in TIMED}
    spread = {name: arguments[name].permute(2, 0, 1).contiguous().permute(1, 2, 0) for name in TIMED}
    spread |= {name: arguments[name].repeat_interleave(2)[::2] for name in ("decay", "bonus")}
    spread["state"] = Rwkv4State(*(x.T.contiguous().T for x in arguments["state"]))
    mixed = {"k": thirds["k"], "v": texts_first["v"]}
    for way in (thirds, texts_first, spread, mixed):
        y, last = rwkv4_attention(**arguments | way, impl=impl)
        assert_close(y, wanted[0])
        assert_state_close(last, Rwkv4State(*(x.double() for x in wanted[1])))


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_row_does_not_depend_on_the_others(impl):
    arguments = given(5, 3, 34, torch.float32)
    y, last = rwkv4_attention(**arguments, impl=impl)
    row = {name: value[:, 1:2] if name in TIMED else value for name, value in arguments.items()}
    row["state"] = Rwkv4State(*(x[1:2] for x in arguments["state"]))
    alone, alone_last = rwkv4_attention(**row, impl=impl)
    assert_close(alone, y[:, 1:2])
    if impl == "triton":
        assert torch.equal(alone, y[:, 1:2])
        assert all(torch.equal(mine, theirs[1:2]) for mine, theirs in zip(alone_last, last, strict=True))


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_what_is_no_number_stays_where_it_is(impl):
    arguments = given(6, 2, 4, torch.float32)
    arguments["k"][3, 1, 2] = math.nan
    arguments["state"].exponent[0, 0] = math.nan
    y, last = rwkv4_attention(**arguments, impl=impl)
    broken = torch.zeros(6, 2, 4, dtype=torch.bool, device=DEVICE)
    broken[3:, 1, 2] = broken[:, 0, 0] = True
    assert torch.equal(y.isnan(), broken)
    assert torch.equal(last.numerator.isnan(), broken[-1])


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
def test_nothing_to_attend_to(impl):
    no_time = given(0, 2, 3, torch.float32)
    y, last = rwkv4_attention(**no_time, impl=impl)
    assert y.shape == (0, 2, 3)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(last, no_time["state"], strict=True))
    no_time.pop("state")
    last = rwkv4_attention(**no_time, impl=impl)[1]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(last, empty_state(2, 3, device=DEVICE), strict=True))
    y, last = rwkv4_attention(**given(3, 0, 3, torch.float32), impl=impl)
    assert (y.shape, {x.shape for x in last}) == ((3, 0, 3), {(0, 3)})


def test_triton_is_an_operation_that_torch_can_trace():
    from recallkit.kernels.rwkv4.triton_impl import rwkv4_attention_triton

    arguments = given(2, 1, 4, torch.float32)
    tensors = tuple(arguments[name] for name in ("k", "v", "decay", "bonus", "gate"))
    torch.library.opcheck(rwkv4_attention_triton, (*tensors, *arguments["state"]))
    torch.library.opcheck(rwkv4_attention_triton, (*tensors[:4], None, None, None, None))
    rest = {name: value for name, value in arguments.items() if name != "k"}
    compiled = torch.compile(lambda k: rwkv4_attention(k, **rest, impl="triton")[0], backend="aot_eager", fullgraph=True)
    with torch.inference_mode():
        assert torch.equal(compiled(arguments["k"]), rwkv4_attention(**arguments, impl="triton")[0])


def test_auto_falls_back_where_gradients_are_wanted():
    arguments = given(2, 1, 3, torch.float32)
    wanted = arguments | {"k": arguments["k"].clone().requires_grad_()}
    with preferring("triton"):
        assert torch.equal(rwkv4_attention(**wanted)[0], rwkv4_attention(**arguments, impl="torch")[0])
    for broken, message in ((wanted, "no backward pass"), (doubled(arguments), "not float64")):
        with pytest.raises(ValueError, match=message):
            rwkv4_attention(**broken, impl="triton")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("k", torch.zeros(4, 3), r"k must be \(t, b, d\), not of shape \(4, 3\)"),
        ("k", torch.zeros(4, 2, 5), r"v must have shape \(4, 2, 5\), not \(4, 2, 3\)"),
        ("v", torch.zeros(4, 1, 3), r"v must have shape \(4, 2, 3\), not \(4, 1, 3\)"),
        ("gate", torch.zeros(4, 2, 1), r"gate must have shape \(4, 2, 3\)"),
        ("decay", torch.zeros(2, 3), r"decay must have shape \(3,\)"),
        ("bonus", torch.zeros(1), r"bonus must have shape \(3,\)"),
        ("state", empty_state(3, 2), r"the state's numerator must have shape \(2, 3\), not \(3, 2\)"),
        ("v", torch.zeros(4, 2, 3, dtype=torch.int64), "floating-point tensors, not torch.int64"),
    ],
)
def test_what_does_not_fit_is_named(name, value, message):
    with pytest.raises(ValueError, match=message):
        rwkv4_attention(**given(4, 2, 3, torch.float32) | {name: value})


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1])
def test_rwkv4_on_the_kernel_is_its_reference(layer):
    """A text at once, and a beginning and then steps."""
    torch.manual_seed(0)
    mixer = RWKV4(6, layer=layer, num_layers=2).to(DEVICE)
    for parameter in mixer.parameters():
        parameter += 0.3 * torch.randn_like(parameter)
    u = draw(2, 9, 6)
    with preferring("triton"):
        wanted = mixer.reference(u)
        assert wanted.abs().max() > 0
        assert_close(mixer(u), wanted, times=2)
        y, state = mixer.read(u[:, :5], mixer.initial_state(2))
        outputs = [y]
        for i in range(5, 9):
            y, state = mixer.step(u[:, i], state)
            outputs.append(y.unsqueeze(1))
    assert_close(torch.cat(outputs, 1), wanted, times=2)


KERNEL = "recallkit.kernels.rwkv4.triton_impl"


def compiled_cases() -> list[Case]:
    """A text in both configurations, bf16, fp32 and fp16; one row without options; a step."""
    sizes = {"t": 2048, "b": 16, "d": 2048} | {f"{name}_{axis}": 32768 if axis == "t" else 2048 for name in TIMED for axis in "tb"}
    wide = dict.fromkeys([f"{name}_ptr" for name in ("decay", "bonus", "numerator", "denominator", "exponent", "last")], "*fp32")
    options = {"HAS_STATE": True, "HAS_GATE": True}

    def case(kind: str, config: int, **other: object) -> Case:
        narrow = dict.fromkeys(("k_ptr", "v_ptr", "gate_ptr", "y_ptr"), f"*{kind}")
        return Case(f"{KERNEL}:weighted_values_kernel", sizes | wide | narrow | options | other, f"{KERNEL}:WALK", config)

    bare = {"b": 1, "HAS_STATE": False, "HAS_GATE": False}
    return [case("bf16", 0), case("fp32", 1), case("fp16", 0, **bare), case("bf16", 1, t=1)]


@pytest.mark.slow
def test_compiled_for_a_gpu_nothing_spills_and_inputs_are_loaded_ahead():
    found = assert_compiles(compiled_cases(), matrix=None)
    # Five of a token in each of the loops: three powers, the gate's, a division; one to find the row.
    assert found[0].instructions["MUFU"] <= 5 * (4 + 1) + 1
    assert all(resources.registers <= 80 for resources in found), "fewer than 24 warps fit into a multiprocessor"
    assert all(resources.instructions.get("LDGSTS") for resources in found[:-1]), "the inputs of a text are not loaded ahead"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(257, 3, 100), (2048, 4, 2048), (65537, 1, 64), (1, 64, 5120)])
@pytest.mark.parametrize("std", [1.0, 30.0])
def test_on_a_gpu_triton_equals_torch(sizes, dtype, std):
    arguments = given(*sizes, dtype, std=std)
    y, last = rwkv4_attention(**arguments, impl="triton")
    exact_y, exact_last = rwkv4_attention(**doubled(arguments), impl="torch")
    assert_close(y, exact_y, times=10 if dtype == torch.float32 else 1)
    assert_state_close(last, exact_last, times=10)


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
