"""Based's speeds (arXiv 2402.18668) with our models of random weights: Table 1, the left of Figure
1, Figure 4; and the zoo's.

    python tests/benchmarks/based.py table-1 --device cuda
    python tests/benchmarks/based.py figure-4 --device cuda
    python tests/benchmarks/based.py zoo --models attention based --size 360m --repeats 1

A row is printed as soon as it is measured: the mean of all calls, and the rate beside the one that
the paper prints (one H100). What does not fit in memory ends its task. Unlike in the paper there
are no CUDA graphs, cuBLAS in place of Cutlass and no kernel of Fast Transformers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from recallkit.models import presets, zoo
from recallkit.models.generation import generate
from recallkit.models.language_model import LanguageModel
from recallkit.models.native_model import NativeModel
from recallkit.papers.arithmetic import read_table
from tests.benchmarks import harness

PROMPT_ROWS = 2
START = 2
"""Ids before generation, which has no prefill (6.2): as few as a model of any kind continues."""
PRODUCT = "torch.bmm"


@dataclass(frozen=True)
class Protocol:
    """Tasks and models, and their sizes in rising order."""

    tasks: tuple[str, ...]
    models: tuple[str, ...]
    prompts: tuple[int, ...] = ()
    """Ids of a text that is scored or read; none: those of Table 1."""
    batches: tuple[int, ...] = (128,)
    """Rows that generate together, matrices that are multiplied together."""
    new: int = 0
    """Ids that each row generates."""
    sides: tuple[int, ...] = ()
    """Of the square matrices."""
    repeats: int = 20

    def cases(self, model: str) -> Iterator[tuple[str, dict[str, int]]]:
        """Tasks of a model with their sizes: rows b, ids n or new ids."""
        texts = [
            {"b": PROMPT_ROWS, "n": n}
            for n in self.prompts or (16_384 if model.endswith("360m") else 4096,)
        ]
        sizes = {
            "scoring": texts,
            "prefill": texts,
            "generation": [{"b": b, "new": self.new} for b in self.batches],
            "product": [{"b": b, "n": n} for b in self.batches for n in self.sides],
        }
        for task in self.tasks:
            for size in sizes[task]:
                yield task, size


_SIX = tuple(
    f"{name}-{size}" for size in ("1.3b", "360m") for name in ("transformer++", "based", "mamba")
)
_GENERATED = ("prefill", "generation")
SIDES = (1, 4, 8, 16, 24, 32, 48, 64, 128, 256, 512, 1024, 2048, 4096)
PROTOCOLS = {
    # Its caption: prompts of 4,096 ids, 16,384 for 360M parameters, 2,048 new ones. The batch is
    # that of 6.2.
    "table-1": Protocol(_GENERATED, _SIX, new=2048),
    # Its caption has 2 rows and 1,024 new ids. The values on the axes are in no text: these include
    # 6.2's 4,096 and 128.
    "figure-4": Protocol(
        _GENERATED,
        _SIX,
        tuple(1 << k for k in range(10, 16)),
        tuple(1 << k for k in range(10)),
        new=1024,
    ),
    # Its caption has 512 matrices; the sides, bfloat16 and 100 calls are those of gemm_micro.py,
    # published with the authors' code.
    "figure-1": Protocol(("product",), (PRODUCT,), batches=(512,), sides=SIDES, repeats=100),
    "zoo": Protocol(
        ("scoring", *_GENERATED), tuple(zoo.ARCHITECTURES), (1024,), (8,), new=32, repeats=3
    ),
}


def build(
    name: str, size: str, context: int, device: torch.device, dtype: torch.dtype
) -> NativeModel:
    """The preset, or the zoo's architecture at this size, with weights as initialised for
    training."""
    is_preset = name in presets.PRESETS
    config = presets.preset(name, context) if is_preset else zoo.architecture(name, size, context)
    with torch.device(device):
        model = LanguageModel(config)
    return NativeModel(model.to(dtype).eval().requires_grad_(False), name, device)


def work_of(
    task: str,
    size: dict[str, int],
    model: NativeModel | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Callable[[int], Any]:
    """The call that is timed."""
    rows = size["b"]
    if model is None:
        left, right = (
            torch.randn(rows, size["n"], size["n"], device=device, dtype=dtype) for _ in range(2)
        )
        return lambda _: torch.bmm(left, right)
    length = 1 + size.get("n", START - 1)
    ids = np.random.default_rng(0).integers(0, model.vocab_size, (rows, length), dtype=np.uint32)
    if task == "scoring":
        return lambda _: model.score(ids.ravel(), np.arange(rows + 1) * length)
    if task == "generation":
        nothing = [np.empty(0, np.uint32)] * rows
        return lambda _: generate(
            model, list(ids), nothing, size["new"], lambda number, new_ids: False
        )
    prompt = torch.tensor(ids[:, 1:].astype(np.int64), device=device)
    return lambda _: torch.inference_mode()(model.forward)(prompt, carry=True)


def printed_rate(model: str, task: str, size: dict[str, int]) -> float | None:
    """Tokens per millisecond in Table 1, whose generation 6.2 ascribes to 1,024 tokens and its
    caption to 2,048; None if it has none."""
    prompt = 16_384 if model.endswith("360m") else 4096
    sizes = {
        "prefill": [{"b": 2, "n": prompt}],
        "generation": [{"b": 128, "new": new} for new in (1024, 2048)],
    }
    if size not in sizes.get(task, ()):
        return None
    for row in read_table("based:1").iter_rows(named=True):
        parameters, _, tokens = row["group"].partition(", ")
        if f"{row['model']}-{parameters}".lower() == model and tokens == "10B":
            return float(row["prefill_per_ms" if task == "prefill" else "generate_per_ms"])
    return None


def measure(
    name: str, protocol: Protocol, size_name: str, device: torch.device, dtype: torch.dtype
) -> Iterator[dict[str, Any]]:
    """A row for each task and size of one model."""
    cases = list(protocol.cases(name))
    context = max(size.get("n", START + size.get("new", 0)) for _, size in cases)
    model = None if name == PRODUCT else build(name, size_name, context, device, dtype)
    full: set[str] = set()
    for task, size in cases:
        if task in full:
            continue
        # Products are timed one by one, as gemm_micro.py has it: what a launch takes counts.
        most_calls = 1 if task == "product" else harness.MOST_CALLS
        try:
            call = work_of(task, size, model, device, dtype)
            timing = harness.time_call(
                call, device, repeats=protocol.repeats, most_calls=most_calls
            )
        except (MemoryError, RuntimeError) as error:
            timing = harness.Timing(problem=harness.problem_of(error))
        if timing.problem == harness.OUT_OF_MEMORY:
            full.add(task)
        # Tokens per millisecond; of products TFLOP/s.
        amount = (
            2 * size["b"] * size["n"] ** 3 / 1e9
            if task == "product"
            else size["b"] * size.get("n", protocol.new)
        )
        yield {
            "model": name,
            "task": task,
            **size,
            "milliseconds": 1e3 * timing.mean,
            "rate": amount / timing.mean / 1e3,
            "printed": printed_rate(name, task, size),
            "problem": timing.problem,
        }


def print_row(row: dict[str, Any]) -> None:
    size = " ".join(f"{name}={row[name]:,}" for name in ("b", "n", "new") if name in row)
    printed = row["printed"]
    figures = (
        [row["problem"], ""]
        if row["problem"]
        else [f"{row['milliseconds']:.4g}", f"{row['rate']:.3g}"]
    )
    paper = [str(printed), f"{row['rate'] / printed:.2f}"] if printed else ["", ""]
    print(harness.markdown([row["model"], row["task"], size, *figures, *paper]), flush=True)


def main() -> None:
    options = {
        "protocol": ["zoo"],
        "--models": [""],
        "--size": zoo.SHIPPED_SIZE,
        "--prompts": [0],
        "--batches": [0],
        "--new": 0,
        "--repeats": 0,
        "--device": "cpu",
    }
    names = (*zoo.ARCHITECTURES, *presets.PRESETS, PRODUCT, "")
    args = harness.parse(__doc__, options, protocol=PROTOCOLS, models=names, size=zoo.SIZES)
    device = torch.device(args.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    changes = {}
    for name in ("models", "prompts", "batches", "new", "repeats"):
        value = getattr(args, name)
        if value not in (options[f"--{name}"], 0):
            changes[name] = value
    protocol = replace(PROTOCOLS[args.protocol[0]], **changes)
    print(f"{json.dumps(harness.describe_machine(device, dtype))}\n")
    columns = ["model", "task", "size", "ms", "tokens/ms (TFLOP/s)", "printed", "ratio"]
    print(harness.markdown(columns, is_header=True))
    for model in protocol.models:
        for row in measure(model, protocol, args.size, device, dtype):
            print_row(row)


if __name__ == "__main__":
    main()
