"""The chunked form that linear recurrences share: weights of pairs are those of the sum, for any number of tokens and strength."""

from __future__ import annotations

import math

import pytest
import torch

from recallkit.kernels.linear_recurrence import states_between, weigh_pairs
from tests.kernels.checks import assert_close


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("shared", [False, True])
def test_weights_of_pairs_are_those_of_the_sum(size, width, shared):
    """Decays of each chunk, and decays that two chunks share."""
    draw = torch.Generator().manual_seed(size)
    q, k, logs, diagonal = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in [(2, size, width)] * 3 + [(2, size)])
    logs = -logs.exp()[:1] if shared else -logs.exp()
    weights, faded_q, faded_k, whole = weigh_pairs(q, k, logs, diagonal)
    assert weights.shape == (2, size, size)
    for i in range(size):
        assert_close(faded_q[:, i], q[:, i] * logs[:, :i].sum(1).exp())
        assert_close(faded_k[:, i], k[:, i] * logs[:, i + 1 :].sum(1).exp())
        for j in range(size):
            between = (q[:, i] * logs[:, j + 1 : i].sum(1).exp() * k[:, j]).sum(-1)
            assert_close(weights[:, i, j], between if j < i else diagonal[:, i] * (j == i))
    assert_close(whole[:, 0], logs.sum(1).exp())


def test_float32_is_exact_to_rounding_however_strong_decays_are():
    """Sums of log decays of up to 3e4, whose differences float32 keeps to 0.002, and of minus infinity."""
    draw = torch.Generator().manual_seed(0)
    strengths = torch.tensor([0.0, -1e-4, -0.1, -3.0, -1000.0, -math.inf])
    logs = strengths[torch.randint(6, (64, 16), generator=draw)]
    q, k, diagonal = (torch.randn(shape, generator=draw) for shape in ((64, 16), (64, 16), (64,)))
    for made, exact in zip(weigh_pairs(q, k, logs, diagonal), weigh_pairs(*(x.double() for x in (q, k, logs, diagonal))), strict=True):
        assert made.dtype == torch.float32
        assert_close(made, exact)


@pytest.mark.parametrize("shared", [False, True])
def test_states_follow_each_other(shared):
    added, kept, state = torch.randn(2, 3, 4, 5), torch.rand(2, 1 if shared else 3, 4, 1), torch.randn(2, 4, 5)
    states, last = states_between(added, kept, state)
    for i in range(3):
        torch.testing.assert_close(states[:, i], state)
        state = kept[:, 0 if shared else i] * state + added[:, i]
    torch.testing.assert_close(last, state)
    none, only = states_between(added[:, :1], kept[:, :1], None)
    assert none is None
    assert torch.equal(only, added[:, 0])
