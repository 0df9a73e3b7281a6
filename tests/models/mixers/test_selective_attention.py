"""Selective attention: who is selected, counted by hand; what the selected see; how a learned
selection is held to its share."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.models.mixers.attention import Attention
from recallkit.models.mixers.selection import (
    Selector,
    follower_lists,
    followers,
    hash_share,
    repeated,
)
from recallkit.models.mixers.selective_attention import SelectiveAttention
from tests.models.mixers.battery import difference, inputs

D = 16


def make(**options):
    torch.manual_seed(0)
    return SelectiveAttention(D, **options).double().eval().requires_grad_(False)


def as_attention(mixer):
    at_once = Attention(D).double().eval().requires_grad_(False)
    at_once.load_state_dict(
        {name: value for name, value in mixer.state_dict().items() if "selector" not in name},
    )
    return at_once


def test_repeated_tokens_by_hand():
    ids = torch.tensor([[5, 3, 5, 5, 0, 3], [1, 2, 3, 4, 5, 6]])
    assert repeated(ids).tolist() == [[False, False, True, True, False, True], [False] * 6]
    assert [row.nonzero().flatten().tolist() for row in followers(ids, 6)[0]] == [
        [],
        [],
        [1],
        [1, 3],
        [],
        [2],
    ]
    assert followers(ids, 2).tolist() == followers(ids, 6)[:, -2:].tolist()


@settings(max_examples=60)
@given(
    st.integers(1, 12).flatmap(
        lambda t: st.lists(
            st.lists(st.integers(0, 4), min_size=t, max_size=t),
            min_size=1,
            max_size=3,
        ),
    ),
)
def test_lists_without_a_matrix_are_the_rows_of_the_matrix(rows):
    ids = torch.tensor(rows)
    matrix = followers(ids, ids.shape[1])
    offsets, keys = follower_lists(ids)
    assert offsets.tolist() == [0, *matrix.sum(-1).flatten().cumsum(0).tolist()]
    assert keys.tolist() == matrix.nonzero()[:, 2].tolist()
    assert torch.equal(repeated(ids), matrix.any(-1))


def test_repeated_tokens_attend_as_in_attention_and_the_others_do_not():
    mixer = make()
    u, ids = inputs(mixer, 30)
    actual, at_once = mixer(u, ids), as_attention(mixer)(u)
    first = torch.ones_like(ids, dtype=torch.bool)
    for row, i in itertools.product(*map(range, ids.shape)):
        first[row, i] = ids[row, i] not in ids[row, :i]
    assert 0 < first.sum() < first.numel()
    assert actual[first].abs().max() == 0
    assert difference(actual[~first], at_once[~first]) < 1e-12
    assert torch.equal(actual[:, :1], torch.zeros(2, 1, D))


def test_token_zero_is_not_taken_for_the_padding_of_a_shorter_row():
    mixer = make()
    u, _ = inputs(mixer, 6)
    ids = torch.tensor([[0, 3, 3, 0, 5, 5]]).expand(2, -1)
    long, short = mixer.initial_state(1), mixer.initial_state(1)
    _, long = mixer.read(u[:1, :5], long, ids[:1, :5])
    _, short = mixer.read(u[1:, :1], short, ids[1:, 1:2])
    pad = {name: torch.nn.functional.pad(short[name], (0, 0, 4, 0)) for name in ("keys", "values")}
    pad |= {"ids": torch.nn.functional.pad(short["ids"], (4, 0)), "num_read": short["num_read"]}
    y, _ = mixer.step(
        u[:, 5],
        {name: torch.cat([long[name], pad[name]]) for name in long},
        torch.tensor([0, 0]),
    )
    assert y[0].abs().max() > 0
    assert y[1].abs().max() == 0


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_a_random_selection_is_its_share_and_the_same_in_every_row(share):
    mixer = make(selection="random", share=share)
    u, _ = inputs(mixer, 400)
    selected = mixer(u).abs().amax(-1) > 0
    assert torch.equal(selected[0], selected[1])
    assert abs(float(selected[0].double().mean()) - share) <= 4 * (share * (1 - share) / 400) ** 0.5
    assert torch.equal(mixer(u[:, :123]).abs().amax(-1) > 0, selected[:, :123])


def lowbias32(seed, *places):
    """Wellons' hash of integers, each going into the next one's, as a share of 2^32."""
    mixed = 0
    for value in (seed, *places):
        mixed ^= value
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            mixed = (mixed ^ mixed >> shift) * factor % 2**32
        mixed ^= mixed >> 16
    return mixed / 2**32


def test_hashes_are_uniform_and_depend_on_every_integer():
    places = torch.arange(40000)
    shares = hash_share(7, places)
    assert 0 <= shares.min() < shares.max() < 1
    counts = torch.histc(shares, 20, 0, 1)
    # Chi-squared, 19 degrees of freedom: one in a thousand lies above 43.8.
    assert ((counts - 2000) ** 2 / 2000).sum() < 45
    assert float((hash_share(8, places) - shares).abs().mean()) == pytest.approx(1 / 3, abs=0.02)
    assert shares[:50].tolist() == [lowbias32(7, place) for place in range(50)]
    both = hash_share(7, places[:200, None], places[None, :200])
    assert both[13, 21] == lowbias32(7, 13, 21) != both[21, 13]
    assert len(both.unique()) == both.numel()


def asking(mixer, u):
    return u @ mixer.selector.score.weight[0] + mixer.selector.score.bias >= 0


def within(asks, budget):
    """One by one: what asks is chosen while fewer than `budget(i)` are."""
    chosen = []
    for i, asks_too in enumerate(asks):
        chosen.append(asks_too and sum(chosen) < budget(i))
    return chosen


@pytest.mark.parametrize(
    "limit",
    [{"share": 1.0}, {"share": 0.4}, {"share": 0.125}, {"k": 6}, {"k": 100}],
)
def test_a_learned_selection_is_what_asks_within_the_budget(limit):
    mixer = make(selection="learned", **limit)
    u, _ = inputs(mixer, 40)
    budget = (
        (lambda i: limit["k"]) if "k" in limit else (lambda i: math.ceil((i + 1) * limit["share"]))
    )
    selected = torch.tensor([within(row, budget) for row in asking(mixer, u).tolist()])
    actual, at_once = mixer(u), as_attention(mixer)(u)
    assert 0 < selected.sum() < selected.numel()
    assert difference(actual[selected], at_once[selected]) < 1e-12
    assert actual[~selected].abs().max() == 0
    assert mixer.auxiliary_loss() is None


def quiet(k):
    """A mixer in training that chooses k positions without noise."""
    mixer = make(selection="learned", k=k).train()
    mixer.selector.noise = 0.0
    return mixer


def test_in_training_the_highest_of_the_noisy_scores_are_chosen():
    mixer = quiet(k=5)
    u, _ = inputs(mixer, 40)
    logits = u @ mixer.selector.score.weight[0] + mixer.selector.score.bias
    highest = torch.zeros_like(logits, dtype=torch.bool).scatter_(
        1,
        logits.topk(5).indices,
        value=True,
    )
    assert torch.equal(mixer.selector(u)[0] > 0.5, highest)
    noisy = quiet(k=5)
    noisy.selector.noise = 1.0
    torch.manual_seed(1)
    often = torch.stack([noisy.selector(u)[0] > 0.5 for _ in range(400)]).double().mean(0)
    assert often.sum(1).allclose(torch.full((2,), 5.0, dtype=torch.float64), atol=0.3)
    assert 0.2 < often[highest].mean() < 0.95
    assert (often[~highest] > 0).any(), "noise lets others in"


def test_as_many_are_chosen_whatever_the_level_of_the_scores():
    """In training the k highest, though none is positive; elsewhere what reaches the mean of the
    k-th highest, within the budget."""
    mixer = quiet(k=8)
    mixer.selector.score.bias.fill_(-3.0)
    u, _ = inputs(mixer, 40)
    for _ in range(600):
        chosen, score = mixer.selector(u)
    assert (score < 0.5).all()
    assert (chosen > 0.5).sum(dim=1).tolist() == [8, 8]
    selected = mixer.eval()(u).abs().amax(-1) > 0
    assert 8 <= selected.sum() <= 16
    assert not (selected & (chosen < 0.5)).sum() > 4


def test_the_gradient_reaches_what_is_not_selected():
    """Straight through: each position's gradient is that of a weight of sigmoid(score), selected or
    not."""
    selector = Selector(D, 0.25).double()
    u = torch.randn(2, 9, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.randn(2, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    chosen, _ = selector(u)
    assert set(chosen.flatten().tolist()) == {0.0, 1.0}
    actual = torch.autograd.grad((chosen * weights).sum(), selector.parameters())
    wanted = torch.autograd.grad(
        (selector.score(u)[..., 0].sigmoid() * weights).sum(),
        selector.parameters(),
    )
    for one, other in zip(actual, wanted, strict=True):
        assert difference(one, other) < 1e-12


def test_costs():
    at_once = Attention(D)
    assert make(selection="full").flops(100) == at_once.flops(100)
    pairs = at_once.flops(100) - 2 * 100 * 4 * D * D
    assert at_once.flops(100) - make(share=0.25).flops(100) == round(0.75 * pairs)
    assert make(selection="learned").flops(100) - make(share=0.25).flops(100) == 100 * (2 * D + 1)
    assert make().state_size(100) == at_once.state_size(100) + 100
    assert make(selection="random").state_size(100) == at_once.state_size(100)
