"""One rule says when a share means nothing, and every command that prints one has it, on every
row."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recallkit
from recallkit.ablation.tables import AblatedSet, measure_losses
from recallkit.attribution.context_gain import context_gains
from recallkit.attribution.tables import attribute_gap
from recallkit.intervening import InterventionOptions, intervene
from recallkit.measure.labelled import open_tokens
from recallkit.measure.shares import MODEL_LIKE_UNIFORM, REFERENCE_LIKE_UNIFORM
from recallkit.profiling import profile_slices
from recallkit.scoring import score_path
from recallkit.scoring.windows import LastIds
from recallkit.slicing.view import manifest_of
from recallkit.storage import parquet_files

MODELS = ("control:recall", "control:bigram")


@pytest.fixture(scope="module")
def one_document(home, tmp_path_factory) -> Path:
    """Slices of one document, with scores under which both models are worse than a uniform guess,
    one of them more so on AR hits."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "text.txt").write_text(
        "Rare words, quennevillish and zaphodian ones, are said again: quennevillish, zaphodian. "
        * 30
    )
    slices = folder / "slices"
    recallkit.slice(
        folder / "text.txt", slices, counts=recallkit.zoo_counts(), max_count=5, seq_len=64
    )
    return slices


def worsen(folder: Path) -> None:
    """Adds to every NLL under `folder`, so that the models are worse than a uniform guess."""
    uniform = math.log(manifest_of(folder)["tokenizer"]["vocab_size"])
    hits = pl.read_parquet(folder / "tokens.parquet")["ar_hit"].to_numpy()
    for number, model in enumerate(MODELS):
        path = score_path(folder, model)
        table = pq.read_table(path)
        nlls = np.asarray(table["nll"]) + uniform + number * (1 + hits)
        table = table.set_column(
            table.schema.get_field_index("nll"), "nll", pa.array(nlls.astype(np.float32))
        )
        parquet_files.write_parquet(path, [table], table.schema, parquet_files.read_manifest(path))


def test_of_models_worse_than_a_guess_on_one_document_every_command_voids_every_share(
    one_document, tmp_path
):
    intervene(MODELS, one_document, options=InterventionOptions(samples=40, design="exact"))
    changed = next(one_document.glob("intervene/text-*"))
    for folder in (one_document, changed):
        worsen(folder)
    files = [score_path(one_document, model) for model in MODELS]
    gap = attribute_gap(one_document / "tokens.parquet", files[0], files[1:])
    why = f"{REFERENCE_LIKE_UNIFORM}; {MODEL_LIKE_UNIFORM}"
    for table in (gap.gap, gap.by_partition, gap.by_threshold):
        assert table.height
        assert table["void"].all()
        assert all(note.startswith(why) for note in table["note"])
    shares = intervene(
        MODELS, one_document, options=InterventionOptions(samples=40, design="exact")
    ).retained
    assert shares.height
    assert shares["void"].all()
    assert all(note.startswith(why) for note in shares["note"])
    counts = recallkit.zoo_counts()
    run = recallkit.track(
        MODELS[0],
        [f"step-{n}={model}" for n, model in enumerate(MODELS)],
        slices=one_document,
        counts=counts,
    ).track
    assert run.height == 3
    assert all(run[column].null_count() == 3 for column in run.columns if "_ci_" in column), (
        "nothing is certain of one document"
    )
    gains = context_gains(
        one_document / "tokens.parquet",
        dict(zip(MODELS, files, strict=True)),
        {LastIds(4, 1): files},
    )
    assert gains.height
    assert gains["void"].all()
    assert all(note.startswith(why) for note in gains["note"])
    profiled = profile_slices(one_document, tmp_path).profile
    assert set(profiled["note"]) == {"its tokens come from effectively 1.0 documents; 5 are needed"}
    assert all(
        profiled[column].null_count() == profiled.height
        for column in profiled.columns
        if "_ci_" in column
    )
    tokens = open_tokens(one_document / "tokens.parquet")
    losses = measure_losses(tokens, files, [AblatedSet("1", "conv", 1, "1.conv")], "model").ablation
    assert losses.height
    assert losses["void"].all()
