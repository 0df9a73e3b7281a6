"""`selective_scan`: PyTorch's and the kernel equal the float64 recurrence, whole, in pieces and
step by step."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from recallkit.kernels.choice import preferring
from recallkit.kernels.selective_scan import torch_impl
from recallkit.kernels.selective_scan.api import selective_scan, selective_scan_step
from recallkit.models.mixers.mamba import Mamba
from tests.kernels.battery import StatefulBattery, exactly
from tests.kernels.checks import DEVICE, assert_close, draw
from tests.kernels.compilation import Case, assert_compiles

NARROW = ("x", "write", "read", "gate")
TIMED = ("x", "dt", "write", "read", "gate")


def operands(
    t: int,
    b: int,
    d: int,
    n: int,
    dtype: torch.dtype = torch.float64,
    *,
    std: float = 1.0,
) -> dict[str, Tensor]:
    """The arguments by name; those that may be narrow have the type `dtype`, all others float32 at
    least."""
    wide = torch.promote_types(dtype, torch.float32)
    shapes = {
        "x": (t, b, d),
        "dt": (t, b, d),
        "rates": (d, n),
        "write": (t, b, n),
        "read": (t, b, n),
    }
    shapes |= {"start": (b, n, d), "skip": (d,), "gate": (t, b, d), "dt_bias": (d,)}
    actual = {
        name: draw(
            *shape,
            std=std if name in NARROW else 1,
            dtype=dtype if name in NARROW else wide,
            seed=seed,
        )
        for seed, (name, shape) in enumerate(shapes.items())
    }
    return actual | {
        "dt": functional.softplus(actual["dt"] - 1),
        "rates": -torch.exp(actual["rates"]),
    }


def scanned(
    arguments: dict[str, Tensor],
    impl: str,
    *,
    owner=selective_scan,
) -> tuple[Tensor, Tensor]:
    """The operation, with softplus where there is a bias."""
    return owner(**arguments, dt_softplus="dt_bias" in arguments, impl=impl)


class TestSelectiveScan(StatefulBattery):
    time: ClassVar = dict.fromkeys(TIMED, 0)
    rows: ClassVar = dict.fromkeys(TIMED, 1) | {"start": 0}
    options: ClassVar = ("skip", "gate", "dt_bias")
    state: ClassVar = ("start",)
    sizes: ClassVar = [(1, 1, 1, 1), (5, 2, 3, 8), (17, 1, 33, 24), (65, 2, 5, 16), (130, 1, 7, 3)]
    triton_sizes: ClassVar = [
        (1, 2, 33, 16),
        (17, 1, 40, 24),
        (5, 2, 3, 1),
        (15, 1, 32, 8),
        (4, 1, 2, 32),
        (65, 1, 5, 2),
    ]
    small_chunks: ClassVar = {"recallkit.kernels.selective_scan.torch_impl.CHUNK": 3}
    traced: ClassVar = ("recallkit.kernels.selective_scan.triton_impl.selective_scan_triton",)
    mixers: ClassVar = {"mamba": lambda: Mamba(6, state=5)}
    misfits: ClassVar = [
        ({"x": (4, 3)}, r"x \(..., b, d\) and rates"),
        ({"rates": (4, 2)}, r"x \(..., b, d\) and rates"),
        ({"dt": (4, 2, 1)}, r"dt must have shape \(4, 2, 5\), not \(4, 2, 1\)"),
        ({"write": (4, 2, 4)}, r"write must have shape \(4, 2, 3\)"),
        ({"read": (3, 2, 3)}, r"read must have shape \(4, 2, 3\)"),
        ({"start": (2, 5, 3)}, r"state must have shape \(2, 3, 5\)"),
        ({"skip": (3,)}, r"skip must have shape \(5,\)"),
        ({"gate": (4, 2, 3)}, r"gate must have shape \(4, 2, 5\)"),
        ({"dt_bias": (3,)}, r"dt_bias must have shape \(5,\)"),
    ]

    def operands(self, t, b, d, n, *, dtype):
        return operands(t, b, d, n, dtype)

    def some(self, t, b=2, dtype=torch.float32):
        return operands(t, b, 5, 3, dtype)

    def run(self, arguments, impl):
        return scanned(arguments, impl)

    def step(self, arguments, i, state, impl):
        arguments = self.part(arguments, slice(i, i + 1))
        token = {name: value[0] if name in TIMED else value for name, value in arguments.items()}
        y, after = scanned(token | {"state": state[0]}, impl, owner=selective_scan_step)
        return y[None], after

    def traceable(self):
        arguments = tuple(self.some(2).values())
        return [[(*arguments, True), (*arguments[:5], None, None, None, None, False)]]


BATTERY = TestSelectiveScan()


def test_a_scan_by_hand():
    """x = 1, B = 1 and exp(dt A) = 1/2: the state is 1, 1 1/2, 1 3/4; C reads it once, twice, not
    at all. D = 4, silu(z) = z."""
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


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_rows_are_scanned_in_groups_as_at_once(monkeypatch, rows):
    monkeypatch.setattr(torch_impl, "STEP_ELEMENTS", rows * 3 * 2)
    arguments = operands(9, 5, 3, 2)
    BATTERY.check(arguments, "torch")
    assert torch.autograd.gradcheck(
        lambda x: selective_scan(**(arguments | {"x": x}))[0],
        [arguments["x"].requires_grad_()],
    )


def test_gradients_of_a_step_are_its_derivatives():
    arguments = operands(1, 2, 3, 2)
    arguments = {name: value[0] if name in TIMED else value for name, value in arguments.items()}
    arguments["state"] = arguments.pop("start")

    def step(*values: Tensor) -> tuple[Tensor, Tensor]:
        return selective_scan_step(**dict(zip(arguments, values, strict=True)))

    assert torch.autograd.gradcheck(
        step,
        [value.clone().requires_grad_() for value in arguments.values()],
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_step_is_a_text_of_one(dtype):
    arguments = operands(1, 3, 4, 5, dtype)
    exact_y, exact_last = scanned(exactly(arguments), "reference")
    y, last = BATTERY.step(arguments, 0, [arguments["start"]], "torch")
    assert y.dtype == dtype
    assert last.dtype == torch.promote_types(dtype, torch.float32)
    assert_close(y, exact_y)
    assert_close(last, exact_last)


def test_decays_to_nothing_leave_no_nan():
    """Steps so long that every earlier state is gone: y_i = dt x_i (B_i C_i), and all gradients are
    finite."""
    arguments = BATTERY.bare(operands(20, 2, 3, 2, torch.float32)) | {"start": draw(2, 2, 3)}
    # 1e6 steps of the slowest rate here are e^-1e4 and less.
    arguments["dt"] = arguments["dt"] * 1e6
    expected = (
        arguments["dt"]
        * arguments["x"]
        * (arguments["write"] * arguments["read"]).sum(-1, keepdim=True)
    )
    with torch.no_grad():
        for impl in ("torch", "triton"):
            assert_close(selective_scan(**arguments, impl=impl)[0], expected)
    for tensor in arguments.values():
        tensor.requires_grad_()
    y, _ = selective_scan(**arguments)
    assert all(
        grad.isfinite().all()
        for grad in torch.autograd.grad(y.square().mean(), list(arguments.values()))
    )


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_steps_of_nearly_nothing_add_up(impl):
    """Nothing fades: the state is a sum of dt x B, whose terms are small beside the state it began
    with."""
    arguments = operands(12, 1, 4, 2, torch.float32)
    arguments["dt"] = arguments["dt"] * 1e-6
    arguments.pop("dt_bias")
    BATTERY.check(arguments, impl)
    arguments.pop("start")
    BATTERY.check(arguments, impl)


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
def test_small_steps_of_a_softplus_keep_their_digits(impl):
    """softplus(a) = log(1 + exp(a)) is nearly exp(a) for small ones, which a sum with 1 would
    round; large ones are a itself."""
    projected = torch.tensor([-80.0, -30.0, -10.0, -4.0, -0.5, 0.0, 0.5, 4.0, 30.0, 300.0]).view(
        10,
        1,
        1,
    )
    one = torch.ones_like(projected)
    sizes = torch.logaddexp(projected.double(), torch.zeros(1, dtype=torch.float64))
    for bias in (None, torch.full((1,), 0.25)):
        # Nothing decays or is carried: each output is a step's size.
        steps = projected if bias is None else projected - bias
        arguments = {
            "x": one,
            "dt": steps,
            "rates": torch.full((1, 1), -1e9),
            "write": one,
            "read": one,
        }
        y, _ = selective_scan(**arguments, dt_bias=bias, dt_softplus=True, impl=impl)
        assert ((y - sizes) / sizes).abs().max() < 4e-6
        large = {name: value[6:] if name in TIMED else value for name, value in arguments.items()}
        y, _ = selective_scan(**large, dt_bias=bias, impl=impl)
        assert torch.equal(y, projected[6:])


@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_a_narrow_projection_is_widened_before_its_bias(impl):
    arguments = operands(9, 2, 5, 3, torch.float32)
    arguments["dt"] = arguments["dt"].bfloat16()
    y, last = scanned(arguments, impl)
    exact_y, exact_last = scanned(exactly(arguments), "reference")
    assert_close(y, exact_y)
    assert_close(last, exact_last)


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("std", [1e-3, 100.0])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_small_and_large_values(impl, std):
    """Gates of hundreds close or open entirely, and overflow nowhere."""
    BATTERY.check(operands(6, 1, 9, 4, torch.float32, std=std), impl)


@pytest.fixture
def divided(monkeypatch):
    """Texts of 16 steps and more are divided into pieces."""
    monkeypatch.setattr("recallkit.kernels.selective_scan.triton_impl.SHORTEST_SPLIT", 16)


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("sizes", [(16, 2, 5, 16), (33, 1, 33, 5), (18, 1, 17, 24)])
def test_a_text_of_few_rows_is_read_in_pieces_at_once(sizes):
    """As exact as the float64 recurrence in float32, and the same each time."""
    arguments = operands(*sizes, torch.float32)
    BATTERY.check(BATTERY.bare(arguments), "triton")
    BATTERY.check(arguments, "triton")
    assert torch.equal(scanned(arguments, "triton")[0], scanned(arguments, "triton")[0])


@pytest.mark.usefixtures("divided")
def test_pieces_that_forget_and_pieces_that_add_up():
    """Products of decays that vanish, of steps of 1e6, and of decays of nearly 1, of steps of
    1e-6."""
    for scale in (1e6, 1e-6):
        arguments = operands(37, 1, 5, 3, torch.float32)
        arguments.pop("dt_bias")
        BATTERY.check(arguments | {"dt": arguments["dt"] * scale}, "triton")


def test_which_texts_are_divided():
    """By tokens, rows and width alone: long texts of few rows, into pieces of at least the root of
    their length."""
    from recallkit.kernels.selective_scan.triton_impl import piece_length

    assert [piece_length(2048, b, 2048) for b in (1, 2, 4, 6, 7, 8)] == [
        64,
        128,
        256,
        512,
        2048,
        2048,
    ]
    assert [piece_length(t, 1, 1536) for t in (0, 1, 511, 512, 65537)] == [0, 1, 511, 32, 2048]


@pytest.mark.parametrize("config", [0, 1])
@pytest.mark.parametrize("n", [5, 17])
def test_every_configuration_gives_the_result(config, n):
    from recallkit.kernels.selective_scan.triton_impl import SCAN, WIDE_SCAN, selective_scan_triton

    assert len(SCAN.configs) == len(WIDE_SCAN.configs) == 2
    arguments = operands(9, 1, 40, n, torch.float32)
    exact_y, exact_last = scanned(exactly(arguments), "reference")
    y, last = selective_scan_triton(*arguments.values(), True, config)
    assert_close(y, exact_y)
    assert_close(last, exact_last)


def test_auto_falls_back_where_the_kernel_has_no_room():
    arguments = operands(2, 1, 3, 33, torch.float32)
    with preferring("triton"):
        assert torch.equal(scanned(arguments, "auto")[0], scanned(arguments, "torch")[0])
    with pytest.raises(ValueError, match="33 entries, more than 32"):
        scanned(arguments, "triton")


KERNEL = "recallkit.kernels.selective_scan.triton_impl"


def compiled_cases() -> list[Case]:
    """A text in both configurations, bf16 and fp32; the widest state that there may be; a step
    whose B and C are narrow."""
    sizes = {
        "t": 2048,
        "piece": 64,
        "pieces": 31,
        "d": 2048,
        "x_t": 32768,
        "x_b": 2048,
        "dt_t": 32768,
        "dt_b": 2048,
    }
    sizes |= {
        "rates_d": 1,
        "rates_n": 2048,
        "write_t": 256,
        "write_b": 16,
        "read_t": 256,
        "read_b": 16,
        "gate_t": 65536,
        "gate_b": 4096,
    }
    sizes |= {"y_t": 32768, "y_b": 2048}
    pointers = (
        "rates_ptr",
        "write_ptr",
        "read_ptr",
        "start_ptr",
        "skip_ptr",
        "dt_bias_ptr",
        "last_ptr",
    )
    wide = dict.fromkeys((*pointers, "parts_ptr", "sums_ptr"), "*fp32") | {"FORM": "WHOLE"}
    options = dict.fromkeys(("HAS_START", "HAS_SKIP", "HAS_GATE", "HAS_BIAS", "SOFTPLUS"), True)

    def case(kind: str, n: int, config: int, **other: object) -> Case:
        narrow = dict.fromkeys(("x_ptr", "dt_ptr", "gate_ptr", "y_ptr"), f"*{kind}")
        launcher = "SCAN" if n <= 16 else "WIDE_SCAN"
        return Case(
            f"{KERNEL}:scan_kernel",
            sizes | wide | options | narrow | {"n": n, "N": n} | other,
            f"{KERNEL}:{launcher}",
            config,
        )

    halves = {"write_ptr": "*bf16", "read_ptr": "*bf16", "t": 1, "rates_d": 16, "rates_n": 1}
    texts = [
        case("bf16", 16, 0),
        case("fp32", 16, 0),
        case("bf16", 16, 1),
        case("bf16", 32, 0),
        case("fp16", 32, 1),
    ]
    texts += [
        case(kind, n, 0, FORM=form)
        for form in ("PART", "REST")
        for kind, n in (("bf16", 16), ("fp32", 32))
    ]
    return [*texts, case("bf16", 16, 0, **halves)]


@pytest.mark.slow
def test_compiled_for_a_gpu_nothing_spills_and_little_but_powers_is_slow():
    results = assert_compiles(compiled_cases(), matrix=None)
    for case, resources in zip(compiled_cases()[:-1], results, strict=False):
        # Four steps in the loop: a power for each number of state, and for gate and step a power
        # and a division each; then, of a piece, the powers of those before it.
        powers = 4 * (16 + 4) + 16 * (case.arguments["FORM"] == "REST")
        assert resources.instructions["MUFU"] <= powers + 8, "a channel is spread over lanes"
        assert resources.registers <= 128, "fewer than 16 warps fit into a multiprocessor"
    assert all(resources.instructions.get("LDGSTS") for resources in results[:-1]), (
        "the inputs of a text are not loaded ahead"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "sizes",
    [
        (257, 3, 100, 16),
        (2048, 4, 2048, 16),
        (65537, 1, 64, 8),
        (1, 64, 5120, 16),
        (2048, 1, 2048, 16),
    ],
)
def test_on_a_gpu_triton_equals_torch(sizes, dtype):
    arguments = operands(*sizes, dtype)
    y, last = scanned(arguments, "triton")
    exact_y, exact_last = scanned(exactly(arguments), "torch")
    assert_close(y, exact_y)
    assert_close(last, exact_last, dtype=torch.float32, times=2)


@pytest.mark.gpu
def test_on_a_gpu_offsets_past_two_billion():
    t, b, d, n = 65537, 9, 4096, 4
    arguments = {
        "x": torch.randn(t, b, d, device=DEVICE, dtype=torch.bfloat16),
        "dt": torch.rand(t, b, d, device=DEVICE),
    }
    arguments |= {
        "rates": -torch.rand(d, n, device=DEVICE),
        "write": torch.randn(t, b, n, device=DEVICE),
        "read": torch.randn(t, b, n, device=DEVICE),
    }
    y, last = selective_scan(**arguments, impl="triton")
    row = {
        name: value if name == "rates" else value[:, 8:].contiguous()
        for name, value in arguments.items()
    }
    alone, alone_last = selective_scan(**row, impl="triton")
    assert torch.equal(y[:, 8:], alone)
    assert torch.equal(last[8:], alone_last)
