"""Checkpoints that run on our own mixers: found, identified, loaded, scored and continued like any
model; what is wrong in one line."""

from __future__ import annotations

import itertools
import json
import runpy
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from recallkit.errors import UserError
from recallkit.models import zoo
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.kinds import kind_of
from recallkit.models.language_model import LanguageModel
from recallkit.models.loading import identify_model, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from tests.conftest import ROOT

VOCAB = 61
HYBRID = (
    LayerConfig("gated_short_conv"),
    LayerConfig("linear_attention", {"short_conv": 3}),
    LayerConfig("sliding_window", {"window": 5}),
    LayerConfig("selective_attention", {"qk_norm": True}),
    LayerConfig("mamba"),
    LayerConfig("rwkv4"),
    LayerConfig("retnet"),
    LayerConfig("hyena", {"max_length": 64}),
)


def write_checkpoint(folder, layers=HYBRID, dtype=torch.float32, **options):
    torch.manual_seed(0)
    model = LanguageModel(ArchitectureConfig(VOCAB, 32, tuple(layers), mlp_width=32, **options))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.to(dtype).contiguous() for name, value in model.state_dict().items()},
        folder / zoo.WEIGHTS,
    )
    (folder / zoo.CONFIG).write_text(zoo.config_json(model.config))
    return model.eval()


def plan(folder, **options):
    return ModelPlan(ModelSpec(str(folder)), VOCAB, device="cpu", **options)


def random_sequences(*lengths):
    rng = np.random.default_rng(1)
    ids = rng.integers(0, VOCAB, sum(lengths)).astype(np.uint32)
    return ids, np.concatenate([[0], np.cumsum(lengths)])


def wanted_nll(model, ids, offsets):
    parts = []
    with torch.no_grad():
        for start, stop in itertools.pairwise(offsets):
            row = torch.from_numpy(ids[start:stop].astype(np.int64))[None]
            parts.append(
                functional.cross_entropy(model(row[:, :-1])[0], row[0, 1:], reduction="none"),
            )
    return torch.cat(parts).numpy()


def test_scores_are_those_of_the_model_itself_in_any_batch_and_in_pieces(tmp_path):
    model = write_checkpoint(tmp_path / "m")
    loaded = load_model(plan(tmp_path / "m"))
    ids, offsets = random_sequences(30, 12, 2, 30)
    wanted = wanted_nll(model, ids, offsets)
    assert loaded.score(ids, offsets).nll == pytest.approx(wanted, abs=1e-5)
    assert loaded.score_carrying(ids, offsets, 7).nll == pytest.approx(wanted, abs=1e-5)
    first = loaded.score(ids[:30], offsets[:2])
    assert first.nll == pytest.approx(wanted[:29], abs=1e-5)
    assert (loaded.vocab_size, loaded.max_length) == (VOCAB, 64)
    assert loaded.score(*random_sequences(1, 1)).nll.shape == (0,)
    with pytest.raises(UserError, match="context is 64 ids"):
        loaded.score_carrying(*random_sequences(100), 10)


def test_generation_joins_prompts_of_any_length(tmp_path):
    model = write_checkpoint(tmp_path / "m")
    loaded = load_model(plan(tmp_path / "m"))
    ids, offsets = random_sequences(9, 3, 20)
    prompts = [ids[start:stop] for start, stop in itertools.pairwise(offsets)]
    answers = [np.array([5, 6, 7], np.uint32)] * 3
    actual = loaded.generate(prompts, answers, 10, lambda _, results: len(results) == 10)
    for prompt, answer, continuation in zip(prompts, answers, actual, strict=True):
        row = prompt.astype(np.int64).tolist()
        with torch.no_grad():
            for results in continuation.ids:
                assert int(model(torch.tensor([row]))[0, -1].argmax()) == results
                row.append(results)
            both = torch.tensor([[*prompt.tolist(), *answer.tolist()]])
            logits = model(both[:, :-1])[0, len(prompt) - 1 :]
        assert len(continuation.ids) == 10
        nll = functional.cross_entropy(
            logits,
            torch.from_numpy(answer.astype(np.int64)),
            reduction="none",
        ).numpy()
        assert continuation.answer_nll == pytest.approx(nll, abs=1e-5)


