"""GGUF files rounded and unpacked by the example of docs/memory.md are models that score as what
they were made from."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from recallkit.models.loading import load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from recallkit.text.tokenizers import load_tokenizer
from tests.models.test_gguf import NUM_HEADS, NUM_KV_HEADS, write_gguf
from tests.models.test_hf import LENGTHS, ragged


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A Llama with random weights, in F16."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, LlamaForCausalLM(config), precision="F16")
    return path


@pytest.fixture
def convert(load, source, monkeypatch, tmp_path):
    """convert(NAME, OPTION...) is what the example writes."""

    def convert(name, *options):
        command = ["convert_gguf.py", str(source), str(tmp_path / name), *options]
        monkeypatch.setattr("sys.argv", command)
        load("convert_gguf").main()
        return tmp_path / name

    return convert


def nlls(path):
    model = load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu", dtype="float32"))
    return model.score(*ragged(LENGTHS, 4096)).nll


def blocks(path):
    """The weights of a GGUF file in blocks of 32, by tensor."""
    tensors = gguf.GGUFReader(path).tensors
    values = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in tensors
    }
    return {name: each.reshape(-1, 32) for name, each in values.items()}


def test_four_bits_are_of_layers_alone(convert, source):
    path = convert("q4.gguf", "--to", "Q4_0")
    before, after = blocks(source), blocks(path)
    assert list(after) == list(before)
    for name, values in after.items():
        steps = {"blk": 8, "tok": 127, "out": 127}[name[:3]]
        largest = np.abs(before[name]).max(axis=1, keepdims=True)
        error = np.abs(values - before[name]) / largest
        if "norm" in name:
            assert error.max() == 0, name
            continue
        assert 0 < error.max() < 1.01 / steps, name
        if steps == 8:
            assert max(len(np.unique(block)) for block in values) <= 16
    assert load_tokenizer(str(path)).vocab_size == load_tokenizer(str(source)).vocab_size
    assert 0.01 < np.abs(nlls(path) - nlls(source)).mean() < 2


def test_a_folder_scores_as_its_file(convert, source):
    folder = convert("model")
    assert (folder / "model.safetensors").is_file()
    assert (
        load_tokenizer(str(folder)).encode(["return 界"])[0].tolist()
        == load_tokenizer(None).encode(["return 界"])[0].tolist()
    )
    difference = np.abs(nlls(folder) - nlls(source))
    assert 0 < difference.mean() < 0.05, "bfloat16"
