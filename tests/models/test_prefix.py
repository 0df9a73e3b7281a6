"""What a model reads before every text, beside a plain forward pass over the prefix and the ids:
its predictions of the text are the same.

The tokenizer is the built-in one with a template, so that slices and models have the same ids.
"""

from __future__ import annotations

import functools
import itertools
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from tokenizers import processors
from transformers import AutoModelForCausalLM

import recallkit
from recallkit import scoring
from recallkit.errors import UserError
from recallkit.models import loading, zoo
from recallkit.models.generation import generate
from recallkit.models.language_model import LanguageModel
from recallkit.models.loading import check_model, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec, one_model
from recallkit.storage import parquet_files
from recallkit.text.special_tokens import Prefix
from recallkit.text.tokenizers import load_tokenizer
from tests.models.completions_server import Server
from tests.scoring.test_run import copy_of

BEGIN, OTHER = 0, 40
"""The id of the end token, which the template puts before every text here, and of an ordinary
entry."""


@pytest.fixture
def beginning(tiny_model, tmp_path):
    """A folder of a tiny model whose tokenizer begins texts with a token, in its template or by its
    configuration."""

    def make(
        family: str = "llama",
        name: str = "model",
        *,
        template: bool = True,
        **configuration: object,
    ) -> Path:
        path = tmp_path / name
        shutil.copytree(tiny_model(family), path)
        backend = load_tokenizer(None).backend
        token = backend.id_to_token(BEGIN)
        if template:
            backend.post_processor = processors.TemplateProcessing(
                single=f"{token} $A",
                special_tokens=[(token, BEGIN)],
            )
        backend.save(str(path / "tokenizer.json"))
        (path / "tokenizer_config.json").write_text(
            json.dumps({"bos_token": token, **configuration}),
        )
        return path

    return make


