"""Shares and first-occurrence controls of pairs whose difference is known: a cache, planted deficits, models that know nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recallkit
from recallkit import scoring
from recallkit.attribution.tables import attribute_gap
from recallkit.measure.shares import ALL_TOKENS, GAP_MAY_BE_ZERO, MODEL_LIKE_UNIFORM, REFERENCE_LIKE_UNIFORM
from recallkit.models.control import CACHE_WEIGHT
from recallkit.scoring import score_path
from recallkit.slicing.definitions import parse_slices
from recallkit.slicing.view import manifest_of
from recallkit.storage import artifacts

REFERENCE = "control:bigram"
Change = Callable[[np.ndarray, pl.DataFrame], np.ndarray]


@pytest.fixture(scope="module")
def slices(small_slices) -> Path:
    scoring.score(REFERENCE, small_slices)
    return small_slices


@pytest.fixture
def planted(slices, tmp_path) -> Callable[[str, Change], Path]:
    """Scores of the reference under another name, with a known change in NLL (nats) of each token."""
    labels = pl.read_parquet(slices / "tokens.parquet")
    rare = labels["train_count"] <= manifest_of(slices)["max_count"]
    labels = labels.with_columns(rare=rare)

    def plant(name: str, change: Change) -> Path:
        path, out = score_path(slices, REFERENCE), tmp_path / f"{name}.parquet"
        table = pq.read_table(path)
        nlls = change(np.asarray(table["nll"]).astype(np.float64), labels).astype(np.float32)
        table = table.set_column(table.schema.get_field_index("nll"), "nll", pa.array(nlls))
        artifacts.write_parquet(out, [table], table.schema, {**artifacts.read_manifest(path), "model": name})
        return out

    return plant


def overall(folder: Path, reference: Path, model: Path, **options) -> dict[str, dict]:
    tables = attribute_gap(folder / "tokens.parquet", reference, [model], **options)
    return {row["slice"]: row for row in tables.gap.filter(source="ALL").iter_rows(named=True)}


def test_a_cache_is_worth_nothing_where_bigrams_occur_for_the_first_time(home, tmp_path):
    """`control:recall` gives the cache 0.35 of its probability: on a first occurrence it has no cache yet, or loses by it."""
    recallkit.slice("demo:validation", tmp_path, counts=recallkit.zoo_counts(), max_count=5, seq_len=256, limit_tokens="50k")
    for model in ("control:recall", REFERENCE):
        scoring.score(model, tmp_path)
    found = overall(tmp_path, score_path(tmp_path, "control:recall"), score_path(tmp_path, REFERENCE))
    labels = pl.read_parquet(tmp_path / "tokens.parquet")
    wasted, contexts = {"ar_hit": 0, "repeated": 0}, {}
    for row in labels.iter_rows(named=True):
        earlier, first = contexts.setdefault(row["sequence"], (set(), {}))
        bigram = (row["prev_token"], row["token"])
        first.setdefault(bigram, row["prev_token"] in earlier)  # whether the cache remembers another token after this one
        earlier.add(row["prev_token"])
        for name in wasted:
            wasted[name] += first[bigram] * row[name]
    gap = found["all"]["delta_nll"] * len(labels)
    assert gap > 0
    for name, times in wasted.items():
        assert times > 100
        assert found[name]["control_share"] == pytest.approx(times * math.log(1 - CACHE_WEIGHT) / gap, rel=1e-5)
    assert found["ar_hit"]["control_share"] < 0 < found["ar_hit"]["gap_share"], "the gap in AR hits is not one of their bigrams"


@pytest.mark.parametrize(("forgotten", "lost"), [(1, 0), (0, 1), (0.5, 2)])
def test_the_control_is_what_lost_knowledge_of_rare_bigrams_has_of_the_gap(slices, planted, forgotten, lost):
    """So many nats worse on all rare bigrams, repeated or not, where nothing is recalled less, and so many on AR hits."""
    model = planted("worse", lambda nll, labels: nll + forgotten * labels["rare"].to_numpy() + lost * labels["ar_hit"].to_numpy())
    found = overall(slices, score_path(slices, REFERENCE), model)
    labels = pl.read_parquet(slices / "tokens.parquet")
    rare, num_hits = (labels["train_count"] <= manifest_of(slices)["max_count"]).sum(), labels["ar_hit"].sum()
    hits, gap = found["ar_hit"], forgotten * rare + lost * num_hits
    assert hits["gap_share"] == pytest.approx((forgotten + lost) * num_hits / gap, rel=1e-5)
    assert hits["control_share"] == pytest.approx(forgotten * num_hits / gap, rel=1e-5)
    assert hits["enrichment"] == pytest.approx(hits["gap_share"] / hits["share_of_tokens"], rel=1e-9)
    assert not hits["void"]
    if not lost:
        assert (hits["control_ci_low"], hits["control_ci_high"]) == pytest.approx((hits["ci_low"], hits["ci_high"]), rel=1e-5)
    if not forgotten:
        assert (hits["control_ci_low"], hits["control_ci_high"]) == (0, 0)
        assert found["repeated"]["gap_share"] == pytest.approx(1)


def test_the_same_gap_on_every_token_is_not_enriched(slices, planted):
    found = overall(slices, score_path(slices, REFERENCE), planted("worse", lambda nll, labels: nll + 1))
    for row in found.values():
        assert row["enrichment"] == pytest.approx(1, rel=1e-5)
        assert row["gap_share"] == pytest.approx(row["share_of_tokens"], rel=1e-5)
    for name in ("ar_hit", "repeated"):
        assert found[name]["control_share"] == pytest.approx(found[name]["share_of_tokens"], rel=1e-5)
    assert found["all"]["control_share"] is found["other"]["control_share"] is None


def test_models_that_know_nothing_have_no_share(slices, planted):
    """Uniform guesses, and a random model, which is worse than that."""
    uniform = math.log(manifest_of(slices)["tokenizer"]["vocab_size"])
    rng = np.random.default_rng(0)
    guess = planted("uniform", lambda nll, labels: np.full(len(nll), np.nextafter(np.float32(uniform), np.float32(99))))
    random = planted("random", lambda nll, labels: uniform + rng.gamma(2, 1, len(nll)))
    for reference, model, note in (
        (score_path(slices, REFERENCE), random, MODEL_LIKE_UNIFORM),
        (random, score_path(slices, REFERENCE), REFERENCE_LIKE_UNIFORM),
        (guess, random, f"{REFERENCE_LIKE_UNIFORM}; {MODEL_LIKE_UNIFORM}"),
    ):
        tables = attribute_gap(slices / "tokens.parquet", reference, [model], num_resamples=200)
        for rows in (tables.gap, tables.by_partition, tables.by_threshold.filter(pl.col("tokens") > 0)):
            assert all(row["note"].startswith(note) and row["void"] for row in rows.iter_rows(named=True))


def test_a_gap_like_noise_and_a_slice_of_all_tokens_have_no_share(slices, planted):
    rng = np.random.default_rng(1)
    noise = planted("noise", lambda nll, labels: nll + rng.normal(0, 1, len(nll)))
    for row in overall(slices, score_path(slices, REFERENCE), noise).values():
        assert row["note"] == GAP_MAY_BE_ZERO
        assert row["void"]
    worse = planted("worse", lambda nll, labels: nll + 1)
    found = overall(slices, score_path(slices, REFERENCE), worse, slices=parse_slices(["everything=token >= 0"]))
    assert (found["everything"]["note"], found["everything"]["gap_share"]) == (ALL_TOKENS, 1)
    assert found["everything"]["void"]
    assert not found["all"]["void"], "that all of the gap is in all of the tokens is not told as a share"
    assert not found["ar_hit"]["void"]
