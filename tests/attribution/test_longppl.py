"""LongPPL's key tokens and perplexity (arXiv 2410.23771) against its authors' package, on the same
text and models."""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import recallkit
from recallkit.attribution.context_gain import KEY_TOKENS
from recallkit.scoring import score_path
from recallkit.scoring.windows import LastIds
from tests.attribution.test_context_gain import is_key

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PACKAGE = "longppl==0.3.0"
LETTERS = "abcdefghijkl"
NUM_LETTERS, SHORT, STRIDE = 1510, 64, 16


@pytest.fixture
def longppl(tmp_path_factory, monkeypatch):
    """The authors' module."""
    folder = tmp_path_factory.mktemp("longppl")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder),
        PACKAGE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        pytest.skip(
            f"pip cannot get {PACKAGE}: "
            f"{(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("longppl.longppl")
    for name in [name for name in sys.modules if name.partition(".")[0] == "longppl"]:
        del sys.modules[name]


@pytest.fixture
def tokenizer(tmp_path) -> Path:
    """A letter is a token, so that offsets in the text, by which the package compares tokens, are
    places among the ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate(LETTERS)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def chaotic(folder: Path, seed: int) -> Path:
    """A tiny Llama with large random weights: what it predicts depends on all that it has read, and
    it is sure of it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(LETTERS) + 1,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3)
        model.lm_head.weight.normal_(0, 0.7)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("extra", [0, 5, 15])
def test_key_tokens_and_perplexity_are_the_packages(longppl, tokenizer, tmp_path, extra):
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    text = "".join(random.Random(extra).choices(LETTERS, k=NUM_LETTERS + extra))
    (tmp_path / "text.txt").write_text(text)
    counts, slices = tmp_path / "counts.duckdb", tmp_path / "slices"
    recallkit.count(tmp_path / "text.txt", counts, tokenizer=tokenizer)
    recallkit.slice(tmp_path / "text.txt", slices, tokenizer=tokenizer, counts=counts, seq_len=2048)
    ids = pl.read_parquet(slices / "sequences.parquet")["tokens"]
    num = NUM_LETTERS + extra
    assert len(ids) == 1
    assert [LETTERS[number] for number in ids[0][:num]] == list(text)
    evaluator, model = chaotic(tmp_path / "evaluator", 1), chaotic(tmp_path / "model", 2)
    tables = recallkit.gap(
        f"evaluator={evaluator}",
        f"model={model}",
        slices=slices,
        context_gain=SHORT,
        out=tmp_path / "gap",
    )
    loaded = [LlamaForCausalLM.from_pretrained(path).eval() for path in (evaluator, model)]
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer))
    key_spans = longppl.find_key_token(text, loaded[0], theirs, SHORT, STRIDE)
    their_keys = {place for start, stop in key_spans.tolist() for place in range(start, stop)}
    full, last = (
        pl.read_parquet(score_path(slices, "evaluator", own))["nll"].to_numpy()
        for own in (None, LastIds(SHORT, STRIDE))
    )
    own_keys = {int(place) + 1 for place in np.flatnonzero(is_key(full, last)[: num - 1])}
    assert own_keys == their_keys
    assert len(own_keys) > 20
    row = tables.by_context.filter(slice=KEY_TOKENS).row(0, named=True)
    is_end_key = bool(is_key(full, last)[num - 1 :].any())
    assert not is_end_key, "the token after the text, which the package does not have"
    for name, own in (("ppl_reference", loaded[0]), ("ppl_model", loaded[1])):
        found = longppl.compute_longppl(
            text, own, loaded[0], theirs, theirs, trunc_len=SHORT, sliding_window=STRIDE
        )
        assert row["tokens"] == found["n_key_token"]
        assert row[name] == pytest.approx(float(found["longppl"]), rel=1e-4)
