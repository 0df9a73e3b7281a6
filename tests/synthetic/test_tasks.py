"""Every task's sequences obey their definition, read id by id, and are the same for a seed; a
user's own task is one like any other."""

from __future__ import annotations

import inspect
import itertools
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.errors import UserError
from recallkit.synthetic.generators import weighted_draws
from recallkit.synthetic.tasks import (
    NOT_ASKED,
    TASKS,
    answered,
    describe_tasks,
    make_examples,
    options_of_task,
    task_of,
)
from tests.conftest import ROOT


def examples_of(task, num=7, length=24, pairs=4, vocab=32, seed=0, **options):
    return make_examples(
        task,
        num=num,
        length=length,
        pairs=pairs,
        vocab=vocab,
        seed=seed,
        **options,
    )


def rows_of(examples):
    """For each sequence its ids, its questions {place: answer} and their distances {place:
    distance}."""
    tensors = examples.ids, examples.targets, examples.distances
    for ids, targets, distances in zip(*(part.tolist() for part in tensors), strict=True):
        answers = {place: target for place, target in enumerate(targets) if target != NOT_ASKED}
        assert {place for place, distance in enumerate(distances) if distance} == set(answers)
        for place, answer in answers.items():
            stands = place - distances[place]
            assert stands >= 0
            assert ids[stands] == answer, "the distance leads to the answer"
            assert answer >= examples.first_value
        yield ids, answers


SIZES = {"copying": (10, 4), "compositional": (32, 4)}
"""Length and pairs of tasks that `examples_of` does not fit."""


def sizes_of(task):
    length, pairs = SIZES.get(task, (24, 4))
    return {"length": length, "pairs": pairs}