@functools.cache
def reference(path: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def plain(path: Path, texts: list[list[int]], prefix: list[int]) -> np.ndarray:
    """NLLs of each text's ids but the first, by a forward pass over prefix and text."""
    model, nll = reference(path), []
    for text in texts:
        ids = torch.tensor([[*prefix, *text]])
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[0].double()
        of_ids = -torch.log_softmax(logits[:-1], 1).gather(1, ids[0, 1:, None])[:, 0]
        nll.append(of_ids[len(prefix) :].numpy())
    return np.concatenate(nll)


def nlls(slices: Path, model: object, **options: object) -> np.ndarray:
    spec = one_model(model)
    scoring.score(spec, slices, scoring.ScoringOptions(device="cpu", **options), force=True)
    return pl.read_parquet(scoring.score_path(slices, spec))["nll"].to_numpy()


def sequences(slices: Path) -> list[list[int]]:
    return pl.read_parquet(slices / "sequences.parquet")["tokens"].to_list()


@pytest.mark.parametrize(
    ("family", "options"),
    [("llama", {}), ("mamba", {}), ("mamba", {"carry_state": True, "context": 10})],
)
def test_every_sequence_is_read_behind_it(beginning, few_slices, tmp_path, family, options):
    slices, path = copy_of(few_slices, tmp_path), beginning(family)
    expected = plain(path, sequences(slices), [BEGIN])
    assert nlls(slices, str(path), **options) == pytest.approx(expected, abs=1e-4)
    manifest = parquet_files.read_manifest(scoring.score_path(slices, one_model(str(path))))
    assert manifest["options"]["prefix"] == [BEGIN]
    assert manifest["prefix"]["token"] == "<|endoftext|>"
    assert not np.allclose(expected, plain(path, sequences(slices), []), atol=1e-3), (
        "it decides the NLLs here"
    )


def test_every_window_is_read_behind_it(beginning, few_slices, tmp_path):
    """Windows of 20 ids, which advance by 7, of which the last is full."""
    slices, path = copy_of(few_slices, tmp_path), beginning()
    expected = []
    for text in sequences(slices):
        last, size = 0, len(text) - 1
        while last < size:
            end = min(size, last + (7 if last else 20))
            window = text[max(0, end - 20) : end + 1]
            expected.append(plain(path, [window], [BEGIN] * (window[0] != BEGIN))[last - end :])
            last = end
    assert nlls(slices, str(path), context=20, stride=7) == pytest.approx(
        np.concatenate(expected),
        abs=1e-4,
    )


def test_a_variant_reads_it_with_the_first_chunk(beginning, few_slices, tmp_path):
    slices, path = copy_of(few_slices, tmp_path), beginning()
    expected = plain(path, sequences(slices), [BEGIN])
    assert nlls(slices, f"{path},cache=full,chunk=9") == pytest.approx(expected, abs=1e-4)
    once = nlls(slices, f"{path},cache=window:1+4,protocol=once:30")
    by_text = np.split(once, np.cumsum([len(text) - 1 for text in sequences(slices)])[:-1])
    exact = np.split(expected, np.cumsum([len(text) - 1 for text in sequences(slices)])[:-1])
    for mine, theirs in zip(by_text, exact, strict=True):
        assert mine[:30] == pytest.approx(theirs[:30], abs=1e-4), (
            "compressed once, after 30 ids of the text"
        )
    assert not np.allclose(once, expected, atol=1e-3)


@pytest.mark.parametrize(("bos", "prefix"), [("none", []), ("auto", [BEGIN]), (None, [OTHER])])
def test_the_option_decides(beginning, few_slices, tmp_path, bos, prefix):
    slices, path = copy_of(few_slices, tmp_path), beginning()
    token = load_tokenizer(None).backend.id_to_token(OTHER) if bos is None else bos
    spec = ModelSpec(str(path), "m", bos=token)
    assert nlls(slices, spec) == pytest.approx(plain(path, sequences(slices), prefix), abs=1e-4)


def test_a_token_that_it_does_not_have_is_refused(beginning, few_slices):
    with pytest.raises(
        UserError,
        match=r"no token '<no>' in the vocabulary of model; give one that it has, bos=none or bos=auto",
    ):
        scoring.plan_scores([f"{beginning()},bos=<no>"], few_slices)
    with pytest.raises(UserError, match="a control model reads no prefix; leave out bos=a"):
        load = one_model("control:bigram,bos=a")
        loading.choose_prefix(ModelPlan(load), load_tokenizer(None))


def test_a_text_that_begins_with_it_gets_no_second_one(beginning):
    """In one batch with texts that do not, of other lengths."""
    path = beginning()
    model = load_model(ModelPlan(ModelSpec(str(path)), 4096, prefix=Prefix((BEGIN,)), device="cpu"))
    texts = [[BEGIN, 5, 6, 7, 8, 9], [5, 6, 7], [BEGIN, 9], [3, 9, 8, 7, 6, 5, 4]]
    expected = [plain(path, [text], [] if text[0] == BEGIN else [BEGIN]) for text in texts]
    offsets = np.cumsum([0, *map(len, texts)])
    scores = model.score(np.concatenate(texts).astype(np.uint32), offsets)
    assert scores.nll == pytest.approx(np.concatenate(expected), abs=1e-4)
    assert model.score_carrying(
        np.concatenate(texts).astype(np.uint32),
        offsets,
        2,
    ).nll == pytest.approx(scores.nll, abs=1e-4)


def test_a_text_has_the_room_that_is_left(beginning):
    plan = ModelPlan(ModelSpec(str(beginning())), 4096, prefix=Prefix((BEGIN,)), device="cpu")
    assert check_model(plan).max_length == load_model(plan).max_length == 255


def test_a_generation_follows_it(beginning):
    path = beginning()
    model = load_model(ModelPlan(ModelSpec(str(path)), 4096, prefix=Prefix((BEGIN,)), device="cpu"))
    prompts = [np.array([7, 8, 9]), np.array([11]), np.array([3, 4, 5, 6, 7])]
    actual = generate(model, prompts, [np.array([5, 6])] * 3, 4, lambda *_: False)
    for prompt, continuation in zip(prompts, actual, strict=True):
        ids = torch.tensor([[BEGIN, *prompt.tolist()]])
        at_once = reference(path).generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=4,
            do_sample=False,
            eos_token_id=None,
        )
        assert continuation.ids == at_once[0, ids.shape[1] :].tolist()
        assert continuation.answer_nll == pytest.approx(
            plain(path, [[*prompt, 5, 6]], [BEGIN])[-2:],
            abs=1e-4,
        )


