"""A model beside its reference: divergences equal those that the formula gives in float64, and the
scores are those of each alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from recallkit.errors import UserError
from recallkit.models import paired
from recallkit.models.control import ControlModel
from recallkit.models.loading import load_model
from recallkit.models.paired import PairedModel, divergence
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec

VOCAB = 4096
LENGTHS = (65, 40, 2, 1, 65)
Logits = Callable[[Tensor], Tensor]


@pytest.fixture(scope="module")
def text() -> tuple[np.ndarray, np.ndarray]:
    """Ids of sequences of several lengths, and their offsets."""
    return np.random.default_rng(3).integers(0, VOCAB, sum(LENGTHS)).astype(np.uint32), np.cumsum(
        [0, *LENGTHS],
    )


def direct(reference: Logits, model: Logits, text: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """KL(reference | model) after the ids before each predicted one, by the formula, in float64."""
    results = []
    for ids in np.split(text[0], text[1][1:-1]):
        if len(ids) > 1:
            with torch.no_grad():
                results.append(
                    formula(
                        *(
                            part(torch.from_numpy(ids[None, :-1].astype(np.int64)))[0]
                            for part in (reference, model)
                        ),
                    ),
                )
    return np.concatenate(results)


def formula(reference: Tensor, model: Tensor) -> np.ndarray:
    """The same of logits (n, vocab)."""
    p, q = (logits[:, :VOCAB].double().softmax(1) for logits in (reference, model))
    return (p * (p.log() - q.log())).sum(1).numpy()


def transformers64(path: object) -> Logits:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    return lambda ids: model(ids).logits


def zoo64(name: str) -> Logits:
    return load_model(ModelPlan(ModelSpec(name), VOCAB, dtype="float64")).model


def pair_of(reference: object, model: object, **more: object) -> PairedModel:
    return PairedModel(
        *(
            load_model(ModelPlan(ModelSpec(str(spec)), VOCAB, device="cpu", **more))
            for spec in (model, reference)
        ),
        VOCAB,
    )


def test_divergences_of_transformers_models_are_those_of_float64(text, tiny_model):
    """Also of a padded vocabulary: predictions are compared over the tokenizer's entries."""
    reference, models = (
        tiny_model("llama"),
        [
            tiny_model("gpt_neox"),
            tiny_model("gemma2"),
            tiny_model("gpt_neox", vocab_size=VOCAB + 70),
        ],
    )
    for model in models:
        results, wanted = (
            pair_of(reference, model).score(*text).beside["kl"],
            direct(transformers64(reference), transformers64(model), text),
        )
        assert wanted.mean() > 0.1
        np.testing.assert_allclose(results, wanted, rtol=0, atol=1e-5)
        other_way = direct(transformers64(model), transformers64(reference), text)
        assert np.abs(results - other_way).max() > 1e-3, "of the reference, not of the model"


def test_divergences_of_the_zoo_are_those_of_float64(text, monkeypatch):
    """Whatever the size of the blocks in which logits are reduced."""
    wanted = direct(zoo64("zoo:attention"), zoo64("zoo:rwkv"), text)
    results = pair_of("zoo:attention", "zoo:rwkv").score(*text)
    monkeypatch.setattr(paired, "_LEAST_ROWS", 7)
    monkeypatch.setattr(paired, "_LOGITS", 7 * VOCAB)
    assert wanted.max() > 1
    # Of random ids, up to 8 nats of logits of up to 17.
    for item in (results, pair_of("zoo:attention", "zoo:rwkv").score(*text)):
        np.testing.assert_allclose(item.beside["kl"], wanted, rtol=1e-5, atol=1e-5)


def test_in_half_precision_logits_are_not_rounded(tiny_model):
    """Equal to float64 arithmetic on the hidden states that the models compute in bfloat16 for the
    same batch."""
    pair = pair_of(tiny_model("llama"), tiny_model("gpt_neox"), dtype="bfloat16")
    model, reference = pair._both
    ids = np.random.default_rng(4).integers(0, VOCAB, (3, 65))

    def logits(part: object) -> Tensor:
        hidden = part.forward(torch.from_numpy(ids[:, :-1]))[0].flatten(0, 1)
        return hidden.double() @ part.model.get_output_embeddings().weight.double().T

    with torch.no_grad():
        wanted = formula(logits(reference), logits(model))
    np.testing.assert_allclose(
        pair.score(ids.ravel().astype(np.uint32), 65 * np.arange(4)).beside["kl"],
        wanted,
        rtol=0,
        atol=1e-5,
    )


