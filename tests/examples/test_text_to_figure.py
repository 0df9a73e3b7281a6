"""The example from text to a figure: it runs on text of one's own, cell by cell, and its figure
holds what it counted."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import polars as pl
import pytest

from recallkit.scoring import score_path
from tests.conftest import made_up_texts, write_jsonl

EXAMPLE = Path(__file__).parents[2] / "examples" / "07_text_to_figure.py"


@pytest.fixture(scope="module")
def made(tmp_path_factory, home):
    """The names that the example leaves, and its folder."""
    folder = tmp_path_factory.mktemp("example")
    (folder / "text").mkdir()
    write_jsonl(folder / "text" / "valid.jsonl", made_up_texts(8, 100, seed=5), "books")
    arguments, sys.argv = sys.argv, [str(EXAMPLE), str(folder / "text"), str(folder / "out")]
    try:
        yield runpy.run_path(str(EXAMPLE)), folder / "out"
    finally:
        sys.argv = arguments
        shutil.rmtree(folder)


def test_its_query_counts_every_rare_token_once(made):
    names, out = made
    labels = pl.read_parquet(out / "slices" / "tokens.parquet").filter(
        pl.col("train_count") <= names["RARE"]
    )
    grouped = names["grouped"]
    assert grouped["tokens"].sum() == len(labels) > 0
    times = (
        labels["occurrences"].cast(pl.String).replace({str(n): "3 or more" for n in range(3, 1000)})
    )
    assert dict(grouped.select("times", "tokens").rows()) == dict(times.value_counts().rows())
    scores = pl.read_parquet(score_path(out / "slices", "zoo:attention"))
    every = pl.concat(
        [pl.read_parquet(out / "slices" / "tokens.parquet"), scores.select("nll")], how="horizontal"
    )
    first = every.filter((pl.col("train_count") <= names["RARE"]) & (pl.col("occurrences") == 0))[
        "nll"
    ].cast(pl.Float64)
    assert grouped.filter(times="0")["attention"].item() == pytest.approx((-first).exp().mean())


def test_its_examples_are_text_and_its_figure_is_drawn(made):
    names, out = made
    assert {"before", "text", "hits", "behind"} == set(names["examples"].columns)
    assert names["examples"]["hits"].sum() > 0
    assert names["examples"]["behind"].is_sorted(descending=True)
    drawn = (out / "rare_bigrams.svg").read_text(encoding="utf-8")
    for words in ("earlier occurrences of the bigram", "mean probability", *names["MODELS"]):
        assert words in drawn
    assert (out / "rare_bigrams.png").read_bytes().startswith(b"\x89PNG")
    assert pl.read_csv(out / "rare_bigrams.csv").columns == names["grouped"].columns
