"""The table by step: means as a slow computation finds them, the recall of models whose recall is known, when it appears."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import recallkit
from recallkit.errors import UserError
from recallkit.measure.labelled import open_tokens
from recallkit.models.spec import list_models
from recallkit.scoring import ScoringOptions, plan_scores, score_path
from recallkit.tracking.run import TrackedRun, track
from recallkit.tracking.tables import ABSENT, APPEARS, GONE, LEAST_RECALL, UNKNOWN, TrackTables
from recallkit.tracking.view import answer
from tests.benchmarks.tracking import judged
from tests.known_truth import PATH

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
        for name in ("nll", "ar_nll", "first_nll", "other_nll", "recall"):
            assert row[f"{name}_ci_low"] <= row[name] <= row[f"{name}_ci_high"]


def test_recall_is_that_of_intervene(tracked, small_slices):
    """The same hits, moved in the same way: of as many samples of the same slice."""
    counts = small_slices.parent / "counts.duckdb"
    asked = recallkit.intervene("control:recall", slices=small_slices, counts=counts, samples=500, slice=["ar_hit"], design="exact")
    row = {row["step"]: row for row in tracked[0].track.to_dicts()}[20]
    assert row["recall"] == pytest.approx(asked.intervene["recall"][0], abs=0.1)


def test_models_without_recall_have_none_and_the_reference_its_own(tracked):
    rows = {row["step"]: row for row in tracked[0].track.to_dicts()}
    for step in (0, 10):  # what is moved is further back than a unigram or bigram model looks
        assert (rows[step]["recall"], rows[step]["recall_ci_high"]) == (0, 0)
    assert rows[20]["recall"] > 1
    assert (rows[20]["ar_gap"], rows[20]["ar_gap_ci_low"], rows[20]["ar_gap_ci_high"]) == (0, 0, 0)
    assert rows[10]["ar_gap"] == pytest.approx(rows[10]["ar_nll"] - rows[None]["ar_nll"])
    assert {row["reference"] for row in rows.values()} == {"ref"}
    assert tracked[0].verdict.row(0) == (APPEARS, 20, 20, 20)


def test_presence_is_not_called_recall_and_a_cache_is(small_slices, tmp_path):
    """First occurrences cost presence more than AR hits, which says nothing: it associates nothing."""
    counts = small_slices.parent / "counts.duckdb"
    said = {}
    for name in ("presence", "bigram_cache"):
        [model] = list_models({f"step-1-{name}": f"{PATH}:{name}"})
        [reference] = list_models("control:bigram")
        tables, _ = track(reference, [model], small_slices, tmp_path / name, ScoringOptions(counts=counts, batch_tokens=2048), samples=100)
        said[name] = answer(tables)
        row = tables.track.filter(step=1).row(0, named=True)
        assert row["first_nll"] - row["ar_nll"] > 0.2
    assert said["presence"].startswith("Recall by association is absent: at step 1 AR hits lose 0.0")
    assert said["bigram_cache"].startswith("Recall by association is there from step 1 on, the first: at step 1 AR hits lose ")


# ------------------------------------------------------------------------------------------------------------- verdicts


def run_of(recall: np.ndarray) -> TrackTables:
    """Tables of a run from what it recalls in documents with 20 asked hits each, (steps, documents)."""
    number = recall.shape[1]
    return judged(recall.T, np.arange(number), np.full(number, 20.0), num_resamples=400)


def planted(*means: float, documents: int = 30, spread: float = 0.2, seed: int = 0) -> TrackTables:
    """A run whose recall has these means by step, with a spread between documents."""
    rng = np.random.default_rng(seed)
    return run_of(np.array(means)[:, None] + rng.normal(0, spread, documents) + rng.normal(0, spread / 4, (len(means), documents)))


@pytest.mark.parametrize(
    ("tables", "verdict", "said"),
    [
        (planted(0, 0, 2, 2), (APPEARS, 2, 2, 2), "Recall by association appears at step 2 (95 % interval 2 to 2): at step 3 "),
        (planted(1, 1, 1), (APPEARS, 0, 0, 0), "Recall by association is there from step 0 on, the first: at step 2 "),
        (planted(0, 0, 0), (ABSENT, None, None, None), "Recall by association is absent: at step 2 AR hits lose "),
        (
            planted(0, 2, 2, 0),
            (GONE, 1, None, None),
            "Recall by association appeared at step 1 and is absent again at the last: at step 3 ",
        ),
        (
            planted(2, 2, 0),
            (GONE, 0, None, None),
            "Recall by association was there at step 0, the first, and is absent again at the last: at ",
        ),
        (planted(0.1, 0.1), (ABSENT, None, None, None), "Recall by association is slight: at step 1 AR hits lose 0.08 nats"),
        (planted(0, LEAST_RECALL), (UNKNOWN, None, None, None), "Whether there is recall by association is not known: at step 1 "),
        (
            planted(0, 2, LEAST_RECALL),
            (UNKNOWN, 1, None, None),
            "Recall by association appeared at step 1; whether it is still there at the last is not known: at step 2 ",
        ),
        (planted(4, 4, documents=4), (UNKNOWN, None, None, None), "Whether there is recall by association is not known: at step 1 "),
    ],
)
def test_each_verdict_has_its_sentence(tables, verdict, said):
    """Among them those that were called `no recall`: four documents of 4 nats, 1 nat throughout, and a last checkpoint that dips."""
    assert tables.verdict.row(0) == verdict
    assert answer(tables).startswith(said)
    is_few = tables.track["documents"][0] < 5
    assert ("AR hits come from effectively 4.0 documents; 5 are needed." in answer(tables)) == is_few
    assert "–" not in answer(tables)
    assert (" lie on either side of 0.2" in answer(tables)) == (verdict[0] == UNKNOWN and not is_few)
    assert (", less than 0.2." in answer(tables)) == (verdict[0] in (ABSENT, GONE))


def test_a_step_that_is_not_sharp_has_an_interval():
    """Recall rises slowly, and documents differ: resamples begin earlier and later."""
    tables = planted(0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 2)
    name, step, low, high = tables.verdict.row(0)
    assert name == APPEARS
    assert f" appears at step {step} (95 % interval {low} to {high}): " in answer(tables)
    assert low < high
    assert low <= step <= high


def test_false_verdicts_are_rare():
    """Recall that is LEAST_RECALL itself is called there, or absent, about once in forty times each, however many checkpoints there are."""
    runs = 300
    found = [planted(*[LEAST_RECALL] * 12, documents=20, spread=1.0, seed=seed).verdict["verdict"][0] for seed in range(runs)]
    assert found.count(APPEARS) / runs < 0.045
    assert (found.count(ABSENT) + found.count(GONE)) / runs < 0.045
    assert found.count(UNKNOWN) > 0.9 * runs
    runs = 150
    earlier = [planted(*[LEAST_RECALL] * 12, -3.0, documents=20, spread=1.0, seed=seed).verdict["verdict"][0] for seed in range(runs)]
    assert 0 < earlier.count(GONE) / runs < 0.045, "of many checkpoints before the last, none is called recalling by chance"


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
