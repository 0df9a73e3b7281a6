"""The table by step: means as a slow computation finds them, the recall of models whose recall is known, when it appears."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import recallkit
from recallkit.errors import UserError
from recallkit.measure.intervals import effective_number, freedom_of
from recallkit.measure.labelled import open_tokens
from recallkit.measure.sums import RowSums
from recallkit.models.spec import list_models
from recallkit.scoring import ScoringOptions, plan_scores, score_path
from recallkit.tracking.run import TrackedRun, track
from recallkit.tracking.tables import FIRST, LEAST_RECALL, Tracked, make_tables, recall_appears

STEPS = {"step-0": "control:unigram", "step-10": "control:bigram", "step-20": "control:recall"}


@pytest.fixture(scope="module")
def tracked(small_slices, tmp_path_factory):
    """Control models as the checkpoints of a run: from unigrams to a bigram model to one that recalls."""
    counts = small_slices.parent / "counts.duckdb"
    reference, *checkpoints = list_models({"ref": "control:recall"}, STEPS)
    return track(reference, checkpoints, small_slices, tmp_path_factory.mktemp("track"), ScoringOptions(counts=counts))


def slow_means(slices, model):
    """The means of a model's NLLs, token by token in Python."""
    labels = pl.read_parquet(slices / "tokens.parquet")
    nll = pl.read_parquet(score_path(slices, model))["nll"].to_list()
    most = open_tokens(slices / "tokens.parquet").max_count
    seen, found = {}, {"nll": [], "ar_nll": [], "first_nll": [], "other_nll": []}
    for row, value in zip(labels.iter_rows(named=True), nll, strict=True):
        bigram = (row["sequence"], row["prev_token"], row["token"])
        first = seen.setdefault(bigram, value)
        is_hit = row["repeated"] and row["train_count"] <= most
        found["nll"].append(value)
        found["ar_nll" if is_hit else "other_nll"].append(value)
        if is_hit:
            found["first_nll"].append(first)
    return {name: float(np.mean(values)) for name, values in found.items()}


def test_means_are_those_of_a_slow_computation(tracked, small_slices):
    tables, _ = tracked
    assert tables.track["step"].to_list() == [None, 0, 10, 20]
    for row in tables.track.to_dicts():
        wanted = slow_means(small_slices, row["model"])
        assert {name: row[name] for name in wanted} == pytest.approx(wanted, rel=1e-6)
        assert row["recall"] == pytest.approx(wanted["first_nll"] - wanted["ar_nll"], rel=1e-6)
        for name in ("nll", "ar_nll", "first_nll", "other_nll", "recall"):
            assert row[f"{name}_ci_low"] <= row[name] <= row[f"{name}_ci_high"]


def test_models_without_recall_have_none_and_the_reference_its_own(tracked):
    rows = {row["step"]: row for row in tracked[0].track.to_dicts()}
    for step in (0, 10):  # a unigram or bigram model gives a bigram the same NLL wherever it is
        assert rows[step]["recall"] == pytest.approx(0, abs=1e-6)
        assert rows[step]["recall_ci_high"] == pytest.approx(0, abs=1e-6)
    assert rows[20]["recall"] > 1
    assert (rows[20]["ar_gap"], rows[20]["ar_gap_ci_low"], rows[20]["ar_gap_ci_high"]) == (0, 0, 0)
    assert rows[10]["ar_gap"] == pytest.approx(rows[10]["ar_nll"] - rows[None]["ar_nll"])
    assert {row["reference"] for row in rows.values()} == {"ref"}


def test_recall_appears_where_it_stays(tracked):
    assert recall_appears(tracked[0].track.to_dicts()) == 20

    def at(*lows):
        return recall_appears([{"step": None, "recall_ci_low": 9.0}, *({"step": n, "recall_ci_low": low} for n, low in enumerate(lows))])

    enough = LEAST_RECALL + 0.01
    assert at(0, enough, enough) == 1
    assert at(enough, 0, enough) == 2
    assert at(enough, enough, LEAST_RECALL) is None, "the last one does not recall"
    assert at(enough, enough) == 0
    assert at(None, None) is None
    assert at() is None


def test_recall_rarely_appears_where_there_is_none():
    """Documents of unequal sizes whose hits' difference varies around LEAST_RECALL itself: called recall about once in forty."""
    rng, found, runs = np.random.default_rng(0), 0, 200
    for _ in range(runs):
        hits = rng.integers(5, 40, 40)
        tokens = np.column_stack([np.full(40, 1000), hits, 1000 - hits, hits]).astype(float)  # all, hits, other, first occurrences
        of_documents = rng.normal(LEAST_RECALL, 1.0, 40)
        models = []
        for step in range(4):
            nlls = np.zeros((1, *tokens.shape))
            nlls[..., FIRST] = (of_documents + rng.normal(0, 0.2, 40)) * hits
            models.append(Tracked(str(step), step, RowSums(tokens, nlls, np.full(4, 40), effective_number(tokens), freedom_of(tokens))))
        found += recall_appears(make_tables(models, num_resamples=200).track.to_dicts()) is not None
    assert 0 < found / runs < 0.045


def test_the_result_grows_but_not_with_another_reference(tracked, small_slices):
    _, out = tracked
    counts = small_slices.parent / "counts.duckdb"
    again, _ = track(
        *list_models({"ref": "control:recall"}, {"step-10": "control:bigram"})[:1],
        list_models({"step-10": "control:bigram"}),
        small_slices,
        out,
        ScoringOptions(counts=counts),
    )
    assert again.track["step"].to_list() == [None, 10]
    with pytest.raises(UserError, match=r"other options \(differs in reference"):
        TrackedRun(small_slices, out, list_models("control:unigram")[0])


def test_damage_and_missing_labels_are_said(small_slices, tmp_path, tracked):
    counts = small_slices.parent / "counts.duckdb"
    [spec] = list_models({"step-0": "control:unigram"})
    plan_scores([spec], small_slices, ScoringOptions(counts=counts))[0].run()
    recallkit.slice(small_slices.parent / "valid.jsonl", tmp_path / "bare", seq_len=64)
    with pytest.raises(UserError, match="without training counts"):
        TrackedRun(tmp_path / "bare", tmp_path / "out")
    recallkit.slice(small_slices.parent / "valid.jsonl", tmp_path / "none", counts=counts, max_count=0, seq_len=64, limit_tokens=30)
    with pytest.raises(UserError, match="no token of it is an AR hit"):
        TrackedRun(tmp_path / "none", tmp_path / "out")
