"""Variants of a model: read in chunks they are the model itself where nothing is compressed, and
know what is left where something is."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import asdict

import numpy as np
import polars as pl
import pytest
import torch

import recallkit
from recallkit.errors import UsageError, UserError
from recallkit.models.generation import by_scoring, generate
from recallkit.models.language_model import LanguageModel
from recallkit.models.loading import identify_model, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec, parse_model
from recallkit.models.variants import Variant, apply_variant
from recallkit.storage.parquet_files import read_manifest
from tests.models.families import save_model

VOCAB = 500
CODE = """
import contextlib
import torch
from transformers import DynamicCache

FILES = ["rates.txt"]

class Forgetful(DynamicCache):
    def __init__(self, **more):
        super().__init__(**more)
        self.rates = [torch.zeros(1, 3)]

    def update(self, keys, values, layer, *more, **named):
        return super().update(0.0 * keys, values, layer, *more, **named)

def forgetful(model):
    return Forgetful(config=model.config)

@contextlib.contextmanager
def quiet(model):
    def hook(module, inputs, output):
        return (0.0 * output[0], *output[1:])
    hooks = [layer.self_attn.register_forward_hook(hook) for layer in model.model.layers]
    yield
    for each in hooks:
        each.remove()

class Filled(DynamicCache):
    def update(self, *more, **named):
        raise RuntimeError("no room")

def filled(model):
    return Filled(config=model.config)

def wrong(model):
    return 3

def failing(model):
    raise ValueError("no such press")
