"""The one training loop: a recipe as data, and a trainer that takes a batch and makes a step.
Sweeps, lists and text all train with it.

It needs torch and what recallkit's models need, nothing else, so that a bare machine with a GPU can
train.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import distributed, nn
from torch.nn import functional

from recallkit.errors import UserError
from recallkit.models.language_model import LanguageModel
from recallkit.synthetic.tasks import NOT_ASKED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from recallkit.models.architecture import ArchitectureConfig
    from recallkit.synthetic.tasks import Examples

EMBEDDING_STD = 0.02
MEASURED_TOKENS = 1 << 16
"""Ids per batch when accuracy is measured."""
_NUMBERS = ("learning_rate", "lowest", "warm_up", "falling", "weight_decay", "clip", "muon")
BYTES_PER_ELEMENT = 4
"""States are counted in float32, in which recurrences keep them even where products are in half
precision."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained: AdamW, or Muon beside it, a rate that rises and falls. The defaults
    are those of the papers' tables.

    Zoology's tables 6 to 15 and Based's 7 to 13; clipping is the usual 1, which they do not print.
    """

    learning_rate: float = 8e-4
    lowest: float = 8e-5
    """The learning rate at the end."""
    warm_up: float = 0.01
    """Share of the steps over which the rate rises; from 1 on, their number."""
    decay: Literal["cosine", "linear"] = "cosine"
    falling: float = 1.0
    """Share of the steps, the last ones, over which a linear decay falls."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    """Of matrices, except those of filters."""
    clip: float = 1.0
    batch: int = 256
    """Sequences a step."""
    muon: float = 0.0
    """The learning rate of Muon (Jordan 2024) for the matrices of blocks; 0: AdamW for all."""
    lists: bool = False
    """Whether key-value lists come before the text, and are among it: see
    `recallkit.training.lists`."""

    def __post_init__(self) -> None:
        """Raises ValueError for what is no recipe; it may come from a file."""
        betas = self.betas if isinstance(self.betas, tuple) else ()
        numbers = {f"beta {place}": beta for place, beta in enumerate(betas, 1)}
        for name in _NUMBERS:
            numbers[name] = getattr(self, name)
        for name, value in numbers.items():
            if type(value) not in (int, float) or not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}, not a number of at least 0")
        if len(betas) != 2 or max(betas) >= 1:
            raise ValueError(f"betas are {self.betas!r}, not two numbers below 1")
        if self.learning_rate <= 0 or not 0 < self.falling <= 1 or self.lowest > self.learning_rate:
            wanted = "learning_rate and falling are above 0, falling is at most 1"
            raise ValueError(f"{wanted}, and lowest is not above learning_rate")
        if type(self.batch) is not int or self.batch < 1:
            raise ValueError(f"batch is {self.batch!r}, not a whole number of at least 1")
        if self.decay not in ("cosine", "linear") or not isinstance(self.lists, bool):
            raise ValueError("decay is cosine or linear, lists is true or false")

    def share(self, step: int, num_steps: int) -> float:
        """The learning rate of a step, counted from 0, as a share of the highest."""
        rising = self.warm_up if self.warm_up >= 1 else max(1, round(self.warm_up * num_steps))
        lowest = self.lowest / self.learning_rate
        left = (num_steps - step) / num_steps
        falls = min(1.0, left / self.falling)
        if self.decay == "cosine":
            falls = 0.5 - 0.5 * math.cos(math.pi * left)
        return min((step + 1) / rising, lowest + (1 - lowest) * falls)


class Answers(nn.Module):
    """Ids and targets (b, t) to the summed NLL of q answers, whether the most likely id is right
    (q,), and auxiliary losses."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        ids: Tensor,
        targets: Tensor,
        among: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """`among`: the only ids (m,) that are possible answers; None for all.

        The head is applied to what is asked for alone: it is most of a small model's work.
        """
        is_asked = targets != NOT_ASKED
        head, wanted = self.model.head_weight, targets[is_asked]
        if among is not None:
            places = torch.empty(len(head), dtype=torch.int64, device=ids.device)
            places[among] = torch.arange(len(among), device=ids.device)
            head, wanted = head[among], places[wanted]
        with torch.autocast("cuda", torch.bfloat16, enabled=ids.is_cuda):
            logits = functional.linear(self.model.hidden(ids)[is_asked], head).float()
        nll = functional.cross_entropy(logits, wanted, reduction="sum")
        return nll, logits.detach().argmax(-1) == wanted, self.model.auxiliary_loss()


