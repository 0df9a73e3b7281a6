"""What every family of tests/models/families.py gives: speed, numerical error, batches, context, carried state.

    python tests/benchmarks/families.py [--repeats 5] [FAMILY ...]
    python tests/benchmarks/families.py --model MODEL --text SOURCE
    python tests/benchmarks/families.py --untested

Tiny models with random weights, on one thread: their speeds say how a family's fast form fares, not how fast a large
model is. Error is the distance of an NLL from the one computed in float64 throughout from the same weights. The second
form gives the error of a real model on the beginnings of three documents: there bfloat16 rounds the weights, too. The third lists
every other `model_type` of which the installed transformers makes a model that generates text.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from recallkit.errors import UserError
from recallkit.models.loading import load_model
from recallkit.models.protocol import ModelRequest
from recallkit.models.transformers_model import TransformersModel
from recallkit.text.corpus import open_corpus
from recallkit.text.tokenizers import load_tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks import harness
from tests.models.families import FAMILIES, VOCAB_SIZE, build_model, save_model

BATCH, LENGTH = 2, 512
RAGGED = [512, 300, 129, 65, 2]
ERRORS = "the largest, their mean, their mean with its sign"


class Error(NamedTuple):
    """Distances of NLLs from float64, in nats."""

    largest: float
    mean: float
    signed_mean: float


HEADINGS = [
    *("family", "mixes tokens by", "parameters", "ktok/CPU-s", "of its forward", "float32 error", "bfloat16 error"),
    *("batch", "context", "state carried"),
]


def sequences(lengths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return np.random.default_rng(0).integers(0, VOCAB_SIZE, offsets[-1]), offsets


def loaded(path: Path, dtype: str = "float32") -> TransformersModel:
    model = load_model(ModelRequest(str(path), VOCAB_SIZE, device="cpu", dtype=dtype))
    assert isinstance(model, TransformersModel)
    return model


def exact_nll(model: TransformersModel, ids: np.ndarray) -> np.ndarray:
    """NLLs of sequences (b, t) under a float64 model, float64 from the embeddings to the last logarithm."""
    inputs = torch.from_numpy(ids)
    with torch.inference_mode():
        return model.reduce(model.forward(inputs[:, :-1])[0].flatten(0, 1), inputs[:, 1:].flatten()).nll.numpy()


def error(path: Path, dtype: str) -> Error | None:
    """How far NLLs in this dtype are from float64; None where the family cannot be computed in it."""
    ids, offsets = sequences([LENGTH + 1] * BATCH)
    exact = exact_nll(loaded(path, "float64"), ids.reshape(BATCH, -1))
    try:
        return as_error(loaded(path, dtype).score(ids, offsets).nll - exact)
    except UserError:
        return None


def as_error(difference: np.ndarray) -> Error:
    return Error(float(np.abs(difference).max()), float(np.abs(difference).mean()), float(difference.mean()))


def report_real_model(path: Path, source: str) -> None:
    """Prints a real model's error on text."""
    tokenizer = load_tokenizer(str(path)).backend
    texts = (document.text for document in open_corpus([source]).documents())
    documents = [np.array(tokenizer.encode(text[:4000]).ids[:401]) for text in itertools.islice(texts, 3)]
    reference = loaded(path, "float64")
    exact = np.concatenate([exact_nll(reference, ids[None]) for ids in documents])
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in documents])])
    print(f"{path.name}: {len(exact):,} predictions, mean NLL {exact.mean():.4f}; errors in nats: {ERRORS}")
    for dtype in ("float32", "bfloat16"):
        print(f"{dtype:9} {written(as_error(loaded(path, dtype).score(np.concatenate(documents), offsets).nll - exact))}")


def cpu_seconds(work: Callable[[], object], repeats: int) -> float:
    """The median of repeats, after one that is not counted."""
    taken = []
    for _ in range(repeats + 1):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken[1:])


def rates(model: TransformersModel, repeats: int) -> tuple[float, float]:
    """Thousand tokens a CPU-second, and as a share of the rate of the model's own forward to logits alone."""
    ids, offsets = sequences([LENGTH + 1] * BATCH)
    inputs = torch.from_numpy(ids.reshape(BATCH, -1)[:, :-1])

    def forward() -> None:
        with torch.inference_mode():
            model.model(input_ids=inputs, use_cache=False)

    own, ours = cpu_seconds(forward, repeats), cpu_seconds(lambda: model.score(ids, offsets), repeats)
    return BATCH * LENGTH / 1e3 / ours, own / ours


def batch_effect(model: TransformersModel) -> float:
    """The largest difference between a sequence's NLLs alone and in a batch of unlike lengths."""
    ids, offsets = sequences(RAGGED)
    together = model.score(ids, offsets).nll
    alone = [model.score(ids[a:b], np.array([0, b - a])).nll for a, b in itertools.pairwise(offsets)]
    return float(np.abs(together - np.concatenate(alone)).max())


def row_of(name: str, folder: Path, repeats: int) -> list[str]:
    """A family's results as the cells of the table."""
    path = save_model(name, folder)
    halved = folder / f"{name}-bfloat16"
    build_model(name).to(torch.bfloat16).save_pretrained(halved)
    model = loaded(path)
    rate, to_own = rates(model, repeats)
    return [
        name,
        FAMILIES[name].mixer,
        f"{sum(parameter.numel() for parameter in model.model.parameters()):,}",
        f"{rate:.1f}",
        f"{to_own:.0%}",
        written(error(path, "float32")),
        written(error(halved, "bfloat16")),
        f"{batch_effect(model):.0e}",
        "none" if model.max_length is None else f"{model.max_length:,}",
        model.carrying or "no",
    ]


def written(error: Error | None) -> str:
    return "fails" if error is None else f"{error.largest:.0e}, {error.mean:.0e}, {error.signed_mean:+.0e}"


def untested() -> list[str]:
    """Types of models that generate text in the installed transformers, of text alone or of images and sound, too, and not in the table."""
    from transformers.models.auto import modeling_auto as auto

    generating = (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    return sorted({*itertools.chain(*generating, auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)} - set(FAMILIES))


def main() -> None:
    parser = harness.parser_of(__doc__, repeats=5)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="only these")
    parser.add_argument("--model", type=Path, help="a real model, directory or GGUF file, instead of the families")
    parser.add_argument("--text", default="demo:validation", help="what it reads")
    parser.add_argument("--untested", action="store_true", help="only the names of families that are not in the table")
    given = parser.parse_args()
    if given.untested:
        print(*untested())
        return
    if given.model:
        report_real_model(given.model, given.text)
        return
    torch.set_num_threads(1)
    print(f"{harness.machine(1)}; {BATCH} x {LENGTH} tokens, medians of {given.repeats}; errors in nats: {ERRORS}\n")
    print(f"| {' | '.join(HEADINGS)} |\n| {' | '.join(['---'] * len(HEADINGS))} |")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.families or FAMILIES:
            print(f"| {' | '.join(row_of(name, Path(folder), given.repeats))} |", flush=True)


if __name__ == "__main__":
    main()
