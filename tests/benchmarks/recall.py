"""Runs the built-in recall task with recallkit and with lm-eval's own transformers model, in turn:
prompts a second.

    python tests/benchmarks/recall.py python tests/benchmarks/recall.py --models mamba --limit 64
    --batches 16 --device cuda --dtype bfloat16

Both answer the same requests of the same lm-eval task: a greedy generation of 48 tokens and the
likelihood of the answer. Models have random weights, and the built-in tokenizer; real models stop
at the first newline, these nearly never do. "same" counts prompts with the same generation on both
sides.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness
from tests.benchmarks.scoring import SUBJECTS, compare_sides

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    MakeLM = Callable[[], AbstractContextManager[Any]]


def ours(path: Path, batch: int, args: argparse.Namespace) -> MakeLM:
    from recallkit import builtin
    from recallkit.models.evaluated import EvaluatedModel
    from recallkit.options import PromptOptions
    from recallkit.recall.answering import Answering
    from recallkit.recall.lm_eval_model import ModelLM
    from recallkit.storage.journal import PartsJournal
    from recallkit.storage.timings import Timings

    options = PromptOptions(
        batch_size=batch, context=args.context, device=args.device, dtype=args.dtype
    )
    evaluated = EvaluatedModel(str(path), options, builtin.counts)

    @contextmanager
    def lm() -> Iterator[Any]:
        folder = tempfile.mkdtemp(dir=path.parent)
        with PartsJournal(Path(folder, "benchmark"), {}) as journal:
            yield ModelLM(Answering(evaluated, "metadata", journal, options, Timings()))

    return lm


def theirs(path: Path, batch: int, args: argparse.Namespace) -> MakeLM:
    from lm_eval.models.huggingface import HFLM

    options = {
        "device": args.device,
        "dtype": args.dtype,
        "batch_size": batch,
        "max_length": args.context,
    }
    lm = HFLM(pretrained=str(path), **options)
    return lambda: nullcontext(lm)


def evaluate(make: MakeLM, documents: list[dict[str, Any]]) -> list[str]:
    """The generations."""
    import datasets
    from lm_eval.api.task import ConfigurableTask

    from recallkit.recall.lm_eval_run import load_task, run_tasks

    class Local(ConfigurableTask):
        def download(self, dataset_kwargs=None, **kwargs):
            self.dataset = {"test": datasets.Dataset.from_list(documents)}

    fields = {"doc_to_text": "prompt", "doc_to_target": "value", "test_split": "test"}
    generation = {"until": ["\n"], "max_gen_toks": 48, "do_sample": False}
    output = {"output_type": "generate_until", "generation_kwargs": generation}
    task = load_task(Local(config={"task": "metadata", **fields, **output}))
    with make() as lm:
        rows = run_tasks(lm, task, model="m")["samples"]["metadata"]
    return [row["filtered_resps"][0] for row in rows]


def main() -> None:
    from recallkit.recall.tasks import load_rows

    options = {"--models": ["llama", "mamba"], "--repeats": 3, "--limit": 16, "--context": 2048}
    args = harness.parse(__doc__, {**options, **harness.MODELS}, models=SUBJECTS)
    rows = load_rows("metadata", limit=args.limit).rows
    documents = [{"prompt": row.text, "value": row.value} for row in rows]

    def sides(path: Path, _: str, batch: int) -> tuple[dict[str, Any], int]:
        methods = {"recallkit": ours(path, batch, args), "lm-eval": theirs(path, batch, args)}
        calls = {side: partial(evaluate, lm, documents) for side, lm in methods.items()}
        return calls, len(documents)

    compare_sides(args, "`eval-recall`", sides, unit="prompts/s")


if __name__ == "__main__":
    main()
