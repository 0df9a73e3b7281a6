"""Runs the built-in recall task with recallkit and with lm-eval's own transformers model, in turn: prompts a second, and their ratio.

    python tests/benchmarks/recall.py
    python tests/benchmarks/recall.py --models mamba --limit 64 --batches 16 --device cuda --dtype bfloat16

Both answer the same requests of the same lm-eval task: a greedy generation of 48 tokens and the likelihood of the answer.
Models have random weights, and the built-in tokenizer; real models stop at the first newline, these nearly never do. Ratios
are those within a round, their median and range. "same" counts prompts with the same generation on both sides.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.scoring import SUBJECTS, builtin_tokenizer, machine, write_random_model

if TYPE_CHECKING:
    from collections.abc import Callable

MODELS = ("llama", "mamba")


def ours(path: Path, batch: int, given: argparse.Namespace) -> Callable[[], Any]:
    from recallkit import builtin
    from recallkit.models.evaluated import EvaluatedModel
    from recallkit.options import EvaluationOptions
    from recallkit.recall.lm_eval_model import lm_eval_model
    from recallkit.storage.journal import Parts

    options = EvaluationOptions(batch_size=batch, context=given.context, device=given.device, dtype=given.dtype)
    evaluated = EvaluatedModel(str(path), options, builtin.counts)
    return lambda: lm_eval_model(evaluated, Parts(Path(tempfile.mkdtemp(dir=path)), "benchmark"), lambda _: None)


def theirs(path: Path, batch: int, given: argparse.Namespace) -> Callable[[], Any]:
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(pretrained=str(path), device=given.device, dtype=given.dtype, batch_size=batch, max_length=given.context)
    return lambda: lm


def evaluate(make: Callable[[], Any], documents: list[dict[str, Any]]) -> tuple[float, list[str]]:
    """Seconds, and the generations."""
    from recallkit.recall import lm_eval_run
    from recallkit.recall.lm_eval_run import RecallTask

    task = lm_eval_run.load_tasks([RecallTask("metadata", documents, 1, {})])
    begun = time.perf_counter()
    rows = lm_eval_run.run_tasks(make(), task, model="m")["samples"]["metadata"]
    return time.perf_counter() - begun, [row["filtered_resps"][0] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(SUBJECTS), default=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    import torch
    from transformers.utils import logging

    from recallkit.recall.tasks import load_rows

    logging.set_verbosity_error()
    torch.set_num_threads(given.threads)
    documents = [{"prompt": row.text, "value": row.value} for row in load_rows("metadata", limit=given.limit).rows]
    print(machine(given))
    print(f"\n{len(documents)} prompts of the built-in task, {given.dtype} on {given.device}.\n")
    print("| model | batch | recallkit, prompts/s | lm-eval, prompts/s | ratio | range | same |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models:
            path = write_random_model(SUBJECTS[name], Path(folder) / name, given.device, getattr(torch, given.dtype))
            builtin_tokenizer().save_pretrained(path)
            for batch in given.batches:
                sides = ours(path, batch, given), theirs(path, batch, given)
                generations = [evaluate(side, documents)[1] for side in sides]
                rounds = [[evaluate(side, documents)[0] for side in sides] for _ in range(given.repeats)]
                ratios = [seconds_of_theirs / seconds_of_ours for seconds_of_ours, seconds_of_theirs in rounds]
                rates = [f"{len(documents) / statistics.median(side):.2f}" for side in zip(*rounds, strict=True)]
                same = sum(a == b for a, b in zip(*generations, strict=True))
                figures = f"{rates[0]} | {rates[1]} | {statistics.median(ratios):.2f} | {min(ratios):.2f} - {max(ratios):.2f}"
                print(f"| {name} | {batch} | {figures} | {same} of {len(documents)} |", flush=True)


if __name__ == "__main__":
    main()
