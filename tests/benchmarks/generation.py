"""Generates greedily with recallkit and with transformers' own `generate`, in turn: new tokens a second, and their ratio.

    python tests/benchmarks/generation.py
    python tests/benchmarks/generation.py --models llama --batches 8 --spread 0 --repeats 5
    python tests/benchmarks/generation.py --device cuda --dtype bfloat16

Models have random weights, prompts random ids: their lengths are spread evenly around the one that is asked for, by that
share of it in either direction. `generate` is given them padded at the left, with their mask, and neither side stops before
the last token. Each side runs twice in a round, and the second run is timed: ratios are those within a round, their median
and range. With one thread on CPU seconds are the processor's. "same" counts prompts with the same ids on both sides.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness
from tests.benchmarks.scoring import SUBJECTS, begin, write_random_model

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    Generate = Callable[[list[np.ndarray]], list[list[int]]]


def prompts_of(batch: int, length: int, spread: float, vocab_size: int) -> list[np.ndarray]:
    lengths = np.linspace(length * (1 - spread), length * (1 + spread), batch) if batch > 1 else np.array([length])
    rng = np.random.default_rng(0)
    return [rng.integers(1, vocab_size, int(n)).astype(np.uint32) for n in lengths]


def ours(path: Path, args: argparse.Namespace) -> Generate:
    from recallkit.models.generation import generate
    from recallkit.models.loading import load_model
    from recallkit.models.plan import ModelPlan
    from recallkit.models.spec import ModelSpec

    model = load_model(ModelPlan(ModelSpec(str(path)), 1, device=args.device, dtype=args.dtype))

    def run(prompts: list[np.ndarray]) -> list[list[int]]:
        nothing = [np.empty(0, np.uint32)] * len(prompts)
        return [result.ids for result in generate(model, prompts, nothing, args.new, lambda number, ids: False)]

    return run


def theirs(path: Path, args: argparse.Namespace) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, args.dtype)).to(args.device).eval()

    def run(prompts: list[np.ndarray]) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor(np.stack([np.pad(p.astype(np.int64), (width - len(p), 0)) for p in prompts]), device=args.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=args.device)
        options = {"do_sample": False, "min_new_tokens": args.new, "max_new_tokens": args.new, "pad_token_id": 0}
        with torch.inference_mode():
            generated = model.generate(input_ids=ids, attention_mask=mask, **options)
        result: list[list[int]] = generated[:, width:].tolist()
        return result

    return run


def measure(run: Generate, prompts: list[np.ndarray], args: argparse.Namespace) -> tuple[float, list[list[int]]]:
    """New tokens a second of the second of two runs, and the ids."""
    clock = time.process_time if args.device == "cpu" and args.threads == 1 else time.perf_counter
    result = run(prompts)
    begun = clock()
    run(prompts)
    return len(prompts) * args.new / (clock() - begun), result


def main() -> None:
    parser = harness.parser_of(__doc__, repeats=3, runs="rounds")
    harness.add_models(parser, ("llama", "mamba"), SUBJECTS)
    parser.add_argument("--length", type=int, default=512, help="ids of a prompt")
    parser.add_argument("--spread", type=float, default=0.1)
    parser.add_argument("--new", type=int, default=48, help="ids generated for each prompt")
    args = parser.parse_args()
    dtype = begin(args)
    print(f"\nPrompts of {args.length} ids, {args.spread:.0%} more or less, {args.new} new ids each, {args.dtype} on {args.device}.\n")
    harness.print_duels("generate", "tokens/s")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            path = write_random_model(SUBJECTS[name], Path(folder) / name, args.device, dtype)
            sides = ours(path, args), theirs(path, args)
            for batch in args.batches:
                prompts = prompts_of(batch, args.length, args.spread, SUBJECTS[name].config["vocab_size"])
                result = harness.duel(name, batch, [partial(measure, side, prompts, args) for side in sides], args.repeats)
        harness.print_stage(f"generate, a tiny {name}, batch {batch}", "`generate`", result[0], result[1], "tok/s", ratio=result[2])


if __name__ == "__main__":
    main()
