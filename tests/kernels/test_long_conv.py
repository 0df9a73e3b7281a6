"""`long_conv`: transforms and Toeplitz products equal the sum in float64, gated or not, at awkward
lengths; mixers made of it."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch

from recallkit.kernels.long_conv.api import filter_spectrum, long_conv
from recallkit.kernels.long_conv.torch_impl import direct_conv, fft_conv, transform_length
from recallkit.models.mixers.base_conv import BaseConv
from recallkit.models.mixers.gss import GSS
from recallkit.models.mixers.h3 import H3
from recallkit.models.mixers.hyena import Hyena
from recallkit.models.mixers.long_conv import LongConv
from recallkit.models.mixers.s4d import S4D
from tests.kernels.battery import Battery
from tests.kernels.checks import DEVICE, LENGTHS, assert_close, draw, pairwise
from tests.kernels.compilation import Case, assert_compiles

KERNEL = "recallkit.kernels.long_conv.triton_impl"
ADDED = ("skip", "bias", "in_gate", "out_gate")


def operands(
    b: int,
    t: int,
    c: int,
    names=ADDED,
    *,
    last: int | None = None,
    dtype=torch.float32,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Those of the optional tensors that are named."""
    shapes = {
        "skip": (c,),
        "bias": (c,),
        "in_gate": (b, t, c),
        "out_gate": (b, t if last is None else last, c),
    }
    return {
        name: draw(*shapes[name], dtype=dtype, seed=seed + 10 + ADDED.index(name)) for name in names
    }


def exact(u, filters, *, last=None, **added):
    wide = {name: value.double() for name, value in added.items()}
    return long_conv(u.double(), filters.double(), **wide, last=last, impl="reference")


class TestLongConv(Battery):
    time: ClassVar = {}
    rows: ClassVar = dict.fromkeys(("u", "in_gate", "out_gate"), 0)
    out_time: ClassVar = 1
    out_rows: ClassVar = 0
    options: ClassVar = ADDED
    sizes: ClassVar = [
        (t, 2, 5, taps) for t, taps in pairwise([*LENGTHS, 2, 8, 9], [1, 8, 9, 20, 65, 300])
    ]
    triton_sizes: ClassVar = [
        *((t, 2, 3, taps) for t, taps in pairwise(LENGTHS, [1, 40, 257])),
        *((65, 37, 1, 65), (130, 1, 1, 130), (17, 3, 70, 17)),
    ]
    traced: ClassVar = ("recallkit.kernels.long_conv.triton_impl.long_conv_triton",)
    mixers: ClassVar = {
        "hyena": lambda: Hyena(4, max_length=40),
        "base_conv": lambda: BaseConv(4, max_length=40),
        "long_conv": lambda: LongConv(4, max_length=40),
        "h3": lambda: H3(4, state=10, head_dim=2),
        "s4d": lambda: S4D(4, state=4),
        "gss": lambda: GSS(8, state=6),
    }
    misfits: ClassVar = [
        ({"u": (2, 5)}, "do not fit"),
        ({"u": (2, 4, 4)}, "do not fit"),
        ({"filters": (3,)}, "do not fit"),
        ({"filters": (3, 0)}, "at least 1 tap"),
        ({"skip": (4,)}, r"skip must have shape \(3,\)"),
        ({"bias": (1, 3)}, r"bias must have shape \(3,\)"),
        ({"in_gate": (2, 1, 3)}, r"in_gate must have shape \(2, 4, 3\)"),
        ({"out_gate": (2, 4, 3), "last": 2}, r"out_gate must have shape \(2, 2, 3\)"),
        ({"last": 5}, "last is 5, and there are 4 outputs"),
        ({"last": -1}, "last is -1, and there are"),
    ]

    def operands(self, t, b, c, taps, *, dtype):
        return {
            "u": draw(b, t, c, dtype=dtype),
            "filters": draw(c, taps, dtype=dtype, seed=1),
        } | operands(b, t, c, dtype=dtype)

    def some(self, t, b=2, dtype=torch.float32):
        return self.operands(t, b, 3, 4, dtype=dtype)

    def run(self, arguments, impl):
        return (long_conv(**arguments, impl=impl),)

    def out_dtype(self, dtype):
        return torch.promote_types(dtype, torch.float32)

    def traceable(self):
        u, filters, *added = self.some(9).values()
        return [[(u, filters, *rest, 9, torch.float32) for rest in ([None] * 4, added)]]


def as_the_sum_is_written(u, filters):
    y = torch.zeros_like(u)
    for i in range(u.shape[1]):
        for s in range(min(i + 1, filters.shape[1])):
            y[:, i] += filters[:, s] * u[:, i - s]
    return y