@pytest.mark.parametrize("task", TASKS)
def test_the_seed_decides_and_questions_lead_to_their_answers(task):
    one, again, other = (examples_of(task, seed=seed, **sizes_of(task)) for seed in (3, 3, 4))
    assert all(torch.equal(*both) for both in zip(one[:3], again[:3], strict=True))
    assert not torch.equal(one.ids, other.ids)
    assert all(part.dtype == torch.int64 for part in one[:3])
    assert 0 <= int(one.ids.min()) <= int(one.ids.max()) < 32
    assert all(answers for _, answers in rows_of(one))
    assert "->" in inspect.getdoc(
        getattr(__import__(TASKS[task].split(":")[0], fromlist="x"), task),
    ), "a picture of a sequence"


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(0, 9), st.integers(0, 40), st.integers(0, 2**40))
def test_mqar_is_algorithm_1(pairs, spare, more_ids, seed):
    length, vocab = 4 * pairs + spare, 2 * pairs + 2 + more_ids
    for ids, answers in rows_of(
        examples_of("mqar", length=length, pairs=pairs, vocab=vocab, seed=seed),
    ):
        keys, values, rest = ids[0 : 2 * pairs : 2], ids[1 : 2 * pairs : 2], ids[2 * pairs :]
        assert len(set(keys)) == len(set(values)) == pairs
        assert all(1 <= key < vocab // 2 for key in keys)
        assert all(vocab // 2 <= value < vocab for value in values)
        assert sorted(id_ for id_ in rest if id_) == sorted(keys), "each key once more, and filler"
        assert not any(rest[1::2]), "what follows a question is filler"
        assert {ids[place]: answer for place, answer in answers.items()} == dict(
            zip(keys, values, strict=True),
        )


def test_mqar_has_the_same_numbers_for_a_seed_as_when_its_figures_were_measured():
    examples = examples_of("mqar", num=1, length=21, pairs=3, vocab=64, seed=5)
    assert examples.ids[0].tolist() == [
        21,
        40,
        25,
        44,
        30,
        54,
        21,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        25,
        0,
        30,
        0,
        0,
        0,
        0,
    ]
    assert examples_of("copying", num=1, length=8, pairs=3, vocab=16, seed=1).ids[0].tolist() == [
        0,
        11,
        12,
        8,
        0,
        11,
        12,
        8,
    ]


def test_random_filler_replaces_the_filler_alone():
    zero, random = (examples_of("mqar", num=300, filler=filler) for filler in ("zero", "random"))
    assert torch.equal(zero.targets, random.targets)
    assert torch.equal(zero.ids[zero.ids > 0], random.ids[zero.ids > 0])
    assert set(random.ids[zero.ids == 0].tolist()) == set(range(32)), (
        "any id, keys and values among them"
    )


def test_a_second_reading_repeats_the_pairs():
    examples = examples_of("read_twice", length=41, passes=3)
    places = (examples.targets != NOT_ASKED).nonzero()[:, 1]
    assert set((places - examples.distances[examples.distances > 0]).tolist()) == {
        17,
        19,
        21,
        23,
    }, "the last repetition"
    for ids, answers in rows_of(examples):
        assert ids[:8] == ids[8:16] == ids[16:24]
        assert {ids[place]: answer for place, answer in answers.items()} == dict(
            zip(ids[0:8:2], ids[1:8:2], strict=True),
        )


@pytest.mark.parametrize(("updates", "changed"), [(0, 0), (3, 3), (9, 4)])
def test_the_last_value_counts(updates, changed):
    orders = set()
    for ids, answers in rows_of(examples_of("overwriting", num=500, length=31, updates=updates)):
        written = 2 * (4 + changed)
        keys, values = ids[0:written:2], ids[1:written:2]
        assert len(set(keys[4:])) == changed
        assert len(set(values)) == len(values)
        assert {ids[place]: answer for place, answer in answers.items()} == dict(
            zip(keys, values, strict=True),
        ), "dict keeps the last"
        orders.add(tuple(keys.index(key) for key in keys[4:]))
    assert len(orders) == {0: 1, 3: 24, 4: 24}[changed], (
        "every choice and order of the changed keys"
    )


def test_distractors_are_pairs_of_other_keys_everywhere():
    others = set()
    for ids, answers in rows_of(examples_of("distractors", num=200, length=25, vocab=20)):
        keys, values = ids[0:8:2], ids[1:8:2]
        assert {ids[place]: answer for place, answer in answers.items()} == dict(
            zip(keys, values, strict=True),
        )
        for place in range(8, 24, 2):
            if place in answers:
                assert ids[place + 1] == 0
            else:
                assert ids[place] in set(range(1, 10)) - set(keys)
                assert 10 <= ids[place + 1] < 20
                others.add((ids[place], ids[place + 1]))
    assert len(others) == 90, "of all keys and values"


def test_both_ids_of_a_compound_key_are_needed():
    for ids, answers in rows_of(examples_of("compositional", length=60, pairs=9, vocab=45)):
        triples = [tuple(ids[place : place + 3]) for place in range(0, 27, 3)]
        firsts, seconds, values = (set(part) for part in zip(*triples, strict=True))
        assert {(first, second) for first, second, _ in triples} == set(
            itertools.product(firsts, seconds),
        )
        assert (len(firsts), len(seconds), len(values)) == (3, 3, 9)
        assert (
            1 <= min(firsts) <= max(firsts) < 15 <= min(seconds) <= max(seconds) < 30 <= min(values)
        )
        assert {(*ids[place - 1 : place + 1], answer) for place, answer in answers.items()} == set(
            triples,
        )


def test_two_hops_lead_over_a_middle():
    for ids, answers in rows_of(examples_of("two_hops", length=28, vocab=15)):
        middle_of, value_of = (
            dict(zip(ids[0:8:2], ids[1:8:2], strict=True)),
            dict(zip(ids[8:16:2], ids[9:16:2], strict=True)),
        )
        assert len({*middle_of, *value_of, *value_of.values()}) == 12
        assert {ids[place]: answer for place, answer in answers.items()} == {
            key: value_of[middle_of[key]] for key in middle_of
        }
        assert not set(ids[16:]) & set(middle_of.values()), "the middle is not read again"


def test_a_list_is_copied():
    examples = examples_of("copying", num=40, length=14, pairs=6, vocab=3)
    for ids, answers in rows_of(examples):
        assert ids[0] == ids[7] == 0
        assert ids[1:7] == ids[8:14] == [answers[place] for place in range(7, 13)]
        assert list(answers) == list(range(7, 13))
    assert set(examples.distances[:, 7:13].flatten().tolist()) == {6}


@pytest.mark.parametrize("first", [2, 17])
def test_sets_share_one_id(first):
    places = set()
    for ids, answers in rows_of(examples_of("set_disjointness", num=2000, pairs=first, vocab=25)):
        one, other = ids[1 : first + 1], ids[first + 2 : 23]
        assert (ids[0], ids[first + 1], ids[23]) == (1, 2, 3)
        assert len(set(one)) == first
        assert len(set(other)) == 21 - first
        assert min(one + other) >= 4
        assert answers == {23: (set(one) & set(other)).pop()}
        assert len(set(one) & set(other)) == 1
        places.add((one.index(answers[23]), other.index(answers[23])))
    assert places == set(itertools.product(range(first), range(21 - first)))


def test_places_are_drawn_by_the_power_law_one_after_another():
    num, slots = 60_000, 5
    drawn = weighted_draws(num, 2, slots, 0.1, torch.Generator().manual_seed(0)).tolist()
    weights = [(slot + 1) ** (0.1 - 1) for slot in range(slots)]
    for first, second in itertools.permutations(range(slots), 2):
        wanted = weights[first] / sum(weights) * weights[second] / (sum(weights) - weights[first])
        share = sum(pair == [first, second] for pair in drawn) / num
        assert share == pytest.approx(wanted, abs=5 * math.sqrt(wanted / num))


LEAST = {
    "mqar": (16, 10),
    "read_twice": (24, 10),
    "overwriting": (24, 16),
    "distractors": (16, 12),
    "compositional": (24, 12),
    "two_hops": (24, 15),
    "set_disjointness": (8, 9),
}
"""The shortest sequences of 4 pairs and the fewest ids."""


@pytest.mark.parametrize("task", LEAST)
def test_the_least_sizes_are_enough_and_less_is_refused(task):
    length, vocab = LEAST[task]
    assert list(rows_of(examples_of(task, length=length, vocab=vocab)))
    for less in ({"length": length - 1}, {"vocab": vocab - 1}):
        with pytest.raises(
            UserError,
            match=f"they need a length of {length} and a vocabulary of {vocab} at least",
        ):
            examples_of(task, **{"length": length, "vocab": vocab} | less)


def test_every_task_is_in_the_documents_and_the_list(run):
    page = (ROOT / "docs/mqar.md").read_text(encoding="utf-8")
    for name, description in describe_tasks():
        assert (
            f"| `{name}` | {description} | "
            f"{', '.join(f'`{option}`' for option in options_of_task(name))} |"
        ) in page
    listed = json.loads(run("tasks", "--json").stdout)
    assert {
        "name": "two_hops",
        "description": f"synthetic: {dict(describe_tasks())['two_hops'].rstrip('.')}",
    } in listed


def test_a_task_is_named_with_its_options():
    assert task_of("overwriting,updates=8,power=1,filler=random") == (
        "overwriting",
        {"updates": 8, "power": 1.0, "filler": "random"},
    )
    for text, message in (
        ("mqar,power=much", "power is 'much'; give a value of type float"),
        ("mqar,filler", "'filler' is not"),
        ("mqar,updates=2", "no option 'updates'"),
    ):
        with pytest.raises(UserError, match=message):
            task_of(text)


def test_answers_are_read_behind_their_questions():
    examples = examples_of("mqar", length=21, pairs=3)
    read = answered(examples)
    assert all(
        ids[place + 1] == answer
        for ids, (_, answers) in zip(read.tolist(), rows_of(examples), strict=True)
        for place, answer in answers.items()
    )
    assert torch.equal(read[read != examples.ids], examples.targets[examples.targets != NOT_ASKED])
    every_place = examples._replace(targets=examples.ids)
    with pytest.raises(UserError, match="an answer falls on the next question"):
        answered(every_place)


OWN = """
import torch

def echo(num, length, pairs, vocab, generator, *, shift: int = 1):
    ids = torch.randint(vocab, (num, length), generator=generator)
    targets = torch.full_like(ids, -100)
    targets[:, shift:] = ids[:, :-shift]
    return ids, targets, torch.where(targets >= 0, shift, 0)

def narrow(num, length, pairs, vocab, generator):
    return torch.zeros(num, pairs)

def beyond(num, length, pairs, vocab, generator):
    ids = torch.full((num, length), vocab)
    return ids, ids, ids

def silent(num, length, pairs, vocab, generator):
    ids = torch.zeros(num, length, dtype=torch.int64)
    return ids, ids - 100, ids

def broken(num, length, pairs, vocab, generator):
    return 1 // 0
"""


def test_a_task_of_the_users_own(tmp_path):
    path = tmp_path / "tasks.py"
    path.write_text(OWN)
    examples = examples_of(f"{path}:echo", shift=2)
    assert torch.equal(examples.targets[:, 2:], examples.ids[:, :-2])
    assert options_of_task(f"{path}:echo") == {"shift": 1}
    for name, message in [
        ("narrow", "return ids, targets and distances, int64 tensors of 7 x 24"),
        ("beyond", "ids are not below 32"),
        ("silent", "a sequence has no question"),
        ("broken", "raised ZeroDivisionError.*tasks.py line 22"),
        ("ecko", "did you mean echo"),
    ]:
        with pytest.raises(UserError, match=message):
            examples_of(f"{path}:{name}")


def test_what_is_wrong_is_refused_in_one_line():
    assert options_of_task("overwriting") == {"power": 0.1, "filler": "zero", "updates": 4}
    for task, options, message in [
        ("mqra", {}, "no such synthetic task; did you mean mqar"),
        ("mqar", {"pairs": 0}, "pairs is 0; choose 1 or more"),
        ("mqar", {"powr": 1.0}, "no option 'powr'; did you mean power"),
        ("mqar", {"power": "1"}, "power is '1'; give a value of type float"),
        ("mqar", {"power": True}, "power is True"),
        ("mqar", {"power": math.nan}, "power nan: not above 0"),
        ("mqar", {"filler": "one"}, "no such filler: one; choose zero or random"),
        ("read_twice", {"passes": 0}, "passes is 0"),
        ("compositional", {"pairs": 5, "length": 60}, "not a square number; choose 4, 9"),
        (
            "copying",
            {},
            "4 ids and their copy are 10 ids, not 24; choose 11 pairs and a length of 24",
        ),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            examples_of(task, **options)
        assert "\n" not in caught.value.line()
