"""Key-value lists, on which the zoo's models begin, so that recall is there before text: the
curriculum of docs/zoo.md.

    k1 v1 k2 v2 k3 v3  k2 v2 k3 v3 k3 v3 k1 v1 ...

First of few different ids, whose softmax is among these alone, then of all, until lists of 4 and of
16 pairs in 256 ids are answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from recallkit.synthetic.tasks import NOT_ASKED, Examples
from recallkit.training.loop import measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from recallkit.training.loop import Trainer

LENGTH, TOKENS = 64, 1024
"""Predictions of a list, and of a step."""
PAIRS = (1, 2, 4, 8, 16)
TEST_PAIRS, TEST_LENGTH, TEST_ROWS, TEST_SEED = (4, 16), 256, 16, 1 << 20
FIRST_IDS, READY, MEMORY = 32, 0.6, 0.9
"""Lists begin with so many different ids, and have all once this share of values is right, where
guessing among a row's values gives 0.44.

The share is an average over the steps so far, each of which counts `MEMORY` times the next.
"""
STEPS, STUCK_STEPS = 1000, 600
"""Lists end after so many steps, and after the second number for a model that is still at the first
ids."""
LEARNT, LAST_STEPS, WARM_UP_STEPS, FLOOR = 0.9, 100, 50, 0.02
"""At this accuracy with 4 and with 16 pairs the last steps begin, over which the learning rate
falls to FLOOR."""
MEASURED_EVERY = 25
EVERY = 4
"""While a model learns text, the last row of every so many steps is a list."""


def list_ids(vocab: int) -> np.ndarray:
    """All ids but 0, the end token, in the order in which lists begin to have them."""
    return np.random.default_rng(0).permutation(vocab - 1) + 1


def make_lists(
    rng: np.random.Generator,
    num_rows: int,
    length: int,
    pairs: Sequence[int],
    ids: np.ndarray,
) -> tuple[Tensor, Tensor]:
    """Rows of `length` ids and their targets, (n, t) int64 each: some pairs, and then pairs of
    these at random until the row is full.

    The number of pairs of a row is one of `pairs`; its keys and values are drawn from `ids`,
    without repetition. Only values of keys that were there before are asked for. (Zoology's MQAR
    asks once.)
    """
    places = length // 2 + 1
    rows = np.empty((num_rows, 2 * places), np.int64)
    is_asked = np.zeros((num_rows, 2 * places - 1), bool)
    for place in range(num_rows):
        num = int(rng.choice(pairs))
        drawn = rng.choice(ids, 2 * num, replace=False)
        order = np.concatenate([np.arange(num), rng.integers(0, num, places - num)])
        rows[place, 0::2], rows[place, 1::2] = drawn[:num][order], drawn[num:][order]
        is_asked[place, 2 * num :: 2] = True
    targets = np.where(is_asked[:, :length], rows[:, 1 : length + 1], NOT_ASKED)
    return torch.from_numpy(rows[:, :length].copy()), torch.from_numpy(targets)


def accuracies(trainer: Trainer) -> list[float]:
    """The shares of values that are the most likely id, in test lists of `TEST_PAIRS`."""
    shares, every_id = [], list_ids(trainer.model.config.vocab_size)
    length = min(TEST_LENGTH, trainer.model.max_length or TEST_LENGTH)
    for pairs in TEST_PAIRS:
        rng = np.random.default_rng([TEST_SEED, pairs])
        ids, targets = make_lists(rng, TEST_ROWS, length, [pairs], every_id)
        test = Examples(ids, targets, torch.zeros_like(ids))
        shares.append(measure(trainer.model, test).accuracy)
    return shares


def learn_lists(trainer: Trainer, seed: int) -> Iterator[int]:
    """Trains on lists: of the first ids, of all once these are answered; over the last steps, once
    all are, at a falling rate.

    Yields the number of steps so far, every few steps.
    """
    rng, every_id = np.random.default_rng(seed), list_ids(trainer.model.config.vocab_size)
    ids, average, last = every_id[:FIRST_IDS], 0.0, STEPS
    for step in range(1, STEPS + 1):
        share = min(step / WARM_UP_STEPS, max(FLOOR, (last + 1 - step) / LAST_STEPS), 1.0)
        rows, targets = make_lists(rng, TOKENS // LENGTH, LENGTH, PAIRS, ids)
        _, right = trainer.step(rows, targets, share, torch.from_numpy(ids))
        average = MEMORY * average + (1 - MEMORY) * right
        if step % MEASURED_EVERY == 0 or step == last:
            accuracy = accuracies(trainer)
            yield step
            if min(accuracy) >= LEARNT:
                last = min(last, step + LAST_STEPS)
            if step == last or (step >= STUCK_STEPS and len(ids) == FIRST_IDS):
                return
        if average >= READY:
            ids = every_id
