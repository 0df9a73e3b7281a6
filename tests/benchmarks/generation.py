"""Generates greedily with recallkit and with transformers' own `generate`, in turn: new tokens a
second.

    python tests/benchmarks/generation.py
    python tests/benchmarks/generation.py --device cuda --dtype bfloat16

Models have random weights, prompts random ids of lengths within a tenth of the one asked for.
`generate` gets them padded at the left, with their mask, and neither side stops before the last
token. Each side runs twice in a round, and the second run is timed. "same" counts prompts with the
same ids on both sides.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness
from tests.benchmarks.scoring import SUBJECTS, compare_sides, load_theirs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    Generate = Callable[[list[np.ndarray]], list[list[int]]]


def prompts_of(batch: int, length: int, vocab_size: int) -> list[np.ndarray]:
    lengths = np.linspace(0.9 * length, 1.1 * length, batch) if batch > 1 else [length]
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
        results = generate(model, prompts, nothing, args.new, lambda number, ids: False)
        return [result.ids for result in results]

    return run


def theirs(path: Path, args: argparse.Namespace) -> Generate:
    import torch

    model = load_theirs(path, args)
    options: dict[str, Any] = {
        "min_new_tokens": args.new,
        "max_new_tokens": args.new,
        "pad_token_id": 0,
    }

    def run(prompts: list[np.ndarray]) -> list[list[int]]:
        width = max(map(len, prompts))
        ids, mask = np.zeros((2, len(prompts), width), np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = prompt
            mask[row, width - len(prompt) :] = 1
        inputs = {
            "input_ids": torch.tensor(ids, device=args.device),
            "attention_mask": torch.tensor(mask, device=args.device),
        }
        with torch.inference_mode():
            generated = model.generate(**inputs, do_sample=False, **options)
        result: list[list[int]] = generated[:, width:].tolist()
        return result

    return run


def main() -> None:
    options = {"--models": ["llama", "mamba"], "--repeats": 3, "--length": 512, "--new": 48}
    args = harness.parse(__doc__, {**options, **harness.MODELS}, models=SUBJECTS)

    def sides(path: Path, model: str, batch: int) -> tuple[dict[str, Any], int]:
        prompts = prompts_of(batch, args.length, SUBJECTS[model].config["vocab_size"])
        methods = {"recallkit": ours(path, args), "`generate`": theirs(path, args)}
        calls = {side: partial(run, prompts) for side, run in methods.items()}
        return calls, batch * args.new

    clock = harness.clock_of(args.device, args.threads)
    compare_sides(args, "generate", sides, clock=clock, unit="tok/s")


if __name__ == "__main__":
    main()
