"""What models cost: figures counted by hand, the papers' architectures beside their printed sizes
and operations; every miss is stated."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch
from rich.console import Console

from recallkit.display import console
from recallkit.errors import UserError
from recallkit.models import zoo
from recallkit.models.describe import describe_mixers, paper_flops, print_presets
from recallkit.models.language_model import LanguageModel
from recallkit.models.mixers import make_mixer
from recallkit.models.presets import PRESETS, build, preset
from tests.text.test_special_tokens import write


def costs(d_model: int, length: int) -> dict[str, dict[str, object]]:
    return {row["mixer"]: row for row in describe_mixers(d_model, length)}


def figures(row: dict[str, object]) -> tuple[object, ...]:
    return row["parameters"], row["state_elements"], row["flops_per_token"]


def test_costs_of_attention_are_those_reckoned_by_hand():
    """Four matrices of 64 x 64; keys and values of all or of the latest 64 tokens; four operations
    a channel for each pair seen."""
    results = costs(64, 100)
    matrices = 4 * 64 * 64
    all_pairs, window_pairs = 100 * 101 // 2, 64 * 65 // 2 + 36 * 64
    assert figures(results["attention"]) == (
        matrices,
        2 * 64 * 100,
        2 * matrices + 4 * 64 * all_pairs / 100,
    )
    assert figures(results["sliding_window"]) == (
        matrices,
        2 * 64 * 64,
        2 * matrices + 4 * 64 * window_pairs / 100,
    )


def test_costs_of_mamba_are_those_reckoned_by_hand():
    """128 channels of 16 numbers of state, a convolution of 4 taps, steps through 4 channels; the
    same whatever the length."""
    linear = 64 * 256 + 128 * (4 + 2 * 16) + 4 * 128 + 128 * 64  # in, x, dt, out
    others = 128 * (4 + 1) + 128 + 128 * 16 + 128  # convolution with its bias, bias of dt, A, D
    scan = 128 * (2 * 4 + 7 * 16)  # and some operations for each channel, a fifth of these at most
    results = costs(64, 100)["mamba"]
    assert figures(results) == figures(costs(64, 7)["mamba"])
    assert (results["parameters"], results["state_elements"]) == (linear + others, 128 * 16)
    assert 0 < results["flops_per_token"] - 2 * linear - scan < 0.2 * scan


def test_the_command_line_gives_the_same_figures(run):
    done = run("models", "--describe", "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert (results["width"], results["seq_len"]) == (1024, 2048)
    assert results["mixers"] == describe_mixers(1024, 2048)
    assert [row["model"] for row in results["models"]] == [
        f"zoo:{name}" for name in zoo.ARCHITECTURES
    ]
    shipped = zoo.shipped()
    for name, row in zip(zoo.ARCHITECTURES, results["models"], strict=True):
        assert row["parameters"] == pytest.approx(zoo.MATCHED_PARAMETERS, rel=0.01)
        assert row["embeddings"] == zoo.VOCAB_SIZE * zoo.WIDTH
        assert (row["trained_tokens"] is not None) == (name in shipped)


# ------------------------------------------------------------------------------------------ presets

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
    "base-conv-random-162m": -1.6,
    "base-conv-programmatic-162m": -1.6,
    "base-conv-learned-166m": -3.9,
    "base-conv-full-166m": -4.0,
    "base-conv-random-365m": -5.0,
    "base-conv-programmatic-365m": -5.0,
    "base-conv-learned-351m": -1.2,
    "base-conv-full-351m": -1.2,
    "hyena-window-64-159m": -4.3,
    "hyena-window-256-159m": -4.3,
    "based-cosformer-64": 2.4,
    "gla-360m": -1.9,
}
"""Percent by which presets miss the printed size; all others are within 1 %."""


@pytest.fixture(scope="module")
def rows(run):
    done = run("models", "--presets", "--json")
    assert done.returncode == 0, done.stderr
    return {row["preset"]: row for row in json.loads(done.stdout)}


def test_parameters_are_the_printed_ones_within_a_percent_or_the_miss_is_stated(rows):
    assert list(rows) == list(PRESETS)
    assert len(rows) == 50
    for name, row in rows.items():
        if name in MISSES:
            assert 100 * row["miss"] == pytest.approx(MISSES[name], abs=0.05), name
            assert row["note"], name
        else:
            assert abs(row["miss"]) < 0.01, name
        assert row["parameters"] == pytest.approx(row["printed"] * (1 + row["miss"]))


@pytest.mark.parametrize(
    ("name", "convolutions", "item", "window"),
    [("based-360m", 17, 5, 64), ("based-1.3b", 22, 7, 16)],
)
def test_based_has_the_layers_of_its_table_7(name, convolutions, item, window):
    layers = preset(name).layers
    kinds = [layer.mixer for layer in layers]
    assert [
        kinds.count(kind) for kind in ("gated_short_conv", "linear_attention", "sliding_window")
    ] == [convolutions, item, item]
    assert {layer.options["window"] for layer in layers if layer.mixer == "sliding_window"} == {
        window,
    }
    assert {
        layer.options["feature_dim"] for layer in layers if layer.mixer == "linear_attention"
    } == {16}


@pytest.mark.parametrize(
    ("name", "base"),
    [("base-conv-random-162m", "base-conv-168m"), ("hyena-window-64-159m", "hyena-158m")],
)
def test_hybrids_have_three_other_layers_evenly_spread(name, base):
    """Zoology's section 5 and appendix C.2: in place of convolutions, with all else as it was."""
    changed = [
        i
        for i, (one, other) in enumerate(zip(preset(name).layers, preset(base).layers, strict=True))
        if one != other
    ]
    apart = len(preset(base).layers) // 3
    assert changed == [apart // 2, apart // 2 + apart, apart // 2 + 2 * apart]
    assert dataclasses.replace(preset(name), layers=preset(base).layers) == preset(base)


def test_ablations_differ_from_based_in_what_table_6_prints():
    """Feature dimension with the map, window, whether there are convolutions, decay."""
    results = {}
    for name, entry in PRESETS.items():
        if entry.table == "based:6":
            layers = entry.config.layers
            linear = next(layer.options for layer in layers if layer.mixer == "linear_attention")
            features = make_mixer("linear_attention", 1024, **linear).feature_map.num_features
            windows = {
                layer.options["window"] for layer in layers if layer.mixer == "sliding_window"
            }
            convolutions = any(layer.mixer == "gated_short_conv" for layer in layers)
            results[name] = (
                linear["feature_dim"],
                features,
                max(windows, default=None),
                convolutions,
                linear.get("decay"),
            )
    assert sorted(results.values(), key=str) == sorted(
        [
            (16, 153, 64, True, "input"),
            (16, 16, 64, True, "input"),
            (16, 32, 64, True, "input"),
            (64, 128, 64, True, "input"),
            (32, 561, 64, True, "input"),
            (24, 325, 64, True, "input"),
            (8, 45, 64, True, "input"),
            (16, 153, None, True, "input"),
            (16, 153, 64, False, "input"),
            (24, 325, None, False, "input"),
            (16, 153, 128, True, "input"),
        ],
        key=str,
    )


def test_the_state_of_based_is_that_of_equations_9_and_11():
    with torch.device("meta"):
        model = build("based-360m")
    linear, window, convolutions = 5 * (1024 + 1) * 153, 5 * 2 * 1024 * 64, 17 * 3 * 2048
    assert model.state_size(2048) == linear + window + convolutions


def test_long_filters_are_as_long_as_the_context():
    assert {layer.options["max_length"] for layer in preset("hyena-72m", 512).layers} == {512}
    assert preset("based-360m", 512) == preset("based-360m")


def test_an_unknown_name_is_an_error():
    with pytest.raises(UserError, match="did you mean based-360m"):
        preset("based-350m")


def test_the_table_has_every_preset_and_its_note(rows, capsys, monkeypatch):
    monkeypatch.setattr(console, "stdout", lambda: Console(width=80))  # it holds every name whole
    print_presets(list(rows.values()), full=True)
    shown = capsys.readouterr().out
    for text in (*PRESETS, "+29.4 %", "6.21", "long-conv-128m: 768 wide"):
        assert text in shown
    near = sum(abs(row["parameters"] / row["printed"] - 1) <= 0.02 for row in rows.values())
    assert " ".join(shown.split()).startswith(f"{near} of {len(rows)} architectures")


# ------------------------------------------------------------------- operations as the paper counts

MATCHED = {
    "attention-73m": (1.52, 1.521),
    "attention-125m": (2.46, 2.456),
    "hyena-158m": (2.41, 2.411),
    "hyena-358m": (5.03, 5.031),
    "h3-72m": (1.33, 1.329),
    "h3-168m": (2.55, 2.553),
    "h3-357m": (4.85, 4.854),
    "rwkv-169m": (2.08, 2.079),
    "rwkv-351m": (4.31, 4.309),
    "long-conv-76m": (1.20, 1.204),
    "long-conv-128m": (1.74, 1.744),
    "long-conv-360m": (4.08, 4.081),
    "base-conv-354m": (4.81, 4.809),
    "base-conv-full-351m": (5.10, 5.097),
}
UNMATCHED = {
    "attention-360m": (6.23, 6.213),
    "hyena-72m": (1.34, 1.422),
    "rwkv-72m": (1.89, 1.144),
    "base-conv-168m": (2.46, 2.408),
    "base-conv-full-166m": (2.58, 2.617),
    "base-conv-learned-166m": (2.44, 2.504),
    "base-conv-learned-351m": (5.06, 4.954),
    "hyena-window-64-159m": (2.28, 2.412),
    "hyena-window-256-159m": (2.29, 2.424),
}
"""Printed and ours. RWKV's 72M is farthest off: by its rule 1.89 are 154M parameters."""


def test_operations_are_the_printed_ones_or_named():
    for name, (theirs, ours) in (MATCHED | UNMATCHED).items():
        results = paper_flops(PRESETS[name]) / 1e12
        assert results == pytest.approx(ours, abs=0.0005), name
        assert (abs(results - theirs) <= 0.005) == (name in MATCHED), name


def test_what_models_and_tokenizers_read_is_said_before_anything_is_read(run, tiny_model, tmp_path):
    folder = write(
        tmp_path / "model",
        ["<eos>", "<bos>"],
        template="<bos>",
        tokenizer={"eos_token": "<eos>"},
    )
    alone = shutil.copytree(folder, tmp_path / "alone")
    shutil.copytree(tiny_model("llama"), folder, dirs_exist_ok=True)
    result = run(
        "models",
        "--describe",
        folder,
        f"none={folder},bos=none",
        alone,
        "zoo:mamba",
        "--json",
    )
    rows = {row["model"]: row for row in json.loads(result.stdout)}
    read = {
        name: (row["kind"], row["context"], row["prefix"], row["end_token"])
        for name, row in rows.items()
    }
    assert read == {
        "model": ("transformers", 255, "<bos>", "<eos>"),
        "none": ("transformers", 256, None, "<eos>"),
        "alone": ("tokenizer", None, "<bos>", "<eos>"),
        "zoo:mamba": ("zoo", 256, None, "<|endoftext|>"),
    }
    shown = run("models", "--describe", folder, alone, "zoo:mamba").stdout
    assert "2 of 3 read a token before every text." in shown
    assert (
        "model: <bos> (its tokenizer's template begins texts with it), <eos> (as its"
        in " ".join(shown.split())
    )


@pytest.mark.parametrize("size", ["1.6m", "360m"])
def test_architectures_of_a_size_have_its_parameters_and_context(size):
    for name in ("attention", "based", "hyena"):
        config = zoo.architecture(name, size, 512)
        with torch.device("meta"):
            model = LanguageModel(config)
        assert model.num_parameters(embeddings=False) == pytest.approx(
            zoo.SIZES[size].parameters,
            rel=0.01,
        ), name
        assert model.max_length == 512
        assert len(config.layers) == 4 * zoo.SIZES[size].repeats
        heads = {
            layer.options["num_heads"] for layer in config.layers if "num_heads" in layer.options
        }
        assert heads <= {zoo.SIZES[size].num_heads}
