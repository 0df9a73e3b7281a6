"""Control models are true language models: they sum to one, and every score equals a slow direct
computation."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.counting.bigrams import CountedStream
from recallkit.counting.make_table import write_counts
from recallkit.errors import UserError
from recallkit.models.control import CACHE_WEIGHT
from recallkit.models.loading import identify_model, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from tests.planted import TOKENIZER

VOCAB = 11


class Slow:
    """The formulas of `recallkit.models.control`, a dense distribution at a time, in plain
    Python."""

    def __init__(self, training: list[int], order: int, cache_weight: float) -> None:
        self.unigrams = Counter(training)
        self.bigrams = Counter(itertools.pairwise(training))
        self.order, self.cache_weight = order, cache_weight

    def p1(self) -> list[float]:
        total, distinct = sum(self.unigrams.values()), len(self.unigrams)
        if not distinct:
            return [1 / VOCAB] * VOCAB
        return [(self.unigrams[w] + distinct / VOCAB) / (total + distinct) for w in range(VOCAB)]

    def distribution(self, context: list[int]) -> list[float]:
        p, u = self.p1(), context[-1]
        followers = {w: c for (first, w), c in self.bigrams.items() if first == u}
        if self.order == 2 and followers:
            total, distinct = sum(followers.values()), len(followers)
            p = [(followers.get(w, 0) + distinct * p[w]) / (total + distinct) for w in range(VOCAB)]
        earlier = [i for i in range(len(context) - 1) if context[i] == u]
        if self.cache_weight and earlier:
            recalled = context[earlier[-1] + 1]
            p = [
                (1 - self.cache_weight) * p[w] + self.cache_weight * (w == recalled)
                for w in range(VOCAB)
            ]
        return p


def make_counts(path, training: list[int]):
    from recallkit.counting.bigram_kernels import count_bigrams

    ids = np.array(training, np.uint16)
    run = count_bigrams(ids, np.zeros(1, np.int64))
    tokens, counts = np.unique(ids, return_counts=True)
    counted = CountedStream(
        run,
        tokens.astype(np.uint32),
        counts.astype(np.uint64),
        len(training),
        1,
    )
    write_counts(
        path,
        counted,
        {"tokenizer": TOKENIZER | {"vocab_size": VOCAB}, "boundary": "pack", "only": None},
    )
    return path


ids = st.lists(st.integers(0, VOCAB - 2), min_size=2, max_size=60)


@settings(max_examples=6)
@given(training=ids, text=st.lists(ids, min_size=1, max_size=3))
def test_scores_equal_the_slow_computation(tmp_path_factory, training, text):
    counts = make_counts(tmp_path_factory.mktemp("c") / "counts.duckdb", training)
    for name, order, weight in (
        ("unigram", 1, 0.0),
        ("bigram", 2, 0.0),
        ("recall", 2, CACHE_WEIGHT),
    ):
        model = load_model(ModelPlan(ModelSpec(f"control:{name}"), VOCAB, counts=counts))
        check_scores(model, Slow(training, order, weight), text)


def check_scores(model, slow, text):
    offsets = np.concatenate([[0], np.cumsum([len(t) for t in text])])
    scores = model.score(np.concatenate(text).astype(np.uint32), offsets)
    at = 0
    for sequence in text:
        for place in range(1, len(sequence)):
            p = slow.distribution(sequence[:place])
            assert sum(p) == pytest.approx(1, abs=1e-12)
            target = p[sequence[place]]
            assert scores.nll[at] == pytest.approx(-math.log(target), abs=1e-6)
            assert p[scores.argmax[at]] == pytest.approx(max(p), rel=1e-9)
            surely_larger = sum(q > target * (1 + 1e-9) for q in p)
            perhaps_larger = sum(q >= target * (1 - 1e-9) for q in p)
            assert surely_larger <= scores.rank[at] < perhaps_larger
            at += 1
    assert at == len(scores.nll)


def test_the_cache_is_reset_at_every_sequence(tmp_path):
    counts = make_counts(tmp_path / "counts.duckdb", [1, 2, 3, 4, 5, 6])
    model = load_model(ModelPlan(ModelSpec("control:recall"), VOCAB, counts=counts))
    one = model.score(np.array([7, 8, 7, 8], np.uint32), np.array([0, 4])).nll
    two = model.score(np.array([7, 8, 7, 8], np.uint32), np.array([0, 2, 4])).nll
    assert one[2] < two[1] == one[0]


def test_identity_follows_the_counts(tmp_path):
    a, b = (
        make_counts(tmp_path / "a.duckdb", [1, 2, 3]),
        make_counts(tmp_path / "b.duckdb", [1, 2, 4]),
    )
    digests = {
        identify_model(ModelPlan(ModelSpec("control:bigram"), VOCAB, counts=path))
        for path in (a, b)
    }
    assert len(digests) == 2
    assert identify_model(ModelPlan(ModelSpec("control:bigram"), VOCAB, counts=a)) in digests


def test_no_counts_and_unknown_names_are_one_line(tmp_path):
    with pytest.raises(UserError, match="--counts"):
        load_model(ModelPlan(ModelSpec("control:bigram"), VOCAB))
    with pytest.raises(UserError, match="did you mean control:recall"):
        load_model(ModelPlan(ModelSpec("control:recal"), VOCAB, counts=tmp_path / "counts.duckdb"))
