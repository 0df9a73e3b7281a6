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

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.scoring import SUBJECTS, machine, write_random_model

if TYPE_CHECKING:
    from collections.abc import Callable

MODELS = ("llama", "mamba")


def prompts_of(batch: int, length: int, spread: float, vocab_size: int) -> list[np.ndarray]:
    lengths = np.linspace(length * (1 - spread), length * (1 + spread), batch) if batch > 1 else np.array([length])
    rng = np.random.default_rng(0)
    return [rng.integers(1, vocab_size, int(n)).astype(np.uint32) for n in lengths]


def ours(path: Path, given: argparse.Namespace) -> Callable[[list[np.ndarray]], list[list[int]]]:
    from recallkit.models.generation import generate
    from recallkit.models.loading import load_model
    from recallkit.models.protocol import ModelRequest

    model = load_model(ModelRequest(str(path), 1, device=given.device, dtype=given.dtype))

    def run(prompts: list[np.ndarray]) -> list[list[int]]:
        nothing = [np.empty(0, np.uint32)] * len(prompts)
        return [found.ids for found in generate(model, prompts, nothing, given.new, lambda number, ids: False)]

    return run


def theirs(path: Path, given: argparse.Namespace) -> Callable[[list[np.ndarray]], list[list[int]]]:
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, given.dtype)).to(given.device).eval()

    def run(prompts: list[np.ndarray]) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor(np.stack([np.pad(p.astype(np.int64), (width - len(p), 0)) for p in prompts]), device=given.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=given.device)
        options = {"do_sample": False, "min_new_tokens": given.new, "max_new_tokens": given.new, "pad_token_id": 0}
        with torch.inference_mode():
            made = model.generate(input_ids=ids, attention_mask=mask, **options)
        found: list[list[int]] = made[:, width:].tolist()
        return found

    return run


def rate(run: Callable[[list[np.ndarray]], Any], prompts: list[np.ndarray], given: argparse.Namespace) -> float:
    """New tokens a second of the second of two runs."""
    clock = time.process_time if given.device == "cpu" and given.threads == 1 else time.perf_counter
    run(prompts)
    begun = clock()
    run(prompts)
    return len(prompts) * given.new / (clock() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(SUBJECTS), default=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--length", type=int, default=512, help="ids of a prompt")
    parser.add_argument("--spread", type=float, default=0.1)
    parser.add_argument("--new", type=int, default=48, help="ids generated for each prompt")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(given.threads)
    print(machine(given))
    print(f"\nPrompts of {given.length} ids, {given.spread:.0%} more or less, {given.new} new ids each, {given.dtype} on {given.device}.\n")
    print("| model | batch | recallkit, tokens/s | generate, tokens/s | ratio | range | same |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models:
            path = write_random_model(SUBJECTS[name], Path(folder) / name, given.device, getattr(torch, given.dtype))
            sides = ours(path, given), theirs(path, given)
            for batch in given.batches:
                prompts = prompts_of(batch, given.length, given.spread, SUBJECTS[name].config["vocab_size"])
                same = sum(a == b for a, b in zip(sides[0](prompts), sides[1](prompts), strict=True))
                rounds = [[rate(side, prompts, given) for side in sides] for _ in range(given.repeats)]
                ratios = [rate_of_ours / rate_of_theirs for rate_of_ours, rate_of_theirs in rounds]
                rates = [f"{statistics.median(side):,.0f}" for side in zip(*rounds, strict=True)]
                figures = f"{rates[0]} | {rates[1]} | {statistics.median(ratios):.2f} | {min(ratios):.2f} - {max(ratios):.2f}"
                print(f"| {name} | {batch} | {figures} | {same} of {batch} |", flush=True)


if __name__ == "__main__":
    main()
