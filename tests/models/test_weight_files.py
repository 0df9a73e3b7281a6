"""The files of a checkpoint: all that decide its scores are its identity, and weights that its
config has no place for are refused."""

from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from recallkit.errors import UserError
from recallkit.models.loading import check_model, identify_model, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from tests.models.test_hf import change_config, copied, ragged

INDEX = "model.safetensors.index.json"
ASKED = [identify_model, check_model, load_model]


def requested(path: Path) -> ModelPlan:
    return ModelPlan(ModelSpec(str(path)), 4096, device="cpu")


def refused(path: Path, how=load_model) -> str:
    with pytest.raises(UserError) as caught:
        how(requested(path))
    assert "\n" not in caught.value.line()
    return caught.value.line()


def sharded(path: Path, *names: str) -> Path:
    """The weights of a model in shards of these names, with an index."""
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    for number, name in enumerate(names):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        save_file(
            {key: weights[key] for key in sorted(weights)[number :: len(names)]},
            path / name,
            metadata={"format": "pt"},
        )
    weight_map = {key: names[place % len(names)] for place, key in enumerate(sorted(weights))}
    (path / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return path


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.fixture
def model(tiny_model, tmp_path) -> Path:
    return copied(tiny_model("llama"), tmp_path / "model")


def test_a_change_of_any_shard_that_an_index_names_is_another_model(tiny_model, model):
    sharded(model, "sub/a.safetensors", "sub/deeper/b.safetensors", "c.safetensors")
    before = identify_model(requested(model))
    ids, offsets = ragged([33], 4096)
    scores = [
        load_model(requested(path)).score(ids, offsets).nll for path in (model, tiny_model("llama"))
    ]
    np.testing.assert_array_equal(*scores)
    visible = {before}
    for name in ("sub/a.safetensors", "sub/deeper/b.safetensors", "c.safetensors"):
        flip(model / name)
        visible.add(identify_model(requested(model)))
    assert len(visible) == 4
    index = json.loads((model / INDEX).read_text())
    (model / INDEX).write_text(json.dumps({**index, "metadata": {}}))
    assert identify_model(requested(model)) not in visible


def test_weights_that_the_config_names(model):
    (model / "sub").mkdir()
    (model / "model.safetensors").rename(model / "sub" / "other.safetensors")
    (model / "model.safetensors").write_bytes(b"")
    change_config(model, transformers_weights="sub/other.safetensors")
    before = identify_model(requested(model))
    flip(model / "sub" / "other.safetensors")
    assert identify_model(requested(model)) != before
    change_config(model, transformers_weights="../other.safetensors")
    assert "config.json names ../other.safetensors, which is outside" in refused(
        model,
        identify_model,
    )


@pytest.mark.parametrize(
    "name",
    ["../outside.safetensors", "sub/../../outside.safetensors", "{absolute}"],
)
def test_weights_outside_the_folder_are_refused(model, name):
    sharded(model, "a.safetensors")
    shutil.copy(model / "a.safetensors", model.parent / "outside.safetensors")
    name = name.format(absolute=model.parent / "outside.safetensors")
    index = json.loads((model / INDEX).read_text())
    (model / INDEX).write_text(
        json.dumps({**index, "weight_map": dict.fromkeys(index["weight_map"], name)}),
    )
    for how in ASKED:
        assert (
            f"{INDEX} names {name}, which is outside; put all weights into the folder"
            in refused(model, how)
        )


def test_shards_that_are_missing_and_an_index_that_cannot_be_read(model):
    sharded(model, "sub/a.safetensors")
    (model / "sub" / "a.safetensors").rename(model / "sub" / "b.safetensors")
    (model / "a.safetensors").touch()
    for how in ASKED:
        assert f"sub/a.safetensors is missing, which {INDEX} names" in refused(model, how)
    (model / INDEX).write_text("{")
    for how in ASKED:
        assert f"{INDEX} cannot be read (Expecting" in refused(model, how)


@pytest.mark.parametrize("index", ["pytorch_model.bin.index.json", "tf_model.h5.index.json"])
def test_shards_of_a_format_that_is_not_read_may_be_missing(model, index):
    (model / index).write_text(
        json.dumps({"weight_map": {"lm_head.weight": "pytorch_model-00001-of-00002.bin"}}),
    )
    assert load_model(requested(model)).vocab_size == 4096
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    if index.startswith("pytorch"):
        assert "pytorch_model-00001-of-00002.bin is missing" in refused(model)


def deeper(tiny_model, path: Path) -> Path:
    """A folder with the weights of a model of twice the layers that its config says."""
    copied(tiny_model("llama"), path)
    weights = load_file(path / "model.safetensors")
    layers = json.loads((path / "config.json").read_text())["num_hidden_layers"]
    more = {
        key.replace("layers.0.", f"layers.{layers}."): value.clone()
        for key, value in weights.items()
        if ".layers.0." in key
    }
    save_file(weights | more, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_weights_of_more_layers_than_the_config_says_are_refused(tiny_model, tmp_path):
    path = deeper(tiny_model, tmp_path / "model")
    assert "weights in its files are of no layer of its config, model.layers." in refused(path)
    change_config(path, num_nextn_predict_layers=1)  # layers that predict tokens beyond the next
    ids, offsets = ragged([33], 4096)
    scores = [
        load_model(requested(item)).score(ids, offsets).nll for item in (path, tiny_model("llama"))
    ]
    np.testing.assert_array_equal(*scores)


def test_weights_that_read_no_text_are_let_by(model):
    weights = load_file(model / "model.safetensors")
    some = weights["model.norm.weight"]
    names = (
        "vision_tower.layer.weight",
        "model.visual.x",
        "mtp.layers.0.x",
        "v_head.summary.weight",
    )
    more = {name: some.clone() for name in (*names, "model.layers.0.self_attn.rotary_emb.inv_freq")}
    save_file(weights | more, model / "model.safetensors", metadata={"format": "pt"})
    assert load_model(requested(model)).vocab_size == 4096
    save_file(
        {**weights, "model.layers.0.self_attn.q_proj.extra": some.clone()},
        model / "model.safetensors",
        metadata={"format": "pt"},
    )
    assert (
        "1 weights in its files are of no layer of its config, "
        "model.layers.0.self_attn.q_proj.extra among them"
    ) in refused(model)
    change_config(
        model,
        intermediate_size=json.loads((model / "config.json").read_text())["intermediate_size"] + 1,
    )
    assert "weight model.layers.0.mlp.down_proj.weight has shape " in refused(model)


@pytest.mark.parametrize(
    "entries",
    [{"vocab_size": 1 << 24}, {"intermediate_size": 1 << 24}],
    ids=str,
)
@pytest.mark.parametrize("how", [check_model, load_model])
def test_a_config_that_asks_for_more_weights_than_there_are_takes_no_memory(model, entries, how):
    change_config(model, **entries)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = refused(model, how)
    assert "its config asks for " in line
    assert "weights, and its files have" in line
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "KiB"


@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors", "tokenizer.json", "sub/a.safetensors"],
)
@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_pipes_and_devices_are_not_waited_for(model, name, kind):
    if name.startswith("sub/"):
        sharded(model, name)
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name) if kind == "a pipe" else (model / name).symlink_to("/dev/zero")
    for how in ASKED:
        assert (
            refused(model, how)
            == f"{model / name}: {kind}, but a file is expected; give a regular file"
        )
