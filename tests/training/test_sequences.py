"""Training examples of MQAR obey Zoology's Algorithm 1, and are the same for a seed."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.errors import UserError
from recallkit.training.sequences import POWER, Part, Task, examples_of, mqar_examples, weighted_draws


def check_example(ids, places, answers, pairs, vocab):
    """Zoology's Algorithm 1, id by id."""
    keys, values = ids[0 : 2 * pairs : 2], ids[1 : 2 * pairs : 2]
    assert len(set(keys)) == len(set(values)) == pairs
    assert all(1 <= key < vocab // 2 for key in keys)
    assert all(vocab // 2 <= value < vocab for value in values)
    value_of = dict(zip(keys, values, strict=True))
    rest = ids[2 * pairs :]
    assert sorted(id_ for id_ in rest if id_ != 0) == sorted(keys), "each key once more, and filler"
    assert all(id_ == 0 for id_ in rest[1::2]), "gaps are even, so that what follows a query is filler"
    assert {place: value_of[ids[place]] for place in places} == dict(zip(places, answers, strict=True))
    assert sorted(places) == [2 * pairs + i for i, id_ in enumerate(rest) if id_ != 0]


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(0, 9), st.integers(0, 40), st.integers(0, 2**40))
def test_examples_obey_the_definition(pairs, spare, more_ids, seed):
    length, vocab = 4 * pairs + spare, 2 * pairs + 4 + more_ids
    made = mqar_examples(Part(length, pairs, 7), vocab, POWER, seed)
    assert made.ids.shape == (7, length)
    for row in zip(*(part.tolist() for part in made), strict=True):
        check_example(*row, pairs, vocab)


def test_the_seed_decides_and_every_set_has_draws_of_its_own():
    parts = (Part(32, 4, 50), Part(64, 4, 50))
    training, test = examples_of(Task(parts, parts, 8192, POWER, 3))
    again, _ = examples_of(Task(parts, parts[:1], 8192, POWER, 3))
    other, _ = examples_of(Task(parts, parts[:1], 8192, POWER, 4))
    for pair in zip(training, again, strict=True):
        assert all(torch.equal(*both) for both in zip(*pair, strict=True))
    keys = [{tuple(row) for row in made.ids[:, :8].tolist()} for made in (*training, *test, *other)]
    assert not any(one & more for one, more in itertools.combinations(keys, 2))


def test_gaps_are_drawn_by_the_power_law_one_after_another():
    num, slots = 60_000, 5
    drawn = weighted_draws(num, 2, slots, POWER, torch.Generator().manual_seed(0)).tolist()
    weights = [(slot + 1) ** (0.1 - 1) for slot in range(slots)]
    for first, second in itertools.permutations(range(slots), 2):
        wanted = weights[first] / sum(weights) * weights[second] / (sum(weights) - weights[first])
        found = sum(pair == [first, second] for pair in drawn) / num
        assert found == pytest.approx(wanted, abs=5 * math.sqrt(wanted / num))


def test_what_does_not_fit_is_refused():
    for length, pairs, vocab in ((15, 4, 8192), (64, 0, 64), (64, 8, 18)):
        with pytest.raises(UserError, match="pairs in"):
            mqar_examples(Part(length, pairs, 1), vocab, POWER, 0)
