"""Ablations of models whose recalling layers are known, from slices to tables: one that is built to recall, and one of the zoo."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import save_file

from recallkit import builtin, slicing
from recallkit.ablation import AblationQuestion, ablate, ablation_path
from recallkit.ablation.tables import PARTS, choose_sets
from recallkit.ablation.view import look, which_recall
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
    finds. Of four heads (`head`) it does so with one alone; the others read the same places, and nothing of them is used. A quarter of the
    embedding tells tokens apart only if it is larger.
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
        model.embedding.weight.copy_((0.15 if head is None else 0.3) * torch.randn(VOCAB, WIDTH))
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


def test_without_the_layer_that_recalls_nothing_is_retained_and_without_another_all(tables):
    hits, first = losses(tables, "ar_hit"), losses(tables, "first_rare")
    assert list(hits) == ["0", "1", "2"], "each by itself; no kind has two"
    assert hits["1"] - first["1"] > 1 > 0.02 > max(abs(hits[name]) for name in ("0", "2"))
    best, *others = tables.mixers.to_dicts()
    assert (best["mixers"], best["kind"], best["layer"]) == ("1", "selective_attention", 1)
    assert 0 < best["gain_lost_ci_low"] < best["gain_lost"] < best["gain_lost_ci_high"]
    assert best["retained"] == pytest.approx(0, abs=0.01) == best["gain"] - best["gain_lost"]
    assert [row["retained"] for row in others] == pytest.approx([1, 1], abs=0.01)
    assert best["loss_ar_hit"] == hits["1"]
    assert which_recall(tables).endswith(") without layer 1 selective_attention.")


def test_a_model_of_the_same_layers_that_recalls_nothing_retains_nothing(slices, tmp_path):
    tables = ablate(built(tmp_path / "forgetful", 0.0), slices, options=CPU, question=AblationQuestion(mixers=["1"]))
    assert which_recall(tables).startswith("forgetful shows no significant recall: its recall gain on AR hits is ")
    assert tables.mixers["retained"].to_list() == [None]


def test_the_tables_are_those_of_a_gap_with_the_model_as_the_reference(tables, recaller, slices):
    names = ["0", "1", "2"]
    intact, *paths = [score_path(slices, ModelSpec(recaller, ablate=name)) for name in (None, *names)]
    parts = slicing.definitions.parse_slices([name for name in PARTS if name != "ar_hit"])
    gap = attribute_gap(slices / "tokens.parquet", intact, paths, names=["intact", *names], slices=parts).gap
    gap = gap.filter(source="ALL").rename({"model": "mixers", "nll_reference": "nll", "nll_model": "nll_ablated"})
    both = tables.ablation.join(gap, on=["mixers", "slice"])
    assert len(both) == len(tables.ablation) == 15
    for ours, theirs in {"loss": "delta_nll", "loss_share": "gap_share"}.items():
        for end in ("", "_ci_low", "_ci_high"):
            np.testing.assert_allclose(both[f"{ours}{end}"], both[f"{theirs}{end}"], rtol=1e-12)
    for name in ("tokens", "nll", "nll_ablated"):
        np.testing.assert_allclose(both[name], both[f"{name}_right"], rtol=1e-12)
    retained = both.filter(slice="ar_hit").join(tables.mixers, on="mixers", suffix="_of_set")
    np.testing.assert_allclose(retained["retained"], retained["retained_of_set"], rtol=1e-12)
    parts = tables.ablation.filter(pl.col("slice") != "all").group_by("mixers").agg(pl.col("loss_share", "share_of_tokens").sum())
    np.testing.assert_allclose(parts.select("loss_share", "share_of_tokens"), 1, rtol=1e-9)


def test_by_the_mean_it_is_the_same_layer_and_means_are_made_once(tables, recaller, slices):
    by_mean = ablate(recaller, slices, options=CPU, question=AblationQuestion(mixers=["1", "2"], by="mean"))
    assert by_mean.mixers["mixers"].to_list() == ["1", "2"]
    assert by_mean.mixers["retained"].to_list() == pytest.approx([0, 1], abs=0.02)
    assert losses(by_mean, "ar_hit") != losses(tables, "ar_hit")
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


def test_the_head_that_recalls_is_found_by_halves_and_the_rest_is_left_whole(slices, tmp_path):
    """Head 2 of 4: h0-3, then h0-1 and h2-3, then h2 and h3; the other layers have no heads, and h0-1 is not divided."""
    model = built(tmp_path / "one head", 3.0, head=2)
    tables = ablate(model, slices, options=CPU, question=AblationQuestion(heads=True))
    retained = dict(tables.mixers.select("mixers", "retained").rows())
    wanted = {"1.h0-3": 0, "1.h2-3": 0, "1.h2": 0, "1.h3": 1, "1.h0-1": 1}
    assert retained == pytest.approx(wanted, abs=0.02)
    problem = "no heads of mamba can be replaced: the input of its last matrix is not divided into heads; leave out --heads"
    with pytest.raises(UserError, match=problem):
        ablate(model, slices, options=CPU, question=AblationQuestion(heads=True, mixers=["mamba"]))
    for wrong in (AblationQuestion(heads=True, by="mean"), AblationQuestion(heads=True, budget=1)):
        with pytest.raises(UsageError, match="heads are searched by halves, and can only be replaced by zero"):
            ablate(model, slices, options=CPU, question=wrong)
    for wrong in (AblationQuestion(heads=True, mixers=["1.h0"]), AblationQuestion(budget=1, mixers=["1.h0", "2"])):
        with pytest.raises(UsageError, match="heads are named; name layers or kinds"):
            ablate(model, slices, options=CPU, question=wrong)


def test_sets_are_mixers_and_kinds_each_once():
    kinds = ["mamba", "mamba", "attention"]
    placed = [PlacedMixer(place, kind, str(place), None) for place, kind in enumerate(kinds)]
    placed += [PlacedMixer(3, kind, f"3.{kind}", None) for kind in ("mamba", "attention")]

    def named(*mixers):
        return [str(each) for each in choose_sets(placed, mixers, "zero", "m")]

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


def test_the_selective_layers_of_the_zoo_are_those_that_recall(zoo_slices):
    """A model that breaks without a layer retains nothing, either: AR hits lose no more than all else there."""
    tables = in_zoo("base-conv-selective", zoo_slices, mixers=["0", "1", "2", "3"])
    rows = {row["mixers"]: row for row in tables.mixers.to_dicts()}
    assert rows["0"]["retained"] < 0.05 < rows["1"]["retained"] < rows["3"]["retained"] < 0.9 < rows["2"]["retained"]
    said = which_recall(tables)
    assert " without layer 1 selective_attention, " in said
    assert "Without layer 0 base_conv it also retains less, but that loss is not shown" in said


# ---------------------------------------------------------------------------------------- budget


@pytest.fixture(scope="module")
def zoo_slices(home, tmp_path_factory):
    """A little of the built-in text, for models of the zoo, whose recall is significant there."""
    folder = tmp_path_factory.mktemp("zoo") / "slices"
    text = TextOptions(("demo:validation",), "validation", limit_tokens=6000)
    slicing.slice_text(text, folder, counts=builtin.counts(), seq_len=256)
    return folder


def in_zoo(name, slices, **question):
    return ablate(f"zoo:{name}", slices, None, CPU, AblationQuestion(**question), cluster="sequence")


@pytest.mark.parametrize(
    ("name", "mixers"),
    [
        ("attention", ["each"]),
        pytest.param("hybrid", ["mamba", "attention"], marks=pytest.mark.slow),
        pytest.param("base-conv-selective", ["each"], marks=pytest.mark.slow),
    ],
)
def test_elimination_leaves_the_pair_that_is_best_by_brute_force(zoo_slices, name, mixers, capsys):
    chosen = in_zoo(name, zoo_slices, mixers=mixers, budget=2).mixers
    assert f"zoo:{name}: 8 passes over " in capsys.readouterr().err, "the model itself, 4 and 3"
    pairs = ["+".join(map(str, pair)) for pair in itertools.combinations(range(4), 2)]
    every = {row["mixers"]: row for row in in_zoo(name, zoo_slices, mixers=pairs).mixers.to_dicts()}
    assert list(every) == sorted(every, key=lambda pair: every[pair]["retained"]), "the largest loss first"
    none, _, last = chosen.to_dicts()
    best = max(every.values(), key=lambda row: row["retained"])
    assert {name: last[name] for name in best if name not in ("layers", "cache_bytes")} == {
        name: best[name] for name in best if name not in ("layers", "cache_bytes")
    }
    assert sorted([*last["layers"].split("+"), *last["mixers"].split("+")]) == list("0123")
    assert (none["mixers"], none["layers"], none["retained"], none["loss"]) == ("none", "0+1+2+3", 1, 0)


def test_the_bytes_of_a_path_are_those_of_the_caches_that_are_left(zoo_slices):
    """A head's keys and values of 255 ids, and beside them, fixed, the inputs of a convolution."""
    tables = in_zoo("attention", zoo_slices, budget=2)
    config = zoo.architecture("attention")
    length = artifacts.read_manifest(score_path(zoo_slices, one_model("zoo:attention")))
    of_layer = 2 * config.d_model * int(length["state_ids"]) * 4
    assert tables.mixers["cache_bytes"].to_list() == [4 * of_layer, 3 * of_layer, 2 * of_layer]
    assert 0 < length["state_bytes"] - 4 * of_layer < 0.1 * of_layer
    [said] = [look(ablation_path(zoo_slices, one_model("zoo:attention"), AblationQuestion(budget=2))).answer]
    assert said.startswith("Layers 0 and 1 of 4 keep 1")
    assert "with 50 % of the cache and a loss of 0." in said


