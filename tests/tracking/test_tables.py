"""The table by step: means as a slow computation finds them, the recall of models whose recall is
known, when it appears."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import recallkit
from recallkit.errors import UserError
from recallkit.measure.ratio import Spread
from recallkit.measure.sums import TableSums
from recallkit.models.spec import list_models
from recallkit.scoring import score_path
from recallkit.tracking.run import TrackedRun
from recallkit.tracking.tables import (
    ABSENT,
    APPEARS,
    GONE,
    UNKNOWN,
    TrackTables,
    make_tables,
    measure,
)
from recallkit.tracking.view import answer
from tests.known_truth import PATH

SLICES = ("repeated", "content_word", "state_word", "copy:k1")
STEPS = ("step-0=control:unigram", "step-10=control:bigram", "step-20=control:recall")


@pytest.fixture(scope="module")
def tracked(small_slices, tmp_path_factory):
    """Control models as the checkpoints of a run: from unigrams to a bigram model to one that
    recalls."""
    counts, out = small_slices.parent / "counts.duckdb", tmp_path_factory.mktemp("track")
    return recallkit.track(
        {"ref": "control:recall"},
        STEPS,
        slices=small_slices,
        counts=counts,
        out=out,
        causal=True,
        slice=SLICES,
    ), out


def slow_means(slices, model):
    """A model's means, token by token in Python."""
    labels = pl.read_parquet(slices / "tokens.parquet")
    nll = pl.read_parquet(score_path(slices, model))["nll"].to_list()
    firsts, means = {}, {"nll": nll, "ar_nll": [], "first_nll": [], "other_nll": [], "gain": []}
    for row, value in zip(labels.iter_rows(named=True), nll, strict=True):
        first = firsts.setdefault((row["sequence"], row["prev_token"], row["token"]), value)
        means["ar_nll" if row["ar_hit"] else "other_nll"].append(value)
        if row["ar_hit"]:
            means["first_nll"].append(first)
            means["gain"].append(math.exp(-value) - math.exp(-first))
    return {name: float(np.mean(values)) for name, values in means.items()}


def test_means_are_those_of_a_slow_computation(tracked, small_slices):
    tables, _ = tracked
    assert tables.track["step"].to_list() == [None, 0, 10, 20]
    for row in tables.track.to_dicts():
        wanted = slow_means(small_slices, row["model"])
        assert {name: row[name] for name in wanted} == pytest.approx(wanted, rel=1e-6)
        assert all(row[f"{name}_ci_low"] <= row[name] <= row[f"{name}_ci_high"] for name in wanted)


def test_named_slices_are_those_of_a_slow_computation(tracked, small_slices):
    by_slice = tracked[0].by_slice
    assert by_slice.select("step", "slice").rows() == [
        (step, name) for step in (None, 0, 10, 20) for name in SLICES
    ]
    labels = pl.read_parquet(small_slices / "tokens.parquet").hstack(
        pl.read_parquet(small_slices / "words.parquet")
    )
    for model, step in zip(
        ("ref", *(name.partition("=")[0] for name in STEPS)), (None, 0, 10, 20), strict=True
    ):
        rows = labels.with_columns(
            pl.read_parquet(score_path(small_slices, model))["nll"].cast(pl.Float64)
        )
        first = pl.col("nll").first().over("sequence", "prev_token", "token")
        rows = rows.with_columns(first_nll=first).with_columns(
            gain=(-pl.col("nll")).exp() - (-pl.col("first_nll")).exp()
        )
        for name, is_in in (
            ("repeated", pl.col("repeated")),
            ("content_word", pl.col("word_kind") != "function"),
            (
                "state_word",
                (pl.col("word_kind") != "function") & (pl.col("context_class") == "new"),
            ),
            ("copy:k1", pl.col("context_class") != "new"),
        ):
            own = rows.filter(is_in)
            row = by_slice.filter(pl.col("step").eq_missing(step), slice=name).row(0, named=True)
            assert [row["tokens"], row["nll"], row["gain"]] == pytest.approx(
                [own.height, own["nll"].mean(), own["gain"].mean()], abs=1e-6
            )
            efficiency = (
                1 - own["nll"].sum() / own["first_nll"].sum() if name == "repeated" else None
            )
            assert row["efficiency"] == pytest.approx(efficiency, abs=1e-6)
            assert row["nll_ci_low"] <= row["nll"] <= row["nll_ci_high"]


