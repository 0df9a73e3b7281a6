"""Sequences of multi-query associative recall for training: Zoology's Algorithm 1 (arXiv 2312.04927, E.1) in torch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch

from recallkit.errors import UserError
from recallkit.training.loop import Examples

if TYPE_CHECKING:
    from torch import Tensor

FILLER = 0
"""Fills the other positions: it is neither a key nor a value."""
POWER = 0.1
"""The exponent a of the power law, P(gap g) proportional to g^(a - 1): Zoology, F.1. Its published code has 0.01."""


class Part(NamedTuple):
    """A set of examples of one shape: ids of a sequence, key-value pairs in it, number of examples."""

    length: int
    pairs: int
    examples: int


class Task(NamedTuple):
    """What is trained on, and what it is tested on."""

    training: tuple[Part, ...]
    test: tuple[Part, ...]
    vocab: int
    """Ids: the lower half are keys (but the filler), the others values."""
    power: float
    seed: int

    @property
    def longest(self) -> int:
        """Ids of the longest sequence."""
        return max(part.length for part in (*self.training, *self.test))


@functools.lru_cache(maxsize=1)
def examples_of(task: Task) -> tuple[list[Examples], list[Examples]]:
    """Training and test examples, made once for a task, each set with draws of its own. Raises UserError for what does not fit."""
    made: list[tuple[Part, int]] = []
    for part in (*task.training, *task.test):
        again = sum(other[:2] == part[:2] for other, _ in made)
        made.append((part, _seed(task.seed, part, again)))
    examples = [mqar_examples(part, task.vocab, task.power, seed) for part, seed in made]
    return examples[: len(task.training)], examples[len(task.training) :]


def _seed(seed: int, part: Part, again: int) -> int:
    """A seed for each shape, and where it comes again, as in a test on what was trained; torch takes its lowest 32 bits."""
    return ((part.length << 16) + part.pairs + 0x9E3779B1 * (2 * seed + again)) % (1 << 32)


def check_room(part: Part, vocab: int) -> None:
    """Raises UserError where pairs and queries do not fit into the length, or their ids into the vocabulary."""
    if 4 * part.pairs > part.length or part.pairs >= vocab // 2 - 1 or part.pairs < 1:
        needed = f"they need a length of {4 * part.pairs} and a vocabulary of {2 * part.pairs + 4} at least"
        raise UserError(f"{part.pairs} pairs in {part.length} ids, of {vocab}", remedy=needed)


def mqar_examples(part: Part, vocab: int, power: float, seed: int) -> Examples:
    """Examples, the same for a seed on every machine.

    Keys are ids 1 to vocab / 2 - 1 and values the rest, all different within an example. After the 2 D ids of the pairs each key
    occurs once more, and the other ids are `FILLER`; the gaps are even numbers, drawn by the power law without replacement, as
    Zoology's code draws them. Raises UserError where they do not fit.
    """
    check_room(part, vocab)
    num, length, pairs = part.examples, part.length, part.pairs
    generator = torch.Generator().manual_seed(seed)
    first_value = vocab // 2
    keys = 1 + distinct(num, pairs, first_value - 1, generator)
    values = first_value + distinct(num, pairs, vocab - first_value, generator)
    slots = weighted_draws(num, pairs, (length - 2 * pairs) // 2, power, generator)
    places = 2 * pairs + 2 * slots
    ids = torch.full((num, length), FILLER)
    ids[:, 0 : 2 * pairs : 2], ids[:, 1 : 2 * pairs : 2] = keys, values
    ids.scatter_(1, places, keys)
    return Examples(ids, places, values)


def distinct(num: int, size: int, population: int, generator: torch.Generator) -> Tensor:
    """Rows of `size` distinct numbers below `population`, in random order: (num, size) int64, by Floyd's algorithm.

    A row costs size^2 comparisons, without a permutation of the population.
    """
    chosen = torch.empty(num, 0, dtype=torch.int64)
    for top in range(population - size, population):
        drawn = torch.randint(top + 1, (num, 1), generator=generator)
        taken = (chosen == drawn).any(1, keepdim=True)
        chosen = torch.cat([chosen, torch.where(taken, top, drawn)], dim=1)
    order = torch.rand(num, size, generator=generator).argsort(1)
    return chosen.gather(1, order)


def weighted_draws(num: int, size: int, slots: int, power: float, generator: torch.Generator) -> Tensor:
    """Rows of `size` distinct slots, drawn one after another with weights (slot + 1)^(power - 1): (num, size) int64.

    The largest of log-weights plus Gumbel noise, in descending order, are such draws without replacement (Efraimidis and Spirakis 2006).
    """
    log_weights = (power - 1) * torch.arange(1, slots + 1, dtype=torch.float64).log()
    noise = -torch.empty(num, slots, dtype=torch.float64).exponential_(generator=generator).log()
    return (log_weights + noise).topk(size, dim=1).indices
