"""`token_nll`: the chunked implementation equals the float64 reference, on awkward sizes, ties and large logits."""

from __future__ import annotations

import pytest
import torch

from recallkit.kernels.token_nll import chunked
from recallkit.kernels.token_nll.api import logits_nll, token_nll


@pytest.mark.parametrize(("n", "d", "vocab"), [(1, 8, 2), (17, 24, 257), (130, 64, 4096), (0, 8, 50)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunked_equals_reference(n, d, vocab, bias, dtype, monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK_LOGITS", 3 * vocab)
    generator = torch.Generator().manual_seed(n + vocab)
    hidden = torch.randn(n, d, generator=generator).to(dtype)
    weight = torch.randn(vocab, d, generator=generator).to(dtype)
    offset = torch.randn(vocab, generator=generator).to(dtype) if bias else None
    targets = torch.randint(0, vocab, (n,), generator=generator)
    fast = token_nll(hidden, weight, targets, bias=offset)
    exact = token_nll(hidden, weight, targets, bias=offset, impl="reference")
    assert torch.allclose(fast.nll, exact.nll, rtol=1e-5, atol=1e-5)
    assert torch.equal(fast.argmax, exact.argmax)
    assert torch.equal(fast.rank, exact.rank)
    assert (fast.nll >= 0).all()


def test_ties_share_a_rank_and_argmax_is_the_lowest_id():
    hidden = torch.ones(3, 1)
    weight = torch.tensor([[1.0], [3.0], [3.0], [2.0]])
    scores = token_nll(hidden, weight, torch.tensor([1, 2, 0]))
    assert scores.argmax.tolist() == [1, 1, 1]
    assert scores.rank.tolist() == [0, 0, 3]


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[1e4, 0.0], [1e4, 1e4]])
    assert logits_nll(logits, torch.tensor([1, 0])).nll.tolist() == pytest.approx([1e4, 0.6931472])


@pytest.mark.parametrize(
    ("hidden", "weight", "targets", "message"),
    [((3, 4), (5, 6), (3,), "do not fit"), ((3, 4), (5, 4), (2,), "targets"), ((2, 3, 4), (5, 4), (2,), "do not fit")],
)
def test_shapes_that_do_not_fit_are_named(hidden, weight, targets, message):
    with pytest.raises(ValueError, match=message):
        token_nll(torch.zeros(hidden), torch.zeros(weight), torch.zeros(targets, dtype=torch.int64))


def test_an_unknown_implementation_raises():
    with pytest.raises(ValueError, match="impl"):
        token_nll(torch.zeros(1, 2), torch.zeros(3, 2), torch.zeros(1, dtype=torch.int64), impl="fast")