def test_counted_by_hand():
    u, filters = (
        torch.tensor([[[1.0], [2.0], [3.0]]], device=DEVICE),
        torch.tensor([[10.0, 1.0, 0.5, 7.0]], device=DEVICE),
    )
    one = {
        "skip": [2.0],
        "bias": [0.25],
        "in_gate": [[[1.0], [2.0], [-1.0]]],
        "out_gate": [[[1.0], [0.0], [2.0]]],
    }
    added = {name: torch.tensor(value, device=DEVICE) for name, value in one.items()}
    for impl in ("reference", "torch", "triton"):
        assert long_conv(u, filters, impl=impl).flatten().tolist() == [10, 20 + 1, 30 + 2 + 0.5]
        wanted = [10 + 2 + 0.25, 0.25, 2 * (-30 + 4 + 0.5 - 2 * 3) + 0.25]
        assert long_conv(u, filters, **added, impl=impl).flatten().tolist() == pytest.approx(wanted)


def test_reference_is_the_sum():
    u, filters = draw(2, 21, 3, dtype=torch.float64), draw(3, 13, dtype=torch.float64)
    assert_close(long_conv(u, filters, impl="reference"), as_the_sum_is_written(u, filters))


@pytest.mark.parametrize("t", [1, 9, 31, 130])
@pytest.mark.parametrize("taps", [1, 3, 20])
def test_both_ways_of_torch_give_the_sum(t, taps):
    u, filters = draw(2, t, 5, dtype=torch.float64), draw(5, taps, dtype=torch.float64)[:, :t]
    for way in (fft_conv, direct_conv):
        assert_close(way(u.mT, filters).mT, as_the_sum_is_written(u, filters))


@pytest.mark.parametrize("n", [29, 31, 45])
def test_a_transform_of_odd_length_gives_the_sum(n, monkeypatch):
    monkeypatch.setattr(
        "recallkit.kernels.long_conv.torch_impl.fast_length",
        lambda least: max(least, n),
    )
    u, filters = draw(2, 15, 3, dtype=torch.float64), draw(3, 15, dtype=torch.float64)
    assert_close(long_conv(u, filters, impl="torch"), as_the_sum_is_written(u, filters))


