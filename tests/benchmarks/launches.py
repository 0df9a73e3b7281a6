"""Times launches: what Python does for one of a kernel, and whole passes replayed from CUDA graphs.

    python tests/benchmarks/launches.py
    python tests/benchmarks/launches.py --device cuda

A stand-in does nothing in the kernel's place, so that no GPU is needed: microseconds are of this
process's CPU, medians of samples in turn, and what Triton and the driver take comes on top of each.
`looked up` reads the environment, the configuration and the device's context in every call.

With --device, models of the zoo read short texts and generate, recorded and launched from Python:
seconds by the clock, their ratio, and whether all figures have the same bits. The time in which a
model records is not counted. On CPU nothing is recorded.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton

sys.path.insert(0, str(Path(__file__).parents[2]))

from recallkit.kernels.choice import choose
from recallkit.kernels.launch import OPTIONS, Launcher
from recallkit.models.loading import load_model
from recallkit.models.protocol import ModelRequest
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


def print_calls(repeats: int) -> None:
    """What Python does for a launch."""
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
    medians = {name: statistics.median(each) for name, each in samples.items()}
    bare = medians["bare kernel"]
    for name, median in medians.items():
        print(f"{name:<12}{median:6.2f} us{median / bare:6.2f} of the bare kernel")
    share = (medians["launcher"] - bare) / (medians["looked up"] - bare)
    print(f"the launcher adds {share:.2f} of what looking everything up adds")


def scored(model: Any) -> list[bytes]:
    """32 batches of 4 texts of 256 ids."""
    rng, found = np.random.default_rng(0), []
    for _ in range(32):
        ids = rng.integers(0, model.vocab_size, 4 * 256, dtype=np.uint32)
        scores = model.score(ids, np.arange(5) * 256)
        found += [values.tobytes() for values in scores.of_model.values()]
    return found


def generated(model: Any) -> list[bytes]:
    """64 ids after each of 8 prompts of 64 ids; NLLs are those of 63 answers' ids."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, model.vocab_size, (8, 127), dtype=np.uint32)
    prompts, answers = list(ids[:, :64]), list(ids[:, 64:])
    found = model.generate(prompts, answers, 64, lambda number, ids: False)
    return [np.array(each.ids).tobytes() + each.answer_nll.tobytes() for each in found]


def seconds(run: Callable[[Any], Any], models: dict[bool, Any], is_on: bool) -> float:
    """By the clock."""
    begin = time.perf_counter()
    run(models[is_on])
    return time.perf_counter() - begin


def print_passes(device: str, repeats: int) -> None:
    """What replaying whole passes gives."""
    for name in ("attention", "based", "mamba", "retnet", "rwkv"):
        made = ModelRequest(f"zoo:{name}", 4096, device=device)
        models = {is_on: load_model(replace(made, cuda_graphs=is_on)) for is_on in (True, False)}
        for run in (scored, generated):
            same = run(models[True]) == run(models[False]) == run(models[True])
            samples = harness.in_turn(models, repeats, partial(seconds, run, models))
            replayed, launched = (statistics.median(samples[is_on]) for is_on in (True, False))
            bits = "the same bits" if same else "OTHER BITS"
            print(f"{name:<12}{run.__name__:<12}{launched:8.3f} s launched", end="")
            print(f"{replayed:8.3f} s replayed{launched / replayed:6.2f} times as fast, {bits}")


def main() -> None:
    parser = harness.parser_of(__doc__, repeats=9, runs="samples of each")
    parser.add_argument("--device", help="also read and generate there")
    given = parser.parse_args()
    print(harness.machine(1))
    print_calls(given.repeats)
    if given.device:
        print_passes(given.device, given.repeats)


if __name__ == "__main__":
    main()
