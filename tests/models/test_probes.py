"""What is found out about a model by trying it: its head, whether it is causal, what may share a
batch, how its state goes on."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import nn

from recallkit.errors import UserError
from recallkit.models import probes
from recallkit.models.loading import load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from tests.models.families import VOCAB_SIZE, build_model, with_noise

IDS = probes.random_ids(VOCAB_SIZE, (2, 12), torch.device("cpu"))


class Backbone(nn.Module):
    """States (b, t, 8) that are running sums of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB_SIZE, 8)

    def forward(self, input_ids: torch.Tensor) -> Any:
        return types.SimpleNamespace(last_hidden_state=self.embed(input_ids).cumsum(1) / 12)


class Model(nn.Module):
    """A backbone and a head, and what is done before and after it."""

    def __init__(
        self,
        before=lambda states: states,
        after=lambda logits: logits,
        *,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.base_model, self.head = Backbone(), nn.Linear(8, VOCAB_SIZE, bias=bias)
        self.before, self.after = before, after

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: torch.Tensor) -> Any:
        states = self.base_model(input_ids).last_hidden_state
        return types.SimpleNamespace(logits=self.after(self.head(self.before(states))))


def results(model: nn.Module, dtype: torch.dtype = torch.float32) -> probes.Head | None:
    with torch.inference_mode():
        return probes.find_head(model.to(dtype), lambda module, ids: module(ids), IDS[:1])


def ruled_out(logits: torch.Tensor) -> torch.Tensor:
    return logits.index_fill(-1, torch.tensor([3]), float("-inf"))


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (lambda x: x / 7, lambda z: z * 0.25, (1 / 28, None)),
        (lambda x: x * 2, lambda z: 7.5 * torch.tanh(z / 3 / 7.5), (2 / 3, 7.5)),
        (lambda x: x, lambda z: z, (1.0, None)),
        (lambda x: x, lambda z: z.float(), (1.0, None)),
        (lambda x: x, lambda z: z / 3, (1 / 3, None)),
        (lambda x: x, lambda z: 30 * torch.tanh(z / 30), (1.0, 30.0)),
        (lambda x: x, lambda z: 7.5 * torch.tanh(z / 3 / 7.5), (1 / 3, 7.5)),
        (lambda x: x, lambda z: z.clamp(-30, 30), None),
        (lambda x: x, lambda z: z + 1e-3, None),
        (lambda x: x, lambda z: z - z.mean(-1, keepdim=True), None),
        (lambda x: nn.functional.layer_norm(x, (8,)), lambda z: z, None),
        (lambda x: x, ruled_out, None),
    ],
)
def test_what_a_model_does_to_its_logits_is_found_however_small_they_are(before, after, wanted):
    torch.manual_seed(3)
    model = Model(before, after)
    with torch.no_grad():
        model.head.weight.mul_(1e-4)
    head = results(model)
    assert (head is None) is (wanted is None)
    if head is not None:
        assert head.factor == pytest.approx(wanted[0], rel=1e-6)
        assert head.cap is None is wanted[1] or head.cap == pytest.approx(wanted[1], rel=1e-6)


def test_a_bias_has_the_factor_after_it_alone():
    assert results(Model(lambda x: x, lambda z: z / 3, bias=True)).factor == pytest.approx(
        1 / 3,
        rel=1e-6,
    )
    assert results(Model(lambda x: x / 7, bias=True)) is None, "it would be divided, too"


def test_a_head_that_is_not_used_as_a_layer_is_not_taken_for_one():
    model = Model()
    model.forward = lambda ids: types.SimpleNamespace(
        logits=model.base_model(ids).last_hidden_state @ model.head.weight.T,
    )
    assert results(model) is None


def logits_of(mix) -> Any:
    """Logits (b, t, 8) that some mixing of random embeddings gives."""
    embed = torch.randn(VOCAB_SIZE, 8, generator=torch.Generator().manual_seed(1))
    return lambda ids: mix(embed[ids])


def ruling_out(x: torch.Tensor) -> torch.Tensor:
    """The least number where a vocabulary has no entries, beside which any difference looks
    small."""
    return torch.cat(
        [x.mean(1, keepdim=True).expand_as(x), torch.full_like(x, torch.finfo(x.dtype).min)],
        -1,
    )


@pytest.mark.parametrize(
    "mix",
    [lambda x: x.flip(1).cumsum(1).flip(1), ruling_out],
    ids=["backwards", "ruled out"],
)
def test_a_model_that_sees_what_follows_is_refused(mix):
    with pytest.raises(UserError, match=r"model: it is not causal.*give a causal language model"):
        probes.find_sharing(logits_of(mix), IDS, "model")


def test_an_encoder_is_refused_by_name_of_what_is_wrong(tmp_path):
    """BERT has a head for causal language modelling, but reads both ways unless it is told to be a
    decoder."""
    from transformers import BertConfig, BertLMHeadModel

    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 96,
    }
    torch.manual_seed(0)
    with_noise(BertLMHeadModel(BertConfig(**sizes))).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="it is not causal"):
        load_model(ModelPlan(ModelSpec(str(tmp_path)), VOCAB_SIZE, device="cpu"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_of_half_precision_hides_nothing(tmp_path, dtype):
    """Carried in chunks, mamba is wrong by 4 %: little more than bfloat16 rounds away."""
    build_model("mamba").save_pretrained(tmp_path)
    model = load_model(ModelPlan(ModelSpec(str(tmp_path)), VOCAB_SIZE, device="cpu", dtype=dtype))
    assert (model.carrying, model.sharing, model.head.cap) == ("steps", "any", None)
