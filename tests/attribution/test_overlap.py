"""The gap divided among slices that overlap: against Shapley's formula over all orders, and what is shown of it."""

from __future__ import annotations

import itertools
import math
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit import attribution
from recallkit.attribution.comparison import read_comparison
from recallkit.attribution.tables import attribute_gap
from recallkit.attribution.view import look
from recallkit.measure.classes import IN_NONE
from recallkit.slicing.definitions import parse_slices
from tests.attribution.test_clean import mark
from tests.attribution.test_slices import texts
from tests.attribution.test_tables import BEHIND_NLLS, REFERENCE_NLLS, Corpus, small_corpus

GIVEN = ("first_rare", "copy:k3", "far=distance > 3", "b=source = 'b'", "early=position < 6", "none=token < 0")
KEEP = {
    "first_rare": lambda t: not t["repeated"] and t["train_count"] <= 5,
    "copy:k3": lambda t: t["match_length"] >= 2,
    "far": lambda t: t["distance"] is not None and t["distance"] > 3,
    "b": lambda t: t["source"] == "b",
    "early": lambda t: t["position"] < 6,
    "none": lambda t: False,
}


def shapley(values: list[list[bool]], amounts: list[float], player: int) -> float:
    """The mean, over all orders, of what a slice adds to the sum of `amounts` in the union; `values`: the slices of each token."""

    @cache
    def union(slices):
        return math.fsum(amount for own, amount in zip(values, amounts, strict=True) if any(own[slice_] for slice_ in slices))

    orders = list(itertools.permutations(range(len(values[0]))))
    before = [frozenset(order[: order.index(player)]) for order in orders]
    return math.fsum(union(slices | {player}) - union(slices) for slices in before) / len(orders)


@settings(max_examples=12)
@given(texts(), st.integers(2, 6))
def test_shares_are_shapley_values_over_all_orders(tmp_path_factory, drawn, number):
    rows, pairs, rows_per_group, reference, model = drawn
    corpus = Corpus(tmp_path_factory.mktemp("text"), rows[:20], rows_per_group=rows_per_group, max_count=5, ids=pairs[:20])
    paths = corpus.score("reference", reference[:20]), corpus.score("model", model[:20])
    found = attribute_gap(corpus.path, paths[0], [paths[1]], slices=parse_slices(GIVEN[:number]), num_resamples=20).by_overlap
    names = [*list(KEEP)[:number], IN_NONE]
    assert found["slice"].to_list() == names
    inside = [[KEEP[name](token) for name in names[:-1]] for token in corpus.tokens]
    gaps = [b - a for a, b in zip(corpus.nlls["reference"], corpus.nlls["model"], strict=True)]
    whole = math.fsum(gaps)
    for player, row in enumerate(found.iter_rows(named=True)):
        if row["slice"] == IN_NONE:
            tokens = sum(not any(own) for own in inside)
            gap = math.fsum(gap for own, gap in zip(inside, gaps, strict=True) if not any(own))
        else:
            tokens, gap = shapley(inside, [1.0] * len(gaps), player), shapley(inside, gaps, player)
            assert row["plain_share_of_tokens"] == pytest.approx(sum(own[player] for own in inside) / len(gaps))
        assert row["tokens"] == pytest.approx(tokens)
        assert row["share_of_tokens"] == pytest.approx(tokens / len(gaps))
        if tokens and abs(whole) > 1e-6:
            assert row["gap_share"] == pytest.approx(gap / whole, rel=1e-6, abs=1e-6)
    assert found["tokens"].sum() == pytest.approx(len(gaps))


def test_it_adds_up_and_is_shown(small_slices, tmp_path):
    names = ("control:recall", "control:bigram", "control:unigram")
    attribution.gap(names[0], names[1:], small_slices, tmp_path, given=parse_slices(["copy:k1", "copy:k3", "far=distance > 20"]))
    comparison = read_comparison(tmp_path)
    found = comparison.tables.by_overlap
    for model in names[1:]:
        own = found.filter(model=model)
        assert own["slice"].to_list() == ["copy:k1", "copy:k3", "far", IN_NONE]
        assert (own["gap_share"].sum(), own["share_of_tokens"].sum()) == pytest.approx((1, 1))
        assert (own["ci_low"] <= own["gap_share"]).all()
        assert (own["gap_share"] <= own["ci_high"]).all()
        # copy:k3 is within copy:k1: half of its tokens' gap at most
        assert own["tokens"][1] < comparison.totals[model, "copy:k3"]["tokens"] / 2 + 1e-9
    assert "by_overlap" in look(comparison).shown
    assert look(comparison).json()["by_overlap"] == found.to_dicts()


def test_what_is_left_out_counts_for_no_slice(tmp_path):
    corpus = mark(small_corpus(tmp_path), [13, *[0] * (len(REFERENCE_NLLS) - 1)])
    paths = corpus.score("reference", REFERENCE_NLLS), corpus.score("behind", BEHIND_NLLS)
    given_ = parse_slices(["a=repeated", "b=position > 2"])
    found = attribute_gap(corpus.path, paths[0], [paths[1]], slices=given_, clean=True).by_overlap
    assert found["tokens"].sum() == len(REFERENCE_NLLS) - 1
    assert found["gap_share"].sum() == pytest.approx(1)
