"""A byte-level recurrent model and a BPE attention model, both really trained, compared on the same bytes (slow)."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from recallkit import scoring
from recallkit.text.tokenizers import load_tokenizer
from tests import byte_rwkv
from tests.models.test_smollm2 import call, slices, wikipedia  # noqa: F401 - fixtures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def rwkv(test_data) -> str:
    assert byte_rwkv.WEIGHTS.is_file()
    return f"{Path(byte_rwkv.__file__)}:load"


def test_the_loader_gives_the_logits_that_the_file_promises(rwkv):
    logits = byte_rwkv.load(None)(torch.tensor([list(b'"in')]))[0, -1]
    expected = torch.from_numpy(np.fromfile(byte_rwkv.EXPECTED_LOGITS, "<f4"))
    assert (logits - expected).abs().max() < 1e-5


def test_both_are_compared_on_the_same_bytes(rwkv, smollm2, slices, capsys):  # noqa: F811
    capsys.readouterr()
    call("gap", smollm2, rwkv, "--slices", slices, "--device", "cpu", "--json")
    found = json.loads(capsys.readouterr().out)
    whole = next(row for row in found["gap"] if row["source"] == "ALL" and row["slice"] == "all")
    assert found["inexact"] == {rwkv: {"all": 0.0, "ar_hit": 0.0, "other": 0.0}}, "a byte-level model is exact everywhere"

    # The model's own NLL of every sequence's bytes, without translation or carrying.
    tokenizer = load_tokenizer(str(smollm2))
    model = byte_rwkv.load(None)
    table = pl.read_parquet(scoring.score_path(slices, rwkv))
    totals = table.group_by("sequence", maintain_order=True).agg(pl.col("nll").cast(pl.Float64).sum())["nll"].to_list()
    num_bytes = 0
    sequences = pl.read_parquet(slices / "sequences.parquet")["tokens"].to_list()
    for sequence, total in zip(sequences[:3], totals, strict=False):
        pieces = [b"\n" if i == tokenizer.end_token_id else tokenizer.token_bytes[i] for i in sequence]
        data = torch.tensor(list(b"".join(pieces)))
        with torch.inference_mode():
            logits = model(data[None, :-1])[0].double()
        nll = torch.nn.functional.cross_entropy(logits, data[1:], reduction="none")[len(pieces[0]) - 1 :]
        assert total == pytest.approx(float(nll.sum()), rel=1e-5)
    num_bytes = sum(len(tokenizer.token_bytes[i]) for s in sequences for i in s[1:] if i != tokenizer.end_token_id)
    assert whole["bytes"] == num_bytes
    assert whole["bpb_model"] == pytest.approx(sum(totals) / np.log(2) / num_bytes, rel=1e-6)
    assert 0.5 < whole["bpb_reference"] < 1.2 < 2 < whole["bpb_model"] < 8, "135M parameters of BPE are far ahead of 0.7M of bytes"


def test_the_other_way_round_nothing_is_lost(rwkv, smollm2, wikipedia, tmp_path, home, capsys):  # noqa: F811
    """Labels on bytes: the BPE model's NLL of a word lies on the word's last byte."""
    call("slice", *wikipedia, "--tokenizer", "bytes", "--limit-tokens", 4096, "--seq-len", 2048, "-o", tmp_path / "s")
    call("score", smollm2, rwkv, "--slices", tmp_path / "s", "--device", "cpu")
    table = pl.read_parquet(scoring.score_path(tmp_path / "s", str(smollm2)))
    manifest = json.loads(scoring.score_path(tmp_path / "s", str(smollm2)).with_suffix(".json").read_text())
    assert manifest["num_own_ids"] + manifest["num_without_id"] == len(table) == 4096
    assert (table["nll"].to_numpy()[table["rank"].to_numpy() < 0] == 0).all()
    assert 3 < 4096 / manifest["num_own_ids"] < 6, "bytes a token of English"
    bits = [pl.read_parquet(scoring.score_path(tmp_path / "s", str(m)))["nll"].sum() / np.log(2) / 4096 for m in (smollm2, rwkv)]
    assert all(a < b for a, b in itertools.pairwise(bits))