def test_the_scores_of_both_are_those_of_each_alone(text, tiny_model):
    for reference, model in (
        ("zoo:attention", "zoo:mamba"),
        (tiny_model("llama"), tiny_model("gpt_neox")),
    ):
        pair = pair_of(reference, model)
        results, alone = pair.score(*text), [item.score(*text) for item in pair._both]
        assert not np.array_equal(alone[0].argmax, alone[1].argmax)
        for scores, end in zip(alone, ("", "_reference"), strict=True):
            np.testing.assert_allclose(results.of_model[f"nll{end}"], scores.nll, rtol=0, atol=1e-6)
            np.testing.assert_array_equal(results.of_model[f"argmax{end}"], scores.argmax)
            np.testing.assert_array_equal(results.of_model[f"rank{end}"], scores.rank)


def test_a_model_and_itself_do_not_differ(text, tiny_model):
    for spec in ("zoo:based", tiny_model("llama")):
        results = pair_of(spec, spec).score(*text)
        assert not results.beside["kl"].any()
        np.testing.assert_array_equal(results.argmax, results.beside["argmax_reference"])


def test_a_carried_state_changes_nothing(text):
    pair = pair_of("zoo:attention", "zoo:mamba")
    np.testing.assert_allclose(
        pair.score_carrying(*text, 16).beside["kl"],
        pair.score(*text).beside["kl"],
        rtol=0,
        atol=1e-5,
    )
    with pytest.raises(UserError, match="a sequence has 300"):
        pair.score_carrying(np.zeros(301, np.uint32), np.array([0, 301]), 16)


def test_entries_without_probability_add_nothing():
    """Of log p = log q = -inf; where the model alone excludes an entry that the reference does not,
    the divergence is infinite."""
    half = torch.full((1, VOCAB), -math.inf)
    half[0, :2] = 0.0
    first = half.clone()
    first[0, 1] = -math.inf

    def between(p: Tensor, q: Tensor) -> list[float]:
        sums = (item.logsumexp(1, keepdim=True) for item in (p, q))
        return divergence(p.clone(), q.clone(), *sums).tolist()

    assert between(half, half) == [0.0]
    assert between(first, half) == pytest.approx([math.log(2)])
    assert between(half, first) == [math.inf]


def test_what_gives_no_predictions_is_refused(small_slices):
    counts = small_slices.parent / "counts.duckdb"
    control = ControlModel(ModelPlan(ModelSpec("control:bigram"), VOCAB, counts=counts))
    with pytest.raises(
        UserError,
        match="control:bigram: it gives no predictions over the whole vocabulary",
    ):
        PairedModel(control, load_model(ModelPlan(ModelSpec("zoo:attention"), VOCAB)), VOCAB)


def test_a_variant_is_compared_as_it_reads(text, tiny_model):
    """In its own chunks, each of which sees a compressed past; with nothing compressed it is the
    model itself."""
    spec, ids = str(tiny_model("llama")), (text[0][:65], np.array([0, 65]))
    model, window, full = (
        load_model(spec_of(spec, cache)) for cache in (None, "window:1+8", "full")
    )
    assert PairedModel(full, model, VOCAB).score(*ids).beside["kl"].max() < 1e-6
    results = PairedModel(window, model, VOCAB).score(*ids)
    assert results.beside["kl"][:16].max() < 1e-6, "the first chunk has no past"
    assert results.beside["kl"][16:].max() > 1e-4
    np.testing.assert_allclose(results.nll, window.score(*ids).nll, rtol=0, atol=1e-6)


def spec_of(path: str, cache: str | None) -> ModelPlan:
    spec = ModelSpec(path) if cache is None else ModelSpec(path, cache=cache, chunk=16)
    return ModelPlan(spec, VOCAB, device="cpu")
