"""Every command of the tutorials, in the order in which one reads them, at its smallest size: each
begins with what the last one left."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import zstandard
from transformers import LlamaConfig, LlamaForCausalLM

from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import ROOT, made_up_texts, write_jsonl
from tests.documented import blocks, words
from tests.models.test_gguf import NUM_HEADS, NUM_KV_HEADS, write_gguf

EXAMPLE = "--steps 2 --every 1 --width 16 --rows 1 --lists 2 --documents 30 --sample-tokens 1500"


@pytest.fixture
def reader(tiny_model, tmp_path) -> Path:
    """The folder of somebody who has what the tutorials name: training and validation text, a
    tokenizer, two models, a run."""
    folder = tmp_path / "own"
    (folder / "train").mkdir(parents=True)
    for name, seed in (("train/one.jsonl", 1), ("valid.jsonl", 2)):
        file = write_jsonl(folder / name, made_up_texts(60, 200, seed=seed))
        file.with_suffix(".jsonl.zst").write_bytes(zstandard.compress(file.read_bytes()))
        file.unlink()
    load_tokenizer(None).backend.save(str(folder / "gpt2.json"))
    for place, family in (
        ("path/to/attention", "rwkv"),
        ("path/to/mamba", "mamba"),
        ("run/checkpoint-5", "mamba"),
    ):
        shutil.copytree(tiny_model(family), folder / place)
        shutil.copy(folder / "gpt2.json", folder / place / "tokenizer.json")
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4096,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=1,
            num_attention_heads=NUM_HEADS,
            num_key_value_heads=NUM_KV_HEADS,
            max_position_embeddings=2048,
        )
    )
    write_gguf(folder / "model-f16.gguf", model, precision="F16")
    return folder


def smallest(command: str, text: str) -> list[str]:
    """The words of a command about less text, with fewer samples."""
    sizes = {"demo:validation": text, "300": "30"}
    given: list[str] = []
    # which keeps quotes, so that a pattern in them is not expanded
    for word in shlex.split(command, posix=False):
        files = (
            sorted(map(str, Path().glob(word))) if "*" in word and not word.startswith("'") else []
        )
        given += files or [sizes.get(word, word).strip("'")]
    return given


def commands_of(name: str) -> list[str]:
    """The lines of the shell blocks of a document, or of one section of it, DOCUMENT#HEADING."""
    document, _, heading = name.partition("#")
    path = ROOT / "docs" / document
    lines = path.read_text(encoding="utf-8").splitlines()
    first = lines.index(f"## {heading}") if heading else 0
    after = (
        number
        for number in range(first + 1, len(lines))
        if heading and lines[number].startswith("## ")
    )
    section = range(first, next(after, len(lines)))
    return [
        line
        for block in blocks(path)
        if block.kind == "shell" and block.line in section
        for line in block.commands
    ]


@pytest.mark.parametrize(
    "tutorials",
    [
        ("corpus.md",),
        ("memory.md#Weights in fewer bits",),
        pytest.param(("two-checkpoints.md", "track.md"), marks=pytest.mark.slow),
    ],
    ids=lambda names: names[0],
)
def test_the_commands_of_the_tutorials_work(
    run, reader, short_text, tmp_path, monkeypatch, tutorials
):
    commands = [line for name in tutorials for line in commands_of(name)]
    assert len(commands) >= 3
    text, as_it_is = short_text(12, 1500), tmp_path / "as it is"
    as_it_is.mkdir()
    for command in commands:
        # What comes with the package is in a folder of its own, which the page that is read
        # afterwards is of.
        is_ours = (
            "demo:" in command or "zoo:mamba" in command or command == "recallkit report slices"
        )
        monkeypatch.chdir(as_it_is if is_ours else reader)
        given = smallest(command, text)
        if words(command):
            done = run(*given[1:])
        else:
            program = [
                sys.executable,
                *(str(ROOT / word) if word.startswith("examples/") else word for word in given[1:]),
                *(EXAMPLE.split() if "08_track_training.py" in command else ()),
            ]
            done = subprocess.run(
                program,
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        assert done.returncode == 0, f"{command}: {done.stderr}"
