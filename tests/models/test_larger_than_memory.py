"""Models larger than memory: weights over several devices and a disk, and what a model needs."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from recallkit.errors import UserError
from recallkit.models import devices
from recallkit.models.loading import check_model, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.protocol import ScoringModel
from recallkit.models.spec import ModelSpec, parse_model
from tests.conftest import Run
from tests.models.test_hf import ragged

GPT2 = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 128}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> Path:
    """A tiny GPT-2, whose head is tied to its embedding."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=4096, bos_token_id=0, eos_token_id=0, **GPT2))
    folder = tmp_path_factory.mktemp("gpt2")
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def offloaded(tmp_path, monkeypatch) -> Iterator[Path]:
    """The folder of temporary files, in which nothing may remain."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    gc.collect()
    assert not list(tmp_path.iterdir())


def limited(path: Path, share: float) -> str:
    """The device that has room for a share of a model's weights, as its files have them."""
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return f"balanced:{size * share / 1e9:.7f}GB"


def load(path: Path, device: str = "cpu", **more: object) -> ScoringModel:
    return load_model(ModelPlan(ModelSpec(str(path)), 4096, device=device, **more))


@pytest.mark.parametrize(
    ("family", "share", "dtype"),
    [
        ("gpt2", 0.95, "float32"),
        ("gpt2", 0.1, "float32"),
        ("llama", 0.97, "bfloat16"),
        ("mamba", 0.97, "float32"),
        ("mamba", 0.48, "bfloat16"),
    ],
)
def test_weights_on_a_disk_give_the_same_scores(gpt2, tiny_model, offloaded, family, share, dtype):
    path = gpt2 if family == "gpt2" else tiny_model(family, dtype=dtype)
    ids, offsets = ragged([33, 17, 40], 4096)
    plain, spread = load(path, dtype=dtype), load(path, limited(path, share), dtype=dtype)
    places = {"cpu", "disk"} if share > 0.9 else {"disk"}
    assert set(spread.model.hf_device_map.values()) == places
    wanted, scores = plain.score(ids, offsets).of_model, spread.score(ids, offsets).of_model
    for name in wanted:
        np.testing.assert_array_equal(scores[name], wanted[name])
    assert spread.carrying == plain.carrying
    assert any(offloaded.iterdir())


def test_a_state_and_a_generation_are_those_of_plain_loading(gpt2, offloaded):
    ids, offsets = ragged([33, 17], 4096)
    answers = [ids[:3], ids[3:5]]
    plain, spread = load(gpt2), load(gpt2, limited(gpt2, 0.95))
    carried = [model.score_carrying(ids, offsets, 8).nll for model in (plain, spread)]
    np.testing.assert_array_equal(*carried)
    prompts, never = [ids[:9], ids[9:14]], lambda *_: False
    wanted, written = (model.generate(prompts, answers, 2, never) for model in (plain, spread))
    for one, other in zip(wanted, written, strict=True):
        assert one.ids == other.ids
        np.testing.assert_array_equal(one.answer_nll, other.answer_nll)


@pytest.mark.parametrize("option", ["cache=fp8,chunk=16", "ablate=1"])
def test_compressed_caches_and_ablated_mixers_are_those_of_plain_loading(gpt2, offloaded, option):
    spec = parse_model(f"{gpt2},{option}")
    ids, offsets = ragged([90, 70], 4096)
    devices = ("cpu", limited(gpt2, 0.95))
    plain, spread = (load_model(ModelPlan(spec, 4096, device=device)) for device in devices)
    scores = plain.score(ids, offsets).nll
    np.testing.assert_array_equal(spread.score(ids, offsets).nll, scores)
    assert not np.array_equal(load(gpt2).score(ids, offsets).nll, scores)


def test_pickled_weights_are_in_a_folder_until_the_model_is_gone(tiny_model, tmp_path, offloaded):
    """A pickled file is written anew; the folder goes with the model, and when loading fails."""
    import torch
    from safetensors.torch import load_file

    llama = tiny_model("llama")
    folder = tmp_path.parent / f"{tmp_path.name}-pickled"
    shutil.copytree(llama, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(llama / "model.safetensors"), folder / "pytorch_model.bin")
    ids, offsets = ragged([33], 4096)
    spread = load(folder, "balanced:0.0001GB")
    [place] = offloaded.iterdir()
    assert any(place.iterdir())
    wanted = load(llama).score(ids, offsets).nll
    np.testing.assert_array_equal(spread.score(ids, offsets).nll, wanted)
    (folder / "pytorch_model.bin").write_bytes(b"damaged")
    with pytest.raises(UserError, match="use safetensors"):
        load(folder, "balanced:0.0001GB")
    assert list(offloaded.iterdir()) == [place]


@pytest.mark.parametrize(
    ("spec", "device", "weights", "message"),
    [
        ("zoo:mamba", "balanced", None, "mamba: only a model of transformers"),
        ("", "balanced", "int4", "weights=int4 needs all weights on one device"),
        ("", "balanced:4", None, "device=balanced:4: not an amount of memory"),
    ],
)
def test_what_cannot_be_spread_is_refused_before_it_is_loaded(gpt2, spec, device, weights, message):
    plan = ModelPlan(ModelSpec(spec or str(gpt2), weights=weights), 4096, device=device)
    for door in (check_model, load_model):
        with pytest.raises(UserError, match=message):
            door(plan)


def test_what_does_not_fit_is_refused_before_its_weights_are_read(
    gpt2,
    few_slices,
    tmp_path,
    run: Run,
    monkeypatch,
):
    """They take 1.1 MB in float32, and the logits of a batch 0.1 GB."""
    num_weights = check_model(ModelPlan(ModelSpec(str(gpt2)), 4096, device="cpu")).num_weights
    assert num_weights == sum(weight.numel() for weight in load(gpt2).model.parameters())
    needed = 4 * num_weights + devices.batch_ids(4096) * 4096 * 12
    cut = shutil.copytree(gpt2, tmp_path / "cut")
    (cut / "model.safetensors").write_bytes((gpt2 / "model.safetensors").read_bytes()[:-1])
    tokenizer = few_slices / "tokenizer.json"
    options = ("--slices", few_slices, "--context", 64, "--model-tokenizer", tokenizer)
    monkeypatch.setattr(devices, "free_memory", lambda _: needed - 1)
    refused = run("score", f"cut={cut}", *options)
    assert refused.returncode != 0
    needs = "cut: 0.0 GB of weights in float32 and 0.1 GB for a batch"
    assert f"{needs}, but cpu has 0.1 GB free;" in refused.stderr
    assert "give dtype=bfloat16 (0.0 GB), device=balanced, or a smaller model" in refused.stderr
    with pytest.raises(UserError, match="of weights in float32"):
        load(cut)
    monkeypatch.setattr(devices, "free_memory", lambda _: needed - 2 * num_weights - 1)
    rounded = run("score", f"tiny={gpt2},weights=int4", *options)
    assert rounded.stderr.endswith("free; give a smaller model\n"), rounded.stderr
    spread = run("score", f"tiny={gpt2},device=balanced", *options)
    assert spread.returncode == 0
    monkeypatch.setattr(devices, "free_memory", lambda _: needed)
    assert load(gpt2).vocab_size == 4096


def test_workers_are_refused(gpt2, few_slices, run):
    done = run("score", f"{gpt2},device=balanced", "--slices", few_slices, "--workers", 2)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("for one process; leave out workers and engine")
