"""Times what Python does for one launch of a kernel: our launcher and choice, beside the bare call and one that looks everything up.

    python tests/benchmarks/launches.py

A stand-in does nothing in the kernel's place, so no GPU is needed: microseconds are of this process's CPU, medians of samples in
turn, and what Triton and the driver take comes on top of each. `looked up` reads the environment, the configuration and the device's
context at every call. On a GPU the launcher also compares the tensors' device with the current one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import triton

sys.path.insert(0, str(Path(__file__).parents[2]))

from recallkit.kernels.choice import choose
from recallkit.kernels.launch import OPTIONS, Launcher
from tests.benchmarks import harness

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 20_000
"""Of a sample."""

CONFIG = triton.Config({"BLOCK": 8, "AHEAD": 4}, num_warps=4, num_stages=2)
VALUES = {"d": 4, "n": 16, "t": 1024, "HAS_GATE": True, "DOT": 1}


class Kernel:
    """A kernel that does nothing."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return nothing


def nothing(*tensors: Any, **values: Any) -> None:
    """In place of a kernel."""


def grid(values: dict[str, Any]) -> tuple[int]:
    return (1,)


def microseconds(call: Callable[[], Any]) -> float:
    begin = time.process_time()
    for _ in range(CALLS):
        call()
    return 1e6 * (time.process_time() - begin) / CALLS


def main() -> None:
    repeats = harness.parser_of(__doc__, repeats=9, runs="samples of each").parse_args().repeats
    kernel, tensors = Kernel(), [torch.zeros(1) for _ in range(6)]
    launcher, options = Launcher(kernel, [CONFIG], ["d"]), {**OPTIONS, **CONFIG.all_kwargs()}

    def looked_up() -> None:
        device = next(tensor for tensor in tensors if tensor is not None).device
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            if os.environ.get("RECALLKIT_AUTOTUNE") != "1":
                kernel[grid](*tensors, **VALUES, **OPTIONS, **CONFIG.all_kwargs())

    calls: dict[str, Callable[[], Any]] = {
        "bare kernel": lambda: kernel[grid](*tensors, **VALUES, **options),
        "launcher": lambda: launcher(grid, *tensors, **VALUES),
        "looked up": looked_up,
        "choice": lambda: choose("op", "auto", *tensors),
    }
    with torch.no_grad():
        samples = harness.in_turn(calls, repeats, lambda name: microseconds(calls[name]))
    medians = {name: sorted(each)[len(each) // 2] for name, each in samples.items()}
    print(harness.machine(1))
    for name, median in medians.items():
        print(f"{name:<16}{median:5.2f} us  {median / medians['bare kernel']:5.2f} of the bare kernel")
    added = {name: medians[name] - medians["bare kernel"] for name in ("launcher", "looked up")}
    print(f"what the launcher adds is {added['launcher'] / added['looked up']:.2f} of what looking everything up adds")


if __name__ == "__main__":
    main()
