"""States and weights in fewer bits: values that stay, bounds of the rest, and bytes counted by
hand."""

from __future__ import annotations

import importlib.util
from importlib import metadata

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import recallkit
from recallkit.errors import UserError
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.compression import round_state
from recallkit.models.language_model import LanguageModel
from recallkit.models.variants import Variant, quantise_weights
from tests.models.families import build_model

needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None,
    reason="torchao is not installed",
)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("kind", "bits"), [("bf16", 8), ("fp16", 11), ("fp8", 4)])
def test_floating_point_rounds_to_its_bits(kind, bits):
    """Errors are up to half a unit in the last of so many bits: 2^-bits of the magnitude, in a
    range where no number is too small."""
    state = drawn(2, 3, 8, 16).sign() * (1 + drawn(2, 3, 8, 16).abs() % 7)
    rounded, _ = round_state(state, kind)
    relative = ((rounded - state) / state).abs()
    assert 0.8 * 2**-bits < relative.max() <= 2**-bits
    assert rounded.dtype == state.dtype
    assert torch.equal(round_state(rounded, kind)[0], rounded)


@pytest.mark.parametrize(
    ("kind", "num_bytes"),
    [("bf16", 2 * 96), ("fp16", 2 * 96), ("fp8", 96 + 3 * 4), ("int8", 96 + 3 * 4)],
)
def test_bytes_of_one_row(kind, num_bytes):
    """Three heads of 4 x 8 entries, a float32 scale for each head."""
    assert round_state(drawn(5, 3, 4, 8), kind)[1] == num_bytes


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp8", "int8"])
@pytest.mark.parametrize("shape", [(3, 2, 4, 8), (3, 4, 8), (3, 16)])
def test_rows_are_rounded_on_their_own(kind, shape):
    state = drawn(*shape) * torch.tensor([1.0, 100, 0.01]).view(3, *[1] * (len(shape) - 1))
    together, num_bytes = round_state(state, kind)
    for row in range(3):
        alone, bytes_alone = round_state(state[row : row + 1], kind)
        assert torch.equal(alone, together[row : row + 1])
        assert bytes_alone == num_bytes


def test_a_state_beyond_fp16_is_refused():
    with pytest.raises(
        UserError,
        match=r"^a state has a magnitude of 7e\+04, beyond the 65,504 of fp16; round it to bf16$",
    ):
        round_state(torch.tensor([[1.0, -7e4]]), "fp16")
    assert round_state(torch.zeros(1, 2, 4, 4), "int8")[0].abs().max() == 0
    assert round_state(torch.tensor([[1.0, torch.inf]]), "fp16")[0].tolist() == [[1.0, torch.inf]]


@needs_torchao
def test_weights_of_linear_layers_are_on_a_grid_of_their_bits():
    """The second layer's width of 24 is in groups of 8, the largest power of two that divides
    it."""
    model = nn.Sequential(nn.Linear(256, 24), nn.Linear(24, 6), nn.LayerNorm(6))
    before = [part.clone() for part in (model[0].weight.data, model[1].weight.data)]
    quantise_weights(model, "int4")
    for layer, weight, group in zip(model, before, (128, 8), strict=False):
        groups, rounded = weight.view(-1, group), layer.weight.view(-1, group)
        assert max(len(row.unique()) for row in rounded) <= 16
        step = 2 * groups.abs().amax(1, keepdim=True) / 15
        assert ((rounded - groups).abs() <= 0.501 * step).all()
        assert ((rounded - groups).abs() > 0.4 * step).any()
    model = nn.Linear(256, 24)
    quantise_weights(model, "int8")
    assert all(64 < len(row.unique()) <= 256 for row in model.weight)


@needs_torchao
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_of_a_llama_keeps_its_weights(tied, dtype):
    # The head is as large as a layer of the MLP.
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64}
    config = LlamaConfig(
        **sizes,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=tied,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(dtype)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    ids = torch.arange(20)[None]
    logits = model(ids).logits
    quantise_weights(model, "int8")
    changed = {
        name.split(".")[-2]
        for name, weight in model.state_dict().items()
        if not torch.equal(weight, before[name])
    }
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert model.lm_head.weight.dtype == model.model.layers[0].mlp.up_proj.weight.dtype == dtype
    assert 0 < (model(ids).logits - logits).abs().max() < 0.05


@needs_torchao
@pytest.mark.parametrize("tied", [True, False])
def test_our_language_model_keeps_its_head(tied):
    model = LanguageModel(ArchitectureConfig(64, 32, (LayerConfig("attention"),), tied_head=tied))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    quantise_weights(model, "int4")
    stored = {
        name for name, weight in model.state_dict().items() if torch.equal(weight, before[name])
    }
    assert {"embedding.weight", "head.weight"} & set(before) <= stored
    assert {name for name in before if "qkv" in name or "up" in name}.isdisjoint(stored)


@needs_torchao
def test_experts_that_are_no_linear_layers_are_refused():
    with pytest.raises(
        UserError,
        match=r"^weight model\.layers\.0\.mlp\.experts\.\w+ is of no nn.Linear, and would stay as it is; leave out",
    ):
        quantise_weights(build_model("qwen3_5_moe_text"), "int8")


@needs_torchao
def test_a_model_without_linear_layers_is_refused():
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=1, n_head=2),
    )
    with pytest.raises(
        UserError,
        match=r"^no nn.Linear besides the output head, so no weights can be quantised; leave out weights=int8$",
    ):
        quantise_weights(model, "int8")


def test_torchao_that_is_not_installed_is_named_before_any_model_is_scored(
    monkeypatch,
    small_slices,
):
    def missing(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(
        UserError,
        match=r'torchao is not installed; pip install "recallkit-lm\[weights\]"$',
    ):
        recallkit.score(
            {"before": "zoo:delta", "quantised": "zoo:delta,weights=int8"},
            slices=small_slices,
        )
    assert not list((small_slices / "scores").glob("before*"))


def test_the_version_of_what_quantises_decides_the_scores(monkeypatch):
    versions = iter(["1.0", "1.1"])
    monkeypatch.setattr(metadata, "version", lambda package: next(versions))
    assert Variant(weights="int8").identify() != Variant(weights="int8").identify()
