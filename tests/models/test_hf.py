"""Transformers models scored through our engine equal their own forward, whatever the batch."""

from __future__ import annotations

import itertools
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from recallkit.errors import UserError
from recallkit.models.api import ModelRequest, identify_model, load_model
from tests.conftest import FAMILIES

LENGTHS = [33, 65, 65, 2, 17]


def ragged(lengths: list[int], vocab: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return rng.integers(0, vocab, offsets[-1]).astype(np.uint32), offsets


def direct(path, ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every sequence alone, full logits, plain log-softmax in float64 of the model's float32 logits."""
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


@pytest.mark.parametrize("family", [*FAMILIES, "gemma2"])
def test_scores_equal_a_direct_forward_in_one_ragged_batch_and_one_by_one(tiny_model, family):
    path = tiny_model(family)
    ids, offsets = ragged(LENGTHS, 4096)
    model = load_model(ModelRequest(str(path), 4096, device="cpu"))
    nll, argmax, rank = direct(path, ids, offsets)
    together = model.score(ids, offsets)
    np.testing.assert_allclose(together.nll, nll, rtol=0, atol=1e-5)
    assert (together.argmax == argmax).mean() > 0.99
    assert np.abs(together.rank - rank).max() <= 2
    alone = [model.score(ids[a:b], np.array([0, b - a])).nll for a, b in itertools.pairwise(offsets)]
    np.testing.assert_allclose(np.concatenate(alone), nll, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("family", "linear"), [("llama", True), ("mamba", True), ("gemma2", False)])
def test_a_head_that_is_more_than_a_linear_layer_is_noticed(tiny_model, family, linear):
    assert load_model(ModelRequest(str(tiny_model(family)), 4096, device="cpu")).head_is_linear is linear


@pytest.mark.parametrize("family", FAMILIES)
def test_no_token_sees_what_follows(tiny_model, family):
    model = load_model(ModelRequest(str(tiny_model(family)), 4096, device="cpu"))
    ids, offsets = ragged([40], 4096)
    changed = ids.copy()
    changed[30] = (changed[30] + 1) % 4096
    before, after = model.score(ids, offsets).nll, model.score(changed, offsets).nll
    np.testing.assert_allclose(before[:29], after[:29], rtol=0, atol=1e-6)
    assert abs(before[29] - after[29]) > 1e-4


def test_context_length_and_vocabulary_are_the_models(tiny_model):
    llama = load_model(ModelRequest(str(tiny_model("llama")), 4096, device="cpu"))
    assert (llama.vocab_size, llama.max_length) == (4096, 256)
    assert load_model(ModelRequest(str(tiny_model("mamba")), 4096, device="cpu")).max_length is None


def test_a_smaller_vocabulary_is_refused(tiny_model):
    with pytest.raises(UserError, match=r"1,000 entries.*4,096"):
        load_model(ModelRequest(str(tiny_model("llama", vocab_size=1000)), 4096, device="cpu"))


def test_missing_weights_are_refused_not_drawn_at_random(tiny_model, tmp_path):
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(tiny_model("llama"), broken)
    weights = load_file(broken / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"weights are missing.*up_proj"):
        load_model(ModelRequest(str(broken), 4096, device="cpu"))


def test_a_directory_without_a_model_is_one_line(tmp_path):
    with pytest.raises(UserError, match="transformers cannot load it") as caught:
        load_model(ModelRequest(str(tmp_path), 4096, device="cpu"))
    assert "\n" not in caught.value.line()


def test_a_pickle_that_runs_code_is_refused(tiny_model, tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("code in a checkpoint ran",))

    evil = tmp_path / "evil"
    shutil.copytree(tiny_model("llama"), evil)
    (evil / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": Evil()}, evil / "pytorch_model.bin")
    with pytest.raises(UserError, match="could run code"):
        load_model(ModelRequest(str(evil), 4096, device="cpu"))


def test_identity_follows_the_weights_and_the_precision(tiny_model, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(tiny_model("llama"), path)
    before = identify_model(ModelRequest(str(path), 4096))
    assert before == identify_model(ModelRequest(str(tiny_model("llama")), 4096))
    assert before != identify_model(ModelRequest(str(path), 4096, dtype="bfloat16"))
    file = path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert before != identify_model(ModelRequest(str(path), 4096))


def test_half_precision_weights_still_give_float32_logits(tiny_model):
    """Rounding the logits themselves to bfloat16 would give equal NLLs to many tokens; here few coincide."""
    model = load_model(ModelRequest(str(tiny_model("llama")), 4096, device="cpu", dtype="bfloat16"))
    ids, offsets = ragged([200], 4096)
    nll = model.score(ids, offsets).nll
    assert nll.dtype == np.float32
    assert np.mean(nll.view(np.uint32) & 0xFFFF != 0) > 0.9


def test_a_card_that_is_not_there_is_one_line(tiny_model):
    if torch.cuda.is_available():
        pytest.skip("a CUDA card is here")
    with pytest.raises(UserError, match="no CUDA card"):
        load_model(ModelRequest(str(tiny_model("llama")), 4096, device="cuda"))
