"""Retained, shares and controls of models whose difference is known: caches of any weight, less
knowledge, planted deficits.

`control:recall` is (1 - m) p + m c of `control:bigram`'s p, where its cache c remembers what
followed the last token, and p elsewhere. So a cache of any other weight, over any other knowledge
p, is a mixture of the two models' probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recallkit
from recallkit.attribution.tables import attribute_gap
from recallkit.models.control import CACHE_WEIGHT
from recallkit.scoring import score_path
from recallkit.storage import parquet_files

MODELS = ("control:recall", "control:bigram")
MAX_COUNT, VOCABULARY = 5, 4096


@pytest.fixture(scope="module")
def slices(home, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("known")
    counts = recallkit.zoo_counts()
    recallkit.slice(
        "demo:validation",
        folder,
        counts=counts,
        max_count=MAX_COUNT,
        seq_len=256,
        limit_tokens="50k",
    )
    recallkit.score(MODELS, slices=folder)
    return folder


@pytest.fixture
def hits_of(slices, tmp_path) -> Callable[..., dict]:
    """The figures of AR hits of a model with these NLLs beside a reference."""

    def compare(nll: np.ndarray, reference: str) -> dict:
        path, out = score_path(slices, reference), tmp_path / "model.parquet"
        table = (
            pq.read_table(path).drop(["nll"]).append_column("nll", pa.array(nll.astype(np.float32)))
        )
        parquet_files.write_parquet(
            out, [table], table.schema, {**parquet_files.read_manifest(path), "model": "model"}
        )
        gap = attribute_gap(slices / "tokens.parquet", path, [out]).gap
        return gap.filter(source="ALL", slice="ar_hit").row(0, named=True)

    return compare


def probabilities(slices):
    """Of both models, (tokens,) each, and whether the cache remembers anything."""
    nlls = [
        pl.read_parquet(score_path(slices, model))["nll"].to_numpy().astype(np.float64)
        for model in MODELS
    ]
    return np.exp(-nlls[0]), np.exp(-nlls[1]), nlls[0] != nlls[1]


@pytest.mark.parametrize("weight", [0, 0.05, 0.1, 0.2, 0.3])
def test_what_is_retained_is_the_ratio_of_the_caches_weights(slices, hits_of, weight):
    recall, bigram, _ = probabilities(slices)
    hits = hits_of(-np.log(bigram + weight / CACHE_WEIGHT * (recall - bigram)), "control:recall")
    assert hits["retained"] == pytest.approx(weight / CACHE_WEIGHT, abs=1e-6)
    assert hits["gain_model"] == pytest.approx(
        weight / CACHE_WEIGHT * hits["gain_reference"], abs=1e-9
    )
    assert hits["gain_reference"] > 0.1
    assert [hits["retained_ci_low"], hits["retained_ci_high"]] == pytest.approx(
        [hits["retained"]] * 2, abs=1e-6
    ), "in every document"


def test_recall_is_retained_however_much_less_is_known_and_the_gap_share_falls(slices, hits_of):
    recall, bigram, remembers = probabilities(slices)
    shares = []
    for unknown in (0.0, 0.1, 0.3, 0.6):
        less = unknown * (1 / VOCABULARY - bigram)
        poorer = recall + np.where(remembers, 1 - CACHE_WEIGHT, 1) * less
        retained = hits_of(-np.log(poorer), "control:recall")["retained"]
        assert 1 - 1e-9 < retained < 1.01
        without = hits_of(-np.log(bigram + less), "control:recall")
        assert 100 * without["gain_model"] == pytest.approx(0, abs=1e-5), (
            "whoever recalls nothing gains nothing"
        )
        assert without["retained"] == pytest.approx(0, abs=1e-6)
        shares.append(without["gap_share"])
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 2 * shares[-1], "of the same loss of recall"


@pytest.mark.parametrize("saved", [0.75, 0, -0.5])
def test_efficiency_is_what_repetition_saves_of_the_nats_at_first_occurrences(
    slices, hits_of, saved
):
    """Of a bigram model, to which a repeated bigram costs as much as its first occurrence."""
    repeated = pl.read_parquet(slices / "tokens.parquet")["repeated"].to_numpy()
    _, bigram, _ = probabilities(slices)
    hits = hits_of(-np.log(bigram) * np.where(repeated, 1 - saved, 1), "control:recall")
    ends = [hits[f"efficiency_model{end}"] for end in ("", "_ci_low", "_ci_high")]
    assert ends == pytest.approx([saved] * 3, abs=1e-6)
    assert (
        hits["efficiency_reference_ci_low"]
        < hits["efficiency_reference"]
        < hits["efficiency_reference_ci_high"]
        < 1
    )


@pytest.mark.parametrize(("forgotten", "lost"), [(1, 0), (0, 1), (0.5, 2)])
def test_the_control_is_what_lost_knowledge_of_rare_bigrams_has_of_the_gap(
    slices, hits_of, forgotten, lost
):
    """So many nats worse on all rare bigrams, repeated or not, where nothing is recalled less, and
    so many on AR hits."""
    labels = pl.read_parquet(slices / "tokens.parquet")
    rare, hit = (labels["train_count"] <= MAX_COUNT).to_numpy(), labels["ar_hit"].to_numpy()
    _, bigram, _ = probabilities(slices)
    hits = hits_of(-np.log(bigram) + forgotten * rare + lost * hit, "control:bigram")
    gap = forgotten * rare.sum() + lost * hit.sum()
    assert hits["gap_share"] == pytest.approx((forgotten + lost) * hit.sum() / gap, rel=1e-5)
    assert hits["control_share"] == pytest.approx(forgotten * hit.sum() / gap, rel=1e-5)
    ends = [
        hits[f"{name}_ci_{end}"]
        for name in ("control_share", "gap_share")
        for end in ("low", "high")
    ]
    assert lost or ends[:2] == pytest.approx(ends[2:], rel=1e-5)
    assert forgotten or ends[:2] == [0, 0]
    assert hits["delta_nll"] == pytest.approx(forgotten + lost, rel=1e-5)
