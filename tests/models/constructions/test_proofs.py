"""Both computations solve MQAR exactly, that by distances where there are no more of them than filters."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot

from recallkit.models.constructions.proofs import interaction_distances, solve_by_attention, solve_by_distances


@st.composite
def sequences(draw) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Ids (n,), their kinds (0 key, 1 value, 2 query, 3 none) and the answer at each place, -1 where there is none."""
    pairs = draw(st.integers(1, 6))
    seed = draw(st.integers(0, 999))
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(16, generator=generator)[:pairs].tolist()
    values = torch.randint(0, 16, (pairs,), generator=generator).tolist()
    tail = draw(st.integers(pairs, 12))
    places = torch.randperm(tail, generator=generator)[:pairs].tolist()
    ids, kinds, answers = [0] * (2 * pairs + tail), [3] * (2 * pairs + tail), [-1] * (2 * pairs + tail)
    for pair, place in enumerate(places):
        ids[2 * pair : 2 * pair + 2], kinds[2 * pair : 2 * pair + 2] = [drawn[pair], values[pair]], [0, 1]
        ids[2 * pairs + place], kinds[2 * pairs + place], answers[2 * pairs + place] = drawn[pair], 2, values[pair]
    return torch.tensor(ids), torch.tensor(kinds), answers


def parts(ids: torch.Tensor, kinds: torch.Tensor) -> list[torch.Tensor]:
    """Queries, keys, values: (n, 16)."""
    tokens = one_hot(ids, 16).double()
    return [tokens * (kinds == kind)[:, None] for kind in (2, 0, 1)]


def one_hot_answers(answers: list[int]) -> torch.Tensor:
    """(n, 16), zeros where there is no answer."""
    return torch.tensor([[float(token == answer) for token in range(16)] for answer in answers], dtype=torch.float64)


@given(given_sequence=sequences())
@settings(max_examples=40)
def test_as_many_filters_as_distances_find_every_value(given_sequence):
    ids, kinds, answers = given_sequence
    queries, keys, values = parts(ids, kinds)
    distances = interaction_distances(queries, keys, len(ids))
    expected = {i - int(((kinds == 0) & (ids == ids[i])).nonzero()[0]) for i in range(len(ids)) if answers[i] >= 0}
    assert set(distances) == expected
    expected_values = one_hot_answers(answers)
    assert solve_by_distances(queries, keys, values, distances).equal(expected_values)
    fewer = solve_by_distances(queries, keys, values, distances[:-1])
    missed = (fewer != expected_values).any(dim=1)
    assert missed.any()
    assert {i - j for i in missed.nonzero().flatten().tolist() for j in ((kinds == 0) & (ids == ids[i])).nonzero()[0].tolist()} == {
        distances[-1]
    }


@given(given_sequence=sequences())
@settings(max_examples=40)
def test_attention_finds_every_value(given_sequence):
    ids, kinds, answers = given_sequence
    queries, keys, values = parts(ids, kinds)
    assert solve_by_attention(queries, keys, values).equal(one_hot_answers(answers))
