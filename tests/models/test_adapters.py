"""Adapters score as the models that peft itself merges and saves; what cannot be merged is refused
in one line."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from recallkit.errors import UserError
from recallkit.models.loading import identify_model, load_model, own_tokenizer
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from tests.models.test_hf import change_config, copied, direct, ragged

peft = pytest.importorskip("peft", reason='needs peft: pip install "recallkit-lm[peft]"')

pytestmark = pytest.mark.filterwarnings("ignore")  # peft's, while an adapter is made

LINEAR = {"target_modules": ["q_proj", "down_proj"]}
SQUARE = {"target_modules": ["q_proj", "v_proj"]}
ADAPTERS = {
    "LORA": lambda: peft.LoraConfig(r=4, **LINEAR),
    "LORA with DoRA": lambda: peft.LoraConfig(r=4, use_dora=True, use_rslora=True, **LINEAR),
    "LORA and a whole head": lambda: peft.LoraConfig(r=4, modules_to_save=["lm_head"], **LINEAR),
    "LORA of every layer": lambda: peft.LoraConfig(r=4, target_modules="all-linear"),
    "ADALORA": lambda: peft.AdaLoraConfig(init_r=4, target_r=4, total_step=10, **LINEAR),
    "LOHA": lambda: peft.LoHaConfig(r=4, **LINEAR),
    "LOKR": lambda: peft.LoKrConfig(r=4, **LINEAR),
    "IA3": lambda: peft.IA3Config(feedforward_modules=["down_proj"], **LINEAR),
    "OFT": lambda: peft.OFTConfig(r=0, oft_block_size=4, **LINEAR),
    "HRA": lambda: peft.HRAConfig(r=4, **LINEAR),
    "VERA": lambda: peft.VeraConfig(r=4, **SQUARE),
    "RANDLORA": lambda: peft.RandLoraConfig(r=4, **SQUARE),
    "FOURIERFT": lambda: peft.FourierFTConfig(n_frequency=20, **LINEAR),
    "LN_TUNING": lambda: peft.LNTuningConfig(target_modules=["input_layernorm"]),
    "MISS": lambda: peft.MissConfig(r=4, **LINEAR),
    "SHIRA": lambda: peft.ShiraConfig(r=4, **LINEAR),
    "C3A": lambda: peft.C3AConfig(block_size=4, **SQUARE),
    "DELORA": lambda: peft.DeloraConfig(r=4, **LINEAR),
    "WAVEFT": lambda: peft.WaveFTConfig(n_frequency=20, **LINEAR),
    "TRAINABLE_TOKENS": lambda: peft.TrainableTokensConfig(
        token_indices=list(range(0, 4096, 3)),
        target_modules=["embed_tokens"],
    ),
}


OFTEN = {"LORA", "LORA with DoRA", "IA3", "VERA", "TRAINABLE_TOKENS"}
"""Kinds of which each merges in a way of its own, and that are tested with the fast tests."""


def plan(path: Path | str, **options: object) -> ModelPlan:
    return ModelPlan(ModelSpec(str(path)), 4096, device="cpu", **options)


@pytest.fixture
def make_adapter(tiny_model, tmp_path) -> Callable[..., Path]:
    """Saves an adapter, none of whose weights stands at the zeros of a fresh one, and gives its
    directory."""

    def make(
        config: peft.PeftConfig,
        base: Path | None = None,
        family: str = "llama",
        rows: int | None = None,
    ) -> Path:
        torch.manual_seed(3)
        config.task_type = "CAUSAL_LM"
        model = AutoModelForCausalLM.from_pretrained(base or tiny_model(family))
        if rows:
            model.resize_token_embeddings(rows)
        adapted = peft.get_peft_model(model, config)
        with torch.no_grad():
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        adapted.eval().save_pretrained(tmp_path / "adapter")
        return tmp_path / "adapter"

    return make


def merged_by_peft(adapter: Path, to: Path, rows: int | None = None) -> Path:
    """What a user does who merges it: the base that it names, the adapter on it, merged and
    saved."""
    base = AutoModelForCausalLM.from_pretrained(
        json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"],
    )
    if rows:
        base.resize_token_embeddings(rows)
    peft.PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(to)
    return to


@pytest.mark.parametrize(
    "kind",
    [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.slow) for kind in ADAPTERS],
)
def test_an_adapter_scores_as_the_model_that_peft_merges(make_adapter, tiny_model, tmp_path, kind):
    adapter = make_adapter(ADAPTERS[kind]())
    ids, offsets = ragged([33, 65, 2], 4096)
    scores = load_model(plan(adapter)).score(ids, offsets)
    nll, argmax, _ = direct(merged_by_peft(adapter, tmp_path / "merged"), ids, offsets)
    np.testing.assert_allclose(scores.nll, nll, rtol=0, atol=1e-5)
    assert (scores.argmax == argmax).mean() > 0.98
    assert np.abs(scores.nll - direct(tiny_model("llama"), ids, offsets)[0]).max() > 1e-2, (
        "the adapter changes nothing"
    )


def test_an_adapter_with_more_tokens_than_its_base(make_adapter, tmp_path):
    adapter = make_adapter(ADAPTERS["LORA"](), rows=4110)
    model = load_model(plan(adapter))
    assert model.vocab_size == 4110
    ids, offsets = ragged([65], 4110)
    wanted = direct(merged_by_peft(adapter, tmp_path / "merged", rows=4110), ids, offsets)[0]
    np.testing.assert_allclose(model.score(ids, offsets).nll, wanted, rtol=0, atol=1e-5)


def test_weights_in_a_bin_file_are_read_and_a_program_among_them_is_not_run(make_adapter):
    from safetensors.torch import load_file

    class Evil:
        def __reduce__(self):
            return (print, ("code in an adapter ran",))

    adapter = make_adapter(ADAPTERS["LORA"]())
    ids, offsets = ragged([33], 4096)
    wanted = load_model(plan(adapter)).score(ids, offsets).nll
    weights = load_file(adapter / "adapter_model.safetensors")
    (adapter / "adapter_model.safetensors").unlink()
    torch.save(weights, adapter / "adapter_model.bin")
    assert np.array_equal(load_model(plan(adapter)).score(ids, offsets).nll, wanted)
    torch.save(weights | {"more": Evil()}, adapter / "adapter_model.bin")
    with pytest.raises(UserError, match="peft cannot apply it"):
        load_model(plan(adapter))


def test_identity_is_that_of_adapter_and_base(make_adapter, tiny_model, tmp_path):
    base = copied(tiny_model("llama"), tmp_path / "base")
    adapter = make_adapter(ADAPTERS["LORA"](), base=base)
    before = identify_model(plan(adapter))
    assert before not in (
        identify_model(plan(base)),
        identify_model(plan(make_adapter(ADAPTERS["IA3"](), base=base))),
    )
    adapter = make_adapter(ADAPTERS["LORA"](), base=base)
    assert identify_model(plan(adapter)) == before
    (adapter / "README.md").write_text("changed")
    assert identify_model(plan(adapter)) == before
    change_config(base, rms_norm_eps=1e-3)
    assert identify_model(plan(adapter)) != before


def set_base(adapter: Path, base: str) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(
        json.dumps({**config, "base_model_name_or_path": base}),
    )


def test_the_base_may_be_beside_the_adapter_and_brings_its_tokenizer(
    make_adapter,
    tiny_model,
    tmp_path,
):
    adapter = make_adapter(ADAPTERS["LORA"]())
    wanted = load_model(plan(adapter)).score(*ragged([33], 4096)).nll
    base = copied(tiny_model("llama"), tmp_path / "base")
    set_base(adapter, "../base")
    assert np.array_equal(load_model(plan(adapter)).score(*ragged([33], 4096)).nll, wanted)
    assert own_tokenizer(str(adapter)) is None
    (base / "tokenizer.json").write_text("{}")
    assert Path(str(own_tokenizer(str(adapter)))).resolve() == base
    (adapter / "tokenizer.json").write_text("{}")
    assert own_tokenizer(str(adapter)) == str(adapter)


def test_adapter_and_base_may_be_of_the_hub(make_adapter, tiny_model, hub):
    adapter = make_adapter(ADAPTERS["LORA"]())
    wanted = load_model(plan(adapter)).score(*ragged([33], 4096)).nll
    set_base(adapter, "gpt2")
    hub("openai-community/gpt2", tiny_model("llama"))
    hub("owner/adapter", adapter)
    for spec in (adapter, "owner/adapter"):
        assert np.array_equal(load_model(plan(spec)).score(*ragged([33], 4096)).nll, wanted)
    assert identify_model(plan("owner/adapter")) == identify_model(plan(adapter))
    assert identify_model(plan("openai-community/gpt2")) == f"{21:040x}"


def changed(adapter: Path, **entries: object) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, **entries}))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"base_model_name_or_path": None}, "no base model is named"),
        ({"base_model_name_or_path": "/nowhere/base"}, "its base model /nowhere/base is not here"),
        ({"base_model_name_or_path": "../adapter"}, r"its base model .* is an adapter, too"),
        ({"peft_type": "PROMPT_TUNING"}, "peft cannot apply it"),
        (
            {"megatron_config": {"a": 1}, "megatron_core": "os"},
            "adapters with megatron_config are not merged",
        ),
        ({"r": 3}, "peft cannot apply it"),
        ({"target_modules": ["q_proj"]}, "weights are of no layer of the base model, .*down_proj"),
        ({"target_modules": ["q_proj", "down_proj", "o_proj"]}, "weights are missing, .*o_proj"),
    ],
)
def test_what_cannot_be_merged_is_one_line(make_adapter, entries, said):
    adapter = make_adapter(ADAPTERS["LORA"]())
    changed(adapter, **entries)
    with pytest.raises(UserError, match=said) as caught:
        load_model(plan(adapter))
    assert "\n" not in caught.value.line()


def test_an_adapter_without_weights_is_one_line(make_adapter):
    adapter = make_adapter(ADAPTERS["LORA"]())
    (adapter / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="peft cannot apply it"):
        load_model(plan(adapter))
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match="an adapter without weights"):
        identify_model(plan(adapter))


def test_merging_that_changes_outputs_is_refused(tmp_path, make_adapter):
    """A head that is tied to the embedding: merging into one of them changes both."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    sizes = {
        "vocab_size": 4096,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    LlamaForCausalLM(
        LlamaConfig(**sizes, tie_word_embeddings=True, initializer_range=0.5),
    ).save_pretrained(tmp_path / "tied")
    adapter = make_adapter(peft.LoraConfig(r=4, target_modules=["lm_head"]), base=tmp_path / "tied")
    with pytest.raises(UserError, match=r"merging it into .* changes logits by"):
        load_model(plan(adapter))


def test_nothing_of_peft_is_printed_and_its_absence_is_one_line(make_adapter, monkeypatch, capfd):
    adapter = make_adapter(ADAPTERS["LN_TUNING"]())  # of which peft warns
    capfd.readouterr()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_model(plan(adapter))
    assert capfd.readouterr() == ("", "")
    assert not [item for item in caught if "peft" in item.filename]
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError) as refused:
        load_model(plan(adapter))
    assert (
        refused.value.line()
        == f'{adapter}: an adapter, which needs peft; install it: pip install "recallkit-lm[peft]"'
    )