@pytest.mark.parametrize("t", [1, 2, 9, 40])
def test_a_spectrum_that_was_kept_gives_the_same(t):
    u, filters, added = draw(2, t, 5), draw(5, 30), operands(2, t, 5)
    spectrum = filter_spectrum(filters, t)
    assert spectrum.shape == (5, transform_length(t, min(t, 30)) // 2 + 1)
    stored, actual = (
        long_conv(u, filters, **added, spectrum=s, impl="torch") for s in (spectrum, None)
    )
    assert torch.equal(stored, actual)
    if t > 8:
        with pytest.raises(ValueError, match=f"spectrum of these filters and {t} inputs"):
            long_conv(u, filters, spectrum=filter_spectrum(filters, 2 * t), impl="torch")
        other = long_conv(u, filters, spectrum=2 * spectrum, impl="torch")
        assert_close(other, 2 * exact(u, filters))


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
@pytest.mark.parametrize("name", ADDED)
def test_each_addition_alone(impl, name):
    u, filters, added = draw(2, 33, 4), draw(4, 20), operands(2, 33, 4, (name,))
    plain = as_the_sum_is_written(
        u.double() * (added["in_gate"].double() if name == "in_gate" else 1),
        filters.double(),
    )
    value = added[name].double()
    wanted = {
        "skip": plain + value * u,
        "bias": plain + value,
        "in_gate": plain,
        "out_gate": plain * value,
    }[name]
    assert_close(long_conv(u, filters, **added, impl=impl), wanted, dtype=torch.float32)


def test_autocast_changes_nothing():
    u, filters = draw(1, 30, 2), draw(2, 4).bfloat16()
    with torch.autocast(DEVICE, torch.bfloat16):
        assert torch.equal(
            long_conv(u, filters, impl="torch"),
            long_conv(u, filters.float(), impl="torch"),
        )


def test_different_dtypes_meet_in_the_widest():
    u, filters, skip = (
        draw(2, 20, 3),
        draw(3, 12, dtype=torch.float64),
        draw(3, dtype=torch.bfloat16),
    )
    for k in (12, 3):
        actual = long_conv(u, filters[:, :k], skip=skip)
        assert actual.dtype == torch.float64
        assert_close(actual, exact(u, filters[:, :k], skip=skip))
        gate = draw(2, 20, 3, dtype=torch.float64)
        single = filters[:, :k].float()
        assert_close(long_conv(u, single, in_gate=gate), exact(u, single, in_gate=gate))


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
def test_nothing_comes_round(impl):
    """An input that comes last touches no other output; with a filter of ones all that came round
    would be seen."""
    for t, taps in ((17, 17), (64, 9), (65, 65), (130, 128)):
        u = torch.zeros(2, t, 3, device=DEVICE)
        u[:, -1] = 1e3
        y = long_conv(u, torch.ones(3, taps, device=DEVICE), impl=impl)
        assert y[:, :-1].abs().max() < 1e-3
        assert torch.allclose(y[:, -1], u[:, -1])


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_the_last_outputs_are_those_of_the_whole(impl):
    """At every offset in a block, with their own part of the gate."""
    t, c, u, filters, added = 70, 2, draw(2, 70, 2), draw(2, 50), operands(2, 70, 2)
    at_once = long_conv(u, filters, **added, impl=impl)
    out_gate = added.pop("out_gate")
    for last in (0, 1, 2, 5, 6, 7, 31, 32, 37, 38, 39, 64, 69, 70):
        part = long_conv(
            u,
            filters,
            **added,
            out_gate=out_gate[:, t - last :],
            last=last,
            impl=impl,
        )
        assert part.shape == (2, last, c)
        if impl == "triton":
            assert torch.equal(part, at_once[:, t - last :])
        elif last:
            assert_close(part, at_once[:, t - last :])


def test_wrong_types_and_names_are_refused():
    u, filters = torch.zeros(1, 2, 1), torch.zeros(1, 2)
    for strange in (torch.int64, torch.complex64):
        with pytest.raises(ValueError, match="real floating-point"):
            long_conv(u, filters.to(strange))
    with pytest.raises(ValueError, match="impl must be"):
        long_conv(u, filters, impl="fft")
    with pytest.raises(ValueError, match="not float64"):
        long_conv(u.double(), filters, impl="triton")
    with pytest.raises(ValueError, match="no backward pass"):
        long_conv(u, filters.requires_grad_(), impl="triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("config", [0, 1])
def test_every_configuration_gives_the_result(dtype, config):
    """Halves have configurations of their own; interpreted, they are multiplied in single
    precision."""
    from recallkit.kernels.long_conv.triton_impl import (
        FLOAT_PRODUCTS,
        HALF_PRODUCTS,
        long_conv_triton,
    )

    assert len(FLOAT_PRODUCTS.configs) == len(HALF_PRODUCTS.configs) == 2
    t, last, last_gate = 200, 90, draw(3, 90, 2)
    u, filters, added = (
        draw(3, t, 2, dtype=dtype),
        draw(2, 150),
        operands(3, t, 2, ("skip", "bias", "in_gate"), dtype=dtype),
    )
    wanted = exact(u, filters, **added, out_gate=last_gate, last=last)
    for out_dtype in (torch.float32, dtype):
        args = (
            u,
            filters,
            added["skip"],
            added["bias"],
            added["in_gate"],
            last_gate,
            last,
            out_dtype,
            config,
        )
        actual = long_conv_triton(*args)
        assert actual.dtype == out_dtype
        assert_close(actual, wanted, dtype=dtype)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_triton_adds_no_row_or_channel_to_another():
    u, filters = draw(3, 40, 3), draw(3, 40)
    at_once = long_conv(u, filters, impl="triton")
    other_row, other_channel = u.clone(), u.clone()
    other_row[1] = math.nan
    other_channel[..., 2] = math.inf
    assert torch.equal(long_conv(other_row, filters, impl="triton")[::2], at_once[::2])
    assert torch.equal(long_conv(other_channel, filters, impl="triton")[..., :2], at_once[..., :2])


@pytest.mark.parametrize("std", [1e-6, 1e6])
def test_triton_keeps_small_and_large_values(std):
    u, filters = draw(2, 40, 3, std=std), draw(3, 40, std=std)
    assert_close(long_conv(u, filters, impl="triton"), exact(u, filters), dtype=torch.float32)


def test_copies_of_a_filter_are_made_once_until_it_changes(monkeypatch):
    from recallkit.kernels.long_conv import triton_impl

    copied, make = [], triton_impl._shifted_copies

    def counted(*inputs):
        copied.append(inputs)
        return make(*inputs)

    monkeypatch.setattr(triton_impl, "_shifted_copies", counted)
    filters, skip = draw(2, 30), draw(2)

    def check(taps: torch.Tensor, times: int) -> None:
        for seed in range(2):
            u = draw(1, 20, 2, seed=seed)
            assert_close(
                long_conv(u, taps, skip=skip, impl="triton"),
                exact(u, taps, skip=skip),
                dtype=torch.float32,
            )
        assert len(copied) == times

    check(filters, 1)
    filters *= 2
    check(filters, 2)
    skip += 1
    check(filters, 3)
    skip = skip.clone()
    check(filters, 4)
    check(filters[:, 5:], 5)
    monkeypatch.setattr(triton_impl, "MOST_CACHED", 0)
    check(filters, 7)
    with torch.inference_mode():
        check(filters.clone(), 9)


def compiled_cases() -> list[Case]:
    """Products in all configurations, on widths as models have; what stands around them in one
    type."""
    common = {
        "batch": 7,
        "padded": 2048,
        "gate_row_stride": 2048 * 3072,
        "gate_time_stride": 3072,
        "HAS_GATE": True,
        "c": 1024,
    }
    results = []
    for kind in ("bf16", "fp16", "fp32"):
        tensor, launcher, copies = (
            f"*{kind}",
            "FLOAT_PRODUCTS" if kind == "fp32" else "HALF_PRODUCTS",
            4 if kind == "fp32" else 8,
        )
        sizes = {
            "batch": 7,
            "t": 2047,
            "first": 0,
            "padded": 2048,
            "num_taps": 2047,
            "origin": 2304,
            "width": 2432,
            "COPIES": copies,
        }
        products = {
            "inputs_ptr": tensor,
            "taps_ptr": tensor,
            "sums_ptr": tensor,
            "DOT": [kind],
            **sizes,
        }
        configs = range(1 if kind == "fp16" else 2)
        results += [
            Case(f"{KERNEL}:toeplitz_kernel", products, f"{KERNEL}:{launcher}", config)
            for config in configs
        ]
        if kind == "bf16":
            arrange = {
                "u_ptr": tensor,
                "gate_ptr": tensor,
                "inputs_ptr": tensor,
                "t": 2047,
                "u_row_stride": 2048 * 3072,
                **common,
            }
            results.append(
                Case(
                    f"{KERNEL}:arrange_kernel",
                    {"u_time_stride": 3072, **arrange},
                    f"{KERNEL}:ARRANGE",
                ),
            )
            finish = {
                "sums_ptr": tensor,
                "gate_ptr": tensor,
                "bias_ptr": "*fp32",
                "out_ptr": tensor,
                "HAS_BIAS": True,
                **common,
            }
            results.append(
                Case(
                    f"{KERNEL}:finish_kernel",
                    {"last": 2047, "first": 0, **finish},
                    f"{KERNEL}:FINISH",
                ),
            )
    return results


@pytest.mark.slow
def test_compiled_for_a_gpu_nothing_spills_and_halves_use_matrix_instructions():
    assert_compiles(compiled_cases(), matrix="HGMMA")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("t", [2048, 4095, 8192, 16384])
def test_halves_on_a_gpu(t, dtype):
    u, filters, added = (
        draw(3, t, 24, dtype=dtype),
        draw(24, t, std=t**-0.5, dtype=dtype),
        operands(3, t, 24, dtype=dtype),
    )
    wide = {name: value.double() for name, value in added.items()}
    wanted = long_conv(u.double(), filters.double(), **wide, impl="torch")
    for out_dtype in (torch.float32, dtype):
        actual = long_conv(u, filters, **added, impl="triton", out_dtype=out_dtype)
        assert actual.dtype == out_dtype
        assert_close(actual, wanted, dtype=dtype)
    assert_close(long_conv(u, filters, **added), wanted, dtype=dtype)


@pytest.mark.gpu
def test_offsets_past_two_to_the_31_on_a_gpu():
    b, t, c = 260, 8192, 1024
    assert b * t * c > 2**31
    filters, added = draw(c, 512, std=512**-0.5), operands(1, 1, c, ("skip", "bias"))
    row, channels = torch.randn(2, t, c, device="cuda", dtype=torch.bfloat16), slice(c - 3, c)
    u = torch.zeros(b, t, c, device="cuda", dtype=torch.bfloat16)
    u[-2:] = row
    large = long_conv(
        u,
        filters,
        **added,
        in_gate=u,
        out_gate=u,
        impl="triton",
        out_dtype=torch.bfloat16,
    )
    small = long_conv(
        row,
        filters,
        **added,
        in_gate=row,
        out_gate=row,
        impl="triton",
        out_dtype=torch.bfloat16,
    )
    assert torch.equal(large[-2:], small)
    few = {name: value[channels].double() for name, value in added.items()}
    part = row[..., channels].double()
    assert_close(
        small[..., channels],
        long_conv(part, filters[channels].double(), **few, in_gate=part, out_gate=part),
        dtype=torch.bfloat16,
    )
    assert (large[:-2] == added["bias"].bfloat16()).all()
