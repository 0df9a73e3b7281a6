"""Runs the built-in recall task with recallkit and with lm-eval's own transformers model, in turn: prompts a second, and their ratio.

    python tests/benchmarks/recall.py
    python tests/benchmarks/recall.py --models mamba --limit 64 --batches 16 --device cuda --dtype bfloat16

Both answer the same requests of the same lm-eval task: a greedy generation of 48 tokens and the likelihood of the answer.
Models have random weights, and the built-in tokenizer; real models stop at the first newline, these nearly never do. Ratios
are those within a round, their median and range. "same" counts prompts with the same generation on both sides.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness
from tests.benchmarks.scoring import SUBJECTS, begin, builtin_tokenizer, write_random_model

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator


def ours(path: Path, batch: int, args: argparse.Namespace) -> Callable[[], AbstractContextManager[Any]]:
    from recallkit import builtin
    from recallkit.models.evaluated import EvaluatedModel
    from recallkit.options import PromptOptions
    from recallkit.recall.answering import Answering
    from recallkit.recall.lm_eval_model import ModelLM
    from recallkit.storage.journal import PartsJournal
    from recallkit.storage.timings import Timings

    options = PromptOptions(batch_size=batch, context=args.context, device=args.device, dtype=args.dtype)
    evaluated = EvaluatedModel(str(path), options, builtin.counts)

    @contextmanager
    def made() -> Iterator[Any]:
        with (
            tempfile.TemporaryDirectory() as folder,
            PartsJournal(Path(folder, "benchmark"), {}) as journal,
        ):
            yield ModelLM(Answering(evaluated, "metadata", journal, options, Timings()))

    return made


def theirs(path: Path, batch: int, args: argparse.Namespace) -> Callable[[], AbstractContextManager[Any]]:
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(
        pretrained=str(path),
        device=args.device,
        dtype=args.dtype,
        batch_size=batch,
        max_length=args.context,
    )
    return lambda: nullcontext(lm)


def evaluate(make: Callable[[], AbstractContextManager[Any]], documents: list[dict[str, Any]]) -> tuple[float, list[str]]:
    """Prompts a second, and the generations."""
    import datasets
    from lm_eval.api.task import ConfigurableTask

    from recallkit.recall.lm_eval_run import load_task, run_tasks

    class Local(ConfigurableTask):
        def download(self, dataset_kwargs=None, **kwargs):
            self.dataset = {"test": datasets.Dataset.from_list(documents)}

    generation = {"until": ["\n"], "max_gen_toks": 48, "do_sample": False}
    fields = {"doc_to_text": "prompt", "doc_to_target": "value", "test_split": "test"}
    output = {"output_type": "generate_until", "generation_kwargs": generation}
    task = load_task(Local(config={"task": "metadata", **fields, **output}))
    begun = time.perf_counter()
    with make() as lm:
        rows = run_tasks(lm, task, model="m")["samples"]["metadata"]
    return len(documents) / (time.perf_counter() - begun), [row["filtered_resps"][0] for row in rows]


def main() -> None:
    parser = harness.parser_of(__doc__, repeats=3, runs="rounds")
    harness.add_models(parser, ("llama", "mamba"), SUBJECTS)
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--context", type=int, default=2048)
    args = parser.parse_args()
    from recallkit.recall.tasks import load_rows

    dtype = begin(args)
    documents = [{"prompt": row.text, "value": row.value} for row in load_rows("metadata", limit=args.limit).rows]
    print(f"\n{len(documents)} prompts of the built-in task, {args.dtype} on {args.device}.\n")
    harness.print_duels("lm-eval", "prompts/s")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            path = write_random_model(SUBJECTS[name], Path(folder) / name, args.device, dtype)
            builtin_tokenizer().save_pretrained(path)
            for batch in args.batches:
                sides = [partial(evaluate, make(path, batch, args), documents) for make in (ours, theirs)]
                result = harness.duel(name, batch, sides, args.repeats)
        harness.print_stage(
            f"`eval-recall`, a tiny {name}, batch {batch}",
            "lm-eval",
            result[0],
            result[1],
            "prompts/s",
            ratio=result[2],
        )


if __name__ == "__main__":
    main()
