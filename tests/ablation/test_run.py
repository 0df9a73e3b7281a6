"""Ablations of models whose recalling layers are known, from slices to tables: one that is built to
recall, and models of the zoo."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import save_file

from recallkit import builtin, slicing
from recallkit.ablation import AblationQuestion, ablate, ablation_path
from recallkit.ablation.sets import choose_sets
from recallkit.ablation.tables import PARTS
from recallkit.attribution.tables import attribute_gap
from recallkit.errors import UserError
from recallkit.models import zoo
from recallkit.models.ablation import PlacedMixer
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.language_model import LanguageModel
from recallkit.models.spec import ModelSpec, one_model
from recallkit.options import ScoringOptions, TextOptions
from recallkit.scoring import score, score_path
from recallkit.storage import parquet_files
from tests.conftest import made_up_texts, write_jsonl

WIDTH, VOCAB = 64, 4096
CPU = ScoringOptions(device="cpu", batch_tokens=2048)
RECALL, NOISE = 1, (0, 2)


def built(folder, copied: float, head: int | None = None) -> str:
    """A hybrid whose layer 1 recalls by construction: it adds what followed the earlier occurrences
    of the token; the others add noise.

    It attends to the places after the token's occurrences (`keys="matches"`), all alike since keys
    are zero, and copies so much of what it finds. Of four heads (`head`) it does so with one alone;
    the others read the same places, and nothing of them is used. A quarter of the embedding tells
    tokens apart only if it is larger.
    """
    heads = 1 if head is None else 4
    layers = (
        LayerConfig("gated_short_conv"),
        LayerConfig("selective_attention", {"num_heads": heads, "keys": "matches"}),
        LayerConfig("mamba"),
    )
    torch.manual_seed(0)
    model = LanguageModel(ArchitectureConfig(VOCAB, WIDTH, layers, mlp="none"))
    attention = model.blocks[RECALL].mixer
    used = torch.ones(WIDTH)
    if head is not None:
        used = (torch.arange(WIDTH) // (WIDTH // heads) == head) + 1e-3
    with torch.no_grad():
        spread = 0.15 if head is None else 0.3
        model.embedding.weight.copy_(spread * torch.randn(VOCAB, WIDTH))
        values = torch.eye(WIDTH)
        attention.qkv.weight.copy_(torch.cat([torch.zeros(2 * WIDTH, WIDTH), values]))
        attention.out_proj.weight.copy_(copied * values * used)
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
    # Twice, so that who recalls predicts better than a guess.
    twice = [f"{text} {text}" for text in made_up_texts(24, 60, seed=5)]
    texts = write_jsonl(folder / "valid.jsonl", twice, "books")
    text = TextOptions([str(texts)], "validation", boundary="document")
    counts, rare = small_slices.parent / "counts.duckdb", slicing.RareCount(20)
    slicing.slice_text(text, folder / "slices", counts=counts, rare=rare, seq_len=64)
    return folder / "slices"


def ablated(model, slices, **question):
    return ablate(model, slices, options=CPU, question=AblationQuestion(**question))


@pytest.fixture(scope="module")
def tables(recaller, slices):
    return ablated(recaller, slices)


def losses(tables, slice_):
    return dict(tables.ablation.filter(slice=slice_).select("mixers", "loss").rows())


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


def test_the_tables_are_those_of_a_gap_with_the_model_as_the_reference(tables, recaller, slices):
    names = ["0", "1", "2"]
    intact = score_path(slices, ModelSpec(recaller))
    paths = [score_path(slices, ModelSpec(recaller, ablate=name)) for name in names]
    parts = slicing.definitions.parse_slices([name for name in PARTS if name != "ar_hit"])
    labels, called = slices / "tokens.parquet", ["intact", *names]
    gap = attribute_gap(labels, intact, paths, names=called, slices=parts).gap
    figures = {"nll_reference": "nll", "nll_model": "nll_ablated"}
    for end in ("", "_ci_low", "_ci_high"):
        figures |= {f"delta_nll{end}": f"loss{end}", f"gap_share{end}": f"loss_share{end}"}
    gap = gap.filter(source="ALL").rename({"model": "mixers", **figures})
    both = tables.ablation.join(gap, on=["mixers", "slice"])
    assert len(both) == len(tables.ablation) == 15
    for name in ("tokens", *figures.values()):
        np.testing.assert_allclose(both[name], both[f"{name}_right"], rtol=1e-12)
    retained = both.filter(slice="ar_hit").join(tables.mixers, on="mixers", suffix="_of_set")
    np.testing.assert_allclose(retained["retained"], retained["retained_of_set"], rtol=1e-12)
    partition = tables.ablation.filter(pl.col("slice") != "all").group_by("mixers")
    sums = partition.agg(pl.col("loss_share", "share_of_tokens").sum()).drop("mixers")
    np.testing.assert_allclose(sums, 1, rtol=1e-9)


def test_by_the_mean_it_is_the_same_layer_and_means_are_made_once(tables, recaller, slices):
    by_mean = ablated(recaller, slices, mixers=["1", "2"], by="mean")
    assert by_mean.mixers["mixers"].to_list() == ["1", "2"]
    assert by_mean.mixers["retained"].to_list() == pytest.approx([0, 1], abs=0.02)
    assert losses(by_mean, "ar_hit") != losses(tables, "ar_hit")
    [means] = (slices / "scores" / "means").glob("*.parquet")
    kinds = pl.read_parquet(means)["mixer"].to_list()
    assert kinds == ["0.gated_short_conv", "1.selective_attention", "2.mamba"]
    before = means.stat().st_mtime_ns
    score(ModelSpec(recaller, ablate="0:mean"), slices, CPU)
    assert means.stat().st_mtime_ns == before


def test_finished_work_is_reused_and_none_is_the_model_itself(tables, recaller, slices, capsys):
    again = ablated(recaller, slices)
    assert again.ablation.equals(tables.ablation)
    assert "is complete: reused" in capsys.readouterr().err
    assert (ablation_path(slices, one_model(recaller)) / "manifest.json").is_file()
    score(ModelSpec(recaller, ablate="none"), slices, CPU)
    files = [score_path(slices, ModelSpec(recaller, ablate=name)) for name in (None, "none", "1")]
    assert pl.read_parquet(files[0]).equals(pl.read_parquet(files[1]))
    assert parquet_files.read_manifest(files[2])["model"] == "recaller without 1"


def test_the_head_that_recalls_is_searched_by_halves_and_the_rest_is_not_divided(slices, tmp_path):
    """Head 2 of 4: h0-3, then h0-1 and h2-3, then h2 and h3; the other layers have no heads, and
    h0-1 is not divided."""
    tables = ablated(built(tmp_path / "one head", 3.0, head=2), slices, heads=True)
    retained = dict(tables.mixers.select("mixers", "retained").rows())
    expected = {"1.h0-3": 0, "1.h2-3": 0, "1.h2": 0, "1.h3": 1, "1.h0-1": 1}
    assert retained == pytest.approx(expected, abs=0.02)


SETS = {
    ("each",): ["0", "1", "2", "3.mamba", "3.attention", "mamba", "attention"],
    ("attention", "0", "1+0", "0"): ["attention", "0", "0+1"],
}


def test_sets_are_mixers_and_kinds_once_each():
    kinds = ["mamba", "mamba", "attention"]
    placed = [PlacedMixer(place, kind, str(place), None) for place, kind in enumerate(kinds)]
    placed += [PlacedMixer(3, kind, f"3.{kind}", None) for kind in ("mamba", "attention")]
    for mixers, names in SETS.items():
        assert [str(one) for one in choose_sets(placed, mixers, "zero", "m")] == names
    by_mean = choose_sets(placed[:2], ["each"], "mean", "m")
    assert [str(one) for one in by_mean] == ["0:mean", "1:mean"], "one kind is all mixers"


HEADS_OF_MAMBA = "no heads of mamba can be replaced: the input of its last matrix is not divided"
TOO_LARGE = "it has 1 mixer whose cache grows with the text, and a budget has to be smaller"
NO_SETS, NO_HEADS = "no sets of mixers", "heads are named; name layers or kinds"


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ({"mixers": ["none"]}, NO_SETS),
        ({"mixers": ["0:mean"]}, NO_SETS),
        ({"mixers": []}, NO_SETS),
        ({"mixers": ["hyena"]}, "it has no mixer hyena"),
        ({"mixers": ["1.h0"], "by": "mean"}, "no mixers"),
        ({"heads": True, "mixers": ["mamba"]}, HEADS_OF_MAMBA),
        ({"heads": True, "mixers": ["1.h0"]}, NO_HEADS),
        ({"heads": True, "by": "mean"}, "can only be replaced by zero"),
        ({"heads": True, "budget": 1}, "can only be replaced by zero"),
        ({"budget": 1, "mixers": ["1.h0", "2"]}, NO_HEADS),
        ({"budget": 1}, TOO_LARGE),
        ({"budget": 2, "mixers": ["1", "2", "1+2"]}, "it has 2 mixers that --mixers names"),
    ],
)
def test_what_cannot_be_answered_is_said(recaller, slices, question, problem):
    with pytest.raises(UserError, match=problem):
        ablated(recaller, slices, **question)


@pytest.mark.parametrize(
    ("model", "question", "problem"),
    [
        ("zoo:hybrid,ablate=0", {}, "it is ablated already"),
        ("zoo:attention,cache=int8", {"budget": 2}, "caches are not known layer by layer"),
    ],
)
def test_a_variant_cannot_be_all_that_a_model_can(zoo_slices, model, question, problem):
    with pytest.raises(UserError, match=problem):
        ablated(model, zoo_slices, **question)


# ------------------------------------------------------------------------------------ of the zoo


@pytest.fixture(scope="module")
def zoo_slices(home, tmp_path_factory):
    """A little of the built-in text, for models of the zoo, whose recall is significant there."""
    folder = tmp_path_factory.mktemp("zoo") / "slices"
    text = TextOptions(("demo:validation",), "validation", limit_tokens=6000)
    slicing.slice_text(text, folder, counts=builtin.counts(), seq_len=256)
    return folder


def in_zoo(name, slices, **question):
    return ablated(f"zoo:{name}", slices, cluster="sequence", **question)


def test_the_selective_layers_of_the_zoo_are_those_that_recall(zoo_slices):
    """A model that breaks without a layer retains nothing, either: AR hits lose no more than all
    else there."""
    tables = in_zoo("base-conv-selective", zoo_slices, mixers=["0", "1", "2", "3"])
    rows = {row["mixers"]: row for row in tables.mixers.to_dicts()}
    retained = [rows[name]["retained"] for name in ("0", "1", "3", "2")]
    assert retained[0] < 0.05 < retained[1] < retained[2] < 0.9 < retained[3]
    share = rows["0"]["share_of_tokens"]
    assert rows["1"]["loss_share_ci_low"] > 2 * share > rows["0"]["loss_share_ci_low"]


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
    passes = f"zoo:{name}: 8 passes over "
    assert passes in capsys.readouterr().err, "the model itself, 4 and 3"
    pairs = ["+".join(map(str, pair)) for pair in itertools.combinations(range(4), 2)]
    rows = in_zoo(name, zoo_slices, mixers=pairs).mixers.to_dicts()
    retained = [row["retained"] for row in rows]
    assert retained == sorted(retained), "the largest loss first"
    none, _, last = chosen.to_dicts()
    of_budget = ("layers", "cache_bytes")
    left = last["layers"].split("+")
    assert last | dict.fromkeys(of_budget) == rows[-1], "it retains the most"
    assert sorted([*left, *last["mixers"].split("+")]) == list("0123")
    figures = [none[name] for name in ("mixers", "layers", "retained", "loss")]
    assert figures == ["none", "0+1+2+3", 1, 0]


def test_the_bytes_of_a_path_are_those_of_the_caches_that_are_left(zoo_slices):
    """A head's keys and values of 255 ids, and beside them, fixed, the inputs of a convolution."""
    tables = in_zoo("attention", zoo_slices, budget=2)
    config = zoo.architecture("attention")
    scores = parquet_files.read_manifest(score_path(zoo_slices, one_model("zoo:attention")))
    of_layer = 2 * config.d_model * int(scores["state_ids"]) * 4
    sizes = tables.mixers["cache_bytes"].to_list()
    assert sizes == [4 * of_layer, 3 * of_layer, 2 * of_layer]
    assert 0 < scores["state_bytes"] - 4 * of_layer < 0.1 * of_layer


def test_a_budget_ends_where_nothing_recalls(slices, recaller, tmp_path):
    mixers = ["each", "gated_short_conv"]
    forgetful = ablated(built(tmp_path / "forgetful", 0.0), slices, mixers=mixers, budget=1).mixers
    assert forgetful["layers"].str.count_matches("+", literal=True).to_list() == [2, 1]
    assert set(forgetful["retained"]) == {None}
    tables = ablated(recaller, slices, mixers=mixers, budget=1, by="mean")
    assert tables.mixers["layers"].to_list()[::2] == ["0+1+2", "1"], "the layer that recalls"
    assert len(set(tables.mixers["cache_bytes"])) == 1, "the others have no cache"
