"""Files of the hub: from its cache, also under the old names of one word."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import made_up_texts, write_jsonl


@pytest.fixture
def gpt2(tiny_model, tmp_path) -> Path:
    """A small model with a tokenizer of its own."""
    folder = tmp_path / "made"
    shutil.copytree(tiny_model("llama", vocab_size=4096), folder)
    load_tokenizer(None).backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("cached_as", ["gpt2", "openai-community/gpt2"])
def test_old_names_are_found_in_the_cache(run, hub, gpt2, tmp_path, cached_as):
    """As a tokenizer and as a model, whichever of its two names the files were downloaded under."""
    hub(cached_as, gpt2)
    text, out = write_jsonl(tmp_path / "text.jsonl", made_up_texts(6, 60)), tmp_path / "slices"
    done = run("slice", text, "--tokenizer", "gpt2", "--seq-len", 64, "-o", out)
    assert done.returncode == 0, done.stderr
    done = run("score", "gpt2", "--slices", out, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "no tokenizer" not in done.stderr
    done = run("tokens", out, "--reference", "gpt2", "--sequence", "0")
    assert done.returncode == 0, done.stderr


def test_what_is_here_wins(run, hub, gpt2, tmp_path, monkeypatch):
    """A folder of an old name is the model, and its tokenizer."""
    hub("gpt2", gpt2)
    monkeypatch.chdir(tmp_path)
    text = write_jsonl(tmp_path / "text.jsonl", made_up_texts(6, 60))
    (tmp_path / "gpt2").mkdir()
    done = run("slice", text, "--tokenizer", "gpt2", "--seq-len", 64)
    assert (done.returncode, "gpt2: no tokenizer found here" in done.stderr) == (1, True)
    shutil.copy(gpt2 / "tokenizer.json", tmp_path / "gpt2")
    assert run("slice", text, "--tokenizer", "gpt2", "--seq-len", 64).returncode == 0
    done = run("score", "gpt2", "--slices", "slices")
    assert (done.returncode, "gpt2: a tokenizer without a model" in done.stderr) == (1, True)


def test_a_name_that_is_not_in_the_cache(run, hub, tmp_path):
    """The error names the cache and why the hub is not asked, and what this command takes
    instead."""
    text = write_jsonl(tmp_path / "text.jsonl", made_up_texts(2, 20))
    done = run("slice", text, "--tokenizer", "distilgpt2", "-o", tmp_path / "slices")
    lines = done.stderr.strip().splitlines()
    assert (done.returncode, len(lines)) == (1, 1)
    assert f"distilgpt2: neither here nor in the hub's cache ({tmp_path / 'hub'}), and" in lines[0]
    assert (
        "HF_HUB_OFFLINE is set; download it with a network connection, or give a tokenizer.json"
        in lines[0]
    )
    assert lines[0].endswith("with --tokenizer")