"""


def load(path, variant=None, **more):
    options = {} if variant is None else asdict(variant)
    return load_model(ModelPlan(ModelSpec(str(path), **options), VOCAB, device="cpu", **more))


def some_ids(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(VOCAB, size=sum(lengths)).astype(np.uint32), np.cumsum([0, *lengths])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return lambda family: (
        folder / family if (folder / family).exists() else save_model(family, folder)
    )


@pytest.mark.parametrize("family", ["llama", "qwen3_next", "jamba", "zoo:hybrid"])
def test_nothing_compressed_is_the_model_itself(saved, family):
    path = family if ":" in family else saved(family)
    ids, offsets = some_ids(50, 7, 33, 50)
    plain, variant = (
        load(path).score(ids, offsets),
        load(path, Variant("full", chunk=8)).score(ids, offsets),
    )
    assert np.abs(plain.nll - variant.nll).max() < 2e-5
    assert np.array_equal(plain.argmax, variant.argmax)


def seen_values(length, sinks, recent, chunk):
    """Which earlier places j each place i sees: its own chunk, the first ids, and the latest ones
    before the chunk."""
    i, j = np.ogrid[:length, :length]
    begin = i // chunk * chunk
    return (j <= i) & ((j >= begin - recent) | (j < sinks))


@pytest.mark.parametrize(
    ("sinks", "recent", "chunk"),
    [(0, 20, 10), (3, 16, 8), (2, 33, 1), (5, 40, 40)],
)
def test_a_constructed_model_recalls_down_to_the_window_and_nothing_beyond(sinks, recent, chunk):
    """It looks up what followed an earlier occurrence: it finds that exactly where it is left."""
    rng = np.random.default_rng(0)
    keys = rng.permutation(np.arange(1, 41))
    pairs = np.stack([keys, 100 + rng.permutation(400)[:40]], axis=1)
    requested = rng.permutation(40)
    # Key, value, key, value ..., then all again.
    ids = np.concatenate([pairs.ravel(), pairs[requested].ravel()]).astype(np.uint32)
    model = load("construct:attention", Variant(f"window:{sinks}+{recent}", chunk=chunk))
    results = model.score(ids, np.array([0, len(ids)]))
    asking = 80 + 2 * np.arange(40)
    known = seen_values(len(ids), sinks, recent, chunk)[asking, 2 * requested + 1]
    assert 0 < known.sum() < 40
    assert results.nll[asking][known].max() < 1e-4
    assert results.nll[asking][~known].min() > 0.5


@pytest.mark.parametrize("path", ["llama", "zoo:attention"])
def test_bytes_are_those_of_what_is_stored(saved, path):
    ids, _ = some_ids(100)
    path = path if ":" in path else saved(path)
    at_once, window = (
        load(path).state_bytes(ids),
        load(path, Variant("window:2+14")).state_bytes(ids),
    )
    assert load(path).state_bytes(ids[:16]) == window
    # What does not grow with the ids: inputs of convolutions.
    fixed = at_once - 100 * (at_once - window) // 84
    assert at_once - fixed == 100 * (window - fixed) // 16


def test_bytes_of_a_llama_by_hand(saved):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(saved("llama"))
    width = config.num_key_value_heads * (config.hidden_size // config.num_attention_heads)
    assert (
        load(saved("llama")).state_bytes(some_ids(30)[0])
        == config.num_hidden_layers * 2 * width * 30 * 4
    )


def test_sixteen_bits_change_less_than_half_precision_does(saved):
    """A state of float32 that is rounded to 16 bits between chunks, beside the noise of reading in
    two ways in bfloat16."""
    ids, offsets = some_ids(120)
    plain = load("zoo:delta").score(ids, offsets).nll
    variant = Variant(state="fp16", chunk=24)
    rounded = load("zoo:delta", variant).score(ids, offsets).nll
    _, noise = load("zoo:delta", variant, dtype="bfloat16").noise_of_reading(ids, offsets)
    assert np.abs(rounded - plain).mean() < noise


def test_the_first_ids_are_compressed_once_and_only_what_follows_is_compared(
    saved,
    few_slices,
    tmp_path,
):
    """In sequences of 64, `once:40` leaves predictions 41 to 64: those before are the model's own,
    and in no figure."""
    names = {
        "whole": "zoo:attention",
        "once": ModelSpec("zoo:attention", cache="window:1+4", protocol="once:40"),
    }
    tables = recallkit.gap(names, slices=few_slices, out=tmp_path / "gap")
    scores = {
        name: pl.read_parquet(next((few_slices / "scores").glob(f"{name}*.parquet")))
        for name in names
    }
    differ = (scores["whole"]["nll"] - scores["once"]["nll"]).abs() > 1e-4
    assert not differ.filter(scores["whole"]["position"] <= 40).any()
    later = scores["whole"]["position"] > 40
    assert differ.filter(later).mean() > 0.9
    rows = tables.gap.filter(source="ALL", slice="all")
    assert rows["tokens"].to_list() == [later.sum()]
    assert rows["nll_model"][0] == pytest.approx(
        scores["once"].filter(later)["nll"].cast(pl.Float64).mean(),
        abs=1e-6,
    )
    assert tables.by_position["low"].max() > 0
    assert tables.by_position.filter(pl.col("high") <= 40)["tokens"].sum() == 0
    every, some = (
        recallkit.intervene(
            models,
            slices=few_slices,
            samples=300,
            slice=["ar_hit"],
            out=tmp_path / str(len(models)),
        ).intervene
        for models in ({"whole": "zoo:attention"}, names)
    )
    assert 0 < some["samples"][0] < every["samples"][0]


def test_scores_say_what_reading_in_chunks_changes_and_what_a_state_occupies(few_slices, run):
    done = run(
        "gap",
        "zoo:delta",
        "d8=zoo:delta,state=int8,chunk=8",
        "--slices",
        few_slices,
        "--full",
    )
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(next((few_slices / "scores").glob("d8*.parquet")))
    assert manifest["state_ids"] == 64
    assert 0 < manifest["reading_mean"] <= manifest["reading_max"] < 1e-4
    assert (
        f"by up to {manifest['reading_max']:.1e} nats, on average by {manifest['reading_mean']:.1e}"
        in " ".join(done.stdout.split())
    )
    plain = read_manifest(next((few_slices / "scores").glob("zoo-delta.*parquet")))
    assert plain["state_bytes"] > manifest["state_bytes"]
    assert "reading_max" not in plain
    recallkit.score("windows=zoo:delta,state=int8,chunk=8,context=32,stride=16", slices=few_slices)
    assert read_manifest(few_slices / "scores" / "windows.parquet")["state_ids"] == 32, (
        "as many as are read at once"
    )


def test_a_state_that_is_rounded_once_occupies_what_an_exact_one_does():
    ids, plain = some_ids(40)[0], load("zoo:delta")
    once, again = (
        load("zoo:delta", Variant(state="int8", **when)).state_bytes(ids)
        for when in ({"protocol": "once:8"}, {"chunk": 8})
    )
    assert again < once == plain.state_bytes(ids)


def test_a_variant_that_compresses_nothing_that_a_prediction_sees_says_so(few_slices, run):
    # The last chunk of 64 ids sees the 56 before it.
    for options, said in (
        ("window:4+52,chunk=8", True),
        ("window:4+51,chunk=8", False),
        ("fp8,chunk=64", True),
        ("fp8,chunk=63", False),
    ):
        done = run("score", f"zoo:attention,cache={options}", "--slices", few_slices)
        assert (
            "in sequences of 64 ids nothing is compressed before the last chunk"
            in " ".join(done.stderr.split())
        ) is said, options


@pytest.mark.parametrize("path", ["llama", "zoo:hybrid"])
def test_generation_continues_from_the_compressed_state(saved, path):
    """A variant generates what scoring its own text again id by id finds; with nothing compressed,
    what the model does."""
    path = path if ":" in path else saved(path)
    prompts, answers = (
        np.split(some_ids(37, 23, seed=3)[0], [37]),
        [np.array([5, 6, 7]), np.array([9])],
    )

    def continued(model, how):
        return how(model, prompts, answers, 6, lambda *_: False)

    window = load(path, Variant("window:1+8", chunk=8))
    once = load(path, Variant("window:1+4", protocol="once:10"))
    for one, other in (
        (
            continued(load(path), generate),
            continued(load(path, Variant("full", chunk=8)), generate),
        ),
        (continued(window, by_scoring), continued(window, generate)),
        # What follows the first 10 ids stays exact.
        (continued(once, by_scoring), continued(once, generate)),
    ):
        assert [item.ids for item in one] == [item.ids for item in other]
        for a, b in zip(one, other, strict=True):
            assert np.abs(a.answer_nll - b.answer_nll).max() < 1e-4


def test_a_users_own_cache_or_context_reads_the_text(saved, tmp_path):
    """Keys of zero see every place alike; attention whose output is zero sees nothing."""
    file = tmp_path / "caches.py"
    file.write_text(CODE)
    rates = tmp_path / "rates.txt"
    rates.write_text("0.5")
    ids, offsets = some_ids(30)
    model = saved("llama")
    at_once, forgetful, quiet = (
        load(model, variant).score(ids, offsets).nll
        for variant in (None, Variant(f"{file}:forgetful"), Variant(f"{file}:quiet"))
    )
    assert np.abs(at_once - forgetful).max() > 1e-3
    alone = [load(model).score(ids[i : i + 2], np.array([0, 2])).nll[0] for i in range(29)]
    assert np.abs(at_once - quiet).max() > 1e-3
    shuffled = np.concatenate([ids[20:28], ids[28:]])
    again = load(model, Variant(f"{file}:quiet")).score(shuffled, np.array([0, 10])).nll
    assert again[-1] == pytest.approx(quiet[-1], abs=1e-5)  # what came before does not matter
    assert len(alone) == len(quiet)
    [generated] = generate(
        load(model, Variant(f"{file}:forgetful")),
        [ids[:20]],
        [ids[20:22]],
        2,
        lambda *_: False,
    )
    assert (len(generated.ids), generated.answer_nll) == (
        2,
        pytest.approx(forgetful[19:21], abs=1e-4),
    )
    digests = [identify_model(ModelPlan(ModelSpec(str(model), cache=f"{file}:quiet"), VOCAB))]
    for changed, content in ((file, CODE + "\n# changed\n"), (rates, "0.7")):
        changed.write_text(content)
        digests.append(
            identify_model(ModelPlan(ModelSpec(str(model), cache=f"{file}:quiet"), VOCAB)),
        )
    assert len(set(digests)) == 3
    for name, said in (
        ("wrong", "returned an object of int"),
        ("failing", "raised ValueError: no such press"),
        ("none", "no function 'none'"),
        (
            "filled",
            rf"its forward pass fails \(.*no room\); check cache {re.escape(str(file))}:filled$",
        ),
    ):
        with pytest.raises(UserError, match=said):
            load(model, Variant(f"{file}:{name}")).score(ids, offsets)
    with pytest.raises(
        UserError,
        match=r"^zoo:attention: it has no transformers cache, which .*:quiet needs; name a policy",
    ):
        load("zoo:attention", Variant(f"{file}:quiet"))


SYNTAX = {
    "base,cache=int4": (ModelSpec("base", cache="int4"), "base cache int4"),
    "base,cache=window:4+256,chunk=16": (
        ModelSpec("base", cache="window:4+256", chunk=16),
        "base cache window:4+256, chunk 16",
    ),
    "gdn,state=int8": (ModelSpec("gdn", state="int8"), "gdn state int8"),
    "w=gdn,weights=int4": (ModelSpec("gdn", "w", weights="int4"), "w"),
    "base,cache=knorm:0.5,protocol=once:1024": (
        ModelSpec("base", cache="knorm:0.5", protocol="once:1024"),
        "base cache knorm:0.5, protocol once:1024",
    ),
}


@pytest.mark.parametrize(("text", "meaning"), SYNTAX.items(), ids=SYNTAX)
def test_a_variant_is_typed_after_its_model_and_named_for_it(text, meaning):
    spec, shown = meaning
    assert parse_model(text) == spec
    assert parse_model(text).shown == shown
    assert parse_model(spec.typed()) == spec


WRONG = {
    "base,cache=int5": "int5",
    "base,cache=window:4": "window",
    "base,cache=knorm:1": "share of ids to evict",
    "base,state=int4": "state=int4 is not one of bf16, fp16, fp8, int8",
    "base,weights=fp8": "weights=fp8 is not one of int8, int4",
    "base,chunk=16": "nothing to compress between chunks",
    "base,cache=full,chunk=0": "chunk is 0, not a number of ids",
    "base,cache=full,chunk=many": "chunk is many, not a number of ids",
    "base,cache=full,protocol=once:1": "once is 1, not a number of ids",
    "base,cache=full,protocol=twice:3": "protocol=twice:3 is not one; give once:K",
    "base,cache=full,chunk=4,protocol=once:3": "chunk and protocol=once",
}


@pytest.mark.parametrize(("text", "said"), WRONG.items(), ids=WRONG)
def test_what_is_not_a_variant_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        parse_model(text)


def test_models_without_what_would_be_compressed_are_refused(saved, few_slices, run):
    for model, said in (
        ("zoo:delta,cache=full", "it has no cache of keys and values of all ids"),
        ("zoo:attention,state=int8", "it has no recurrent state to round"),
        ("zoo:delta,cache=int4,state=int8", "it has no cache of keys and values of all ids"),
        ("control:bigram,cache=full", "a control model has no variants"),
        ("openai:http://localhost:1/v1#m,cache=full", "a model behind a server has no variants"),
        (
            "zoo:attention,cache=int4:group=7:residual=0,chunk=8",
            "zoo:attention: groups of 7 entries do not divide a head's width of",
        ),
        (
            "zoo:attention,cache=window:1+8,protocol=once:64",
            "sequences of 64 predictions have none after their first 64 ids",
        ),
    ):
        done = run("score", model, "--slices", few_slices)
        assert (done.returncode, said in done.stderr, done.stderr.strip().count("\n")) == (
            1,
            True,
            0,
        ), done.stderr
    for options, said in (
        (
            ["zoo:delta,state=int8", "--carry-state"],
            "a variant carries its compressed state already",
        ),
        (
            ["zoo:attention,cache=window:1+8,protocol=once:20", "--context", 32, "--stride", 16],
            "these are read in windows of 32 ids",
        ),
        (
            ["zoo:attention,cache=window:1+8,protocol=once:20", "--model-tokenizer", "bytes"],
            "counts ids of the slices' tokenizer",
        ),
    ):
        assert said in run("score", *options, "--slices", few_slices).stderr
    with pytest.raises(UsageError, match="a live model has no variants"):
        ModelSpec(torch.nn.Linear(2, 2), cache="full")


class _ReadsOnOtherwise(LanguageModel):
    """A model whose states after a carried state are too large by a share."""

    error = 0.0

    def read(self, ids, state):
        hidden, after = super().read(ids, state)
        return hidden * (1 + self.error), after


@pytest.mark.parametrize(
    ("scale", "error", "is_refused"),
    [(1, 0, False), (1, 1e-4, True), (1000, 0, False), (1000, 1e-6, True)],
)
def test_reading_in_chunks_must_be_the_same_reading_up_to_rounding(scale, error, is_refused):
    """What differs would else not be compression; logits a thousand times as large round by more
    than the 1e-4 nats that others may differ, and as much is refused where it is not rounding."""
    model = load("zoo:attention")
    model.model.__class__, model.model.error = _ReadsOnOtherwise, error
    model.model.norm.weight.data.mul_(scale)
    refusal = pytest.raises(
        UserError,
        match=r"in chunks of 8 ids, with nothing compressed, its NLLs differ by",
    )
    with refusal if is_refused else nullcontext():
        apply_variant(model, Variant("full", chunk=8))
        assert (model.noise_of_reading(*some_ids(50))[0] > 1e-4) is (scale > 1)


def test_mqar_takes_variants(run, tmp_path):
    """The constructed model answers every query; with a window of 8 only those whose pair is
    near."""
    done = run(
        "mqar",
        "construct:attention",
        "construct:attention,cache=window:1+8,chunk=8",
        "--seq-len",
        64,
        "--pairs",
        8,
        "--samples",
        20,
        "--json",
        "-o",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    import json

    rows = json.loads(done.stdout)["mqar"]
    by_model: dict[str, list[float]] = {}
    for row in rows:
        by_model.setdefault(row["model"], []).append(row["accuracy"])
    assert min(by_model["construct:attention"]) == 1.0
    assert max(by_model["construct:attention cache window:1+8, chunk 8"]) < 0.9
