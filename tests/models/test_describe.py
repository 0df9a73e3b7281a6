"""What models cost: figures reckoned by hand, every mixer and every zoo model listed, the same on the command line."""

from __future__ import annotations

import json

import pytest

from recallkit.models import zoo
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.describe import describe_mixers, describe_zoo


def costs(d_model: int, length: int) -> dict[str, dict[str, object]]:
    return {row["mixer"]: row for row in describe_mixers(d_model, length)}


def figures(row: dict[str, object]) -> tuple[object, ...]:
    return row["parameters"], row["state_elements"], row["flops_per_token"]


def test_costs_of_attention_are_those_reckoned_by_hand():
    """Four matrices of 64 x 64; keys and values of all or of the latest 64 tokens; four operations a channel for each pair seen."""
    found = costs(64, 100)
    matrices = 4 * 64 * 64
    all_pairs, window_pairs = 100 * 101 // 2, 64 * 65 // 2 + 36 * 64
    assert figures(found["attention"]) == (matrices, 2 * 64 * 100, 2 * matrices + 4 * 64 * all_pairs / 100)
    assert figures(found["sliding_window"]) == (matrices, 2 * 64 * 64, 2 * matrices + 4 * 64 * window_pairs / 100)


def test_costs_of_mamba_are_those_reckoned_by_hand():
    """128 channels of 16 numbers of state, a convolution of 4 taps, steps through 4 channels; the same whatever the length."""
    linear = 64 * 256 + 128 * (4 + 2 * 16) + 4 * 128 + 128 * 64  # in, x, dt, out
    others = 128 * (4 + 1) + 128 + 128 * 16 + 128  # convolution with its bias, bias of dt, A, D
    scan = 128 * (2 * 4 + 7 * 16)  # and some operations for each channel, a fifth of these at most
    found = costs(64, 100)["mamba"]
    assert figures(found) == figures(costs(64, 7)["mamba"])
    assert (found["parameters"], found["state_elements"]) == (linear + others, 128 * 16)
    assert 0 < found["flops_per_token"] - 2 * linear - scan < 0.2 * scan


def test_filters_are_as_long_as_the_sequence():
    short, long = costs(64, 20), costs(64, 5000)
    assert long["long_conv"]["parameters"] - short["long_conv"]["parameters"] == pytest.approx(64 * 4980)
    assert long["mamba"]["parameters"] == short["mamba"]["parameters"]


def test_a_width_that_heads_do_not_divide_is_an_error():
    with pytest.raises(ValueError, match="heads"):
        describe_mixers(66, 20)


def test_costs_of_a_zoo_model_are_those_reckoned_by_hand(monkeypatch, tmp_path):
    layers = (LayerConfig("attention"), LayerConfig("sliding_window", {"window": 32}))
    configs = {
        "tied": ArchitectureConfig(100, 64, layers, mlp_width=96),
        "untied": ArchitectureConfig(100, 64, layers, mlp_width=96, tied_head=False),
    }
    monkeypatch.setattr(zoo, "ARCHITECTURES", {name: zoo.Architecture(f"the {name} one", layers) for name in configs})
    monkeypatch.setattr(zoo, "architecture", configs.__getitem__)
    monkeypatch.setattr(zoo, "shipped", lambda: {"tied": tmp_path})
    (tmp_path / zoo.CARD).write_text(json.dumps({"tokens": 12345}))
    tied, untied = describe_zoo()
    matrices = 2 * (4 * 64 * 64 + 3 * 64 * 96)
    pairs = 256 * 257 // 2 + 32 * 33 // 2 + 224 * 32
    wanted = {
        "model": "zoo:tied",
        "description": "the tied one",
        "parameters": matrices + 5 * 64,  # five norms
        "embeddings": 100 * 64,
        "state_elements": 2 * 64 * (256 + 32),
        "flops_per_token": 2 * matrices + 4 * 64 * pairs / 256 + 2 * 64 * 100,
        "trained_tokens": 12345,
    }
    assert tied == wanted
    assert untied == wanted | {
        "model": "zoo:untied",
        "description": "the untied one",
        "embeddings": 2 * 100 * 64,
        "trained_tokens": None,
    }


def test_the_command_line_gives_the_same_figures(run):
    done = run("models", "--describe", "--width", 128, "--seq-len", 100, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["width"], found["seq_len"]) == (128, 100)
    assert found["mixers"] == describe_mixers(128, 100)
    assert [row["model"] for row in found["models"]] == [f"zoo:{name}" for name in zoo.ARCHITECTURES]
    shipped = zoo.shipped()
    for name, row in zip(zoo.ARCHITECTURES, found["models"], strict=True):
        assert row["parameters"] == pytest.approx(zoo.MATCHED_PARAMETERS, rel=0.01)
        assert row["embeddings"] == zoo.VOCAB_SIZE * zoo.WIDTH
        assert (row["trained_tokens"] is not None) == (name in shipped)


def test_a_width_that_not_every_mixer_can_have_is_refused(run):
    done = run("models", "--describe", "--width", 100)
    assert done.returncode == 2
    assert "multiple of 64" in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
