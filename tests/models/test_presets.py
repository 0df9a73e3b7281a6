"""The papers' architectures: printed sizes, entries of their tables, recipes; every miss is stated here and in the preset's note."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from rich.console import Console

from recallkit.display import console
from recallkit.errors import UserError
from recallkit.models.costs_view import print_presets
from recallkit.models.language_model import LanguageModel
from recallkit.models.presets import PRESETS, build, find_preset, preset

MISSES = {
    "attention-125m": -1.1,
    "hyena-72m": 6.9,
    "hyena-158m": -3.5,
    "h3-72m": -2.0,
    "h3-168m": -4.6,
    "h3-357m": -6.1,
    "rwkv-72m": 29.4,
    "base-conv-168m": -9.0,
    "base-conv-354m": -4.9,
    "gla-360m": -1.9,
}
"""Percent by which presets miss the printed size; all others are within 1 %."""


@pytest.fixture(scope="module")
def rows(run):
    done = run("models", "--presets", "--json")
    assert done.returncode == 0, done.stderr
    return {row["preset"]: row for row in json.loads(done.stdout)}


def size(config):
    with torch.device("meta"):
        return LanguageModel(config).num_parameters()


def test_parameters_are_the_printed_ones_within_a_percent_or_the_miss_is_stated(rows):
    assert list(rows) == list(PRESETS)
    assert len(rows) == 28
    for name, row in rows.items():
        if name in MISSES:
            assert 100 * row["miss"] == pytest.approx(MISSES[name], abs=0.05), name
            assert row["note"], name
        else:
            assert abs(row["miss"]) < 0.01, name
        assert row["parameters"] == pytest.approx(row["printed"] * (1 + row["miss"]))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("attention-360m", (24, 1024, "attention", {"num_heads": 16})),
        ("hyena-72m", (8, 768, "hyena", {"frequency": 14.0, "fast_decay": 0.3, "slow_decay": 1.2, "short_kernel": 3})),
        ("h3-357m", (33, 1024, "h3", {"state": 64})),
        ("rwkv-351m", (20, 984, "rwkv4", {})),
        ("long-conv-76m", (6, 704, "long_conv", {"squash": 0.001})),
        ("base-conv-354m", (48, 1080, "base_conv", {"frequency": 14.0, "slow_decay": 1.2})),
        ("transformer++-1.3b", (36, 1680, "attention", {"num_heads": 24})),
        ("mamba-1.3b", (46, 2048, "mamba", {"state": 16, "expand": 2, "conv_kernel": 4})),
        ("hyena-360m", (29, 1024, "hyena", {"frequency": 14.0})),
        ("gla-360m", (24, 1024, "gla", {"num_heads": 4})),
    ],
)
def test_entries_are_those_of_the_tables(name, wanted):
    config = preset(name)
    num_layers, d_model, mixer, options = wanted
    assert (len(config.layers), config.d_model, config.layers[0].mixer) == (num_layers, d_model, mixer)
    assert options.items() <= config.layers[0].options.items()


@pytest.mark.parametrize(("name", "convolutions", "each", "window"), [("based-360m", 17, 5, 64), ("based-1.3b", 22, 7, 16)])
def test_based_has_the_layers_of_its_table_7(name, convolutions, each, window):
    layers = preset(name).layers
    kinds = [layer.mixer for layer in layers]
    assert [kinds.count(kind) for kind in ("gated_short_conv", "linear_attention", "sliding_window")] == [convolutions, each, each]
    assert {layer.options["window"] for layer in layers if layer.mixer == "sliding_window"} == {window}
    assert {layer.options["feature_dim"] for layer in layers if layer.mixer == "linear_attention"} == {16}


def test_the_state_of_based_is_that_of_equations_9_and_11():
    with torch.device("meta"):
        model = build("based-360m")
    linear, window, convolutions = 5 * (1024 + 1) * 153, 5 * 2 * 1024 * 64, 17 * 3 * 2048
    assert model.state_size(2048) == linear + window + convolutions


@pytest.mark.parametrize(("name", "layers", "d_model", "ffn"), [("hyena-358m", 24, 1024, 2048), ("long-conv-128m", 12, 864, 2304)])
def test_corrected_entries_are_needed_for_the_printed_size(name, layers, d_model, ffn):
    """The tables' own entries miss by a fifth and more."""
    config = preset(name)
    as_printed = dataclasses.replace(config, layers=config.layers[:layers], d_model=d_model, mlp_width=ffn)
    assert abs(size(as_printed) / find_preset(name).printed - 1) > 0.2
    assert find_preset(name).note


@pytest.mark.parametrize(("name", "d_model"), [("hyena-72m", 736), ("rwkv-72m", 512)])
def test_the_width_in_a_note_gives_the_printed_size(name, d_model):
    config = preset(name)
    other = dataclasses.replace(config, d_model=d_model, mlp_width=config.mlp_width * d_model // config.d_model)
    assert size(other) == pytest.approx(find_preset(name).printed, rel=0.01)
    assert f"width of {d_model}" in find_preset(name).note


@pytest.mark.parametrize(("name", "plain", "wanted"), [("attention-73m", 1877, 71e6), ("transformer++-1.3b", 4480, 1.30e9)])
def test_a_gated_mlp_of_eight_thirds_is_rounded_up(name, plain, wanted):
    """Without it the printed sizes of attention are missed by 2 % and more."""
    assert size(dataclasses.replace(preset(name), mlp_width=plain)) == pytest.approx(wanted, rel=0.005)
    assert wanted < 0.98 * find_preset(name).printed


def test_recipes_are_those_of_the_tables():
    attention, hyena = find_preset("attention-125m").recipe, find_preset("hyena-158m").recipe
    assert dataclasses.asdict(attention) == {
        "optimizer": "adam",
        "betas": (0.9, 0.95),
        "eps": 1e-8,
        "precision": "bfloat16",
        "schedule": "cosine",
        "learning_rate": (8e-5, 8e-4),
        "batch": 256,
        "iterations": 20_000,
        "warmup": 0.01,
        "weight_decay": 0.1,
        "others": {},
    }
    assert (hyena.betas, hyena.learning_rate, hyena.others) == ((0.9, 0.98), (1e-5, 8e-4), {"filter_weight_decay": 0.0})
    retnet = find_preset("retnet-152m").recipe
    assert (retnet.schedule, retnet.weight_decay) == ("linear", 0.05)
    assert find_preset("rwkv-72m").recipe.betas == (0.9, 0.999)
    assert find_preset("long-conv-76m").recipe.schedule == "linear"
    assert {name for name, entry in PRESETS.items() if entry.recipe.betas == (0.9, 0.99)} == {"h3-360m", "rwkv5-360m"}
    # Zoology's 20,000 steps of 256 sequences of 2,048 tokens are the 10B tokens that it trains on.
    assert attention.iterations * attention.batch * 2048 == pytest.approx(10e9, rel=0.05)


def test_long_filters_are_as_long_as_the_context():
    assert {layer.options["max_length"] for layer in preset("hyena-72m", 512).layers} == {512}
    assert preset("based-360m", 512) == preset("based-360m")


def test_an_unknown_name_is_an_error():
    with pytest.raises(UserError, match="did you mean based-360m"):
        preset("based-350m")


def test_the_table_has_every_preset_and_its_note(rows, capsys, monkeypatch):
    monkeypatch.setattr(console, "stdout", lambda: Console(width=80))  # it holds every name whole
    print_presets(list(rows.values()))
    shown = capsys.readouterr().out
    for text in (*PRESETS, "+29.4 %", "6.21", "long-conv-128m: 768 wide"):
        assert text in shown
