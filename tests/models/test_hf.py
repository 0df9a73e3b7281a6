"""Transformers models scored through our engine equal their own forward, whatever the batch."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from recallkit.errors import UserError
from recallkit.models.loading import identify_model, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec

LENGTHS = [33, 65, 65, 2, 17]


def ragged(lengths: list[int], vocab: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return rng.integers(0, vocab, offsets[-1]).astype(np.uint32), offsets


def direct(path, ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every sequence alone, full logits, plain log-softmax in float64 of the model's float32
    logits."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    nll, argmax, rank = [], [], []
    for start, stop in itertools.pairwise(offsets):
        sequence = torch.from_numpy(ids[start:stop].astype(np.int64))
        with torch.no_grad():
            logits = model(sequence[None, :-1], use_cache=False).logits[0].double()
        target = logits.gather(1, sequence[1:, None])
        nll.append(-torch.log_softmax(logits, 1).gather(1, sequence[1:, None])[:, 0].numpy())
        argmax.append(logits.argmax(1).numpy())
        rank.append((logits > target).sum(1).numpy())
    return np.concatenate(nll), np.concatenate(argmax), np.concatenate(rank)


def test_a_smaller_vocabulary_is_refused(tiny_model):
    """An id that it lacks, not entries of its tokenizer that are in no text, as an added pad
    token."""
    plan = ModelPlan(ModelSpec(str(tiny_model("llama", vocab_size=1000))), 4096, device="cpu")
    with pytest.raises(
        UserError,
        match="its vocabulary has 1,000 entries, and the text has id 1,000",
    ):
        load_model(dataclasses.replace(plan, largest_id=1000))
    model = load_model(plan)
    assert np.isfinite(model.score(np.array([1, 999], np.uint32), np.array([0, 2])).nll).all()
    with pytest.raises(UserError, match="the text has id 1,000"):
        model.score(np.array([1, 1000], np.uint32), np.array([0, 2]))


def test_missing_weights_are_refused_not_drawn_at_random(tiny_model, tmp_path):
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(tiny_model("llama"), broken)
    weights = load_file(broken / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"weights are missing.*up_proj"):
        load_model(ModelPlan(ModelSpec(str(broken)), 4096, device="cpu"))


def assert_scores_equal_a_direct_forward(path: Path, vocab: int = 4096) -> None:
    ids, offsets = ragged([33, 17], vocab)
    nll = load_model(ModelPlan(ModelSpec(str(path)), vocab, device="cpu")).score(ids, offsets).nll
    np.testing.assert_allclose(nll, direct(path, ids, offsets)[0], rtol=0, atol=1e-5)


def copied(path: Path, to: Path) -> Path:
    shutil.copytree(path, to)
    return to


def change_config(path: Path, **changes: object) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))


def test_a_bin_file_of_plain_weights_is_read(tiny_model, tmp_path):
    from safetensors.torch import load_file

    path = copied(tiny_model("llama"), tmp_path / "bin")
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    ids, offsets = ragged([33, 17], 4096)
    nll = load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu")).score(ids, offsets).nll
    np.testing.assert_allclose(nll, direct(tiny_model("llama"), ids, offsets)[0], rtol=0, atol=1e-5)


def test_damaged_files_and_unknown_kinds_are_one_line(tiny_model, tmp_path):
    path = copied(tiny_model("llama"), tmp_path / "cut")
    change_config(path, model_type="no_such_kind")
    with pytest.raises(UserError, match=r"transformers cannot load it.*no_such_kind"):
        load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu"))
    for file, said in (
        ("model.safetensors", "transformers cannot load it"),
        ("config.json", "config.json cannot be read"),
    ):
        path = copied(tiny_model("llama"), tmp_path / file)
        content = (path / file).read_bytes()
        (path / file).write_bytes(content[: len(content) // 2])
        with pytest.raises(UserError, match=said):
            load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu"))


@pytest.mark.parametrize("family", ["t5", "florence2", "glm5_next_text"])
def test_what_continues_no_text_is_named(tiny_model, tmp_path, family):
    """Encoders with decoders, also those that read images; a part of a model without a head of its
    own."""
    path = copied(tiny_model("llama"), tmp_path / family)
    (path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(
        UserError,
        match=f"no causal language model of type {family}; give a causal language model",
    ):
        load_model(ModelPlan(ModelSpec(str(path)), 512, device="cpu"))


def test_bfloat16_weights_are_computed_with_in_float32(tiny_model):
    path = tiny_model("llama", dtype="bfloat16")
    model = load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu"))
    assert {parameter.dtype for parameter in model.model.parameters()} == {torch.float32}
    assert_scores_equal_a_direct_forward(path)


def test_padding_of_the_vocabulary_is_part_of_the_distribution(tiny_model):
    """Entries that no token has still take probability from the others: leaving them out would
    flatter the model."""
    path = tiny_model("llama", vocab_size=4224)
    model = load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu"))
    assert model.vocab_size == 4224
    ids, offsets = ragged([200], 4096)
    scores = model.score(ids, offsets)
    nll, argmax, _ = direct(path, ids, offsets)
    np.testing.assert_allclose(scores.nll, nll, rtol=0, atol=1e-5)
    assert (scores.argmax == argmax).mean() > 0.99
    with torch.no_grad():
        logits = model.model(torch.from_numpy(ids[None, :-1].astype(np.int64))).logits[0, :, :4096]
    cut = torch.nn.functional.cross_entropy(
        logits,
        torch.from_numpy(ids[1:].astype(np.int64)),
        reduction="none",
    ).numpy()
    assert (scores.nll - cut).min() > 1e-3


def test_tied_embeddings_are_not_missing_weights(tmp_path):
    from safetensors import safe_open
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    sizes = {
        "vocab_size": 4096,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True)).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 - not a dict
    assert_scores_equal_a_direct_forward(tmp_path)
    change_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(UserError, match=r"1 weights are missing from its files, lm_head\.weight"):
        load_model(ModelPlan(ModelSpec(str(tmp_path)), 4096, device="cpu"))


def test_identity_is_that_of_config_and_weights(tiny_model, tmp_path):
    path = copied(tiny_model("llama"), tmp_path / "model")
    before = identify_model(ModelPlan(ModelSpec(str(path)), 4096))
    assert before == identify_model(ModelPlan(ModelSpec(str(tiny_model("llama"))), 4096))
    for name in (
        "README.md",
        "trainer_state.json",
        "training_args.bin",
        "optimizer.bin",
        "tokenizer.json",
        "other.gguf",
    ):
        (path / name).write_text("{}")
    assert identify_model(ModelPlan(ModelSpec(str(path)), 4096)) == before
    change_config(path, rope_theta=1234.0)
    assert identify_model(ModelPlan(ModelSpec(str(path)), 4096)) != before
