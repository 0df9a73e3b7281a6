"""What is known of a model before its weights are read is what the loaded model says."""

from __future__ import annotations

import json
import shutil

import pytest

from recallkit.errors import UserError
from recallkit.models import zoo
from recallkit.models.kinds import kind_of
from recallkit.models.layer_kernels import layers_by_kernel
from recallkit.models.loading import check_model, find_precision, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.protocol import ModelFacts
from recallkit.models.rwkv_file import HEADER, MAGIC
from recallkit.models.spec import ModelSpec


def facts(spec: object, **more: object) -> ModelFacts | None:
    return kind_of(str(spec)).facts(ModelPlan(ModelSpec(str(spec)), 64, **more))


@pytest.mark.parametrize("family", ["llama", "mamba"])
def test_a_directory_says_what_its_loaded_model_says(tiny_model, family):
    path = tiny_model(family)
    model = load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu"))
    layers = layers_by_kernel(model.model)
    num_weights = sum(weight.numel() for weight in model.model.parameters())
    assert facts(path) == ModelFacts(
        model.vocab_size,
        model.max_length,
        "float32",
        num_weights,
        layers,
    )


def test_so_does_a_model_of_the_zoo():
    model = load_model(ModelPlan(ModelSpec("zoo:attention"), 4096, device="cpu"))
    said = ModelFacts(model.vocab_size, model.max_length, layers={"attention": [0, 1, 2, 3]})
    assert facts("zoo:attention") == facts(zoo.shipped()["attention"]) == said


def test_what_transformers_does_not_know_is_left_to_loading(tiny_model, tmp_path):
    path = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    settings = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**settings, "model_type": "unheard_of"}))
    assert facts(path) == ModelFacts(dtype="float32")
    assert facts(path, trust_remote_code=True) == ModelFacts(dtype="float32")


def test_auto_is_float32_on_a_cpu(tiny_model):
    path = str(tiny_model("llama", dtype="bfloat16"))
    assert facts(path).dtype == "bfloat16"
    assert find_precision(ModelPlan(ModelSpec(path), 64, device="cpu", dtype="auto")) == "float32"
    assert (
        find_precision(ModelPlan(ModelSpec(path), 64, device="cpu", dtype="float16")) == "float16"
    )


@pytest.mark.gpu
def test_auto_is_the_checkpoints_own_on_a_gpu(tiny_model):
    for dtype in ("float32", "bfloat16", "float16"):
        path = str(tiny_model("llama", dtype=dtype))
        assert find_precision(ModelPlan(ModelSpec(path), 64, device="cuda", dtype="auto")) == dtype


def test_an_rwkv_file_says_its_vocabulary(tmp_path):
    (tmp_path / "rwkv.bin").write_bytes(HEADER.pack(MAGIC, 101, 300, 16, 2, 0) + bytes(64))
    assert facts(tmp_path / "rwkv.bin") == ModelFacts(vocab_size=300)
    (tmp_path / "rwkv.bin").write_bytes((tmp_path / "rwkv.bin").read_bytes()[:12])
    with pytest.raises(UserError, match="cannot be read"):
        facts(tmp_path / "rwkv.bin")


def test_the_checks_read_no_weights(tiny_model, tmp_path):
    path = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    weights = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert check_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu")).vocab_size == 4096
    with pytest.raises(UserError):
        load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu"))
