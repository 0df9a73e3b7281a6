"""Every name means one kind of model, and no other kind claims it."""

from __future__ import annotations

import pytest

from recallkit.errors import UserError
from recallkit.models.kinds import KINDS, kind_of
from recallkit.models.loading import describe_models, identify_model, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.rwkv_file import MAGIC
from recallkit.models.spec import ModelSpec

NAMES = {
    "zoo:attention": "zoo",
    "zoo:nothing": "zoo",
    "control:bigram": "control",
    "control:nothing": "control",
    "control:copy": "copy",
    "construct:attention": "construction",
    "construct:nothing": "construction",
    "hazyresearch/based-360m": "Based's checkpoints",
    "state-spaces/mamba-130m": "Mamba's checkpoints",
    "state-spaces/mamba2-130m": "Mamba's checkpoints",
    "somewhere/model.py:load": "user",
    "openai:http://localhost:8000/v1#owner/name": "server",
    "code.py": "user",
    "forgotten.py": "transformers",
    "rwkv.bin": "RWKV file",
    "model.gguf": "transformers",
    "state-spaces/mamba-130m-hf": "transformers",
    ".": "transformers",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "code.py").write_text("")
    (tmp_path / "rwkv.bin").write_bytes(MAGIC.to_bytes(4, "little") + bytes(64))
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("spec", "kind"), NAMES.items())
def test_a_name_means_one_kind(here, spec, kind):
    assert kind_of(spec).name == kind
    claims = [item.name for item in KINDS if item.matches and item.matches(spec)]
    assert claims == ([] if kind == "transformers" else [kind])
    assert kind_of(spec).is_control is spec.startswith("control:")


@pytest.mark.parametrize("requested", [identify_model, load_model])
def test_the_text_control_cannot_be_scored(requested):
    with pytest.raises(
        UserError,
        match=(
            "control:copy: it copies text and has no likelihoods; evaluate it with `recallkit "
            "eval-recall`"
        ),
    ):
        requested(ModelPlan(ModelSpec("control:copy"), 256))


def test_forms_are_listed_once_each():
    names = [name for name, _ in describe_models()]
    assert len(set(names)) == len(names)
    assert {
        "zoo:attention",
        "control:copy",
        "DIRECTORY",
        "FILE.gguf",
        "OWNER/NAME",
        "FILE.bin",
        "FILE.py:FUNCTION",
    } <= set(names)
