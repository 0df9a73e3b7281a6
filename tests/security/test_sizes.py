"""Configs with absurd numbers: refused in a line, before memory or minutes are spent."""

from __future__ import annotations

import json
import resource
import shutil

import pytest

from recallkit.errors import UserError
from recallkit.models.architecture import ArchitectureConfig, check_foreign
from recallkit.models.loading import load_model
from recallkit.models.protocol import ModelRequest

ABSURD = [
    ("num_hidden_layers", 10**6, "num_hidden_layers is 1,000,000: more than the 1,000 of any model"),
    ("hidden_size", 10**9, "hidden_size is 1,000,000,000"),
    ("vocab_size", 2**60, "vocab_size is"),
    ("intermediate_size", 10**12, "intermediate_size is"),
    ("num_attention_heads", 10**6, "num_attention_heads is"),
    ("layer_types", ["full_attention"] * 10**5, "the length of layer_types"),
    ("text_config", {"n_layer": 10**5}, "n_layer is 100,000"),
    ("hidden_size", float("inf"), "hidden_size is inf"),
    ("hidden_size", float("nan"), "hidden_size is nan"),
    ("num_attention_heads", "four", "Validation error"),
    ("pad_token_id", 10**9, "transformers cannot load it"),
]


@pytest.mark.parametrize(("name", "value", "said"), ABSURD, ids=[f"{name}-{str(value)[:12]}" for name, value, _ in ABSURD])
def test_a_config_of_transformers_is_checked_before_a_model_is_made(tiny_model, tmp_path, name, value, said):
    path = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, name: value}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=said) as caught:
        load_model(ModelRequest(str(path), 4096, device="cpu"))
    assert "\n" not in caught.value.line()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "KiB"


def test_large_models_of_today_are_let_by():
    check_foreign({"num_hidden_layers": 126, "hidden_size": 16384, "vocab_size": 262_144, "num_attention_heads": 128, "rope_theta": 1e7})
    check_foreign({"n_routed_experts": 384, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "max_position_embeddings": 10_485_760})
    check_foreign({"id2label": {str(i): "x" for i in range(10**5)}, "bos_token_id": 2**40, "num_key_value_heads": None, "tie": True})


@pytest.mark.parametrize("changed", [{"d_model": 10**9}, {"vocab_size": 2**60}, {"layers": [{"mixer": "attention"}] * 2000}])
def test_a_config_of_ours_is_checked_before_a_model_is_made(changed):
    with pytest.raises(ValueError, match=r"more than fits anywhere|not 1 to 1,000"):
        ArchitectureConfig.from_json({"vocab_size": 64, "d_model": 8, "layers": [{"mixer": "attention"}], **changed})
