"""Ablations of models whose recalling layers are known, from slices to tables: one that is built to recall, and one of the zoo."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import save_file

from recallkit import builtin, slicing
from recallkit.ablation import ablate, ablation_path
from recallkit.ablation.tables import PARTS, choose_sets
from recallkit.ablation.view import which_recall
from recallkit.attribution.tables import attribute_gap
from recallkit.errors import UsageError, UserError
from recallkit.models import zoo
from recallkit.models.ablation import PlacedMixer
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.language_model import LanguageModel
from recallkit.models.spec import ModelSpec, one_model
from recallkit.options import ScoringOptions, TextOptions
from recallkit.scoring import score, score_path
from recallkit.storage import artifacts
from tests.conftest import made_up_texts, write_jsonl

WIDTH, VOCAB = 64, 4096
CPU = ScoringOptions(device="cpu", batch_tokens=2048)
RECALL, NOISE = 1, (0, 2)


def built(folder, copied: float, head: int | None = None) -> str:
    """A hybrid whose layer 1 recalls by construction: it adds what followed the earlier occurrences of the token; the others add noise.

    It attends to the places after the token's occurrences (`keys="matches"`), all alike since keys are zero, and copies so much of what it
    finds. Of four heads (`head`) it does so with one alone; the others read the same places, and nothing of them is used.
    """
    heads = 1 if head is None else 4
    layers = (
        LayerConfig("gated_short_conv"),
        LayerConfig("selective_attention", {"num_heads": heads, "keys": "matches"}),
        LayerConfig("mamba"),
    )
    torch.manual_seed(0)
    model = LanguageModel(ArchitectureConfig(VOCAB, WIDTH, layers, mlp="none"))
    with torch.no_grad():
        model.embedding.weight.copy_(0.15 * torch.randn(VOCAB, WIDTH))
        model.blocks[RECALL].mixer.qkv.weight.copy_(torch.cat([torch.zeros(2 * WIDTH, WIDTH), torch.eye(WIDTH)]))
        used = torch.ones(WIDTH) if head is None else (torch.arange(WIDTH) // (WIDTH // heads) == head) + 1e-3
        model.blocks[RECALL].mixer.out_proj.weight.copy_(copied * torch.eye(WIDTH) * used)
        for place in NOISE:
            for parameter in model.blocks[place].mixer.out_proj.parameters():
                parameter.mul_(1e-3)
    folder.mkdir()
    save_file(model.state_dict(), folder / zoo.WEIGHTS)
    (folder / zoo.CONFIG).write_text(zoo.config_json(model.config))
    return str(folder)


@pytest.fixture(scope="module")
def recaller(tmp_path_factory):
    return built(tmp_path_factory.mktemp("models") / "recaller", 1.0)


@pytest.fixture(scope="module")
def slices(tmp_path_factory, small_slices):
    """Made-up text in documents of a sequence each, so that intervals are of many."""
    folder = tmp_path_factory.mktemp("made")
    twice = [f"{text} {text}" for text in made_up_texts(24, 60, seed=5)]  # so that who recalls predicts better than a guess
    texts = write_jsonl(folder / "valid.jsonl", twice, "books")
    text = TextOptions([str(texts)], "validation", boundary="document")
    slicing.slice_text(text, folder / "slices", counts=small_slices.parent / "counts.duckdb", rare=slicing.RareCount(20), seq_len=64)
    return folder / "slices"


@pytest.fixture(scope="module")
def tables(recaller, slices):
    return ablate(recaller, slices, options=CPU)


def losses(tables, name):
    of = tables.ablation.filter(pl.col("slice") == name)
    return dict(zip(of["mixers"], of["loss"], strict=True))


def test_the_layer_that_recalls_is_found_and_the_others_lose_nothing(tables):
    hits, first = losses(tables, "ar_hit"), losses(tables, "first_rare")
    assert list(hits) == ["0", "1", "2"], "each by itself; no kind has two"
    assert hits["1"] > 1
    assert hits["1"] - first["1"] > 1
    assert max(abs(hits[name]) for name in ("0", "2")) < 0.02
    best = tables.mixers.row(0, named=True)
    assert (best["mixers"], best["kind"], best["layer"]) == ("1", "selective_attention", 1)
    assert 0 < best["recall_lost_ci_low"] < best["recall_lost"] < best["recall_lost_ci_high"]
    assert best["recall_lost"] == pytest.approx(best["recall"], abs=0.02), "without it nothing is recalled"
    assert tables.mixers["recall_lost"][1:].abs().max() < 0.02, "without another as much as before"
    assert " goes through 1 selective_attention (" in which_recall(tables)


def test_a_model_of_the_same_layers_that_recalls_nothing_has_none_that_recalls(slices, tmp_path):
    found = ablate(built(tmp_path / "forgetful", 0.0), slices, options=CPU, asked=["1"], samples=50)
    said = which_recall(found)
    assert said.startswith("forgetful is not shown to recall by association (0.00 nats per AR hit, ")
    assert said.endswith("so no mixer can be named.")


def test_the_tables_are_those_of_a_gap_with_the_model_as_the_reference(tables, recaller, slices):
    paths = [score_path(slices, ModelSpec(recaller)), *(score_path(slices, ModelSpec(recaller, ablate=name)) for name in ("0", "1", "2"))]
    names = ["intact", "0", "1", "2"]
    given = slicing.definitions.parse_slices([name for name in PARTS if name != "ar_hit"])
    gap = attribute_gap(slices / "tokens.parquet", paths[0], paths[1:], names=names, slices=given).gap.filter(pl.col("source") == "ALL")
    for row in tables.ablation.iter_rows(named=True):
        [same] = gap.filter((pl.col("model") == row["mixers"]) & (pl.col("slice") == row["slice"])).to_dicts()
        for ours, theirs in {
            "nll": "nll_reference",
            "nll_ablated": "nll_model",
            "loss": "delta_nll",
            "loss_ci_low": "delta_ci_low",
        }.items():
            assert row[ours] == pytest.approx(same[theirs], abs=1e-12), (row["mixers"], row["slice"], ours)
        assert row["tokens"] == same["tokens"]
        if row["slice"] != "all":
            assert row["share"] == pytest.approx(same["gap_share"], rel=1e-9)
    parts = tables.ablation.filter(pl.col("slice").is_in(PARTS)).group_by("mixers").agg(pl.col("tokens", "share", "share_of_tokens").sum())
    assert parts["tokens"].to_list() == [gap["tokens"].max()] * 3
    np.testing.assert_allclose(parts["share"], 1, rtol=1e-9)
    np.testing.assert_allclose(parts["share_of_tokens"], 1, rtol=1e-9)


def test_by_the_mean_it_is_the_same_layer_and_means_are_made_once(tables, recaller, slices):
    by_mean = ablate(recaller, slices, options=CPU, asked=["1", "2"], by="mean")
    assert losses(by_mean, "ar_hit")["1"] > 1
    assert losses(by_mean, "ar_hit") != losses(tables, "ar_hit")
    assert abs(losses(by_mean, "ar_hit")["2"]) < 0.02
    [means] = (slices / "scores" / "means").glob("*.parquet")
    table = pl.read_parquet(means)
    assert table["mixer"].to_list() == ["0.gated_short_conv", "1.selective_attention", "2.mamba"]
    before = means.stat().st_mtime_ns
    score(ModelSpec(recaller, ablate="0:mean"), slices, CPU)
    assert means.stat().st_mtime_ns == before


def test_finished_work_is_reused_and_none_is_the_model_itself(tables, recaller, slices, capsys):
    again = ablate(recaller, slices, options=CPU)
    assert again.ablation.equals(tables.ablation)
    assert "is complete: reused" in capsys.readouterr().err
    assert (ablation_path(slices, one_model(recaller)) / "manifest.json").is_file()
    score(ModelSpec(recaller, ablate="none"), slices, CPU)
    intact, same = (pl.read_parquet(score_path(slices, ModelSpec(recaller, ablate=name))) for name in (None, "none"))
    assert intact.equals(same)
    manifest = artifacts.read_manifest(score_path(slices, ModelSpec(recaller, ablate="1")))
    assert manifest["model"] == "recaller without 1"


def test_the_head_that_recalls_is_found_by_halves_and_the_rest_is_left_whole(slices, tmp_path, capsys):
    """Head 2 of 4: h0-3, then h0-1 and h2-3, then h2 and h3; the other layers have no heads, and h0-1 is not divided."""
    model = built(tmp_path / "one head", 3.0, head=2)
    found = ablate(model, slices, options=CPU, heads=True, samples=100)
    assert sorted(found.mixers["mixers"]) == ["1.h0-1", "1.h0-3", "1.h2", "1.h2-3", "1.h3"]
    best = found.mixers.row(0, named=True)
    assert (best["mixers"], best["kind"], best["layer"]) == ("1.h2", "selective_attention", 1)
    assert 0 < best["excess_ci_low"] < best["excess"] < best["excess_ci_high"]
    assert best["recall_lost"] == pytest.approx(best["recall"], abs=0.1)
    whole, hits = (losses(found, name) for name in ("all", "ar_hit"))
    [share] = set(found.ablation.filter(slice="ar_hit")["share_of_tokens"])
    other = (whole["1.h2"] - share * hits["1.h2"]) / (1 - share)
    assert best["excess"] == pytest.approx(hits["1.h2"] - other, abs=1e-9)
    assert max(abs(hits[name]) for name in ("1.h3", "1.h0-1")) < 0.05
    assert " goes through 1 selective_attention h2 (" in which_recall(found)
    assert which_recall(found).count("lost without it") == 1, "groups with that head are not named again"
    said = capsys.readouterr().err.replace("\n", " ")
    assert "2 passes over " in said
    assert "one with each of 1 groups of heads replaced; then halves of the groups that recall needs, at most 8 passes in all" in said
    assert said.count("2 passes, one without each half of 1 groups") == 2
    with pytest.raises(
        UserError, match="no heads of mamba can be replaced: what its last matrix reads is not divided into heads; leave out --heads"
    ):
        ablate(model, slices, options=CPU, heads=True, asked=["mamba"])
    with pytest.raises(UsageError, match="heads are replaced by zero alone"):
        ablate(model, slices, options=CPU, heads=True, by="mean")


def test_sets_are_mixers_and_kinds_each_once():
    kinds = ["mamba", "mamba", "attention"]
    placed = [PlacedMixer(place, kind, str(place), None) for place, kind in enumerate(kinds)]
    placed += [PlacedMixer(3, kind, f"3.{kind}", None) for kind in ("mamba", "attention")]

    def named(*asked):
        return [str(each) for each in choose_sets(placed, asked, "zero", "m")]

    assert named("each") == ["0", "1", "2", "3.mamba", "3.attention", "mamba", "attention"]
    assert named("attention", "0", "1+0", "0") == ["attention", "0", "0+1"]
    assert [str(each) for each in choose_sets(placed[:2], ["each"], "mean", "m")] == ["0:mean", "1:mean"]
    for wrong in (["none"], ["0:mean"], []):
        with pytest.raises(UsageError, match="no sets of mixers"):
            choose_sets(placed, wrong, "zero", "m")
    with pytest.raises(UserError, match="it has no mixer hyena"):
        choose_sets(placed, ["hyena"], "zero", "m")


def test_an_ablated_model_is_not_ablated_again(slices):
    with pytest.raises(UsageError, match="it is ablated already"):
        ablate("zoo:hybrid,ablate=0", slices)


def test_the_selective_layers_of_the_zoo_are_those_that_recall(home, tmp_path):
    text = TextOptions(("demo:validation",), "validation", limit_tokens=2000)
    slicing.slice_text(text, tmp_path / "slices", counts=builtin.counts(), seq_len=256)
    found = ablate("zoo:base-conv-selective", tmp_path / "slices", options=CPU, asked=["0", "1", "2", "3"], samples=60)
    hits, first, whole = (losses(found, name) for name in ("ar_hit", "first_rare", "all"))
    for name in ("1", "3"):
        assert hits[name] > 0.3
        assert hits[name] - first[name] > 0.3
        assert hits[name] > 3 * whole[name], "little else is lost"
    assert hits["2"] - first["2"] < 0.1, "what it does is of use where nothing is recalled"
    assert hits["0"] < 2 * whole["0"], "without the first layer nothing is predicted"
    lost = dict(found.mixers.select("mixers", "recall_lost").rows())
    assert lost["2"] < 0.1 < 0.3 < lost["3"] < lost["1"] < lost["0"], "a model that breaks without a layer recalls nothing, either"
    assert (
        which_recall(found) == "Which mixers recall goes through is not known: AR hits come from effectively 1.0 documents; 5 are needed."
    )