def test_models_without_recall_retain_none_of_it_and_the_reference_all(tracked):
    rows = {row["step"]: row for row in tracked[0].track.to_dicts()}
    ends = ("", "_ci_low", "_ci_high")
    for step, gain, retained in ((0, 0, 0), (10, 0, 0), (20, rows[None]["gain"], 1)):
        assert rows[step]["gain"] == gain
        assert [rows[step][f"retained{end}"] for end in ends] == [retained] * 3
        assert rows[step]["ar_gap"] == pytest.approx(rows[step]["ar_nll"] - rows[None]["ar_nll"])
    assert (rows[None]["retained"], rows[None]["ar_gap"]) == (None, None)
    assert {row["reference"] for row in rows.values()} == {"ref"}
    assert tracked[0].verdict.row(0) == (APPEARS, 20, 20, 20)


def test_causal_recall_is_that_of_intervene(tracked, small_slices):
    """Of as many samples of the same slice; nothing is lost by a unigram or bigram model."""
    counts = small_slices.parent / "counts.duckdb"
    wanted = recallkit.intervene(
        "control:recall", slices=small_slices, counts=counts, slice=["ar_hit"]
    ).intervene["points"][0]
    assert tracked[0].track["causal"].to_list() == pytest.approx([wanted, 0, 0, wanted])
    assert wanted > 0.15


def test_presence_is_not_called_recall_and_a_cache_is(small_slices, tmp_path):
    """First occurrences cost presence more than AR hits, but a present id is only a little
    likelier: it associates nothing.

    Of the cache's recall gain it has a twentieth, of its recall efficiency, which is of nats, a
    sixth.
    """
    of_hits = {}
    counts = small_slices.parent / "counts.duckdb"
    for name, verdict, points in (("presence", UNKNOWN, 1), ("bigram_cache", APPEARS, 20)):
        model = {f"step-1-{name}": f"{PATH}:{name}"}
        tables = recallkit.track(
            "control:bigram",
            model,
            slices=small_slices,
            counts=counts,
            out=tmp_path / name,
            batch_tokens=2048,
            slice="ar_hit",
        )
        row = tables.track.filter(step=1).row(0, named=True)
        assert tables.verdict["verdict"][0] == verdict
        assert 100 * row["gain"] == pytest.approx(points, rel=0.15)
        assert row["first_nll"] - row["ar_nll"] > 0.2
        assert row["retained"] is None, "the reference is not shown to recall"
        [of_hits[name]] = tables.by_slice.filter(step=1).select("gain", "efficiency").rows()
    gain, efficiency = np.divide(of_hits["presence"], of_hits["bigram_cache"])
    assert [gain, efficiency] == pytest.approx([0.05, 0.16], abs=0.01)


# ----------------------------------------------------------------------------------------- verdicts


def judged(gains: np.ndarray, hits: np.ndarray) -> TrackTables:
    """The tables of a run.

    `gains` (steps, documents): sums over AR hits of documents, of which each has `hits`.
    """
    keys = pl.DataFrame({"slice": ["all", "ar_hit", "other"]})
    tokens = np.stack([hits] * 3, axis=1).astype(np.float64)
    zero = np.zeros_like(tokens)
    checkpoints = []
    for step, gain in enumerate(gains):
        p = np.stack([gain] * 3, axis=1)
        values = {"nll_0": zero, "first_nll_0": zero, "p_0": p, "first_p_0": zero}
        sums = TableSums(keys, Spread.of_sizes(tokens), {"tokens": tokens, **values})
        checkpoints.append(measure(str(step), step, Path(), sums))
    return make_tables(checkpoints)


def planted(*points: float, documents: int = 30, spread: float = 1.0, seed: int = 0) -> TrackTables:
    """A run whose recall gain has these means by step, in points, with a spread between documents
    of 20 AR hits each."""
    rng = np.random.default_rng(seed)
    gains = (
        np.array(points)[:, None]
        + rng.normal(0, spread, documents)
        + rng.normal(0, spread / 4, (len(points), documents))
    )
    return judged(20 * gains / 100, np.full(documents, 20.0))


