"""`slice --for`: the tokenizer and the length of sequences that models have, or why there are
none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from recallkit.storage import parquet_files
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import made_up_texts, write_jsonl


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_model) -> dict[str, Path]:
    """`llama` with a tokenizer of its own and a context of 256, `mamba` with the same and no limit,
    `other` with another; `bare`: none."""
    folder = tmp_path_factory.mktemp("models")
    settings = json.loads(load_tokenizer(None).backend.to_str())
    lower = {**settings, "normalizer": {"type": "Lowercase"}}
    for name, family, operands in (
        ("llama", "llama", settings),
        ("mamba", "mamba", settings),
        ("other", "mamba", lower),
    ):
        shutil.copytree(tiny_model(family), folder / name)
        (folder / name / "tokenizer.json").write_text(json.dumps(operands))
    shutil.copytree(tiny_model("llama"), folder / "bare")
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def sliced(run, models, tmp_path):
    """sliced(MODEL ..., OPTIONS ...) is the manifest of labels for these models, or the line that
    refuses them."""
    text = write_jsonl(tmp_path / "text.jsonl", made_up_texts(20, 90))

    def call(*words: object) -> dict | str:
        operands = [
            item
            for word in words
            for item in (("--for", models[word]) if word in models else (word,))
        ]
        done = run("slice", text, *operands, "-o", tmp_path / "slices", "--force")
        [*_, line] = done.stderr.splitlines() or [""]
        return (
            parquet_files.read_manifest(tmp_path / "slices/tokens.parquet")
            if done.returncode == 0
            else line
        )

    return call


def test_tokenizer_and_context_are_the_models(sliced, models):
    """Of several the smallest context; without any the papers' length."""
    for words, length in (
        (("llama",), 256),
        (("mamba", "llama"), 256),
        (("mamba",), 2048),
        (("llama", "--for", "control:bigram"), 256),
    ):
        manifest = sliced(*words)
        assert manifest["seq_len"] == length, words
        assert manifest["tokenizer"]["digest"] == load_tokenizer(str(models[words[0]])).digest
    manifest = sliced("--for", "zoo:mamba")
    assert (manifest["seq_len"], manifest["tokenizer"]["digest"]) == (
        256,
        load_tokenizer(None).digest,
    )


def test_what_is_given_comes_first(sliced, models):
    assert sliced("llama", "--seq-len", 64)["seq_len"] == 64
    manifest = sliced("llama", "other", "--tokenizer", models["other"] / "tokenizer.json")
    assert (
        manifest["tokenizer"]["digest"]
        == load_tokenizer(str(models["other"])).digest
        != load_tokenizer(str(models["llama"])).digest
    )
    manifest = sliced("bare", "--tokenizer", models["other"] / "tokenizer.json")
    assert (manifest["seq_len"], manifest["tokenizer"]["digest"]) == (
        256,
        load_tokenizer(str(models["other"])).digest,
    )
    assert sliced("--for", f"{models['mamba']},context=128")["seq_len"] == 128


def test_what_cannot_be_is_refused(sliced):
    line = sliced("llama", "other")
    assert (
        "--for: llama and other have different tokenizers; slice with the --tokenizer of one"
        in line
    )
    assert (
        "--seq-len: llama reads 256 ids of text at once, and a sequence has 300; give 256 or "
        "less, or leave it out"
    ) in sliced("llama", "--seq-len", 300)
    assert sliced("mamba", "--seq-len", 300)["seq_len"] == 300
    for words in (("bare",), ("bare", "--for", "zoo:mamba"), ("llama", "bare")):
        assert (
            "bare: brings no tokenizer; name that with which it was trained: PATH,tokenizer=FILE"
            in sliced(*words)
        ), words
    assert "nowhere: no such file or directory" in sliced("--for", "nowhere")
