"""`short_conv`: PyTorch's and the kernel equal the float64 sum, with every option, whole, in pieces
and step by step."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from recallkit.kernels.choice import preferring
from recallkit.kernels.short_conv.api import short_conv
from recallkit.models.mixers.base_conv import BaseConv, GatedShortConv
from tests.kernels.battery import StatefulBattery, exactly
from tests.kernels.checks import DEVICE, assert_close, draw
from tests.kernels.compilation import Case, assert_compiles


def operands(
    t: int,
    b: int,
    c: int,
    k: int,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """The tensors by name; the history is wide."""
    shapes = {
        "u": (b, t, c),
        "taps": (c, k),
        "bias": (c,),
        "history": (b, k - 1, c),
        "gate": (b, t, c),
    }
    wide = {"history": torch.promote_types(dtype, torch.float32)}
    return {
        name: draw(*shape, dtype=wide.get(name, dtype), seed=seed)
        for seed, (name, shape) in enumerate(shapes.items())
    }


class TestShortConv(StatefulBattery):
    """With an activation where a bias is given."""

    time: ClassVar = {"u": 1, "gate": 1}
    rows: ClassVar = {"u": 0, "gate": 0, "history": 0}
    out_time: ClassVar = 1
    out_rows: ClassVar = 0
    options: ClassVar = ("bias", "gate")
    state: ClassVar = ("history",)
    sizes: ClassVar = [(t, 2, 6, k) for k in (1, 2, 3, 4, 7, 12) for t in (1, 5, 40)]
    triton_sizes: ClassVar = [
        (t, b, c, k)
        for k in (1, 2, 3, 7, 8)
        for b, t, c in ((2, 1, 5), (1, 2, 130), (1, 17, 24), (2, 33, 3))
    ]
    traced: ClassVar = ("recallkit.kernels.short_conv.triton_impl.short_conv_triton",)
    mixers: ClassVar = {
        "gated": lambda: GatedShortConv(6, bias=False),
        "plain": lambda: BaseConv(6, filter="short", kernel=4),
        "of more taps than the kernel takes": lambda: BaseConv(6, filter="short", kernel=9),
    }
    misfits: ClassVar = [
        ({"u": (4, 3)}, r"u \(b, t, c\) and taps"),
        ({"taps": (4, 2)}, r"u \(b, t, c\) and taps"),
        ({"taps": (5, 0)}, r"u \(b, t, c\) and taps"),
        ({"bias": (2,)}, r"bias must have shape \(5,\), not \(2,\)"),
        ({"history": (2, 4, 5)}, r"history must have shape \(2, 3, 5\)"),
        ({"gate": (2, 1, 5)}, r"gate must have shape \(2, 4, 5\)"),
    ]

    def operands(self, t, b, c, k, *, dtype):
        return operands(t, b, c, k, dtype)

    def some(self, t, b=2, dtype=torch.float32):
        return operands(t, b, 5, 4, dtype)

    def run(self, arguments, impl):
        return short_conv(
            **arguments,
            activation="silu" if "bias" in arguments else None,
            impl=impl,
        )

    def state_dtype(self, arguments, dtype):
        return arguments["history"].dtype if "history" in arguments else dtype

    def assert_states_close(self, state, exact, *, times=1):
        """A history is inputs as they are."""
        assert torch.equal(state[0].double(), exact[0].double())

    def traceable(self):
        tensors = self.some(5)
        rest = tuple(tensors[name] for name in ("taps", "bias", "history"))
        time_first = tensors["u"].transpose(0, 1).contiguous().transpose(0, 1)
        return [
            [
                (tensors["u"], *rest, True, tensors["gate"]),
                (time_first, rest[0], None, None, False, None),
            ],
        ]


BATTERY = TestShortConv()


def test_a_sum_by_hand():
    """Taps 10 (the present), 1 and 0.5; before 1, 2, 3 came 4 and 6."""
    u = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1).to(DEVICE)
    taps, history = (
        torch.tensor([[0.5, 1.0, 10.0]], device=DEVICE),
        torch.tensor([4.0, 6.0], device=DEVICE).view(1, 2, 1),
    )
    for impl in ("reference", "torch", "triton"):
        y, latest = short_conv(u, taps, impl=impl)
        assert y.flatten().tolist() == [10, 20 + 1, 30 + 2 + 0.5]
        y, latest = short_conv(
            u,
            taps,
            bias=torch.tensor([100.0], device=DEVICE),
            history=history,
            gate=2 * u,
            impl=impl,
        )
        assert y.flatten().tolist() == [2 * (110 + 6 + 2), 4 * (120 + 1 + 3), 6 * (130 + 2 + 0.5)]
        assert latest.flatten().tolist() == [2, 3]
        assert short_conv(u[:, :1], taps, history=history, impl=impl)[1].flatten().tolist() == [
            6,
            1,
        ]
        assert short_conv(u[:, :1], taps, impl=impl)[1].flatten().tolist() == [0, 1]


@pytest.mark.parametrize("k", [1, 2, 4])
def test_it_is_the_convolution_of_torch(k):
    tensors = {name: x for name, x in operands(9, 2, 6, k).items() if name in ("u", "taps", "bias")}
    wanted = functional.conv1d(
        tensors["u"].mT,
        tensors["taps"].unsqueeze(1),
        tensors["bias"],
        padding=k - 1,
        groups=6,
    )[..., :9].mT
    for impl in ("reference", "torch"):
        assert_close(short_conv(**tensors, impl=impl)[0], wanted)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_history_does_not_keep_a_text_in_memory(impl):
    for t in (1, 2, 50):
        tensors = BATTERY.bare(operands(t, 1, 4, 3, torch.float32))
        _, latest = short_conv(**tensors, impl=impl)
        assert latest.untyped_storage().nbytes() == 2 * 4 * 4
        assert latest.data_ptr() != tensors["u"].data_ptr()


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_the_output_is_laid_out_as_the_input(impl):
    u, taps = operands(6, 3, 8, 4, torch.float32)["u"], draw(8, 4)
    assert short_conv(torch.cat([u, u], dim=-1)[..., :8], taps, impl=impl)[0].is_contiguous()
    time_first = u.transpose(0, 1).contiguous().transpose(0, 1)
    assert short_conv(time_first, taps, impl=impl)[0].transpose(0, 1).is_contiguous()


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_large_sums_close_or_open_the_activation(impl):
    tensors = operands(5, 1, 4, 2, torch.float32)
    for size in (1e4, 1e-4):
        BATTERY.check(tensors | {"u": size * tensors["u"]}, impl)


@pytest.mark.parametrize("config", [0, 1])
def test_every_configuration_gives_the_result(config):
    from recallkit.kernels.short_conv.triton_impl import FLOAT_TILES, HALF_TILES, short_conv_triton

    assert len(FLOAT_TILES.configs) == len(HALF_TILES.configs) == 2
    tensors = operands(19, 2, 140, 3, torch.float32)
    exact, exact_latest = BATTERY.run(exactly(tensors), "reference")
    y, latest = short_conv_triton(
        *(tensors[name] for name in ("u", "taps", "bias", "history")),
        True,
        tensors["gate"],
        config,
    )
    assert_close(y, exact)
    assert torch.equal(latest.double(), exact_latest)


def test_auto_falls_back_where_the_kernel_has_no_room():
    tensors = operands(3, 1, 2, 9, torch.float32)
    with preferring("triton"):
        assert torch.equal(short_conv(**tensors)[0], short_conv(**tensors, impl="torch")[0])
    with pytest.raises(ValueError, match="9 taps are more than 8"):
        short_conv(**tensors, impl="triton")


def test_an_activation_that_is_not_known_is_named():
    with pytest.raises(ValueError, match="'silu' or None, not 'relu'"):
        short_conv(**operands(2, 1, 3, 2), activation="relu")


KERNEL = "recallkit.kernels.short_conv.triton_impl"


def compiled_cases() -> list[Case]:
    """Both configurations of both widths with all options and the most taps that there may be; a
    step."""
    sizes = {
        "t": 2048,
        "c": 2048,
        "u_b": 1 << 22,
        "u_t": 2048,
        "gate_b": 1 << 22,
        "gate_t": 2048,
        "y_b": 1 << 22,
        "y_t": 2048,
    }
    options = dict.fromkeys(("HAS_BIAS", "HAS_HISTORY", "SILU", "HAS_GATE"), True) | {
        "history_ptr": "*fp32",
        "latest_ptr": "*fp32",
    }

    def case(kind: str, k: int, tiles: str, config: int = 0, **other: object) -> Case:
        narrow = dict.fromkeys(("u_ptr", "taps_ptr", "bias_ptr", "gate_ptr", "y_ptr"), f"*{kind}")
        taps = {"taps_c": 1, "taps_k": 2048, "K": k}
        return Case(
            f"{KERNEL}:conv_kernel",
            sizes | options | narrow | taps | other,
            f"{KERNEL}:{tiles}",
            config,
        )

    halves = [case("bf16", 8, "HALF_TILES"), case("fp16", 8, "HALF_TILES", 1)]
    floats = [case("fp32", 8, "FLOAT_TILES"), case("fp32", 8, "FLOAT_TILES", 1)]
    return [*halves, *floats, case("bf16", 4, "STEP", t=1, taps_c=4, taps_k=1)]


@pytest.mark.slow
def test_compiled_for_a_gpu_nothing_spills():
    assert all(
        not resources.shared for resources in assert_compiles(compiled_cases(), matrix=None)[:-1]
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("b", "t", "c", "k"),
    [(3, 257, 100, 3), (16, 2048, 2048, 4), (1, 65537, 96, 7), (64, 1, 4096, 4)],
)
def test_on_a_gpu_triton_equals_torch(b, t, c, k, dtype):
    BATTERY.check(operands(t, b, c, k, dtype), "triton")


@pytest.mark.gpu
def test_on_a_gpu_offsets_past_two_billion():
    u = torch.randn(9, 65537, 4096, device=DEVICE, dtype=torch.bfloat16)
    taps = draw(4096, 4, dtype=torch.bfloat16)
    y, latest = short_conv(u, taps, gate=u, activation="silu", impl="triton")
    alone, alone_latest = short_conv(
        u[8:].clone(),
        taps,
        gate=u[8:].clone(),
        activation="silu",
        impl="triton",
    )
    assert torch.equal(y[8:], alone)
    assert torch.equal(latest[8:], alone_latest)
    along = u.view(1, 9 * 65537, 4096)
    y, _ = short_conv(along, taps, impl="triton")
    end, _ = short_conv(
        along[:, -1000:].clone(),
        taps,
        history=along[:, -1003:-1000].clone(),
        impl="triton",
    )
    assert torch.equal(y[:, -1000:], end)
