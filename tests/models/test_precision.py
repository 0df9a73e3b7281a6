"""`widened`: nothing narrow is computed inside; and float64 scores, against formulas written out in
numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from recallkit.models.loading import load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.precision import widened
from recallkit.models.spec import ModelSpec
from tests.models.families import VOCAB_SIZE, save_model

X = torch.linspace(0.1, 1, 12, dtype=torch.float64).view(3, 4)
SMALL = torch.ones(2, 2)


# ---------------------------------------------------------------------------------------- the block


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda: torch.softmax(X, -1, dtype=torch.float32).sum(), 3.0),
        (lambda: X.cumsum(0, dtype=torch.bfloat16)[-1].sum(), float(X.sum())),
        (lambda: torch.tensor(0.1, dtype=torch.float32), 0.1),
        (lambda: torch.as_tensor([0.1], dtype=torch.bfloat16)[0], 0.1),
        (lambda: torch.full((2,), 0.1)[0], 0.1),
        (lambda: torch.linspace(0, 0.1, 3, dtype=torch.float32)[2], 0.1),
        (lambda: torch.nn.functional.linear(SMALL, SMALL / 3)[0, 0], 2 / 3),
    ],
)
def test_no_number_is_rounded(make, value):
    with widened():
        actual = make()
    assert actual.dtype is torch.float64
    assert float(actual) == pytest.approx(value, rel=1e-15)


# ------------------------------------------------------------------------------------- whole models


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def llama(
    w: Callable[[str], np.ndarray],
    config: Any,
    ids: np.ndarray,
    frequencies: np.ndarray,
) -> np.ndarray:
    """Logits (t, vocab) of Llama as the formulas read."""
    time, heads, groups = (
        len(ids),
        config.num_attention_heads,
        config.num_attention_heads // config.num_key_value_heads,
    )
    angles = np.outer(np.arange(time), np.concatenate([frequencies, frequencies]))

    def split(x: np.ndarray) -> np.ndarray:
        return x.reshape(time, -1, config.head_dim).transpose(1, 0, 2)

    def rotated(x: np.ndarray) -> np.ndarray:
        front, back = np.split(x, 2, axis=-1)
        return x * np.cos(angles) + np.concatenate([-back, front], -1) * np.sin(angles)

    x = w("model.embed_tokens")[ids]
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."
        h = norm(x, w(at + "input_layernorm"), config.rms_norm_eps)
        query, key, value = (split(h @ w(f"{at}self_attn.{name}_proj").T) for name in "qkv")
        key, value = np.repeat(rotated(key), groups, 0), np.repeat(value, groups, 0)
        scores = rotated(query) @ key.transpose(0, 2, 1) / np.sqrt(config.head_dim) + np.triu(
            np.full((time, time), -np.inf),
            1,
        )
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ value
        x = (
            x
            + mixed.transpose(1, 0, 2).reshape(time, heads * config.head_dim)
            @ w(at + "self_attn.o_proj").T
        )
        h = norm(x, w(at + "post_attention_layernorm"), config.rms_norm_eps)
        gate = h @ w(at + "mlp.gate_proj").T
        x = (
            x
            + (gate / (1 + np.exp(-gate)) * (h @ w(at + "mlp.up_proj").T))
            @ w(at + "mlp.down_proj").T
        )
    return norm(x, w("model.norm"), config.rms_norm_eps) @ w("lm_head").T


def test_float64_scores_are_those_of_the_formulas(tmp_path):
    path = save_model("llama", tmp_path)
    model = load_model(ModelPlan(ModelSpec(str(path)), VOCAB_SIZE, device="cpu", dtype="float64"))
    weights = {name: value.double().numpy() for name, value in model.model.state_dict().items()}
    frequencies = {name: value.numpy() for name, value in model.model.named_buffers()}.get(
        "model.rotary_emb.inv_freq",
    )

    def weight(name: str, part: str = "weight") -> np.ndarray:
        return weights[f"{name}.{part}".rstrip(".")]

    ids = np.random.default_rng(0).integers(0, VOCAB_SIZE, 50)
    logits = llama(weight, model.config, ids[:-1], frequencies)
    nll = np.log(np.exp(logits).sum(1)) - logits[np.arange(49), ids[1:]]
    with torch.inference_mode():
        results = model.reduce(
            model.forward(torch.from_numpy(ids[None, :-1]))[0][0],
            torch.from_numpy(ids[1:]),
        )
    assert results.nll.dtype is torch.float64
    np.testing.assert_allclose(results.nll.numpy(), nll, rtol=0, atol=1e-12)
    assert (results.argmax.numpy() == logits.argmax(1)).all()
    narrow = (
        load_model(ModelPlan(ModelSpec(str(path)), VOCAB_SIZE, device="cpu"))
        .score(ids, np.array([0, 50]))
        .nll
    )
    assert 0 < np.abs(narrow - nll).max() < 1e-4
