"""The layers do what the propositions of Zoology's H.3 claim, exactly, and are as many."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.models.constructions.layers import Layer, convolve, remember, run, running_sum, shift_down, shift_up
from recallkit.models.mixers.base_conv import BaseConv


def whole(n: int, d: int, seed: int) -> torch.Tensor:
    return torch.randint(-9, 10, (n, d), generator=torch.Generator().manual_seed(seed)).double()


sizes = {"n": st.integers(1, 12), "d": st.integers(1, 3), "seed": st.integers(0, 99)}


@given(**sizes, share=st.floats(0, 1, exclude_max=True))
@settings(max_examples=30)
def test_shifts(n, d, seed, share):
    s, y = int(share * n), whole(n, d, seed)
    zeros = torch.zeros(s, d)
    assert run(shift_down(n, d, s), y).equal(torch.cat([zeros, y[: n - s]]))
    assert run(shift_up(n, d, s), y).equal(torch.cat([y[s:], zeros]))
    assert len(shift_down(n, d, s)) == len(shift_up(n, d, s)) == 1


@given(size=st.integers(1, 5), spare=st.integers(0, 7), d=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_a_running_sum_can_be_added_to_again(size, spare, d, seed):
    n = 2 * size + spare
    x, total = whole(size, d, seed), whole(size, d, seed + 1)
    rest = torch.zeros(spare, d)
    z = run(running_sum(n, d, size), torch.cat([x, total, rest]))
    assert z.equal(torch.cat([torch.ones(size, d), total + x, rest]))
    assert len(running_sum(n, d, size)) == 2
    assert run(running_sum(n, d, size), z)[size : 2 * size].equal(total + x + 1)


@given(
    size=st.integers(1, 4),
    k=st.integers(1, 4),
    slack=st.integers(0, 3),
    kept=st.integers(1, 4),
    d=st.integers(1, 2),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_rows_are_remembered_while_others_are_convolved(size, k, slack, kept, d, seed):
    room = size + k - 1 + slack
    n = 2 * room + 2 * kept + k - 1
    x, v, taps, gate = whole(size, d, seed), whole(kept, d, seed + 1), whole(k, d, seed + 2), whole(room, d, seed + 3)
    y = torch.cat([x, torch.zeros(room - size, d), v, torch.zeros(n - room - kept, d)])
    layers = remember(n, taps, gate, size, kept)
    assert len(layers) <= 5
    convolved = torch.zeros(room, d, dtype=torch.float64)
    for i in range(size):
        for s in range(k):
            convolved[i + s] += taps[s] * x[i]
    assert run(layers, y).equal(torch.cat([gate * convolved, v, torch.zeros(n - room - kept, d)]))


def test_a_layer_is_that_of_our_mixer():
    """With biases that are the same in every row, a layer is the BaseConv of `recallkit.models.mixers`."""
    n, d = 9, 3
    mixer = BaseConv(d, filter="explicit", max_length=n).double()
    conv = mixer.conv
    torch.nn.init.normal_(conv.bias)
    one_row = {"gate_bias": mixer.gate.bias, "conv_bias": conv.bias}
    repeated = {name: row.detach().expand(n, d) for name, row in one_row.items()}
    layer = Layer(mixer.gate.weight.detach().T, filter=conv.filters(n).detach().T, **repeated)
    y = torch.randn(n, d, dtype=torch.float64)
    torch.testing.assert_close(layer(y), mixer(y.unsqueeze(0))[0].detach(), rtol=0, atol=1e-12)


def test_convolutions_are_products_of_polynomials():
    """(1 + 2 X)(3 X^2 + X) = X + 5 X^2 + 6 X^3, modulo X^3 and X^3 - 1."""
    y, taps = torch.tensor([[1.0], [2.0], [0.0]]), torch.tensor([[0.0], [1.0], [3.0]])
    assert convolve(y, taps, cyclic=False).flatten().tolist() == [0, 1, 5]
    assert convolve(y, taps, cyclic=True).flatten().tolist() == [6, 1, 5]


@pytest.mark.parametrize(
    "make",
    [
        lambda: shift_up(4, 1, 4),
        lambda: shift_down(4, 1, -1),
        lambda: running_sum(4, 1, 3),
        lambda: remember(8, torch.ones(2, 1), torch.ones(2, 1), 1, 2),
    ],
)
def test_what_does_not_fit_is_refused(make):
    with pytest.raises(ValueError, match="rows"):
        make()