def test_the_identity_is_that_of_config_and_weights(tmp_path):
    write_checkpoint(tmp_path / "a")
    write_checkpoint(tmp_path / "b")
    first = identify_model(plan(tmp_path / "a"))
    assert first == identify_model(plan(tmp_path / "b"))
    weights = load_file(tmp_path / "b" / zoo.WEIGHTS)
    weights["norm.weight"] = weights["norm.weight"] * 2
    save_file(weights, tmp_path / "b" / zoo.WEIGHTS)
    assert identify_model(plan(tmp_path / "b")) != first
    write_checkpoint(tmp_path / "b", norm_eps=1e-4)
    assert identify_model(plan(tmp_path / "b")) != first


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / zoo.WEIGHTS).unlink(), "No such file"),
        (
            lambda folder: (folder / zoo.WEIGHTS).write_bytes(b"nothing of the kind"),
            "cannot be read",
        ),
        (
            lambda folder: change_config(folder, layers=[{"mixer": "atention"}]),
            "did you mean attention",
        ),
        (
            lambda folder: change_config(
                folder,
                layers=[{"mixer": "attention", "options": {"num_heads": 5}}],
            ),
            "5 heads",
        ),
        (lambda folder: change_config(folder, mlp_width=64), "size mismatch for blocks.0.mlp"),
        (lambda folder: change_weights(folder, "norm.weight", None), "Missing key.*norm.weight"),
        (lambda folder: change_weights(folder, "extra", torch.zeros(2)), "Unexpected key.*extra"),
        (
            lambda folder: change_weights(folder, "norm.weight", torch.ones(32, dtype=torch.int64)),
            "norm.weight is of type torch.int64",
        ),
        (
            lambda folder: change_weights(folder, "norm.weight.scale", torch.ones(1, 1)),
            "Unexpected key.*norm.weight.scale",
        ),
        (
            lambda folder: change_weights(
                folder,
                "norm.weight",
                torch.ones(32, dtype=torch.int8),
                scale=torch.ones(1, 32),
            ),
            "norm.weight.scale is not a number for each row",
        ),
        (lambda folder: change_config(folder, max_length=-5), "max_length"),
        (
            lambda folder: change_config(
                folder,
                layers=[{"mixer": "attention", "options": {"rope_base": "x"}}],
            ),
            "rope_base",
        ),
        (
            lambda folder: change_config(
                folder,
                layers=[{"mixer": "sliding_window", "options": {"window": 2.5}}],
            ),
            "window",
        ),
        (
            lambda folder: change_config(
                folder,
                layers=[{"mixer": "hyena", "options": {"max_length": 10**12}}],
            ),
            "max_length",
        ),
        (
            lambda folder: change_config(folder, layers=[{"mixer": "mamba"}] * 100_000),
            "100,000 layers",
        ),
    ],
)
def test_a_broken_checkpoint_is_told_in_one_line(tmp_path, damage, words):
    write_checkpoint(tmp_path / "m")
    damage(tmp_path / "m")
    with pytest.raises(UserError, match=words) as failure:
        load_model(plan(tmp_path / "m"))
    assert "\n" not in str(failure.value)


def change_config(folder, **changes):
    saved = json.loads((folder / zoo.CONFIG).read_text())
    (folder / zoo.CONFIG).write_text(json.dumps(saved | changes))


def change_weights(folder, name, value, scale=None):
    weights = load_file(folder / zoo.WEIGHTS)
    weights.pop(name, None)
    weights |= {} if value is None else {name: value}
    save_file(
        weights if scale is None else weights | {f"{name}.scale": scale},
        folder / zoo.WEIGHTS,
    )


