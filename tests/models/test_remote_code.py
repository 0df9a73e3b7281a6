"""Code that comes with a checkpoint: refused unasked, run and part of the model's identity once it
is allowed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from recallkit.errors import UserError
from recallkit.models.loading import identify_model, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec

VOCAB_SIZE = 64

CONFIGURATION = """
from transformers import PreTrainedConfig


class FadingConfig(PreTrainedConfig):
    model_type = "fading"

    def __init__(self, vocab_size=64, hidden_size=8, fade=0.5, **kwargs):
        self.vocab_size, self.hidden_size, self.fade = vocab_size, hidden_size, fade
        super().__init__(**kwargs)
"""

MODEL = '''
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_fading import FadingConfig


class FadingForCausalLM(PreTrainedModel):
    """State s = fade * s + embedding, logits from it: the least that remembers."""

    config_class = FadingConfig
    _tied_weights_keys = {}

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids):
        state, logits = 0, []
        for x in self.embed(input_ids).unbind(1):
            state = self.config.fade * state + x
            logits.append(self.head(state))
        return CausalLMOutput(logits=torch.stack(logits, 1))
'''


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> Iterator[None]:
    """transformers imports copies of the code: here from a folder of these tests, which it asks for
    once a process."""
    from transformers import dynamic_module_utils

    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("copies")
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
        patch.syspath_prepend(folder)
        yield


@pytest.fixture
def checkpoint(tmp_path, copies) -> Path:
    """A directory with weights and the code that they need."""
    path = tmp_path / "fading"
    path.mkdir()
    auto_map = {
        "AutoConfig": "configuration_fading.FadingConfig",
        "AutoModelForCausalLM": "modeling_fading.FadingForCausalLM",
    }
    config = {
        "model_type": "fading",
        "architectures": ["FadingForCausalLM"],
        "vocab_size": VOCAB_SIZE,
        "auto_map": auto_map,
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "configuration_fading.py").write_text(CONFIGURATION)
    (path / "modeling_fading.py").write_text(MODEL)
    save_file(weights(), path / "model.safetensors", metadata={"format": "pt"})
    return path


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(VOCAB_SIZE, 8, generator=generator)
        for name in ("embed.weight", "head.weight")
    }


def plan(path: Path, *, trusted: bool = True) -> ModelPlan:
    return ModelPlan(ModelSpec(str(path)), VOCAB_SIZE, device="cpu", trust_remote_code=trusted)


@pytest.mark.parametrize("before", [False, True], ids=["at first", "after it was allowed"])
def test_it_is_refused_unasked_and_the_option_is_named(checkpoint, before):
    if before:
        load_model(plan(checkpoint))
    (checkpoint / "configuration_fading.py").write_text(f"open({str(checkpoint / 'ran')!r}, 'w')\n")
    with pytest.raises(
        UserError,
        match=r"needs Python code from its own repository.*--trust-remote-code",
    ):
        load_model(plan(checkpoint, trusted=False))
    assert not (checkpoint / "ran").exists()


def test_allowed_it_is_scored_like_any_other(checkpoint):
    ids, offsets = np.random.default_rng(0).integers(0, VOCAB_SIZE, 30), np.array([0, 20, 30])
    results = load_model(plan(checkpoint)).score(ids, offsets)
    embed, head = weights().values()
    nll = []
    for sequence in (ids[:20], ids[20:]):
        state = torch.zeros(8)
        for token, target in itertools.pairwise(sequence):
            state = 0.5 * state + embed[token]
            nll.append(-torch.log_softmax(head @ state, 0)[target])
    np.testing.assert_allclose(results.nll, torch.stack(nll).numpy(), rtol=0, atol=1e-5)


def test_its_code_is_part_of_its_identity_where_it_may_run(checkpoint):
    trusted, unasked = (
        identify_model(plan(checkpoint)),
        identify_model(plan(checkpoint, trusted=False)),
    )
    (checkpoint / "modeling_fading.py").write_text(
        MODEL.replace("self.config.fade * state", "0.25 * state"),
    )
    assert identify_model(plan(checkpoint)) != trusted
    assert identify_model(plan(checkpoint, trusted=False)) == unasked


def test_changed_code_is_the_code_that_runs(checkpoint):
    ids, offsets = np.arange(20), np.array([0, 20])
    before = load_model(plan(checkpoint)).score(ids, offsets).nll
    (checkpoint / "modeling_fading.py").write_text(
        MODEL.replace("self.config.fade * state", "0.25 * state"),
    )
    assert np.abs(load_model(plan(checkpoint)).score(ids, offsets).nll - before).max() > 1e-2


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("this is no Python", "transformers cannot load it"),
        (
            MODEL.replace("self.post_init()", "undefined()"),
            "transformers cannot load it.*undefined",
        ),
        (
            MODEL.replace("state, logits = 0, []", "raise KeyError('lost')"),
            "its forward pass fails.*lost",
        ),
        (
            MODEL.replace("return CausalLMOutput(logits=torch.stack(logits, 1))", "return None"),
            "returns no logits",
        ),
        (MODEL.replace(".unbind(1)", ".flip(1).unbind(1)"), "it is not causal"),
    ],
    ids=["no code", "fails to load", "fails to run", "no logits", "sees what follows"],
)
def test_what_is_wrong_with_its_code_is_one_line(checkpoint, code, problem):
    (checkpoint / "modeling_fading.py").write_text(code)
    with pytest.raises(UserError, match=problem) as caught:
        load_model(plan(checkpoint))
    assert "\n" not in caught.value.line()
