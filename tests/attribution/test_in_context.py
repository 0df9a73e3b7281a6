"""The in-context-learning score: the difference of two mean losses, of sequences that have both
tokens."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recallkit import scoring
from recallkit.attribution.context_gain import in_context_scores
from recallkit.options import TextOptions
from recallkit.scoring import score_path
from recallkit.slicing import RareCount, slice_text
from recallkit.storage import parquet_files
from tests.conftest import made_up_texts, write_jsonl

MODEL = "control:bigram"


def sliced(small_slices, folder, seq_len):
    text = write_jsonl(folder / "text.jsonl", made_up_texts(60, 400, seed=5))
    options = TextOptions([str(text)], "validation")
    slice_text(
        options,
        folder / "slices",
        counts=small_slices.parent / "counts.duckdb",
        rare=RareCount(20),
        seq_len=seq_len,
    )
    scoring.score(MODEL, folder / "slices")
    return folder / "slices"


def test_it_is_the_loss_at_500_less_the_loss_at_50_of_whole_sequences(small_slices, tmp_path):
    slices = sliced(small_slices, tmp_path, 500)
    path = score_path(slices, MODEL)
    found = in_context_scores(slices / "tokens.parquet", {"a": path})
    rows = pl.read_parquet(path)
    whole = rows.filter(pl.col("position").max().over("sequence") == 500)
    means = [whole.filter(position=at)["nll"].cast(pl.Float64).mean() for at in (500, 50)]
    assert (found["early"], found["late"], found["sequences"]) == (
        50,
        500,
        whole["sequence"].n_unique(),
    )
    assert whole["sequence"].n_unique() < rows["sequence"].n_unique(), (
        "the last sequence is shorter: it is left out"
    )
    own = found["models"]["a"]
    assert own["score"] == pytest.approx(means[0] - means[1], abs=1e-9)
    assert own["score_ci_low"] < own["score"] < own["score_ci_high"]


def test_planted_losses_come_out_and_shorter_sequences_say_so(small_slices, tmp_path):
    slices = sliced(small_slices, tmp_path, 120)
    path = score_path(slices, MODEL)
    table = pq.read_table(path)
    nlls = np.where(np.asarray(table["position"]) == 120, 1.5, 4.0).astype(np.float32)
    planted = table.set_column(table.schema.get_field_index("nll"), "nll", pa.array(nlls))
    parquet_files.write_parquet(
        tmp_path / "planted.parquet", [planted], planted.schema, parquet_files.read_manifest(path)
    )
    found = in_context_scores(
        slices / "tokens.parquet", {"a": path, "planted": tmp_path / "planted.parquet"}
    )
    assert (found["early"], found["late"]) == (50, 120)
    assert found["models"]["planted"] == pytest.approx(
        dict.fromkeys(("score", "score_ci_low", "score_ci_high"), -2.5)
    )


def test_sequences_that_are_too_short_have_none(small_slices):
    scoring.score(MODEL, small_slices)
    assert (
        in_context_scores(small_slices / "tokens.parquet", {"a": score_path(small_slices, MODEL)})
        is None
    )