def test_a_budget_ends_where_nothing_recalls_and_is_refused_where_all_fit(slices, recaller, tmp_path):
    forgetful = built(tmp_path / "forgetful", 0.0)
    mixers = ["each", "gated_short_conv"]
    tables = ablate(forgetful, slices, options=CPU, question=AblationQuestion(mixers=mixers, budget=1))
    assert tables.mixers["layers"].str.count_matches("+", literal=True).to_list() == [2, 1]
    assert which_recall(tables).startswith("forgetful shows no significant recall")
    tables = ablate(recaller, slices, options=CPU, question=AblationQuestion(mixers=mixers, budget=1, by="mean"))
    assert tables.mixers["layers"].to_list()[::2] == ["0+1+2", "1"], "the layer that recalls"
    assert len(set(tables.mixers["cache_bytes"])) == 1, "the others have no cache"
    for question, problem in (
        (AblationQuestion(budget=1), "it has 1 mixer whose cache grows with the text, and a budget has to be smaller"),
        (AblationQuestion(budget=2, mixers=["1", "2", "1+2"]), "it has 2 mixers that --mixers names, and a budget"),
        (AblationQuestion(budget=9), "it has 1 mixer whose cache"),
    ):
        with pytest.raises(UsageError, match=problem):
            ablate(recaller, slices, options=CPU, question=question)


def test_a_compressed_cache_has_no_budget(zoo_slices):
    with pytest.raises(UserError, match="the bytes of its caches are not known layer by layer; leave out --budget"):
        in_zoo("attention,cache=int8", zoo_slices, budget=2)
