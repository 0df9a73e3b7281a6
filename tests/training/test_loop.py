"""Training on a synthetic task: batches, schedule, measurement."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from recallkit.training.sequences import POWER, Part, mqar_examples

from recallkit.errors import UserError
from recallkit.training import loop


def test_accuracy_counts_each_answer_once(monkeypatch):
    test, asked = mqar_examples(Part(16, 2, 30), 64, POWER, 0), []

    class Half(torch.nn.Module):
        """Knows the value of every query at an even row, whatever batches rows come in."""

    def answer_logits(model, some):
        logits = torch.zeros(*some.answers.shape, 64)
        for row, ids in enumerate(some.ids.tolist()):
            asked.append(ids)
            if test.ids.tolist().index(ids) % 2 == 0:
                for query, answer in enumerate(some.answers[row].tolist()):
                    logits[row, query, answer] = 30.0
        return logits

    monkeypatch.setattr(loop, "answer_logits", answer_logits)
    monkeypatch.setattr(loop, "MEASURED_TOKENS", 16 * 7)
    measured = loop.measure(Half(), test)
    assert asked == test.ids.tolist()
    assert measured.accuracy == 0.5
    assert measured.loss_nats == pytest.approx(0.5 * math.log(64), abs=1e-3)


def test_an_epoch_reads_every_example_once_in_an_order_of_its_own():
    rows = (found for _, found in loop.batches([10], 4, seed=1))
    epochs = [torch.cat([next(rows), next(rows)]).tolist() for _ in range(3)]
    assert all(len(set(epoch)) == 8 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    other = [found for _, found in itertools.islice(loop.batches([10], 4, seed=2), 2)]
    assert epochs[0] != torch.cat(other).tolist()
    with pytest.raises(UserError, match="--batch"):
        next(loop.batches([8, 3], 4, 0))


def test_batches_of_several_sets_alternate_and_are_of_one_set_each():
    epoch = list(itertools.islice(loop.batches([12, 8, 6], 2, seed=0), 13))
    read = {part: sorted(torch.cat([rows for of, rows in epoch if of == part]).tolist()) for part in range(3)}
    assert read == {0: list(range(12)), 1: list(range(8)), 2: list(range(6))}
    order = [part for part, _ in epoch]
    assert order != sorted(order)


def test_the_rate_rises_over_a_tenth_of_the_steps_and_falls_to_zero():
    recipe = loop.Recipe(1.0, 10_000, 1, 0, 1.0, 1, warm_up=0.1, longest_warm_up=None)
    rates = [recipe.rate(step) for step in range(10_000)]
    assert rates[0] == pytest.approx(1 / 1000), "Zoology, E.2: warm-up of 10 %"
    assert rates[499] == pytest.approx(0.5)
    assert rates.index(max(rates)) in range(950, 1000)
    assert rates[4999] == pytest.approx(0.5, abs=0.01)
    assert rates[-1] < 1e-6
    capped = loop.Recipe(1.0, 10_000, 1, 0, 1.0, 1)
    assert capped.rate(199) == pytest.approx(1, abs=0.01), "of 5 %, but no more than 200 steps"