def test_a_server_is_sent_it(beginning, few_slices, tmp_path):
    slices, path = copy_of(few_slices, tmp_path), beginning()
    server = Server(path)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    spec = ModelSpec(
        f"openai:http://127.0.0.1:{server.server_port}/v1#tiny",
        "m",
        tokenizer=str(path),
    )
    try:
        assert nlls(slices, spec) == pytest.approx(
            plain(path, sequences(slices), [BEGIN]),
            abs=1e-4,
        )
    finally:
        server.shutdown()
        server.server_close()


def test_a_live_model_reads_what_its_tokenizer_says(beginning, few_slices, tmp_path):
    from transformers import PreTrainedTokenizerFast

    slices, path = copy_of(few_slices, tmp_path), beginning(template=False)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    backend = load_tokenizer(None).backend
    token = backend.id_to_token(BEGIN)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=token,
        eos_token=token,
        add_bos_token=True,
    )
    expected = plain(path, sequences(slices), [BEGIN])
    assert nlls(slices, ModelSpec(model, "live", tokenizer=tokenizer)) == pytest.approx(
        expected,
        abs=1e-4,
    )


def test_a_model_of_other_tokens_reads_its_own(few_slices, tiny_model, tmp_path):
    """Behind its `<s>`, the same bytes as without: their NLLs are those of what it read."""
    from tests.made_tokenizers import byte_level

    slices, path = copy_of(few_slices, tmp_path), tmp_path / "model"
    shutil.copytree(tiny_model("llama", vocab_size=512), path)
    backend = byte_level()
    backend.add_special_tokens(["<s>"])
    begin = backend.token_to_id("<s>")
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A",
        special_tokens=[("<s>", begin)],
    )
    backend.save(str(path / "tokenizer.json"))
    with_it, without = (nlls(slices, ModelSpec(str(path), "m", bos=bos)) for bos in (None, "none"))
    text = pl.read_parquet(slices / "sequences.parquet")["text"][0]
    ids, first = backend.encode(text, add_special_tokens=False).ids, len(sequences(slices)[0]) - 1
    assert ids[0] != begin
    assert with_it.sum() != pytest.approx(without.sum(), rel=1e-4)
    assert np.isfinite(with_it[:first]).all()


def test_models_that_begin_otherwise_are_compared_with_a_line(beginning, few_slices, tmp_path):
    slices = copy_of(few_slices, tmp_path)
    paths = [str(beginning(name=name, template=name != "c")) for name in "abc"]
    lines = {}
    for pair in itertools.combinations(paths, 2):
        tables = recallkit.gap(*pair, slices=slices, device="cpu")
        lines[Path(pair[0]).name + Path(pair[1]).name] = "Read before every sequence" in str(tables)
    assert lines == {"ab": False, "ac": True, "bc": True}
    assert "a <|endoftext|>, c nothing (bos= makes them equal)" in " ".join(
        str(recallkit.gap(paths[0], paths[2], slices=slices)).split(),
    )


def test_a_tracked_run_says_it_once(tiny_model, few_slices, tmp_path, capfd):
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float32)
    tracker = recallkit.Tracker(
        slices=copy_of(few_slices, tmp_path),
        out=tmp_path / "track",
        bos="<|endoftext|>",
    )
    first, second = tracker.log(1, model), tracker.log(2, model)
    assert first == second
    plain_run = recallkit.Tracker(
        slices=copy_of(few_slices, tmp_path / "other"),
        out=tmp_path / "plain",
    )
    assert plain_run.log(1, model)["recall/ar_nll"] != first["recall/ar_nll"]
    assert capfd.readouterr().err.count("<|endoftext|> is read before every sequence") == 1


def test_a_prefix_of_several_ids(beginning):
    """Also before a text that is just as long, and not before one that is the prefix itself."""
    path = beginning()
    model = load_model(ModelPlan(ModelSpec(str(path)), 4096, prefix=Prefix((5, 6)), device="cpu"))
    texts = [[7, 8], [5, 6], [5, 9], [5, 6, 7, 8], [9, 8, 7, 6]]
    expected = [plain(path, [text], [] if text[:2] == [5, 6] else [5, 6]) for text in texts]
    scores = model.score(np.concatenate(texts).astype(np.uint32), np.cumsum([0, *map(len, texts)]))
    assert scores.nll == pytest.approx(np.concatenate(expected), abs=1e-4)


