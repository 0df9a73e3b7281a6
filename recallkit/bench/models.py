"""Whole models with random weights, of the zoo at a given size or the papers' presets: scoring, reading a prompt, generating.

The columns of the last two are those of Based's table 1 (arXiv 2402.18668).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from recallkit.bench.results import TOKENS, Row
from recallkit.bench.timing import OUT_OF_MEMORY, Timing, compare, problem_of
from recallkit.models import presets, zoo
from recallkit.models.generation import generate
from recallkit.models.language_model import LanguageModel
from recallkit.models.native_model import NativeModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload of a model."""

    size: str = zoo.SHIPPED_SIZE
    """One of `zoo.SIZES`; presets have their own."""
    prompt: int = 1024
    """Ids of the prompt, read at once by one row."""
    batch: int = 8
    """Rows that generate together, and that are scored together."""
    new: int = 32
    """Ids that each row generates."""
    repeats: int = 3


PROMPT_OF_GENERATION = 16
"""Ids that are read before generating: few, so that the time is spent in the steps."""


def paper_workload(name: str, work: Workload) -> Workload:
    """The workload with the lengths of Based's table 1: a prompt of 4,096 ids (16,384 for models of 360M parameters), 2,048 new ones."""
    return replace(work, prompt=16_384 if label_of(name, work).endswith("360m") else 4096, new=2048)


def label_of(name: str, work: Workload) -> str:
    """A model's name in the results: a preset's own, or an architecture of the zoo with its size."""
    return name if name in presets.PRESETS else f"{name} {work.size}"


def build(name: str, work: Workload, device: torch.device, dtype: torch.dtype) -> NativeModel:
    """The preset, or the zoo's architecture at this size, with weights as initialised for training. Raises UserError for unknown names."""
    context = max(work.prompt, PROMPT_OF_GENERATION + work.new)
    config = presets.preset(name, context) if name in presets.PRESETS else zoo.architecture(name, work.size, context)
    with torch.device(device):
        model = LanguageModel(config)
    return NativeModel(model.to(dtype).eval().requires_grad_(False), label_of(name, work), device)


def measure_models(names: Sequence[str], work: Workload, device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    """Three rows per model: tokens per millisecond of `score`, of `forward` with a carried state, and of `generate`.

    One model is in memory at a time.
    """
    for name in names:
        shown, model = label_of(name, work), None
        try:
            model = build(name, work, device, dtype)
            for benchmark, size, num_tokens, call in _tasks(model, work):
                timing = compare({name: call}, device, repeats=work.repeats)[name]
                yield _row(benchmark, size, shown, timing, num_tokens)
        except (MemoryError, RuntimeError) as error:  # a model may not fit in memory where the following ones do
            if (problem := problem_of(error)) != OUT_OF_MEMORY:
                raise
            yield _row("scoring", {"b": work.batch}, shown, Timing(problem=problem), 0)


def _row(benchmark: str, size: dict[str, int], model: str, timing: Timing, num_tokens: int) -> Row:
    rate = None if timing.problem else num_tokens / timing.median / 1e3
    return Row(benchmark, size, model, timing.median, timing.fastest, timing.slowest, rate=rate, unit=TOKENS, problem=timing.problem)


def _tasks(model: NativeModel, work: Workload) -> Iterator[tuple[str, dict[str, int], int, Callable[[int], Any]]]:
    """Name, size, tokens and work of each measurement."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, model.vocab_size, (work.batch, work.prompt + 1), dtype=np.uint32)
    length = min(work.prompt, max(128, work.prompt // work.batch))
    texts = np.ascontiguousarray(ids[:, : length + 1])
    offsets = np.arange(work.batch + 1) * (length + 1)
    yield "scoring", {"b": work.batch, "n": length}, work.batch * length, lambda _: model.score(texts.ravel(), offsets)

    prompt = torch.tensor(ids[:1, : work.prompt].astype(np.int64), device=model.device)

    def prefill(_: int) -> None:
        with torch.inference_mode():
            model.forward(prompt, carry=True)

    yield "prefill", {"b": 1, "n": work.prompt}, work.prompt, prefill

    prompts = list(ids[:, :PROMPT_OF_GENERATION])
    nothing = [np.empty(0, np.uint32)] * work.batch

    def step_on(_: int) -> None:
        generate(model, prompts, nothing, work.new, lambda number, made: False)

    yield "generation", {"b": work.batch, "new": work.new}, work.batch * work.new, step_on
