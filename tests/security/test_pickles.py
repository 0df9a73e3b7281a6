"""Files that hold a program in place of weights: whatever they are called, none of it runs, and the
refusal is one line.

`pytorch_model.bin` in a folder of transformers' is in tests/models/test_hf.py.
"""

from __future__ import annotations

import json
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from recallkit.errors import UserError
from recallkit.models.loading import load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec


class Program:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open, (str(self.mark), "w")


def sharded(folder: Path, evil: Program) -> Path:
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": evil}, folder / "pytorch_model-00001-of-00001.bin")
    index = {
        "metadata": {"total_size": 1},
        "weight_map": {"model.norm.weight": "pytorch_model-00001-of-00001.bin"},
    }
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


def called_safetensors(folder: Path, evil: Program) -> Path:
    (folder / "model.safetensors").write_bytes(pickle.dumps({"model.norm.weight": evil}))
    return folder


def old_bin(folder: Path, evil: Program) -> Path:
    """The format before torch 1.6, several pickles one after the other."""
    (folder / "model.safetensors").unlink()
    torch.save(
        {"model.norm.weight": evil},
        folder / "pytorch_model.bin",
        _use_new_zipfile_serialization=False,
    )
    return folder


def published(folder: Path, evil: Program) -> Path:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"d_model": 8, "n_layer": 1, "vocab_size": 16, "ssm_cfg": {}})
    )
    torch.save({"backbone.embedding.weight": evil}, folder / "pytorch_model.bin")
    return folder


def zoo(folder: Path, evil: Program) -> Path:
    (folder / "config.json").write_text('{"model_type": "recallkit"}')
    return called_safetensors(folder, evil)


def gguf(folder: Path, evil: Program) -> Path:
    (folder / "model.gguf").write_bytes(pickle.dumps(evil))
    return folder / "model.gguf"


def rwkv(folder: Path, evil: Program) -> Path:
    (folder / "model.bin").write_bytes(struct.pack("<I", 0x67676D66) + pickle.dumps(evil))
    return folder / "model.bin"


def torch_file(folder: Path, evil: Program) -> Path:
    torch.save(evil, folder / "RWKV-4.pth")
    return folder / "RWKV-4.pth"


@pytest.mark.parametrize(
    "make", [sharded, called_safetensors, old_bin, published, zoo, gguf, rwkv, torch_file]
)
def test_a_program_in_place_of_weights_does_not_run(tiny_model, tmp_path, make):
    mark = tmp_path / "ran"
    shutil.copytree(tiny_model("llama"), tmp_path / "model")
    path = make(tmp_path / "model", Program(mark))
    with pytest.raises(UserError) as caught:
        load_model(ModelPlan(ModelSpec(str(path)), 16, device="cpu"))
    assert not mark.exists()
    assert "\n" not in caught.value.line()
    pickle.loads(pickle.dumps(Program(mark))).close()
    assert mark.exists(), "the program would have told"
