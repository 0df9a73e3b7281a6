"""How a small model is trained on a synthetic task, and measured: examples, schedule, batches, loss, accuracy.

It needs torch and what recallkit's models need, nothing else, so that a bare machine with a GPU can train.
"""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from recallkit.errors import UserError
from recallkit.models.architecture import ArchitectureConfig
from recallkit.models.language_model import LanguageModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from recallkit.models.architecture import LayerConfig

EMBEDDING_STD = 0.02
WEIGHT_DECAY = 0.1
MEASURED_TOKENS = 1 << 16
"""Ids per batch when accuracy is measured."""
BYTES_PER_ELEMENT = 4
"""States are counted in float32, in which recurrences keep them even where products are in half precision."""


class Examples(NamedTuple):
    """Sequences and questions about them: after a model has read up to and including a position, the answer is the next id."""

    ids: Tensor
    """(n, t) int64"""
    places: Tensor
    """(n, q) int64"""
    answers: Tensor
    """(n, q) int64"""

    def to(self, device: torch.device) -> Examples:
        """The same on a device."""
        return Examples(*(part.to(device) for part in self))

    def rows(self, chosen: Tensor | slice) -> Examples:
        """Some of the sequences."""
        return Examples(*(part[chosen] for part in self))


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained: AdamW, with linear warm-up and cosine decay to zero."""

    learning_rate: float
    num_steps: int
    batch: int
    seed: int
    stop_above: float
    """Accuracy on the test examples at which training ends early."""
    measured_every: int
    """Steps between two measurements of accuracy."""
    warm_up: float = 0.05
    """Share of the steps over which the rate rises."""
    longest_warm_up: int | None = 200
    """Most steps of it; None without a limit."""

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        warm_up = max(1, round(self.warm_up * self.num_steps))
        rising = warm_up if self.longest_warm_up is None else min(self.longest_warm_up, warm_up)
        return self.learning_rate * min((step + 1) / rising, 0.5 + 0.5 * math.cos(math.pi * step / self.num_steps))


class Measured(NamedTuple):
    """A model's results on examples: accuracy of its most likely answer, and mean NLL of the answers in nats."""

    accuracy: float
    loss_nats: float


def mean_of(measured: Sequence[Measured]) -> Measured:
    """The mean over sets of examples, each of which counts the same."""
    return Measured(*(sum(values) / len(measured) for values in zip(*measured, strict=True)))


def train(
    model: LanguageModel, training: Sequence[Examples], test: Sequence[Examples], recipe: Recipe
) -> Iterator[tuple[int, list[Measured]]]:
    """Trains to the end or to `stop_above`; yields the measurements of each set of test examples with their steps, the last at the end.

    Examples are on the model's device. A batch is of one set; each epoch reads them in another order, determined by the seed.
    """
    start(model)
    model.train()
    optimiser = torch.optim.AdamW(parameter_groups(model), lr=recipe.learning_rate, betas=(0.9, 0.98))
    read = batches([len(some.ids) for some in training], recipe.batch, recipe.seed)
    for step, (part, rows) in zip(range(recipe.num_steps), read, strict=False):
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate(step)
        loss = answer_loss(model, training[part].rows(rows.to(training[part].ids.device)))
        extra = model.auxiliary_loss()
        (loss if extra is None else loss + extra).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        is_last = step + 1 == recipe.num_steps
        if is_last or (step + 1) % recipe.measured_every == 0:
            measured = [measure(model, some) for some in test]
            yield step + 1, measured
            if mean_of(measured).accuracy > recipe.stop_above:
                return


def made_model(seed: int, vocab: int, width: int, layers: tuple[LayerConfig, ...], **options: Any) -> LanguageModel:
    """A model with random weights, the same for a seed. Raises UserError where its sizes are incompatible."""
    torch.manual_seed(seed)
    try:
        return LanguageModel(ArchitectureConfig(vocab, width, layers, **options))
    except (ValueError, TypeError) as error:
        raise UserError(str(error), where=f"width {width}, layers of {layers[-1].mixer}", remedy="choose other sizes") from error


@torch.no_grad()
def start(model: LanguageModel) -> None:
    """Small embeddings, since the head is tied to them."""
    nn.init.normal_(model.embedding.weight, std=EMBEDDING_STD)


def parameter_groups(model: LanguageModel) -> list[dict[str, Any]]:
    """Parameters with weight decay (matrices of linear layers) and without (everything else)."""
    matrices = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    chosen = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    return [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": rest, "weight_decay": 0.0}]


def batches(sizes: Sequence[int], batch: int, seed: int) -> Iterator[tuple[int, Tensor]]:
    """Batches, endlessly, of sets of examples of these sizes: the index of a set, and rows of it.

    Every example is read once per epoch, except those of a set that do not fill a batch. Batches of several sets alternate at
    random. Raises UserError where a set fills none.
    """
    if batch > min(sizes):
        raise UserError(f"{batch:,} is more than {min(sizes):,} examples", where="--batch", remedy="choose a smaller one")
    generator = torch.Generator().manual_seed(seed)
    while True:
        orders = [torch.randperm(size, generator=generator) for size in sizes]
        epoch = [(part, rows) for part, order in enumerate(orders) for rows in torch.split(order[: len(order) - len(order) % batch], batch)]
        turns = range(len(epoch)) if len(sizes) == 1 else torch.randperm(len(epoch), generator=generator).tolist()
        yield from (epoch[turn] for turn in turns)


def answer_loss(model: LanguageModel, some: Examples) -> Tensor:
    """Mean NLL of the answers in nats, a scalar."""
    return functional.cross_entropy(answer_logits(model, some).flatten(0, 1), some.answers.flatten())


def answer_logits(model: LanguageModel, some: Examples) -> Tensor:
    """(n, q, vocab) float32, at the questions' positions only: the head is most of a small model's work."""
    with torch.autocast("cuda", torch.bfloat16, enabled=some.ids.is_cuda):
        hidden = model.hidden(some.ids)
        asked = hidden.gather(1, some.places[..., None].expand(-1, -1, hidden.shape[-1]))
        return functional.linear(asked, model.head_weight).float()


@torch.no_grad()
def measure(model: LanguageModel, test: Examples) -> Measured:
    """Accuracy and loss on all of the test examples."""
    model.eval()
    right, nll = 0.0, 0.0
    size = max(1, MEASURED_TOKENS // test.ids.shape[1])
    for rows in torch.split(torch.arange(len(test.ids), device=test.ids.device), size):
        some = test.rows(rows)
        logits = answer_logits(model, some)
        right += float((logits.argmax(-1) == some.answers).sum())
        nll += float(functional.cross_entropy(logits.flatten(0, 1), some.answers.flatten(), reduction="sum"))
    model.train()
    return Measured(right / test.answers.numel(), nll / test.answers.numel())


def machine(device: torch.device) -> str:
    """The GPU, or the processor and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor() or "CPU")
    return f"{name}, threads: {torch.get_num_threads()}"