class Trainer:
    """A model and its optimisers. In a process group every process gives the same batches, and
    computes its part of each."""

    def __init__(
        self,
        model: LanguageModel,
        recipe: Recipe,
        *,
        micro_batch: int | None = None,
        is_compiled: bool = False,
    ) -> None:
        """`micro_batch`: sequences that a process computes at once, None for all; gradients of
        several add up."""
        self.model, self.recipe, self.micro_batch = model.train(), recipe, micro_batch
        self.optimisers = optimisers(model, recipe)
        self.rank, self.world = 0, 1
        if distributed.is_initialized():
            self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        answers: Any = Answers(model)
        if self.world > 1:
            answers = nn.parallel.DistributedDataParallel(answers)
        self.answers: Any = torch.compile(answers) if is_compiled else answers

    def step(
        self,
        ids: Tensor,
        targets: Tensor,
        share: float,
        among: Tensor | None = None,
    ) -> tuple[float, float]:
        """One step at a share of the learning rates: `gradients`, `update`. Returns what
        `gradients` does."""
        loss_nats, accuracy = self.gradients(ids, targets, among)
        self.update(share)
        return loss_nats, accuracy

    def gradients(
        self,
        ids: Tensor,
        targets: Tensor,
        among: Tensor | None = None,
    ) -> tuple[float, float]:
        """Computes gradients. Returns the mean NLL of what is asked for, in nats, and the accuracy.

        ids: (b, t); targets: (b, t), `NOT_ASKED` where nothing is; `among` as in `Answers`.
        """
        device = self.model.embedding.weight.device
        num_rows, num_asked = len(ids), int((targets != NOT_ASKED).sum())
        mine = slice(self.rank, None, self.world)
        size = self.micro_batch or num_rows
        inputs = torch.split(ids[mine].to(device), size)
        wanted = torch.split(targets[mine].to(device), size)
        sums = torch.zeros(2, device=device)  # of NLLs in nats, and of right answers
        for place, (part, answers) in enumerate(zip(inputs, wanted, strict=True), 1):
            joins = place == len(inputs) and self.world > 1
            with nullcontext() if joins or self.world == 1 else self.answers.no_sync():
                nll, right, extra = self.answers(part, answers, among)
                loss = nll / num_asked
                if extra is not None:
                    loss = loss + extra * (len(part) / num_rows)
                (loss * self.world).backward()  # gradients are averaged over processes
            sums += torch.stack([nll.detach(), right.sum()])
        if self.world > 1:
            distributed.all_reduce(sums)
        loss_nats, accuracy = (sums / num_asked).tolist()
        return loss_nats, accuracy

    def update(self, share: float) -> None:
        """Changes the weights by their gradients, at a share of the learning rates."""
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["initial_lr"] * share
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Weights and what the optimisers keep, by name."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for number, optimiser in enumerate(self.optimisers):
            for place, values in optimiser.state_dict()["state"].items():
                for name, value in values.items():
                    tensors[f"optimiser.{number}.{place}.{name}"] = value
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Takes up a `state`."""
        weights: dict[str, Tensor] = {}
        states: list[dict[int, dict[str, Tensor]]] = [{} for _ in self.optimisers]
        for name, value in tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "model":
                weights[rest] = value
            else:
                number, place, entry = rest.split(".")
                states[int(number)].setdefault(int(place), {})[entry] = value
        self.model.load_state_dict(weights)
        for optimiser, state in zip(self.optimisers, states, strict=True):
            groups = optimiser.state_dict()["param_groups"]
            optimiser.load_state_dict({"state": state, "param_groups": groups})


def optimisers(model: LanguageModel, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """AdamW for all parameters; or Muon for the matrices of blocks, and AdamW, without weight
    decay, for the rest."""
    by_muon, decayed = [], []
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        if not recipe.muon and "filter" not in name:
            decayed.append(module.weight)
        if recipe.muon and name.startswith("blocks.") and min(module.weight.shape) > 1:
            by_muon.append(module.weight)
    others = set(map(id, by_muon + decayed))
    rest = [parameter for parameter in model.parameters() if id(parameter) not in others]
    groups = [{"params": rest, "weight_decay": 0.0}]
    if decayed:
        groups.insert(0, {"params": decayed, "weight_decay": recipe.weight_decay})
    rate, betas = recipe.learning_rate, recipe.betas
    both: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=rate, betas=betas)]
    if by_muon:
        both.append(torch.optim.Muon(by_muon, lr=recipe.muon, momentum=0.95, weight_decay=0.01))
    for optimiser in both:
        for group in optimiser.param_groups:
            group["initial_lr"] = group["lr"]
    return both


def new_model(seed: int, config: ArchitectureConfig) -> LanguageModel:
    """A model with random weights, the same for a seed; small embeddings, since the head is tied to
    them.

    Raises UserError where its sizes are incompatible.
    """
    torch.manual_seed(seed)
    try:
        model = LanguageModel(config)
    except (ValueError, TypeError) as error:
        where = f"width {config.d_model}, layers of {config.layers[-1].mixer}"
        raise UserError(str(error), where=where, remedy="choose other sizes") from error
    nn.init.normal_(model.embedding.weight, std=EMBEDDING_STD)
    return model


# ----------------------------------------------------------------------------------------- examples


class Measured(NamedTuple):
    """A model's results on examples: accuracy of its most likely answer, mean NLL of the answers in
    nats; which are right (q,)."""

    accuracy: float
    loss_nats: float
    right: Tensor


def batches(sizes: Sequence[int], batch: int, seed: int) -> Iterator[tuple[int, Tensor]]:
    """Batches, endlessly, of sets of examples of these sizes: the index of a set, and rows of it.

    Every example is read once per epoch, except those of a set that do not fill a batch. Batches of
    several sets alternate at random.
    """
    generator = torch.Generator().manual_seed(seed)
    while True:
        epoch = []
        for place, size in enumerate(sizes):
            order = torch.randperm(size, generator=generator)
            complete = order[: size - size % batch]
            epoch += [(place, rows) for rows in torch.split(complete, batch)]
        turns = list(range(len(epoch)))
        if len(sizes) > 1:
            turns = torch.randperm(len(epoch), generator=generator).tolist()
        for turn in turns:
            yield epoch[turn]


@torch.no_grad()
def measure(model: LanguageModel, test: Examples) -> Measured:
    """Accuracy and loss on all of the test examples."""
    answers, device = Answers(model.eval()), model.embedding.weight.device
    sums, parts = torch.zeros(2, device=device), []
    size = max(1, MEASURED_TOKENS // test.ids.shape[1])
    for rows in torch.split(torch.arange(len(test.ids)), size):
        nll, right, _ = answers(test.ids[rows].to(device), test.targets[rows].to(device))
        sums += torch.stack([nll, right.sum()])
        parts.append(right.cpu())
    model.train()
    is_right = torch.cat(parts)
    loss_nats, accuracy = (sums / len(is_right)).tolist()
    return Measured(accuracy, loss_nats, is_right)