def test_a_first_token_without_an_embedding_is_refused(beginning):
    plan = ModelPlan(ModelSpec(str(beginning())), 4097, prefix=Prefix((4096,)), device="cpu")
    for look in (check_model, load_model):
        with pytest.raises(
            UserError,
            match="it reads id 4,096 before every text; name its own tokenizer",
        ):
            look(plan)


def test_a_byte_is_written_as_for_the_end_token():
    tokenizer = load_tokenizer("bytes")
    plans = {bos: ModelPlan(ModelSpec("m", bos=bos), 256) for bos in ("a", "<0x0A>", " ")}
    ids = {bos: loading.choose_prefix(plan, tokenizer).ids for bos, plan in plans.items()}
    assert ids == {"a": (97,), "<0x0A>": (10,), " ": (32,)}
    with pytest.raises(UserError, match="'é' is not a single byte"):
        loading.choose_prefix(ModelPlan(ModelSpec("m", bos="é"), 256), tokenizer)


def test_scores_are_checked_against_what_was_read(beginning, few_slices, tmp_path):
    slices, path = copy_of(few_slices, tmp_path), beginning()
    nlls(slices, f"{path},bos=none")
    with pytest.raises(
        UserError,
        match=r"scored with nothing before every sequence, but now it reads <\|endoftext\|>; write bos=none",
    ):
        scoring.check_scores(str(path), slices)
    assert scoring.check_scores(f"{path},bos=none", slices)["largest"] < 1e-3


def test_two_that_begin_otherwise_are_read_side_by_side(beginning, few_slices, tmp_path):
    """A divergence: each behind its own prefix, also a text that begins with that of one of
    them."""
    slices, path = copy_of(few_slices, tmp_path), str(beginning())
    recallkit.gap(path, {"bare": f"{path},bos=none"}, slices=slices, divergence=True, device="cpu")
    texts = sequences(slices)
    behind = np.concatenate(
        [plain(Path(path), [text], [BEGIN] * (text[0] != BEGIN)) for text in texts],
    )
    scores = {
        model: pl.read_parquet(scoring.score_path(slices, model))["nll"].to_numpy()
        for model in (path, "bare")
    }
    assert scores[path] == pytest.approx(behind, abs=1e-4)
    assert scores["bare"] == pytest.approx(plain(Path(path), texts, []), abs=1e-4)


def test_what_is_read_first_is_said_with_its_reason(beginning, few_slices, tmp_path, capfd):
    slices, path = copy_of(few_slices, tmp_path), str(beginning())
    said = "<|endoftext|> is read before every sequence"
    for bos, line in (
        ("auto", f"{said} (its tokenizer's template begins texts with it; bos=none prevents it)"),
        ("<|endoftext|>", f"{said} (as bos= says)"),
        ("none", None),
    ):
        nlls(slices, ModelSpec(path, "m", bos=bos))
        err = capfd.readouterr().err
        assert (said in err) == (line is not None)
        assert line is None or f"m: {line}" in err


def test_models_that_recallkit_trained_read_nothing(beginning):
    """Whatever tokenizer they are scored with: they were trained on streams without a first
    token."""
    path = beginning()
    tokenizer = load_tokenizer(str(path))
    ours = ["zoo:mamba", str(zoo.shipped()["mamba"]), "control:bigram", "construct:attention"]
    plans = {spec: ModelPlan(ModelSpec(spec), 4096) for spec in (*ours, str(path))}
    read = {spec: loading.choose_prefix(plan, tokenizer).ids for spec, plan in plans.items()}
    assert read == {**dict.fromkeys(ours, ()), str(path): (BEGIN,)}
    live = loading.choose_prefix(
        ModelPlan(ModelSpec(LanguageModel(zoo.architecture("mamba")), "m", bos="auto"), 4096),
        tokenizer,
    )
    assert live.ids == ()
