"""The language model around mixers: beside transformers' Llama, in pieces as at once, every mixer
in one model, its configs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.language_model import LanguageModel
from recallkit.models.mixers import MIXERS

VOCAB = 37
LENGTH = 24


SMALL = {
    **{name: {"max_length": LENGTH} for name in ("long_conv", "base_conv", "hyena")},
    "gss": {"state": 8},
    "prefix_linear_attention": {"prefix": 1},
    "rwkv5": {"head_size": 16},
    "rwkv7": {"head_size": 16},
    "mamba2": {"head_dim": 16},
    "mamba3": {"head_dim": 16},
}


def every_mixer() -> tuple[LayerConfig, ...]:
    """A block of each, filters as short as the text and heads as narrow as the model."""
    return tuple(LayerConfig(name, SMALL.get(name, {})) for name in MIXERS)


def actual(config: ArchitectureConfig, seed: int = 0) -> LanguageModel:
    torch.manual_seed(seed)
    return LanguageModel(config).eval()


def random_ids(batch: int, t: int = LENGTH) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).integers(0, VOCAB, (batch, t)))


def test_it_is_a_llama_where_its_mixers_are_attention():
    transformers = pytest.importorskip("transformers")
    theirs_config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(theirs_config).eval()
    ours = actual(ArchitectureConfig(VOCAB, 32, (LayerConfig("attention"),) * 3, mlp_width=48))
    weights = theirs.state_dict()
    renamed = {
        "embedding.weight": weights["model.embed_tokens.weight"],
        "norm.weight": weights["model.norm.weight"],
    }
    for i in range(3):
        layer, block = f"model.layers.{i}", f"blocks.{i}"
        renamed[f"{block}.mixer.qkv.weight"] = torch.cat(
            [weights[f"{layer}.self_attn.{x}_proj.weight"] for x in "qkv"],
        )
        renamed[f"{block}.mixer.out_proj.weight"] = weights[f"{layer}.self_attn.o_proj.weight"]
        renamed[f"{block}.mlp.up.weight"] = torch.cat(
            [weights[f"{layer}.mlp.{x}_proj.weight"] for x in ("gate", "up")],
        )
        renamed[f"{block}.mlp.down.weight"] = weights[f"{layer}.mlp.down_proj.weight"]
        renamed[f"{block}.mixer_norm.weight"] = weights[f"{layer}.input_layernorm.weight"]
        renamed[f"{block}.mlp_norm.weight"] = weights[f"{layer}.post_attention_layernorm.weight"]
    ours.load_state_dict(renamed)
    ids = random_ids(2)
    with torch.no_grad():
        torch.testing.assert_close(
            ours(ids),
            theirs(input_ids=ids, use_cache=False).logits,
            atol=1e-5,
            rtol=1e-5,
        )
    assert ours.num_parameters() == sum(parameter.numel() for parameter in theirs.parameters())


def test_a_model_of_every_mixer_gives_the_same_in_whatever_pieces_and_by_its_reference():
    model = actual(ArchitectureConfig(VOCAB, 32, every_mixer(), mlp_width=32)).double()
    ids = random_ids(2)
    with torch.no_grad():
        at_once, state, parts, start = model.hidden(ids), model.initial_state(2), [], 0
        for size in (1, 9, 3, LENGTH - 13):
            part, state = model.read(ids[:, start : start + size], state)
            parts.append(part)
            start += size
        torch.testing.assert_close(torch.cat(parts, dim=1), at_once, atol=1e-8, rtol=1e-8)
        torch.testing.assert_close(model.reference(ids), at_once, atol=1e-8, rtol=1e-8)
        torch.testing.assert_close(model(ids), functional.linear(at_once, model.embedding.weight))


@pytest.mark.parametrize("mlp", ["swiglu", "gelu", "rwkv", "none"])
def test_norms_heads_and_mlps_of_every_kind_are_read_on(mlp):
    config = ArchitectureConfig(
        VOCAB,
        32,
        (LayerConfig("rwkv4"), LayerConfig("mamba")),
        mlp=mlp,
        norm="layer",
        embedding_norm=True,
        tied_head=False,
    )
    model = actual(config).double()
    ids = random_ids(2)
    with torch.no_grad():
        first, state = model.read(ids[:, :7], model.initial_state(2))
        second, _ = model.read(ids[:, 7:], state)
        torch.testing.assert_close(torch.cat([first, second], dim=1), model.hidden(ids))
        assert not torch.equal(model.head_weight, model.embedding.weight)
    assert model.num_parameters() - model.num_parameters(embeddings=False) == 2 * VOCAB * 32


def test_costs_are_those_of_the_parts():
    model = actual(
        ArchitectureConfig(
            VOCAB,
            32,
            (LayerConfig("attention"), LayerConfig("sliding_window", {"window": 8})),
            mlp_width=48,
        ),
    )
    assert model.state_size(20) == 2 * 32 * 20 + 2 * 32 * 8
    projections, mlp, head = 2 * 4 * 32 * 32, 2 * 3 * 32 * 48, 2 * 32 * VOCAB
    pairs = 20 * 21 // 2 + (8 * 9 // 2 + 12 * 8)
    assert model.flops(20) == 20 * (2 * projections + 2 * mlp + head) + 4 * 32 * pairs


def test_the_limit_is_that_of_the_shortest_filter():
    long, short = (
        LayerConfig("hyena", {"max_length": 64}),
        LayerConfig("base_conv", {"max_length": 16}),
    )
    assert actual(ArchitectureConfig(VOCAB, 32, (long, short))).max_length == 16
    assert actual(ArchitectureConfig(VOCAB, 32, (long,), max_length=20)).max_length == 20
    assert actual(ArchitectureConfig(VOCAB, 32, (LayerConfig("mamba"),))).max_length is None


def test_the_auxiliary_loss_is_the_sum_over_the_mixers():
    learned = LayerConfig("selective_attention", {"selection": "learned", "share": 0.1})
    model = actual(ArchitectureConfig(VOCAB, 32, (LayerConfig("mamba"), learned, learned))).train()
    assert (
        LanguageModel(ArchitectureConfig(VOCAB, 32, (LayerConfig("mamba"),))).auxiliary_loss()
        is None
    )
    model(random_ids(2))
    losses = [block.mixer.auxiliary_loss() for block in model.blocks[1:]]
    assert model.auxiliary_loss().item() == pytest.approx(sum(loss.item() for loss in losses))
    assert losses[0].item() > 0


def test_a_config_survives_its_file():
    config = ArchitectureConfig(VOCAB, 32, every_mixer(), mlp="none", tied_head=False, max_length=9)
    assert ArchitectureConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"vocab_size": 0}, "vocab_size"),
        ({"d_model": "32"}, "d_model"),
        ({"layers": [{"options": {}}]}, "mixer"),
        ({"layers": 3}, "wrong kind"),
        ({"mlp": "moe"}, "mlp"),
        ({"dropout": 0.1}, "dropout"),
        ({"d_model": 1 << 40}, "more than fits"),
    ],
)
def test_a_config_that_makes_no_model_is_refused(change, word):
    saved = ArchitectureConfig(VOCAB, 32, (LayerConfig("attention"),)).to_json() | change
    with pytest.raises(ValueError, match=word):
        ArchitectureConfig.from_json(saved)


def test_learned_positions_are_those_of_the_text_also_in_pieces():
    model = actual(
        ArchitectureConfig(
            VOCAB,
            32,
            (LayerConfig("attention", {"rope_fraction": 0.0}),) * 2,
            max_length=LENGTH,
            positions="learned",
        ),
    )
    ids = random_ids(2)
    with torch.no_grad():
        at_once = model.hidden(ids)
        pieces, state = [], model.initial_state(2)
        for part in torch.split(ids, [7, 1, LENGTH - 8], dim=1):
            read, state = model.read(part, state)
            pieces.append(read)
        torch.testing.assert_close(torch.cat(pieces, 1), at_once)
        torch.testing.assert_close(model.reference(ids), at_once)
        model.positions.weight.zero_()
        assert not torch.allclose(model.hidden(ids), at_once)
    with pytest.raises(ValueError, match="max_length"):
        ArchitectureConfig(VOCAB, 32, (LayerConfig("attention"),), positions="learned")
