"""`linear_scan`: PyTorch's and the kernel equal the float64 recurrence, whole and in pieces."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from recallkit.kernels.linear_scan.api import linear_scan
from recallkit.models.mixers.hgrn import HGRN
from tests.kernels.battery import StatefulBattery, exactly
from tests.kernels.checks import DEVICE, assert_close, draw
from tests.kernels.compilation import Case, assert_compiles

KERNEL = "recallkit.kernels.linear_scan.triton_impl"


class TestLinearScan(StatefulBattery):
    time: ClassVar = {"decay": 0, "u": 0}
    rows: ClassVar = {"decay": 1, "u": 1, "start": 0}
    state: ClassVar = ("start",)
    sizes: ClassVar = [(1, 1, 1), (5, 2, 3), (33, 1, 33), (65, 2, 40)]
    triton_sizes: ClassVar = [(1, 2, 33), (32, 1, 40), (33, 1, 3), (70, 1, 5)]
    traced: ClassVar = (f"{KERNEL}.linear_scan_triton",)
    mixers: ClassVar = {"hgrn": lambda: HGRN(6)}
    misfits: ClassVar = [
        ({"u": (4, 3)}, r"u must be \(t, b, d\), not of shape \(4, 3\)"),
        ({"decay": (4, 2, 4)}, r"decay must have shape \(4, 2, 5\), not \(4, 2, 4\)"),
        ({"start": (5, 2)}, r"start must have shape \(2, 5\), not \(5, 2\)"),
    ]

    def operands(self, t, b, d, *, dtype):
        wide = torch.promote_types(dtype, torch.float32)
        decay = torch.sigmoid(draw(t, b, d, std=3, dtype=dtype))
        return {
            "decay": decay,
            "u": draw(t, b, d, dtype=dtype, seed=1),
            "start": draw(b, d, dtype=wide, seed=2),
        }

    def some(self, t, b=2, dtype=torch.float32):
        return self.operands(t, b, 5, dtype=dtype)

    def run(self, arguments, impl):
        return linear_scan(**arguments, impl=impl)

    def traceable(self):
        arguments = tuple(self.some(2).values())
        return [[arguments, (*arguments[:2], None)]]


BATTERY = TestLinearScan()


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
def test_by_hand(impl):
    """Halved with each token, of which the third forgets all: 1, 1/2 + 2, 4, 2."""
    u, decay = (
        torch.tensor(x, device=DEVICE).view(4, 1, 1)
        for x in ([1.0, 2.0, 4.0, 0.0], [0.5, 0.5, 0.0, 0.5])
    )
    h, last = linear_scan(decay, u, impl=impl)
    assert h.flatten().tolist() == [1.0, 2.5, 4.0, 2.0]
    assert last.tolist() == [[2.0]]


@pytest.mark.parametrize("config", [0, 1])
def test_every_configuration_gives_the_result(config):
    from recallkit.kernels.linear_scan.triton_impl import SCAN, linear_scan_triton

    assert len(SCAN.configs) == 2
    arguments = BATTERY.operands(40, 1, 70, dtype=torch.float32)
    exact, exact_last = linear_scan(**exactly(arguments), impl="reference")
    h, last = linear_scan_triton(*arguments.values(), config)
    assert_close(h, exact)
    assert_close(last, exact_last)


def compiled_cases() -> list[Case]:
    """A text in both configurations, in half and single precision, and one row without a state."""
    sizes = {
        "t": 2048,
        "b": 16,
        "d": 2560,
        "decay_t": 40960,
        "decay_b": 2560,
        "u_t": 40960,
        "u_b": 2560,
    }
    wide = {"start_ptr": "*fp32", "last_ptr": "*fp32", "HAS_START": True}

    def case(kind: str, config: int, **other: object) -> Case:
        narrow = dict.fromkeys(("decay_ptr", "u_ptr", "h_ptr"), f"*{kind}")
        return Case(
            f"{KERNEL}:linear_scan_kernel",
            sizes | wide | narrow | other,
            f"{KERNEL}:SCAN",
            config,
        )

    return [case("bf16", 0), case("fp32", 1), case("fp16", 0, b=1, HAS_START=False)]


@pytest.mark.slow
def test_compiled_for_a_gpu_nothing_spills():
    assert_compiles(compiled_cases(), matrix=None)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(257, 3, 100), (2048, 4, 2560), (65537, 1, 64)])
def test_on_a_gpu_triton_equals_torch(sizes, dtype):
    arguments = BATTERY.operands(*sizes, dtype=dtype)
    h, last = linear_scan(**arguments, impl="triton")
    exact, exact_last = linear_scan(**exactly(arguments), impl="torch")
    assert_close(h, exact)
    assert_close(last, exact_last)
