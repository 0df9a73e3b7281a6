"""What is given as a model and is none is named for what it is, in one line, with what to do."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch

from recallkit.errors import UserError
from recallkit.models.loading import check_model, identify_model, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from tests.models.families import VOCAB_SIZE, save_model
from tests.models.test_hf import change_config, copied, direct, ragged


def refused(spec: Path | str) -> str:
    """The one line for a model; the same whether it is identified, which comes first, or loaded."""
    lines = set()
    for requested in (identify_model, load_model):
        with pytest.raises(UserError) as caught:
            requested(ModelPlan(ModelSpec(str(spec)), 4096, device="cpu"))
        lines.add(caught.value.line())
    [line] = lines
    assert "\n" not in line
    return line.removeprefix(f"{spec}: ")


@pytest.mark.parametrize("name", ["model.safetensors", "epoch=3.ckpt"])
def test_a_file_of_weights_alone(tmp_path, name):
    torch.save({"weight": torch.ones(2)}, tmp_path / name)
    start = "weights alone do not say which model they belong to; "
    assert (
        refused(tmp_path / name)
        == start + "give a folder that also has its config.json, or FILE.py:FUNCTION that builds it"
    )
    (tmp_path / "notes.txt").write_text("")
    assert refused(tmp_path / "notes.txt").startswith(
        "not a model: a directory, a .gguf file or a hub id is wanted",
    )
    (tmp_path / "config.json").write_text("{}")
    assert refused(tmp_path / name) == start + f"give its folder {tmp_path}"


def test_folders_without_a_model(tiny_model, tmp_path):
    assert refused(tmp_path).startswith("a directory without a model: there is no config.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert refused(tmp_path) == (
        "a tokenizer without a model; give the model's folder, and this one with --model-tokenizer"
    )
    shutil.copytree(tiny_model("llama"), tmp_path / "checkpoint-100")
    assert (
        refused(tmp_path)
        == f"no config.json here, but in folders inside; give {tmp_path / 'checkpoint-100'}"
    )
    shutil.copytree(tiny_model("llama"), tmp_path / "checkpoint-200")
    assert refused(tmp_path).endswith(f"give {tmp_path / 'checkpoint-200'} or one of 1 others")


def test_half_a_model(tiny_model, tmp_path):
    path = copied(tiny_model("llama"), tmp_path / "model")
    (path / "config.json").rename(tmp_path / "config.json")
    assert refused(path).startswith(
        "weights (model.safetensors) without a config.json; add the config.json of the model",
    )
    (tmp_path / "config.json").rename(path / "config.json")
    (path / "model.safetensors").unlink()
    (path / "training_args.bin").write_text("")
    assert (
        refused(path)
        == "a config.json without weights; complete the folder: model.safetensors is missing"
    )


@pytest.mark.parametrize(
    "entry",
    [
        {"quant_method": "gptq", "bits": 4, "group_size": 32},
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
    ],
)
def test_quantised_checkpoints_whose_package_is_missing(tiny_model, tmp_path, entry):
    path = copied(tiny_model("llama"), tmp_path / "quantised")
    change_config(path, quantization_config=entry)
    with pytest.raises(
        UserError,
        match=rf"quantised by {entry['quant_method']}, which transformers cannot load here \(.*before it was quant",
    ):
        load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu"))


def test_a_quantisation_that_transformers_does_not_know(tiny_model, tmp_path):
    path = copied(tiny_model("llama"), tmp_path / "quantised")
    change_config(path, quantization_config={"quant_method": "own"})
    assert refused(path).startswith(
        "quantised by own, which the installed transformers does not know; give the model before",
    )


def test_float8_weights_in_blocks_are_read(tmp_path):
    """As DeepSeek releases them: float8 with a factor for each 128 x 128 block."""
    from safetensors.torch import load_file, save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    sizes = {
        "vocab_size": 4096,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(tmp_path / "plain")
    shutil.copytree(tmp_path / "plain", tmp_path / "float8")
    weights, rounded = load_file(tmp_path / "plain/model.safetensors"), {}
    for name in [name for name in weights if "proj" in name]:
        blocks = weights[name].unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
        factors = blocks.abs().amax(dim=(1, 3)) / 448
        small = (blocks / factors[:, None, :, None]).to(torch.float8_e4m3fn)
        weights[name], weights[f"{name}_scale_inv"] = small.flatten(2).flatten(0, 1), factors
        rounded[name] = (small.float() * factors[:, None, :, None]).flatten(2).flatten(0, 1)
    save_file(weights, tmp_path / "float8/model.safetensors", metadata={"format": "pt"})
    plain = {
        name: value for name, value in weights.items() if not name.endswith("_scale_inv")
    } | rounded
    save_file(plain, tmp_path / "plain/model.safetensors", metadata={"format": "pt"})
    change_config(
        tmp_path / "float8",
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
    )
    ids, offsets = ragged([65], 4096)
    scores = load_model(ModelPlan(ModelSpec(str(tmp_path / "float8")), 4096, device="cpu")).score(
        ids,
        offsets,
    )
    np.testing.assert_allclose(
        scores.nll,
        direct(tmp_path / "plain", ids, offsets)[0],
        rtol=0,
        atol=1e-4,
    )


def test_names_of_the_hub_that_are_not_at_hand(hub, tmp_path, tiny_model):
    assert refused("gptt2") == (
        "no such file or directory; give a model directory or a .gguf file, or a hub id "
        "(OWNER/NAME)"
    )
    line = refused("openai-community/gpt2")
    assert line.startswith("neither here nor in the hub's cache (")
    assert "and HF_HUB_OFFLINE is set; download it with a network connection" in line


def test_the_words_of_the_hub(monkeypatch):
    """What the hub answers, as its client raises it."""
    from huggingface_hub import errors
    from huggingface_hub.utils import get_session

    session = get_session()
    answer = sys.modules[type(session).__module__.partition(".")[0]].Response(
        403,
        request=session.build_request("GET", "https://example.com"),
    )
    for kind, said in (
        (
            errors.GatedRepoError,
            "a gated model of the hub; accept its terms on its page, then log in",
        ),
        (errors.RepositoryNotFoundError, "no such model on the hub; check the spelling"),
        (
            errors.RemoteEntryNotFoundError,
            "this model of the hub has no config.json; check that it is a language model",
        ),
    ):

        def refuse(*_: object, kind: type = kind, **__: object) -> None:
            raise kind("no", response=answer)

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
        assert said in refused("owner/name")


def test_a_config_that_cannot_be_read(tiny_model, tmp_path):
    path = copied(tiny_model("llama"), tmp_path / "model")
    (path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(UserError, match="transformers cannot load it"):
        load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu"))
    (path / "config.json").write_text("{")
    assert refused(path).startswith("config.json cannot be read")


def test_rotary_positions_that_transformers_would_ignore(tmp_path):
    """As transformers 5.0 saved olmo3: with one entry for all kinds of layer, of which 5.23 reads
    none."""
    path = save_model("olmo3", tmp_path)
    config = json.loads((path / "config.json").read_text())
    yarn = config["rope_parameters"]["full_attention"]

    def load_with(rope):
        (path / "config.json").write_text(json.dumps({**config, "rope_parameters": rope}))
        plan = ModelPlan(ModelSpec(str(path)), VOCAB_SIZE, device="cpu")
        check_model(plan)
        return load_model(plan)

    problem = (
        "transformers ignores its rope_parameters factor, original_max_position_embeddings, "
        "rope_theta, rope_type: they are of no"
    )
    with pytest.raises(UserError, match=problem):
        load_with(yarn)
    # Those that both kinds have without any.
    load_with({"rope_type": "default", "rope_theta": 500000.0})


def test_yarn_of_a_released_olmo3_is_that_of_its_full_layers_alone(tmp_path):
    """Their config.json has `rope_scaling`; that of the sliding layers was scaled, too, in some
    versions of transformers."""
    path = save_model("olmo3", tmp_path)
    config = json.loads((path / "config.json").read_text())
    scaling = config.pop("rope_parameters")["full_attention"] | {"attention_factor": 1.2}
    scaling.pop("rope_theta")
    (path / "config.json").write_text(
        json.dumps({**config, "rope_theta": 500000, "rope_scaling": scaling}),
    )
    rotary = load_model(
        ModelPlan(ModelSpec(str(path)), VOCAB_SIZE, device="cpu")
    ).model.model.rotary_emb
    plain = 500000.0 ** -(torch.arange(0, 12, 2) / 12)
    torch.testing.assert_close(rotary.sliding_attention_inv_freq, plain)
    assert (
        rotary.sliding_attention_attention_scaling,
        rotary.full_attention_attention_scaling,
    ) == (1, 1.2)
    assert rotary.full_attention_inv_freq[-1] < 0.3 * plain[-1], "a fourth"
