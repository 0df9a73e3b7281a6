"""Ablated models: whose mixers are found and what they are called, that exactly an output is
replaced, in any batch and with any state."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch.nn import functional

from recallkit.ablation.sets import groups_of_heads
from recallkit.errors import UsageError, UserError
from recallkit.models.ablation import Ablation, ablate, find_mixers, observe_means
from recallkit.models.architecture import LayerConfig
from recallkit.models.loading import identify_model, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.protocol import TokenScores
from recallkit.models.spec import ModelSpec, list_models, parse_model
from tests.models.families import VOCAB_SIZE, build_model, save_model
from tests.models.test_native_model import HYBRID, random_sequences, write_checkpoint

IDS = (
    np.random.default_rng(0).integers(0, VOCAB_SIZE, 30).astype(np.uint32),
    np.array([0, 18, 25, 30]),
)

# ----------------------------------------------------------------------------------------- the name


@pytest.mark.parametrize(
    ("text", "means"),
    {
        "3": (("3",), "zero"),
        "10+3+3": (("3", "10"), "zero"),
        "attention+0": (("0", "attention"), "zero"),
        "1.mamba:mean": (("1.mamba",), "mean"),
        "none": (("none",), "zero"),
        "2:zero": (("2",), "zero"),
        "2.h3+1.mamba.h0-3": (("1.mamba.h0-3", "2.h3"), "zero"),
    }.items(),
)
def test_a_text_means_one_ablation_whatever_its_order(text, means):
    ablation = Ablation.parse(text)
    assert (ablation.names, ablation.by) == means
    assert Ablation.parse(str(ablation)) == ablation


@pytest.mark.parametrize(
    "text",
    ["", "1++2", "-1", "1:median", "none+1", "Attention", "../x", "2.h1:mean", "2.h-1", "mamba.h1"],
)
def test_what_names_no_mixers_is_refused(text):
    with pytest.raises(UsageError, match="no mixers"):
        Ablation.parse(text)


def plan_without(plan: ModelPlan, mixers: str) -> ModelPlan:
    return dataclasses.replace(plan, spec=dataclasses.replace(plan.spec, ablate=mixers))


def test_an_ablated_model_is_a_model_with_a_name_of_its_own():
    specs = list_models(
        "zoo:hybrid",
        "zoo:hybrid,ablate=2+1",
        "zoo:hybrid,ablate=2:mean",
        "a=runs/x,ablate=attention",
        "runs/x,ablate=none",
    )
    assert [spec.shown for spec in specs] == [
        *(
            "zoo:hybrid",
            "zoo:hybrid without 1+2",
            "zoo:hybrid with the mean of 2",
            "a",
            "x without none",
        ),
    ]
    assert len({spec.key for spec in specs}) == len(specs)
    assert specs[1] == parse_model("zoo:hybrid,ablate=1+2")
    assert specs[1].typed() == "zoo:hybrid,ablate=1+2"
    assert specs[1].location == "zoo:hybrid"
    assert ModelSpec("runs/x", "a").ablated(Ablation.parse("3")) == ModelSpec(
        "runs/x",
        "a without 3",
        ablate="3",
    )
    with pytest.raises(UsageError, match="named twice"):
        list_models("zoo:hybrid,ablate=1+2", "zoo:hybrid,ablate=2+1")


# ---------------------------------------------------------------------------- what transformers has

FOUND = {
    "llama": ["0 attention", "1 attention"],
    "jamba": ["0 mamba", "1 attention"],
    "bamba": ["0 mamba", "1 attention"],
    "zamba2": [
        "0 mamba",
        "1.mamba mamba",
        "1.attention attention",
        "2.mamba mamba",
        "2.attention attention",
    ],
    "granitemoehybrid": ["0 mamba", "1 attention"],
    "falcon_h1": [
        "0.mamba mamba",
        "0.attention attention",
        "1.mamba mamba",
        "1.attention attention",
    ],
    "nemotron_h": ["0 mamba", "2 attention"],
    "qwen3_next": ["0 gated_delta_net", "1 attention"],
    "olmo3": ["0 sliding_attention", "1 attention"],
    "olmo_hybrid": ["0 gated_delta_net", "1 attention"],
    "lfm2": ["0 short_conv", "1 attention"],
    "recurrent_gemma": ["0 recurrence", "1 recurrence", "2 sliding_attention"],
    "rwkv": ["0 rwkv", "1 rwkv"],
    "glm5_next": ["0 linear_attention", "1 indexed_attention"],
}
PROJECTIONS = ("o_proj", "out_proj", "output")
"""The last layer of a mixer, where it has no bias: without its weights the output is zero."""


def mostly_slow(names: Iterable[str], *often: str) -> list[object]:
    """Names to test with, all but some of them with the slow tests: those whose mixers are found in
    a way of their own."""
    return [name if name in often else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize(
    "name",
    mostly_slow(
        FOUND,
        "zamba2",
        "falcon_h1",
        "nemotron_h",
        "qwen3_next",
        "recurrent_gemma",
        "rwkv",
    ),
)
def test_the_mixers_of_hybrids_are_found_and_each_one_counts(tmp_path, name):
    plan = ModelPlan(
        ModelSpec(str(save_model(name, tmp_path))),
        VOCAB_SIZE,
        device="cpu",
        dtype="float64",
    )
    model = load_model(plan)
    mixers = find_mixers(model)
    assert [f"{mixer.name} {mixer.kind}" for mixer in mixers] == FOUND[name]
    intact = model.score(*IDS).nll
    for mixer in mixers:
        end = mixer.change(torch.zeros_like)
        without = model.score(*IDS).nll
        end()
        [last] = [
            layer
            for item in PROJECTIONS
            if (layer := getattr(mixer.module, item, None)) is not None
        ] or [None]
        assert np.abs(without - intact).max() > 1e-3, mixer.name
        if last is not None and last.bias is None:
            # Layers of Zamba2 share the matrix.
            stored, last.weight = last.weight, torch.nn.Parameter(torch.zeros_like(last.weight))
            np.testing.assert_allclose(
                model.score(*IDS).nll,
                without,
                rtol=0,
                atol=1e-6,
                err_msg="without its last matrix",
            )
            last.weight = stored
    np.testing.assert_array_equal(
        model.score(*IDS).nll,
        intact,
        err_msg="after all of it, the model is as it was",
    )
    ablated = load_model(plan_without(plan, "none"))
    np.testing.assert_array_equal(
        ablated.score(*IDS).nll,
        intact,
        err_msg="an ablation of no mixer",
    )
    first = load_model(plan_without(plan, mixers[0].key))
    np.testing.assert_allclose(
        first.score_carrying(*IDS, 7).nll,
        first.score(*IDS).nll,
        rtol=0,
        atol=1e-6,
        err_msg="with its state carried",
    )


# ----------------------------------------------------------------------------------- our own mixers


def by_hand(model, ids, replaced):
    """NLLs (t,) of one row, with the output of each mixer in `replaced` (layer -> vector (d,))
    written in its place."""
    with torch.no_grad():
        row = torch.from_numpy(ids.astype(np.int64))[None]
        x = model.embedding(row[:, :-1])
        for place, block in enumerate(model.blocks):
            u = block.mixer_norm(x)
            x = x + (
                replaced[place].expand_as(u)
                if place in replaced
                else block.mixer.reference(u, row[:, :-1])
            )
            x = x + block.mlp(block.mlp_norm(x))
        logits = model.norm(x) @ model.embedding.weight.T
        return functional.cross_entropy(logits[0], row[0, 1:], reduction="none").numpy()


@pytest.mark.parametrize(
    ("listed", "by"),
    [("0+3+5", "mean"), ("1+2+4+6+7", "mean"), ("1+3+4+5", "zero")],
)
def test_exactly_the_outputs_are_replaced(tmp_path, listed, by):
    model = write_checkpoint(tmp_path / "m").double()
    rng, layers = np.random.default_rng(2), [int(layer) for layer in listed.split("+")]
    means = {f"{place}.{layer.mixer}": rng.normal(size=32) for place, layer in enumerate(HYBRID)}
    plan = ModelPlan(
        ModelSpec(str(tmp_path / "m"), ablate=f"{listed}:{by}"),
        61,
        device="cpu",
        dtype="float64",
        means=means,
    )
    ablated = load_model(plan)
    vectors = {place: torch.from_numpy(means[f"{place}.{HYBRID[place].mixer}"]) for place in layers}
    if by == "zero":
        vectors = {place: torch.zeros_like(vector) for place, vector in vectors.items()}
    ids, offsets = random_sequences(30, 12, 2, 30)
    wanted = np.concatenate(
        [by_hand(model, ids[a:b], vectors) for a, b in itertools.pairwise(offsets)],
    )
    # At once; in pieces, by `read`; id by id, by `step`; as float32, to which NLLs are rounded.
    for chunk in (None, 7, 1):
        results = (
            ablated.score(ids, offsets)
            if chunk is None
            else ablated.score_carrying(ids, offsets, chunk)
        )
        np.testing.assert_allclose(results.nll, wanted, rtol=1e-7, atol=1e-6)
    with torch.no_grad():
        row = torch.from_numpy(ids[:29].astype(np.int64))[None]
        np.testing.assert_allclose(
            ablated.model.reference(row),
            ablated.model.hidden(row),
            rtol=0,
            atol=1e-9,
        )


def test_the_means_are_those_of_the_outputs(tmp_path):
    model = write_checkpoint(
        tmp_path / "m",
        layers=[LayerConfig("mamba"), LayerConfig("attention")],
    ).double()
    loaded = load_model(
        ModelPlan(ModelSpec(str(tmp_path / "m")), 61, device="cpu", dtype="float64")
    )
    ids, offsets = random_sequences(30, 12)
    before = loaded.score(ids, offsets).nll
    with observe_means(loaded) as means:
        loaded.score(ids[:30], offsets[:2])
        loaded.score_carrying(ids[30:], np.array([0, 12]), 5)
        results = means()
    np.testing.assert_array_equal(loaded.score(ids, offsets).nll, before)
    outputs = []
    for a, b in ((0, 29), (30, 41)):
        with torch.no_grad():
            x = model.embedding(torch.from_numpy(ids[a:b].astype(np.int64))[None])
            outputs.append(model.blocks[0].mixer.reference(model.blocks[0].mixer_norm(x))[0])
    assert set(results) == {"0.mamba", "1.attention"}
    np.testing.assert_allclose(
        results["0.mamba"],
        torch.cat(outputs).mean(0).numpy(),
        rtol=0,
        atol=1e-9,
    )


# -------------------------------------------------------------------------------------------- heads


def without_values(model, mixer, first: int, last: int) -> None:
    """Those heads of value rows are zero: what attention then reads of them is zero, whatever it
    attends to."""
    attention = find_mixers(model)[mixer].module
    values = attention.v_proj.weight if hasattr(attention, "v_proj") else attention.qkv.weight[-32:]
    width = len(values) // 2  # both have two heads of keys and values
    with torch.no_grad():
        values[first * width : (last + 1) * width] = 0


def test_heads_are_those_of_the_values(tmp_path):
    """Of llama the first of two heads of keys and values has the queries' heads 0 and 1; our
    attention has two heads of each."""
    ours = write_checkpoint(
        tmp_path / "ours",
        layers=[LayerConfig("mamba"), LayerConfig("attention", {"num_heads": 2})],
    )
    for path, vocab, mixer, kv, listed in (
        (save_model("llama", tmp_path), VOCAB_SIZE, 1, 0, "1.h0-1"),
        (tmp_path / "ours", ours.config.vocab_size, 1, 1, "1.attention.h1"),
    ):
        plan = ModelPlan(ModelSpec(str(path)), vocab, device="cpu", dtype="float64")
        ids, offsets = random_sequences(30, 12)
        intact, emptied = load_model(plan), load_model(plan)
        without_values(emptied, mixer, kv, kv)
        ablated = load_model(plan_without(plan, listed))
        wanted = emptied.score(ids, offsets).nll
        assert np.abs(wanted - intact.score(ids, offsets).nll).max() > 1e-4
        np.testing.assert_allclose(ablated.score(ids, offsets).nll, wanted, rtol=0, atol=1e-6)
        for chunk in (7, 1):
            np.testing.assert_allclose(
                ablated.score_carrying(ids, offsets, chunk).nll,
                wanted,
                rtol=0,
                atol=1e-6,
            )


HEADED = (
    "gpt2",
    "gpt_neox",
    "bamba",
    "qwen3_next",
    "falcon_h1",
    "minimax",
    "kimi_linear",
    "glm5_next",
    "xlstm",
    "h3",
)


@pytest.mark.parametrize(
    "name",
    mostly_slow(HEADED, "gpt2", "qwen3_next", "falcon_h1", "minimax", "xlstm", "h3"),
)
def test_all_heads_together_are_the_mixer_and_each_counts(tmp_path, name):
    """Attention with sinks or gates, value heads of linear attention, Mamba beside attention in a
    block: up to a bias behind the heads."""
    if name == "h3":  # one of our own
        path, vocab_size = (
            tmp_path,
            write_checkpoint(
                tmp_path,
                layers=[LayerConfig("h3", {"state": 4, "head_dim": 8})],
            ).config.vocab_size,
        )
    else:
        path, vocab_size = save_model(name, tmp_path), VOCAB_SIZE
    model = load_model(ModelPlan(ModelSpec(str(path)), vocab_size, device="cpu", dtype="float64"))
    ids = IDS[0] % vocab_size, IDS[1]
    intact, mixers = model.score(*ids).nll, find_mixers(model)
    for mixer in mixers:
        end = mixer.change(torch.zeros_like)
        at_once = model.score(*ids).nll
        end()
        alone = []
        for heads in (
            f"h0-{mixer.num_heads - 1}",
            *(f"h{head}" for head in range(mixer.num_heads)),
        ):
            end = mixer.part(f"{mixer.key}.{heads}").change(torch.zeros_like)
            alone.append(model.score(*ids).nll)
            end()
        if name not in ("gpt2", "gpt_neox", "h3"):
            np.testing.assert_allclose(alone[0], at_once, rtol=0, atol=1e-6, err_msg=mixer.key)
        assert all(np.abs(nll - intact).max() > 1e-6 for nll in alone), mixer.key
        assert len({float(np.abs(nll - intact).sum()) for nll in alone}) == len(alone), (
            "each is another"
        )
    np.testing.assert_array_equal(model.score(*ids).nll, intact)


def test_heads_that_are_not_there_are_refused(tmp_path):
    plan = ModelPlan(ModelSpec(str(save_model("falcon_h1", tmp_path))), VOCAB_SIZE, device="cpu")
    for name in ("0.attention.h4", "0.attention.h2-1", "0.conv.h0"):
        with pytest.raises(
            UserError,
            match=rf"it has no mixer {name}; its mixers are 0 \(mamba, 8 heads\), 0 \(attention, 4 heads\)",
        ):
            load_model(plan_without(plan, name))
    jamba = ModelPlan(
        ModelSpec(str(save_model("jamba", tmp_path)), ablate="0.h0"),
        VOCAB_SIZE,
        device="cpu",
    )
    with pytest.raises(
        UserError,
        match=r"it has no mixer 0.h0; its mixers are 0 \(mamba\), 1 \(attention, 4 heads\)",
    ):
        load_model(jamba)


@pytest.mark.parametrize("kind", ["mamba", "rwkv4", "hyena", "s4d", "gau", "h3"])
def test_mixers_that_compute_channel_by_channel_have_no_heads(tmp_path, kind):
    write_checkpoint(tmp_path, layers=[LayerConfig(kind)])
    [mixer] = find_mixers(load_model(ModelPlan(ModelSpec(str(tmp_path)), 61, device="cpu")))
    assert mixer.num_heads is None
    with pytest.raises(
        UserError,
        match=(
            f"no heads of {kind} can be replaced: the input of its last matrix is not divided "
            "into heads"
        ),
    ):
        groups_of_heads([mixer], ["each"], "model")


# ------------------------------------------------------------------------------- identity, refusals


def test_an_ablation_is_a_part_of_a_models_identity():
    plan = ModelPlan(ModelSpec("zoo:hybrid"), 4096)
    digests = [identify_model(plan_without(plan, text)) for text in ("0", "1", "1:mean", "none")]
    assert len({identify_model(plan), *digests}) == 5


def test_what_cannot_be_ablated_is_said_in_one_line():
    zoo_model = ModelPlan(ModelSpec("zoo:hybrid"), 4096, device="cpu")
    with pytest.raises(
        UserError,
        match=r"it has no mixer 9; its mixers are 0 \(mamba\), 1 \(mamba\), 2 \(attention\), 3 \(mamba\)",
    ):
        load_model(plan_without(zoo_model, "0+9"))
    with pytest.raises(
        UserError,
        match="a mean is one over a text; score it on slices, or by zero: ablate=2",
    ):
        load_model(plan_without(zoo_model, "2:mean"))
    with pytest.raises(UserError, match="a control model has no mixers"):
        identify_model(ModelPlan(ModelSpec("control:recall", ablate="0"), 4096))
    with pytest.raises(UserError, match="no mixer of it can be replaced"):
        ablate(ItsOwn(), Ablation.parse("0"))


class ItsOwn:
    """A user's model that scores by itself."""

    name, vocab_size, max_length = "own", 10, None

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        raise NotImplementedError


def test_a_live_module_is_left_as_it_was(tmp_path):
    plan = ModelPlan(ModelSpec(build_model("llama"), "it"), VOCAB_SIZE, device="cpu")
    before = load_model(plan).score(*IDS).nll
    without = load_model(plan_without(plan, "0")).score(*IDS).nll
    assert np.abs(without - before).max() > 1e-3
    np.testing.assert_array_equal(load_model(plan).score(*IDS).nll, before)
    saved = ModelPlan(
        ModelSpec(str(save_model("llama", tmp_path)), ablate="0"),
        VOCAB_SIZE,
        device="cpu",
    )
    np.testing.assert_array_equal(load_model(saved).score(*IDS).nll, without)
