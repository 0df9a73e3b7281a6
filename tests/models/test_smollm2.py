"""A real attention model of useful size, from a GGUF file to the attributed gap, through the
command line."""

from __future__ import annotations

import io
import itertools
import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import zstandard
from transformers import AutoTokenizer

from recallkit import cli, scoring
from recallkit.config import MIN_CLUSTERS
from recallkit.text.tokenizers import load_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

NUM_TOKENS = 10_000
EMBEDDED = ["demo:validation"]


@pytest.fixture(scope="module")
def wikipedia(request, tmp_path_factory) -> list[str]:
    """Sources of real text: Wikipedia where it is at hand, else the documentation that Python
    brings."""
    try:
        shard = request.getfixturevalue("test_data") / "corpus" / "valid.jsonl.zst"
    except pytest.skip.Exception:
        return EMBEDDED
    stored = tmp_path_factory.mktemp("wikipedia") / "wikipedia.jsonl"
    with shard.open("rb") as raw, stored.open("w", encoding="utf-8") as out:
        for line in io.TextIOWrapper(
            zstandard.ZstdDecompressor().stream_reader(raw),
            encoding="utf-8",
        ):
            if json.loads(line)["meta"]["pile_set_name"].startswith("Wikipedia"):
                out.write(line)
    return [str(stored)]


def call(*arguments: object) -> None:
    """`recallkit ARGUMENTS` in this process."""
    with pytest.raises(SystemExit) as caught:
        cli.run([*map(str, arguments)])
    assert caught.value.code == 0


@pytest.fixture(scope="module")
def slices(smollm2, wikipedia, tmp_path_factory, home) -> Path:
    """10,000 tokens in the model's own ids, in sequences of 512, with counts of other text."""
    folder = tmp_path_factory.mktemp("run")
    call(
        "count",
        "demo:train",
        "--tokenizer",
        smollm2,
        "--limit-tokens",
        "500k",
        "-o",
        folder / "counts.duckdb",
    )
    call(
        *(
            "slice",
            *wikipedia,
            "--tokenizer",
            smollm2,
            "--counts",
            folder / "counts.duckdb",
            "--max-count",
            5,
        ),
        *("--limit-tokens", NUM_TOKENS, "--seq-len", 512, "-o", folder / "slices"),
    )
    return folder / "slices"


@pytest.fixture(scope="module")
def gap(smollm2, slices) -> Path:
    call(
        "gap",
        smollm2,
        "control:bigram",
        "--slices",
        slices,
        "--device",
        "cpu",
        "-o",
        slices / "gap",
    )
    return slices / "gap"


def scores(slices: Path, model: object) -> dict[str, np.ndarray]:
    table = pq.read_table(scoring.score_path(slices, str(model)))
    return {name: table[name].to_numpy() for name in table.column_names}


def test_its_tokenizer_is_the_one_transformers_reads(smollm2, slices):
    mine = load_tokenizer(str(smollm2))
    theirs = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    texts = [
        *pq.read_table(slices / "sequences.parquet")["text"].to_pylist(),
        "  1234  5\n\n\tdef f(x):\n    return x<|im_end|>",
    ]
    ids, offsets = mine.encode(texts)
    for text, (start, stop) in zip(texts, itertools.pairwise(offsets), strict=True):
        assert ids[start:stop].tolist() == theirs(text, add_special_tokens=False)["input_ids"]
    assert mine.end_token == "<|endoftext|>", "what separates documents, not what ends a turn"


def test_perplexity_and_accuracy_are_a_real_models(smollm2, wikipedia, slices, gap):
    mine = scores(slices, smollm2)
    assert len(mine["nll"]) == NUM_TOKENS
    assert np.isfinite(mine["nll"]).all()
    # Python's own documentation is easy, and most likely in what it was trained on.
    least = 4 if wikipedia == EMBEDDED else 8
    assert least < math.exp(mine["nll"].mean(dtype=np.float64)) < 40
    assert (mine["rank"] == 0).mean() > 0.3
    assert mine["nll"].mean() < scores(slices, "control:bigram")["nll"].mean()


def test_an_attention_model_leads_a_bigram_model_on_associative_recall(gap):
    rows = {
        row["slice"]: row
        for row in pl.read_parquet(gap / "gap.parquet")
        .filter(pl.col("source") == "ALL")
        .iter_rows(named=True)
    }
    hits = rows["ar_hit"]
    assert rows["all"]["tokens"] == hits["tokens"] + rows["other"]["tokens"] == NUM_TOKENS
    assert hits["ppl_reference"] < rows["other"]["ppl_reference"], (
        "what the context has shown is easier to an attention model"
    )
    assert hits["delta_nll"] > rows["all"]["delta_nll"] > 0
    assert hits["share_of_tokens"] < hits["gap_share"] < 1
    assert (hits["gap_share_ci_low"] is None) == (hits["effective_clusters"] < MIN_CLUSTERS)
    assert (
        hits["gap_share_ci_low"] is None
        or 0 < hits["gap_share_ci_low"] < hits["gap_share"] < hits["gap_share_ci_high"]
    )
