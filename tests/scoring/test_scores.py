"""Scoring sequences: every score on its token, windows, batches that fit, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.errors import UserError
from recallkit.models.protocol import TokenScores
from recallkit.scoring import scores
from recallkit.scoring.windows import ContextWindow


class Probe:
    """A model whose scores name the ids that it is given and how many came before, and that can
    fail when told."""

    name, vocab_size = "probe", 4096

    prefix = ()

    def __init__(self, *, most_ids: int | None = None, max_length: int | None = None) -> None:
        self.batches: list[tuple[int, int]] = []
        self.most_ids, self.max_length = most_ids, max_length

    def batch_tokens(self, seq_len: int) -> int:
        return 4 * seq_len

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        lengths = np.diff(offsets)
        self.batches.append((len(lengths), int(lengths.max() - 1)))
        assert self.max_length is None or lengths.max() - 1 <= self.max_length
        if self.most_ids is not None and len(lengths) * (lengths.max() - 1) > self.most_ids:
            raise MemoryError
        own = np.delete(ids, offsets[:-1])
        before = np.delete(np.arange(len(ids)) - np.repeat(offsets[:-1], lengths), offsets[:-1])
        return TokenScores(own.astype(np.float32), own.astype(np.int32), before.astype(np.int32))

    def score_carrying(self, ids: np.ndarray, offsets: np.ndarray, chunk: int) -> TokenScores:
        self.batches.append((len(offsets) - 1, chunk))
        return Probe().score(ids, offsets)


def ragged_ids(lengths: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return np.random.default_rng(seed).permutation(4096)[: offsets[-1]].astype(np.uint32), offsets


def predicted(ids: np.ndarray, offsets: np.ndarray) -> list[int]:
    return [int(i) for a, b in itertools.pairwise(offsets) for i in ids[a + 1 : b]]


def scored(
    model: Probe, lengths: list[int], batch: int | scores.BatchLimit, **window: object
) -> scores.SequenceScores:
    """Scores of sequences of these lengths, on their tokens."""
    ids, offsets = ragged_ids(lengths)
    limit = batch if isinstance(batch, scores.BatchLimit) else scores.BatchLimit(batch)
    result = scores.score_sequences(model, ids, offsets, limit, ContextWindow(**window))
    assert result.nll.tolist() == predicted(ids, offsets)
    assert result.exact.all()
    return result


LENGTHS = [9, 8, 7, 30, 2, 9, 14, 31, 30]


@pytest.mark.parametrize("batch_tokens", [1, 20, 64, 1000])
def test_every_score_lands_on_its_token(batch_tokens):
    result = scored(Probe(), LENGTHS, batch_tokens)
    assert (
        result.context.tolist() == result.rank.tolist() == [k for n in LENGTHS for k in range(1, n)]
    )


@settings(max_examples=100)
@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=8),
    context=st.integers(1, 40),
    stride=st.integers(1, 40),
    batch=st.integers(1, 200),
)
def test_windows_predict_every_token_once_with_as_much_context_as_promised(
    lengths, context, stride, batch
):
    stride = min(stride, context)
    result = scored(Probe(max_length=context), lengths, batch, stride=stride)
    assert np.array_equal(result.context, result.rank), (
        "the context column is not what the model saw"
    )
    position = np.concatenate([np.arange(1, n) for n in lengths])
    assert (result.context[position <= context] == position[position <= context]).all()
    assert (result.context[position > context] > context - stride).all()
    assert result.context.max() <= context


def test_a_shorter_context_can_be_chosen_and_a_longer_one_not():
    result = scored(Probe(), [30], 100, context=5, stride=5)
    assert result.context.tolist() == [1, 2, 3, 4, 5] * 5 + [2, 3, 4, 5], (
        "the last window is full, and only its last predictions count"
    )
    with pytest.raises(UserError, match="--context 7 or less"):
        scored(Probe(max_length=7), [30], 100, context=8)
    with pytest.raises(UserError, match=r"leave ids out.*--stride 5"):
        scored(Probe(), [30], 100, context=5, stride=6)


def test_a_carried_state_makes_batches_of_what_is_read_at_once():
    model = Probe(max_length=8)
    assert (
        scored(model, [30] * 4, 16, context=8, carry=True).context.tolist() == [*range(1, 30)] * 4
    )
    assert model.batches == [(2, 8), (2, 8)]


def test_out_of_memory_halves_the_batch_and_says_so():
    notes: list[str] = []
    model, limit = Probe(most_ids=20), scores.BatchLimit(64, notes.append)
    scored(model, [9] * 16, limit)
    assert model.batches == [(8, 8), (4, 8), *[(2, 8)] * 8]
    assert ["8 x 8" in notes[0], "4 x 8" in notes[1], len(notes)] == [True, True, 2]
    with pytest.raises(UserError, match="out of memory with one sequence of 8 ids"):
        scored(Probe(most_ids=3), [9] * 16, limit)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(2, 40), min_size=1, max_size=12), min_size=2, max_size=5),
    st.integers(40, 200),
)
def test_what_does_not_fit_is_cut_alike_whatever_was_scored_before(parts, most_ids):
    """One process that scored other parts before forms the same batches as a fresh one, as far as
    they fit."""

    def fitting(
        model: Probe, limit: scores.BatchLimit, lengths: list[int]
    ) -> list[tuple[int, int]]:
        before = len(model.batches)
        scored(model, lengths, limit)
        return [batch for batch in model.batches[before:] if batch[0] * batch[1] <= most_ids]

    experienced, limit = Probe(most_ids=most_ids), scores.BatchLimit(300)
    for lengths in parts:
        assert fitting(experienced, limit, lengths) == fitting(
            Probe(most_ids=most_ids), scores.BatchLimit(300), lengths
        )


def test_nan_is_named_by_sequence_and_position():
    offsets = np.array([0, 9, 17, 24])
    nll = np.zeros(21, np.float32)
    scores.check_finite("m", nll, 4, offsets)
    nll[8 + 7 + 2] = np.nan
    with pytest.raises(UserError, match=r"sequence 6, position 3 is not finite \(1 of 21 values\)"):
        scores.check_finite("m", nll, 4, offsets)
