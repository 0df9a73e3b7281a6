"""The knee: known crossings are found, noise and small buckets do not move it, and control models have the knee of their definition."""

from __future__ import annotations

import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recallkit
from recallkit import attribution
from recallkit.attribution.comparison import read_comparison
from recallkit.attribution.knee import MIN_TOKENS, WITHIN, Bucket, Knee, describe_knees, find_knee, knee_facts, knees
from recallkit.attribution.view import look
from tests.slicing.references import first_occurrences_reference

ENDS = [(0, 0), (1, 1), (2, 2), *((2**power + 1, 2 ** (power + 1)) for power in range(1, 15))]
PLACES = [(math.log2(1 + low) + math.log2(1 + high)) / 2 for low, high in ENDS]


def curve(excess, tokens=1000):
    sizes = [tokens] * len(ENDS) if isinstance(tokens, int) else tokens
    return [Bucket(*ends, size, nats) for ends, size, nats in zip(ENDS, sizes, excess, strict=True)]


@settings(max_examples=100)
@given(st.floats(0.6, 8), st.floats(0.05, 3))
def test_a_straight_fall_crosses_where_it_says(start, slope):
    """The excess falls by `slope` nats with each doubling of 1 + count: the crossing is known."""
    found = find_knee(curve([start - slope * place for place in PLACES]))
    crossing = 2 ** ((start - WITHIN) / slope) - 1
    if (start - WITHIN) / slope > PLACES[-1]:
        assert found == Knee(None, 0, ENDS[-1][1])
    else:
        assert found.count == pytest.approx(crossing, abs=0.5 + 1e-6 * crossing)
        assert found.largest == ENDS[-1][1]


def nearest_falling(values, weights):
    """Isotonic regression by its formula: the smallest, over all beginnings, of the largest mean up to any end."""

    def mean(first, last):
        own = range(first, last + 1)
        return sum(values[i] * weights[i] for i in own) / sum(weights[i] for i in own)

    places = range(len(values))
    return [min(max(mean(first, last) for last in places[at:]) for first in places[: at + 1]) for at in places]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(-1, 4), st.integers(MIN_TOKENS, 10**5)), min_size=len(ENDS), max_size=len(ENDS)))
def test_any_curve_is_crossed_once_where_its_nearest_falling_one_is(drawn):
    excess, tokens = zip(*drawn, strict=True)
    smooth = nearest_falling(excess, tokens)
    found = find_knee(curve(excess, tokens))
    if smooth[-1] > WITHIN + 1e-9:
        assert found.count is None
    elif smooth[0] <= WITHIN - 1e-9:
        assert found.count == 0
    elif all(abs(nats - WITHIN) > 1e-9 for nats in smooth):
        below = next(at for at, nats in enumerate(smooth) if nats < WITHIN)
        part = (smooth[below - 1] - WITHIN) / (smooth[below - 1] - smooth[below])
        assert found.count == pytest.approx(2 ** (PLACES[below - 1] + part * (PLACES[below] - PLACES[below - 1])) - 1, abs=0.51)


@pytest.mark.parametrize(
    ("knee", "shown"),
    [
        (Knee(4856, 0, 32768), "4.86k"),
        (Knee(0, 0, 8), "0"),
        (Knee(129, 129, 256), "at most 129"),
        (Knee(None, 0, 16384), "above 16.4k"),
        (Knee(None, None, None), "–"),
    ],
)
def test_how_a_knee_is_written(knee, shown):
    assert str(knee) == shown


# --------------------------------------------------------------------------------------------- with scores of real models


MODELS = ("control:recall", "control:bigram", "control:unigram")


@pytest.fixture(scope="module")
def compared(small_slices, tmp_path_factory):
    folder = tmp_path_factory.mktemp("knees") / "gap"
    return attribution.gap(MODELS[0], MODELS[1:], small_slices, folder), folder


@pytest.fixture(scope="module")
def first_costs(small_slices):
    """Repeated tokens with their NLLs and those of the first occurrence of their bigram, looked up in a list."""
    tokens = recallkit.tokens(small_slices, dict(zip(("a", "b", "c"), MODELS, strict=True))).collect()
    parts = []
    for _, rows in tokens.group_by("sequence", maintain_order=True):
        first = first_occurrences_reference([rows["prev_token"][0], *rows["token"]])
        parts.append(rows.with_columns(**{f"first_{name}": rows[f"nll_{name}"].gather(first) for name in "abc"}))
    return pl.concat(parts).filter("repeated").with_columns(pl.col("^nll_.*|first_.*$").cast(pl.Float64))


def test_first_occurrences_are_those_of_the_same_bigrams(compared, first_costs):
    by_count = compared[0].by_count
    assert by_count.filter(~pl.col("repeated"))["nll_first_model"].null_count() == len(by_count.filter(~pl.col("repeated"))) > 0
    buckets = by_count.filter("repeated")
    assert len(buckets) > 6
    for row in buckets.to_dicts():
        mine = first_costs.filter(pl.col("train_count").is_between(row["low"], row["high"]))
        name = "abc"[MODELS.index(row["model"])]
        assert len(mine) == row["tokens"]
        assert row["nll_model"] == pytest.approx(mine[f"nll_{name}"].mean(), rel=1e-9)
        assert row["nll_first_model"] == pytest.approx(mine[f"first_{name}"].mean(), rel=1e-9)
        assert row["nll_first_reference"] == pytest.approx(mine["first_a"].mean(), rel=1e-9)


def test_a_model_without_a_context_has_nothing_to_recall(compared):
    """Both costs of a bigram model are those of the same bigrams, whatever their counts: its knee is the least count."""
    by_count = compared[0].by_count
    alone = by_count.filter(pl.col("model") == "control:bigram", "repeated")
    assert (alone["nll_first_model"] - alone["nll_model"]).abs().max() < 1e-9
    looked_at = alone.filter(pl.col("tokens") >= MIN_TOKENS)
    least = looked_at["low"].min()
    assert knees(by_count)["control:bigram"] == knees(by_count)["control:unigram"] == Knee(least, least, looked_at["high"].max())


def test_the_knee_is_in_manifest_json_and_notes(compared, small_slices):
    tables, folder = compared
    facts = knee_facts(tables.by_count)
    assert list(facts) == list(MODELS)
    assert read_comparison(folder, small_slices).manifest["knee"] == facts
    told = describe_knees(tables.by_count)
    assert told.endswith(", ".join(f"{name} {knee}" for name, knee in knees(tables.by_count).items()) + ".")
    assert told in look(read_comparison(folder, small_slices)).lines
    assert describe_knees(tables.by_count.with_columns(tokens=MIN_TOKENS - 1)) is None
