"""Models larger than memory: weights over several devices and a disk, and what a model needs."""

from __future__ import annotations

import dataclasses
import gc
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from recallkit.errors import UserError
from recallkit.models import devices
from recallkit.models.devices import main_device
from recallkit.models.loading import check_model, load_model
from recallkit.models.protocol import ModelRequest
from recallkit.models.variants import Variant
from tests.models.test_hf import copied, ragged

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


@pytest.mark.parametrize(("family", "share"), [("gpt2", 0.95), ("gpt2", 0.1), ("mamba", 0.97), ("llama", 0.97)])
def test_weights_on_cpu_and_disk_give_the_same_scores(gpt2, tiny_model, offloaded, family, share):
    path = gpt2 if family == "gpt2" else tiny_model(family)
    ids, offsets = ragged([33, 17, 40], 4096)
    plain = load_model(ModelRequest(str(path), 4096, device="cpu"))
    spread = load_model(ModelRequest(str(path), 4096, device=limited(path, share)))
    places = set(spread.model.hf_device_map.values())
    assert places == ({"cpu", "disk"} if share > 0.5 else {"disk"})
    for one, other in zip(dataclasses.astuple(plain.score(ids, offsets)), dataclasses.astuple(spread.score(ids, offsets)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert any(offloaded.iterdir())