@pytest.mark.parametrize(
    ("tables", "verdict", "step", "said"),
    [
        (
            planted(0, 0, 9, 9),
            APPEARS,
            2,
            (
                "Recall appears at step 2 (95 % interval 2 to 2): at step 3 {} 8.9 points (8.5 to "
                "9.2)."
            ),
        ),
        (
            planted(9, 9, 9),
            APPEARS,
            0,
            "Recall is present at step 0, the first: at step 2 {} 8.9 points (8.5 to 9.3).",
        ),
        (
            planted(0, 0, 0),
            ABSENT,
            None,
            "Recall is absent: at step 2 {} -0.1 points (-0.5 to 0.3), below 1.",
        ),
        (
            planted(0.5, 0.5),
            ABSENT,
            None,
            "Recall is absent: at step 1 {} 0.4 points (0.1 to 0.8), below 1.",
        ),
        (
            planted(0, 9, 9, 0),
            GONE,
            1,
            (
                "Recall is absent again: at step 3 {} -0.1 points (-0.5 to 0.2), below 1; at "
                "step 1 it was above 1."
            ),
        ),
        (
            planted(0, 1),
            UNKNOWN,
            None,
            (
                "It is undecided whether there is recall: at step 1 {} 0.9 points (0.6 to 1.3), "
                "and its interval contains 1."
            ),
        ),
        (
            planted(0, 9, 1),
            UNKNOWN,
            1,
            "It is undecided whether there is recall: at step 2 {} 0.9 points (0.5 to 1.3), and "
            "its interval contains 1; at step 1 it was above 1.",
        ),
        (
            planted(9, 9, documents=4),
            UNKNOWN,
            None,
            "It is undecided whether there is recall: at step 1 {} 9.0 points, without an "
            "interval: AR hits come from effectively 4.0 documents; 5 are needed.",
        ),
    ],
)
def test_each_verdict_has_its_sentence(tables, verdict, step, said):
    assert tables.verdict.row(0)[:2] == (verdict, step)
    assert answer(tables) == said.format("the recall gain on AR hits is")


def test_a_step_that_is_not_sharp_has_an_interval():
    """Gain rises slowly: it may be above 1 a few steps earlier or later."""
    tables = planted(0, 0.5, 0.8, 1.1, 1.2, 1.4, 2, 9)
    name, step, low, high = tables.verdict.row(0)
    assert name == APPEARS
    assert f" appears at step {step} (95 % interval {low} to {high}): " in answer(tables)
    assert 0 < low < step < high < 7


def test_false_verdicts_are_rare():
    """A gain of 1 point is called recall, or absent, about once in forty times each, however many
    checkpoints there are."""
    runs = range(120)
    ends = [
        planted(*[1] * 12, documents=20, spread=5, seed=seed).verdict["verdict"][0] for seed in runs
    ]
    assert ends.count(APPEARS) / len(runs) < 0.045
    assert (ends.count(ABSENT) + ends.count(GONE)) / len(runs) < 0.045
    earlier = [
        planted(*[1] * 12, -20, documents=20, spread=5, seed=seed).verdict["verdict"][0]
        for seed in runs
    ]
    assert earlier.count(GONE) / len(runs) < 0.045, (
        "of many checkpoints before the last, none is above 1 by chance"
    )


def test_the_result_grows_but_not_with_another_reference(tracked, small_slices):
    _, out = tracked
    counts = small_slices.parent / "counts.duckdb"
    again = recallkit.track(
        {"ref": "control:recall"},
        STEPS[1],
        slices=small_slices,
        counts=counts,
        out=out,
        causal=True,
        slice=SLICES,
    )
    assert again.track["step"].to_list() == [None, 10]
    with pytest.raises(UserError, match=r"other options \(differs in causal, reference, slice"):
        TrackedRun(small_slices, out, list_models("control:unigram")[0])


def test_missing_labels_are_said(small_slices, tmp_path):
    counts, text = small_slices.parent / "counts.duckdb", small_slices.parent / "valid.jsonl"
    recallkit.slice(text, tmp_path / "bare", seq_len=64)
    with pytest.raises(UserError, match="without training counts"):
        TrackedRun(tmp_path / "bare", tmp_path / "out")
    recallkit.slice(
        text, tmp_path / "none", counts=counts, max_count=0, seq_len=64, limit_tokens=30
    )
    with pytest.raises(UserError, match="no token of it is an AR hit"):
        TrackedRun(tmp_path / "none", tmp_path / "out")
