"""`selective_scan`: PyTorch's and the kernel equal the float64 recurrence, whole, in pieces and step by step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from recallkit.kernels.choice import preferring
from recallkit.kernels.selective_scan import torch_impl
from recallkit.kernels.selective_scan.api import selective_scan, selective_scan_step
from recallkit.models.mixers.mamba import Mamba
from tests.kernels.checks import DEVICE, TOLERANCES, assert_close, draw, pairwise
from tests.kernels.compilation import Case, assert_compiles

NARROW = ("x", "write", "read", "gate")


def given(
    t: int, b: int, d: int, n: int, dtype: torch.dtype = torch.float64, *, std: float = 1.0, options: bool = True
) -> dict[str, Tensor]:
    """The arguments by name; those that may be narrow have the type `dtype`, all others float32 at least."""
    wide = torch.promote_types(dtype, torch.float32)
    shapes = {"x": (t, b, d), "dt": (t, b, d), "rates": (d, n), "write": (t, b, n), "read": (t, b, n)}
    if options:
        shapes |= {"start": (b, n, d), "skip": (d,), "gate": (t, b, d)}
    made = {
        name: draw(*shape, std=std if name in NARROW else 1, dtype=dtype if name in NARROW else wide, seed=seed)
        for seed, (name, shape) in enumerate(shapes.items())
    }
    return made | {"dt": functional.softplus(made["dt"] - 1), "rates": -torch.exp(made["rates"])}


def doubled(arguments: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double() for name, value in arguments.items()}


def check(arguments: dict[str, Tensor], impl: str, *, times: float = 1) -> None:
    """y and the last state against the recurrence in float64."""
    exact_y, exact_last = selective_scan(**doubled(arguments), impl="reference")
    y, last = selective_scan(**arguments, impl=impl)
    dtype = arguments["x"].dtype
    assert y.dtype == dtype
    assert last.dtype == torch.promote_types(dtype, torch.float32)
    assert_close(y, exact_y, times=times)
    # Nothing but the inputs is rounded to half precision: the state is as exact as float32 is.
    assert_close(last, exact_last, times=times)


def part(arguments: dict[str, Tensor], steps: slice, start: Tensor | None) -> dict[str, Tensor]:
    timed = {name: arguments[name][steps] for name in ("x", "dt", "write", "read", "gate") if name in arguments}
    rest = {name: arguments[name] for name in ("rates", "skip") if name in arguments}
    return timed | rest | ({} if start is None else {"start": start})


def at(arguments: dict[str, Tensor], i: int) -> dict[str, Tensor]:
    """What a single step is given, without its state."""
    return {
        name: value[0] if name in ("x", "dt", "write", "read", "gate") else value
        for name, value in part(arguments, slice(i, i + 1), None).items()
    }


def test_a_scan_by_hand():
    """x = 1, B = 1 and exp(dt A) = 1/2: the state is 1, 1 1/2, 1 3/4; C reads it once, twice, not at all. D = 4, silu(z) = z."""
    one = torch.ones(3, 1, 1, dtype=torch.float64)
    read = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64).view(3, 1, 1)
    for impl in ("reference", "torch"):
        arguments = (one, one, torch.full((1, 1), -math.log(2), dtype=torch.float64), one, read)
        y, last = selective_scan(*arguments, impl=impl)
        assert y.flatten().tolist() == pytest.approx([1.0, 3.0, 0.0])
        assert last.item() == pytest.approx(1.75)
        four = torch.tensor([4.0], dtype=torch.float64)
        y, _ = selective_scan(*arguments, skip=four, gate=40 * one, impl=impl)
        assert y.flatten().tolist() == pytest.approx([200.0, 280.0, 160.0])


@pytest.mark.parametrize(
    ("sizes", "dtype", "options"),
    pairwise([(1, 1, 1, 1), (5, 2, 3, 8), (17, 1, 33, 24), (65, 2, 5, 16), (130, 1, 7, 3)], list(TOLERANCES), [False, True]),
)
def test_torch_equals_reference(sizes, dtype, options):
    check(given(*sizes, dtype, options=options), "torch")


@pytest.mark.parametrize("t", range(1, 18))
def test_torch_at_every_short_length(t):
    check(given(t, 2, 3, 4), "torch")


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_rows_are_scanned_in_groups_as_at_once(monkeypatch, rows):
    monkeypatch.setattr(torch_impl, "STEP_ELEMENTS", rows * 3 * 2)
    arguments = given(9, 5, 3, 2)
    check(arguments, "torch")
    assert torch.autograd.gradcheck(lambda x: selective_scan(**(arguments | {"x": x}))[0], [arguments["x"].requires_grad_()])


@pytest.mark.parametrize("t", [1, 2, 3, 8])
@pytest.mark.parametrize("options", [False, True])
def test_gradients_are_the_derivatives(monkeypatch, t, options):
    monkeypatch.setattr(torch_impl, "CHUNK", 3)
    arguments = given(t, 2, 3, 2, options=options)
    for impl in ("torch", "reference"):

        def scan(*values: Tensor, impl: str = impl) -> tuple[Tensor, Tensor]:
            return selective_scan(**dict(zip(arguments, values, strict=True)), impl=impl)

        assert torch.autograd.gradcheck(scan, [value.clone().requires_grad_() for value in arguments.values()])


def test_gradients_of_a_step_are_its_derivatives():
    arguments = at(given(1, 2, 3, 2), 0) | {"state": draw(2, 2, 3, dtype=torch.float64)}

    def step(*values: Tensor) -> tuple[Tensor, Tensor]:
        return selective_scan_step(**dict(zip(arguments, values, strict=True)))

    assert torch.autograd.gradcheck(step, [value.clone().requires_grad_() for value in arguments.values()])


@pytest.mark.parametrize(("impl", "offsets"), [("torch", range(10)), ("triton", (0, 1, 4, 6))])
def test_a_text_in_two_pieces_is_the_whole(monkeypatch, impl, offsets):
    monkeypatch.setattr(torch_impl, "CHUNK", 4)
    arguments = given(9, 1, 5, 3, torch.float32)
    exact_y, exact_last = selective_scan(**doubled(arguments), impl="reference")
    for offset in offsets:
        first, state = selective_scan(**part(arguments, slice(0, offset), arguments["start"]), impl=impl)
        second, last = selective_scan(**part(arguments, slice(offset, 9), state), impl=impl)
        assert_close(torch.cat([first, second]), exact_y)
        assert_close(last, exact_last)


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
def test_a_beginning_and_then_steps_are_the_whole(impl):
    arguments = given(7, 2, 35, 3, torch.float32)
    exact_y, exact_last = selective_scan(**doubled(arguments), impl="reference")
    y, state = selective_scan(**part(arguments, slice(0, 4), arguments["start"]), impl=impl)
    outputs = [y]
    for i in range(4, 7):
        before = state.clone()
        y, new = selective_scan_step(**at(arguments, i), state=state, impl=impl)
        assert torch.equal(state, before), "a step changed the state it was given"
        state = new
        outputs.append(y.unsqueeze(0))
    assert_close(torch.cat(outputs), exact_y)
    assert_close(state, exact_last)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_step_is_a_text_of_one(dtype):
    arguments = given(1, 3, 4, 5, dtype)
    start = arguments.pop("start")
    exact_y, exact_last = selective_scan(**doubled(arguments), start=start.double(), impl="reference")
    y, last = selective_scan_step(**at(arguments, 0), state=start)
    assert y.dtype == dtype
    assert last.dtype == torch.promote_types(dtype, torch.float32)
    assert_close(y, exact_y[0])
    assert_close(last, exact_last)


def test_decays_to_nothing_leave_no_nan():
    """Steps so long that every earlier state is gone: y_i = dt x_i (B_i C_i), and all gradients are finite."""
    arguments = given(20, 2, 3, 2, torch.float32, options=False) | {"start": draw(2, 2, 3)}
    # 1e6 steps of the slowest rate here are e^-1e4 and less.
    arguments["dt"] = arguments["dt"] * 1e6
    expected = arguments["dt"] * arguments["x"] * (arguments["write"] * arguments["read"]).sum(-1, keepdim=True)
    with torch.no_grad():
        for impl in ("torch", "triton"):
            assert_close(selective_scan(**arguments, impl=impl)[0], expected)
    for tensor in arguments.values():
        tensor.requires_grad_()
    y, _ = selective_scan(**arguments)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(y.square().mean(), list(arguments.values())))


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_steps_of_nearly_nothing_add_up(impl):
    """Nothing fades: the state is a sum of dt x B, whose terms are small beside the state it began with."""
    arguments = given(12, 1, 4, 2, torch.float32)
    arguments["dt"] = arguments["dt"] * 1e-6
    check(arguments, impl)
    arguments.pop("start")
    check(arguments, impl)


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("std", [1e-3, 100.0])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_small_and_large_values(impl, std):
    """Gates of hundreds close or open entirely, and overflow nowhere."""
    check(given(6, 1, 9, 4, torch.float32, std=std), impl)


# The kernel for GPUs: interpreted where there is none.


@pytest.mark.parametrize("sizes", [(1, 2, 33, 16), (17, 1, 40, 24), (5, 2, 3, 1), (15, 1, 32, 8), (4, 1, 2, 32)])
@pytest.mark.parametrize("options", [False, True])
def test_triton_equals_reference(sizes, options):
    check(given(*sizes, torch.float32, options=options), "triton")


@pytest.mark.parametrize("t", [2, 3, 7, 65, 130])
def test_triton_at_more_lengths(t):
    check(given(t, 1, 5, 2, torch.float32), "triton")


@pytest.mark.parametrize("config", [0, 1])
@pytest.mark.parametrize("n", [5, 17])
def test_every_configuration_gives_the_result(config, n):
    from recallkit.kernels.selective_scan.triton_impl import SCAN, WIDE_SCAN, selective_scan_triton

    assert len(SCAN.configs) == len(WIDE_SCAN.configs) == 2
    arguments = given(9, 1, 40, n, torch.float32)
    exact_y, exact_last = selective_scan(**doubled(arguments), impl="reference")
    y, last = selective_scan_triton(*arguments.values(), config)
    assert_close(y, exact_y)
    assert_close(last, exact_last)


def test_triton_takes_each_option_alone():
    arguments = given(3, 1, 4, 2, torch.float32)
    for name in ("start", "skip", "gate"):
        check({key: value for key, value in arguments.items() if key == name or key not in ("start", "skip", "gate")}, "triton")
    check(arguments | {"gate": arguments["x"]}, "triton")


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_any_strides(impl):
    """Halves of a projection, texts before the time, channels that are not side by side."""
    arguments = given(6, 2, 8, 4, torch.float32)
    whole = torch.cat([arguments["x"], arguments["gate"]], dim=-1)
    both = torch.cat([arguments["write"], arguments["read"]], dim=-1)
    strided = (
        arguments | dict(zip(("x", "gate"), whole.chunk(2, -1), strict=True)) | dict(zip(("write", "read"), both.chunk(2, -1), strict=True))
    )
    strided["dt"] = arguments["dt"].transpose(0, 1).contiguous().transpose(0, 1)
    strided |= {name: arguments[name].mT.contiguous().mT for name in ("rates", "start")}
    turned = strided | {name: arguments[name].permute(2, 0, 1).contiguous().permute(1, 2, 0) for name in ("x", "dt", "write", "gate")}
    for way in (strided, turned):
        for mine, theirs in zip(selective_scan(**way, impl=impl), selective_scan(**arguments, impl=impl), strict=True):
            assert_close(mine, theirs)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_row_does_not_depend_on_the_others(impl):
    arguments = given(5, 3, 34, 4, torch.float32)
    y, last = selective_scan(**arguments, impl=impl)
    row = {
        name: value if name in ("rates", "skip") else value[1:2] if name == "start" else value[:, 1:2] for name, value in arguments.items()
    }
    alone, alone_last = selective_scan(**row, impl=impl)
    assert_close(alone, y[:, 1:2], dtype=torch.float32)
    if impl == "triton":
        assert torch.equal(alone, y[:, 1:2])
        assert torch.equal(alone_last, last[1:2])


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
def test_nothing_to_scan(impl):
    no_time = given(0, 2, 3, 4, torch.float32)
    y, last = selective_scan(**no_time, impl=impl)
    assert y.shape == (0, 2, 3)
    assert torch.equal(last, no_time["start"])
    no_time.pop("start")
    assert torch.equal(selective_scan(**no_time, impl=impl)[1], torch.zeros(2, 4, 3, device=DEVICE))
    y, last = selective_scan(**given(3, 0, 3, 4, torch.float32), impl=impl)
    assert (y.shape, last.shape) == ((3, 0, 3), (0, 4, 3))


def test_triton_is_an_operation_that_torch_can_trace():
    from recallkit.kernels.selective_scan.triton_impl import selective_scan_triton

    arguments = given(2, 1, 4, 2, torch.float32)
    torch.library.opcheck(selective_scan_triton, tuple(arguments.values()))
    torch.library.opcheck(selective_scan_triton, (*list(arguments.values())[:5], None, None, None))
    rest = {name: value for name, value in arguments.items() if name != "x"}
    compiled = torch.compile(lambda x: selective_scan(x, **rest, impl="triton")[0], backend="aot_eager", fullgraph=True)
    with torch.inference_mode():
        assert torch.equal(compiled(arguments["x"]), selective_scan(**arguments, impl="triton")[0])


def test_auto_falls_back_where_the_kernel_has_no_room():
    arguments = given(2, 1, 3, 33, torch.float32)
    with preferring("triton"):
        assert torch.equal(selective_scan(**arguments)[0], selective_scan(**arguments, impl="torch")[0])
    with pytest.raises(ValueError, match="33 entries, more than 32"):
        selective_scan(**arguments, impl="triton")
    with pytest.raises(ValueError, match="no backward pass"):
        selective_scan(**(given(2, 1, 3, 3, torch.float32) | {"x": torch.zeros(2, 1, 3, requires_grad=True, device=DEVICE)}), impl="triton")


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("x", (4, 3), r"x \(..., b, d\) and rates"),
        ("rates", (4, 2), r"x \(..., b, d\) and rates"),
        ("dt", (4, 2, 1), r"dt must have shape \(4, 2, 3\), not \(4, 2, 1\)"),
        ("write", (4, 2, 3), r"write must have shape \(4, 2, 5\)"),
        ("read", (3, 2, 5), r"read must have shape \(4, 2, 5\)"),
        ("start", (2, 3, 5), r"state must have shape \(2, 5, 3\)"),
        ("skip", (5,), r"skip must have shape \(3,\)"),
        ("gate", (4, 2, 5), r"gate must have shape \(4, 2, 3\)"),
    ],
)
def test_shapes_that_do_not_fit_are_named(name, shape, message):
    with pytest.raises(ValueError, match=message):
        selective_scan(**(given(4, 2, 3, 5) | {name: torch.zeros(shape)}))


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_mamba_on_the_kernels_is_its_reference():
    """Both of its operations, a text at once, and a beginning and then steps."""
    torch.manual_seed(0)
    mixer = Mamba(6, state=5).to(DEVICE)
    u = draw(1, 9, 6)
    with preferring("triton"):
        wanted = mixer.reference(u)
        assert_close(mixer(u), wanted, times=2)
        y, state = mixer.read(u[:, :5], mixer.initial_state(1))
        outputs = [y]
        for i in range(5, 9):
            y, state = mixer.step(u[:, i], state)
            outputs.append(y.unsqueeze(1))
    assert_close(torch.cat(outputs, 1), wanted, times=2)


KERNEL = "recallkit.kernels.selective_scan.triton_impl"


def compiled_cases() -> list[Case]:
    """A text in both configurations, bf16 and fp32; the widest state that there may be; a step whose B and C are narrow."""
    sizes = {"t": 2048, "b": 16, "d": 2048, "x_t": 32768, "x_b": 2048, "dt_t": 32768, "dt_b": 2048}
    sizes |= {"rates_d": 1, "rates_n": 2048, "write_t": 256, "write_b": 16, "read_t": 256, "read_b": 16, "gate_t": 65536, "gate_b": 4096}
    wide = dict.fromkeys(("dt_ptr", "rates_ptr", "write_ptr", "read_ptr", "start_ptr", "skip_ptr", "last_ptr"), "*fp32")
    options = dict.fromkeys(("HAS_START", "HAS_SKIP", "HAS_GATE"), True)

    def case(kind: str, n: int, config: int, **other: object) -> Case:
        narrow = dict.fromkeys(("x_ptr", "gate_ptr", "y_ptr"), f"*{kind}")
        launcher = "SCAN" if n <= 16 else "WIDE_SCAN"
        return Case(f"{KERNEL}:scan_kernel", sizes | wide | options | narrow | {"n": n, "N": n} | other, f"{KERNEL}:{launcher}", config)

    halves = {"write_ptr": "*bf16", "read_ptr": "*bf16", "t": 1, "rates_d": 16, "rates_n": 1}
    texts = [case("bf16", 16, 0), case("fp32", 16, 0), case("bf16", 16, 1), case("bf16", 32, 0), case("fp16", 32, 1)]
    return [*texts, case("bf16", 16, 0, **halves)]


@pytest.mark.slow
def test_compiled_for_a_gpu_nothing_spills_and_little_but_powers_is_slow():
    found = assert_compiles(compiled_cases(), matrix=None)
    for resources in found[:-1]:
        # Four steps in the loop: a power for each number of state, two for the gate; then the silu's division and nothing else.
        assert resources.instructions["MUFU"] <= 4 * (16 + 2) + 8, "a channel is spread over lanes"
        assert resources.registers <= 128, "fewer than 16 warps fit into a multiprocessor"
    assert all(resources.instructions.get("LDGSTS") for resources in found[:-1]), "the inputs of a text are not loaded ahead"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(257, 3, 100, 16), (2048, 4, 2048, 16), (65537, 1, 64, 8), (1, 64, 5120, 16)])
def test_on_a_gpu_triton_equals_torch(sizes, dtype):
    arguments = given(*sizes, dtype)
    y, last = selective_scan(**arguments, impl="triton")
    exact_y, exact_last = selective_scan(**doubled(arguments), impl="torch")
    assert_close(y, exact_y)
    assert_close(last, exact_last, dtype=torch.float32, times=2)


@pytest.mark.gpu
def test_on_a_gpu_offsets_past_two_billion():
    t, b, d, n = 65537, 9, 4096, 4
    arguments = {"x": torch.randn(t, b, d, device=DEVICE, dtype=torch.bfloat16), "dt": torch.rand(t, b, d, device=DEVICE)}
    arguments |= {
        "rates": -torch.rand(d, n, device=DEVICE),
        "write": torch.randn(t, b, n, device=DEVICE),
        "read": torch.randn(t, b, n, device=DEVICE),
    }
    y, last = selective_scan(**arguments, impl="triton")
    row = {name: value if name == "rates" else value[:, 8:].contiguous() for name, value in arguments.items()}
    alone, alone_last = selective_scan(**row, impl="triton")
    assert torch.equal(y[:, 8:], alone)
    assert torch.equal(last[8:], alone_last)
