"""Pairs of models that read side by side: three files from one run, the same bytes however it went,
refused where they do not fit."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recallkit import scoring
from recallkit.errors import UserError
from recallkit.models.spec import list_models
from recallkit.scoring import ScoringOptions, make_scores, plan_scores, score_path, scores
from recallkit.scoring import plan as planning
from recallkit.scoring.plan import ScoringPlan
from recallkit.storage import parquet_files
from tests.scoring.test_run import copy_of, interrupting_batches

OPTIONS = ScoringOptions(device="cpu", batch_tokens=512)


def pair_of(
    slices: Path, reference: object, model: object, options: ScoringOptions = OPTIONS
) -> ScoringPlan:
    plans = plan_scores([f"reference={reference}", f"model={model}"], slices, options)
    return plans[1].against(plans[0])


def files_of(slices: Path) -> dict[str, str]:
    """The files of scores by name, and their digests; nothing unfinished is left."""
    assert not list((slices / "scores").rglob(".*"))
    found = sorted((slices / "scores").rglob("*.parquet"))
    return {
        str(path.relative_to(slices / "scores")): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
    }


@pytest.fixture
def models(tiny_model) -> tuple[Path, Path]:
    return tiny_model("llama"), tiny_model("gpt_neox")


def test_an_interrupted_pair_goes_on_and_writes_the_same_bytes(
    few_slices, models, tmp_path, monkeypatch
):
    """The divergence, and the scores of both, whether or not the run was interrupted in the middle
    of a part."""
    at_once, slices = copy_of(few_slices, tmp_path / "at-once"), copy_of(few_slices, tmp_path)
    monkeypatch.setattr(planning, "SEQUENCES_PER_PART", 8)
    monkeypatch.setattr(scores, "SEQUENCES_PER_ROW_GROUP", 16)
    options = replace(OPTIONS, batch_tokens=128)
    made = make_scores(pair_of(at_once, *models, options))
    calls = interrupting_batches(monkeypatch, 7)
    with pytest.raises(KeyboardInterrupt):
        make_scores(pair_of(slices, *models, options))
    assert not list((slices / "scores").rglob("*.parquet"))[1:], "nothing but a part"
    assert make_scores(pair_of(slices, *models, options)) == made
    assert len(calls) == 1 + -(-made["num_rows"] // 128), "what was done was not done again"
    assert files_of(slices) == files_of(at_once)
    assert list(files_of(slices)) == [
        "against-reference/model.parquet",
        "model.parquet",
        "reference.parquet",
    ]


def test_a_pair_makes_the_scores_that_are_missing_and_no_others(few_slices, models, tmp_path):
    """They are those that `score` makes, which reuses them; scores that are there stay as they
    are."""
    alone, slices = copy_of(few_slices, tmp_path / "alone"), copy_of(few_slices, tmp_path)
    for name, path in zip(("reference", "model"), models, strict=True):
        scoring.score(f"{name}={path}", alone, OPTIONS)
    before = files_of(alone)
    for folder in (alone, slices):
        manifest = make_scores(pair_of(folder, *models))
        assert "reused" not in manifest
        assert make_scores(pair_of(folder, *models))["reused"]
    assert {name: files_of(alone)[name] for name in before} == before
    for name, path in zip(("reference", "model"), models, strict=True):
        assert scoring.score(f"{name}={path}", slices, OPTIONS)["reused"]
        manifests = [
            parquet_files.read_manifest(score_path(folder, name)) for folder in (slices, alone)
        ]
        assert manifests[0] == manifests[1], "the bytes of its state among it"
        assert manifests[0]["state_bytes"] > 0
        mine, theirs = (pl.read_parquet(score_path(folder, name)) for folder in (slices, alone))
        np.testing.assert_allclose(mine["nll"], theirs["nll"], rtol=0, atol=1e-6)
        assert mine.drop("nll").equals(theirs.drop("nll"))
    spec = list_models([f"reference={models[0]}"])[0]
    found, [own, theirs] = (
        pl.read_parquet(score_path(slices, "model", against=spec)),
        [pl.read_parquet(score_path(slices, name))["argmax"] for name in ("model", "reference")],
    )
    assert found.columns == ["sequence", "position", "kl", "agrees"]
    assert found["agrees"].equals((own == theirs).alias("agrees"))
    assert found["kl"].min() > 0


def test_processes_write_the_same_bytes(few_slices, models, tmp_path, warm_workers):
    at_once, slices = copy_of(few_slices, tmp_path / "at-once"), copy_of(few_slices, tmp_path)
    make_scores(pair_of(at_once, *models))
    make_scores(pair_of(slices, *models, replace(OPTIONS, workers=2)))
    assert files_of(slices) == files_of(at_once)


def test_what_has_no_divergence_is_refused(few_slices, models, tmp_path, tiny_model):
    slices = copy_of(few_slices, tmp_path)
    for model, message in (
        (
            "control:bigram",
            (
                "model: a control model gives no predictions over the whole vocabulary, .*; leave "
                "out this model, or the divergence"
            ),
        ),
        (
            f"{models[1]},tokenizer=bytes",
            (
                "model: another tokenizer: predictions over different vocabularies have no "
                "divergence; .*"
            ),
        ),
        (
            f"{models[1]},context=16,stride=8",
            (
                "model: it and reference read sequences in different windows; give both the same "
                "--context .*"
            ),
        ),
    ):
        with pytest.raises(UserError, match=message):
            pair_of(slices, models[0], model)
    with pytest.raises(UserError, match="reference: another tokenizer"):
        pair_of(slices, f"{models[0]},tokenizer=bytes", models[1])
    both = replace(OPTIONS, context=16, stride=8)
    assert make_scores(pair_of(slices, *models, both))["context"] == 16


def test_a_divergence_of_other_scores_is_refused(few_slices, models, tmp_path):
    slices = copy_of(few_slices, tmp_path)
    make_scores(pair_of(slices, *models))
    scoring.score(f"reference={models[0]}", slices, replace(OPTIONS, dtype="bfloat16"), force=True)
    with pytest.raises(
        UserError,
        match=r"against-reference/model.parquet: already made with other options \(differs in reference\); delete this file",
    ):
        make_scores(pair_of(slices, *models))