def test_names_tell_what_is_ours(tmp_path):
    write_checkpoint(tmp_path / "m")
    assert kind_of(str(tmp_path / "m")).name == "native directory"
    for unreadable in (
        "{",
        "[" * 200_000,
        "3",
        "[]",
        json.dumps({"model_type": "gpt2", "layers": []}),
    ):
        (tmp_path / "config.json").write_text(unreadable)
        assert kind_of(str(tmp_path)).name == "transformers"
    with pytest.raises(UserError, match="did you mean attention"):
        load_model(ModelPlan(ModelSpec("zoo:atention"), VOCAB))


# ------------------------------------------------------------------------------------------ the zoo


def test_what_is_shipped_is_what_its_card_and_its_architecture_say():
    assert list(zoo.shipped()) == list(zoo.ARCHITECTURES)
    cards = {}
    for name, folder in zoo.shipped().items():
        config, weights = zoo.read_ours(folder)
        assert config == zoo.architecture(name)
        assert {value.dtype for value in weights.values()} == {torch.float32, torch.float16}
        cards[name] = json.loads((folder / zoo.CARD).read_text())
        ids = cards[name]["steps"] * cards[name]["batch_tokens"]
        assert (
            cards[name]["curve"][-1]["tokens"]
            == cards[name]["tokens"]
            == pytest.approx(ids * (1 - cards[name]["list_rows_share"]), rel=1e-4)
        )
    assert (
        sum(path.stat().st_size for folder in zoo.shipped().values() for path in folder.iterdir())
        < 26e6
    )
    assert len({(card["tokens"], json.dumps(card["text"])) for card in cards.values()}) == 1, (
        "not all saw the same tokens"
    )


def test_packed_models_are_the_trained_ones_rounded_to_eight_bits(tmp_path, monkeypatch):
    (tmp_path / "m").mkdir()
    trained = {
        name: value.contiguous()
        for name, value in LanguageModel(zoo.architecture("hybrid")).state_dict().items()
    }
    save_file(trained, tmp_path / "m" / zoo.WEIGHTS)
    (tmp_path / "m" / zoo.CONFIG).write_text(zoo.config_json(zoo.architecture("hybrid")))
    plain = (tmp_path / "m" / zoo.WEIGHTS).stat().st_size
    monkeypatch.setattr(sys, "argv", ["pack_zoo.py", str(tmp_path / "m")])
    runpy.run_path(str(ROOT / "scripts/pack_zoo.py"), run_name="__main__")
    packed = (tmp_path / "m" / zoo.WEIGHTS).read_bytes()
    assert len(packed) < plain / 3
    weights = zoo.read_ours(tmp_path / "m")[1]
    assert weights.keys() == trained.keys()
    for name, values in trained.items():
        half_a_step = (
            values.abs().amax(-1, keepdim=True) / 254
            if values.numel() > 16_384
            else values.abs() / 2048 + 3e-8
        )
        assert ((weights[name] - values).abs() <= half_a_step * 1.001).all(), name
    load_model(ModelPlan(ModelSpec(str(tmp_path / "m")), zoo.VOCAB_SIZE, device="cpu"))
    runpy.run_path(str(ROOT / "scripts/pack_zoo.py"), run_name="__main__")
    assert (tmp_path / "m" / zoo.WEIGHTS).read_bytes() == packed


def test_the_counts_are_of_the_tokens_that_the_models_saw():
    import polars as pl

    counts = pl.read_parquet(zoo.TRAINING_BIGRAMS, glob=False)
    card = json.loads((zoo.shipped()["attention"] / zoo.CARD).read_text())
    assert counts["count"].sum() == card["tokens"]
    assert counts.select("first", "second").is_duplicated().sum() == 0
    assert counts.select(pl.max_horizontal(pl.col("first", "second").max())).item() < zoo.VOCAB_SIZE


def test_a_model_that_has_seen_what_it_predicts_is_refused(tmp_path):
    write_checkpoint(
        tmp_path,
        [LayerConfig("linear_attention"), LayerConfig("prefix_linear_attention", {"prefix": 7})],
    )
    with pytest.raises(
        UserError,
        match="it sees its first 7 ids before it predicts them; give a causal model",
    ):
        load_model(plan(tmp_path))
