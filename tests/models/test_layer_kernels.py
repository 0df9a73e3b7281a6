"""Recurrent layers of transformers run on our kernels, where these give the same NLLs, and only
while we score."""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np
import pytest
import torch

import recallkit
from recallkit.models import layer_kernels
from recallkit.models.loading import load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from tests.models.every_family import LIMIT, outcome
from tests.models.shrinking import VOCAB_SIZE, build

FUNCTIONS = {
    "mamba": (
        "mamba_selective_scan",
        "mamba_selective_state_update",
        "causal_conv1d_fn",
        "causal_conv1d_update",
    ),
    "mamba2": (
        "mamba2_chunk_scan",
        "mamba2_selective_state_update",
        "causal_conv1d_fn",
        "causal_conv1d_update",
    ),
    "zamba": ("mamba_selective_scan", "mamba_selective_state_update"),
    "falcon_h1": ("mamba2_chunk_scan", "mamba2_selective_state_update"),
    "lfm2": ("causal_conv1d_fn", "causal_conv1d_update"),
    "qwen3_next": ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"),
    "olmo_hybrid": ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"),
    "kimi_linear": ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"),
    "rwkv": ("rwkv_linear_attention",),
    "recurrent_gemma": ("RecurrentGemmaRglru._rnn_scan",),
}
"""By family, functions of its module that a pass over a text or a step calls."""


class Calls:
    """Counts the calls of functions of transformers, which compute what they did."""

    def __init__(self, family: str, patch: pytest.MonkeyPatch) -> None:
        self.number = 0
        module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        for name in FUNCTIONS[family]:
            owner, _, function = name.rpartition(".")
            place = getattr(module, owner) if owner else module
            patch.setattr(place, function, self._counting(getattr(place, function)))

    def _counting(self, function: Any) -> Any:
        def count(*args: Any, **options: Any) -> Any:
            self.number += 1
            return function(*args, **options)

        return count


def ids_and_offsets(length: int = 60) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).integers(3, VOCAB_SIZE, 2 * length), np.arange(3) * length


def load(folder: Any) -> Any:
    return load_model(ModelPlan(ModelSpec(str(folder)), VOCAB_SIZE, device="cpu"))


@pytest.mark.parametrize("family", FUNCTIONS)
def test_scoring_and_generation_call_no_function_of_transformers(family, tmp_path, monkeypatch):
    build(family).save_pretrained(tmp_path)
    calls = Calls(family, monkeypatch)
    model = load(tmp_path)
    assert calls.number > 0, "by which the kernels were proven"
    proven, (ids, offsets) = calls.number, ids_and_offsets()
    model.score(ids, offsets)
    model.generate([ids[:40]], [ids[40:44]], 4, lambda *_: False)
    assert calls.number == proven


@pytest.mark.parametrize("family", ["lfm2", "zamba", "kimi_linear", "olmo_hybrid"])
def test_scores_are_those_of_its_own_forward_pass_in_every_way_of_reading(family, tmp_path):
    """In batches of unlike lengths, in chunks, and in single ids behind a prompt; others are run
    each night."""
    equal = outcome(family, tmp_path)
    assert (equal.result, equal.difference < LIMIT) == ("equal", True)


def test_where_a_kernel_differs_transformers_own_function_is_used_and_said(
    tmp_path,
    monkeypatch,
    capsys,
):
    bare = build("mamba")
    bare.save_pretrained(tmp_path / "model")
    scan = layer_kernels.selective_scan
    monkeypatch.setattr(
        layer_kernels,
        "selective_scan",
        lambda x, *args, **options: scan(1.01 * x, *args, **options),
    )
    model = load(tmp_path / "model")
    assert (
        "model: our kernels do not reproduce its NLLs, so transformers' own functions are used"
        in capsys.readouterr().err
    )
    ids, offsets = ids_and_offsets()
    with torch.no_grad():
        logits = bare(torch.from_numpy(ids[None, :59])).logits[0].double()
    theirs = torch.logsumexp(logits, 1) - logits.gather(1, torch.from_numpy(ids[1:60, None]))[:, 0]
    assert np.abs(model.score(ids, offsets).nll[:59] - theirs.numpy()).max() < LIMIT


def test_a_live_model_is_scored_by_kernels_and_trained_by_its_own_functions(
    few_slices,
    monkeypatch,
):
    calls = Calls("mamba", monkeypatch)
    model = build("mamba", vocab_size=4096)
    recallkit.score({"live": model}, slices=few_slices, force=True)
    scored = calls.number
    model(torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    assert calls.number > scored
    assert model.backbone.layers[0].mixer.A_log.grad.abs().sum() > 0


def test_which_layers_run_on_which_kernel_is_said_before_weights_are_read(run, tmp_path):
    folders = [tmp_path / name for name in ("qwen3_next", "olmo_hybrid", "zamba", "llama")]
    for folder in folders:
        build(folder.name).save_pretrained(folder)
    rows = json.loads(run("models", "--describe", *folders, "zoo:based", "--json").stdout)
    layers = {row["model"]: row["layers"] for row in rows}
    assert layers["qwen3_next"] == {"short_conv": [0], "delta_rule": [0]}
    assert layers["olmo_hybrid"] == {"short_conv": [0], "delta_rule": [0]}
    assert layers["zamba"] == {"short_conv": [0, 1, 2], "selective_scan": [0, 1, 2]}
    assert layers["llama"] == {}
    shown = " ".join(run("models", "--describe", *folders).stdout.split())
    assert "qwen3_next: our short_conv, delta_rule in layer 0" in shown
    assert "zamba: our short_conv, selective_scan in layers 0 to 2" in shown
    assert "llama: our" not in shown
    mixers = layers["zoo:based"]
    assert sorted(number for numbers in mixers.values() for number in numbers) == list(range(4))
