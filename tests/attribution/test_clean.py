"""The gap without tokens that are in the training text, and what is said of them; its figures are
in test_tables."""

from __future__ import annotations

import polars as pl
import pytest

import recallkit
from recallkit import attribution
from recallkit.attribution.comparison import read_comparison
from recallkit.attribution.view import ComparisonView
from recallkit.errors import UserError
from recallkit.slicing.view import manifest_of, what_is_copied
from tests.conftest import made_up_texts, write_jsonl

MODELS = ("control:recall", "control:bigram")


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """Slices of text a third of which is in the training text, one source of it altogether."""
    folder = tmp_path_factory.mktemp("copied")
    train, valid = made_up_texts(40, 200, seed=1), made_up_texts(14, 200, seed=2)
    text = str(write_jsonl(folder / "train.jsonl", train))
    mixed = write_jsonl(folder / "mixed.jsonl", [*valid[:7], *train[:4], *valid[7:]], "mixed")
    sources = [str(mixed), str(write_jsonl(folder / "copied.jsonl", train[20:23], "copied"))]
    recallkit.count(text, folder / "counts.duckdb")
    recallkit.slice(
        sources, folder / "slices", counts=folder / "counts.duckdb", max_count=20, seq_len=64
    )
    return folder / "slices"


@pytest.fixture(scope="module")
def tokens(copied):
    return pl.read_parquet(copied / "tokens.parquet")


def test_clean_is_another_question(copied, tokens):
    plain, clean = (recallkit.gap(*MODELS, slices=copied, clean=flag) for flag in (False, True))
    marked = tokens["in_training"] > 0
    assert 0.25 < marked.mean() < 0.5
    assert clean.gap["tokens"][0] == (~marked).sum() < plain.gap["tokens"][0]
    # The end token of its last document ends the text, but not the training text: there it is in no
    # n-gram of both.
    assert clean.gap.filter(source="copied", slice="all")["tokens"].sum() <= 1
    folders = [
        attribution.gap_path(copied, MODELS[0], MODELS[1:], attribution.GapQuestion(clean=flag))
        for flag in (False, True)
    ]
    assert [read_comparison(folder).manifest.get("clean") for folder in folders] == [None, True]
    assert read_comparison(folders[1]).tables.gap.equals(clean.gap)
    with pytest.raises(UserError, match="differs in clean"):
        recallkit.gap(*MODELS, slices=copied, clean=True, out=folders[0])
    # A slice of the same tokens has the same figures, but for its share of the tokens.
    by_slice = recallkit.gap(*MODELS, slices=copied, slice="new=in_training = 0").gap.filter(
        source="ALL", slice="new"
    )
    for name in ("tokens", "nll_reference", "nll_model", "delta_nll"):
        assert by_slice[name][0] == pytest.approx(clean.gap[name][0], rel=1e-12)


@pytest.mark.parametrize("clean", [False, True])
def test_what_is_said_of_copies(copied, tokens, run, clean):
    marked = tokens.filter(pl.col("in_training") > 0)
    facts = manifest_of(copied)["in_training"]
    assert (facts["tokens"], facts["ar_hits"], facts["of_ar_hits"]) == (
        len(marked), marked["ar_hit"].sum(), tokens["ar_hit"].sum()
    )  # fmt: skip
    share = f"{100 * len(marked) / len(tokens):.1f} % of tokens"
    assert share in what_is_copied(manifest_of(copied))
    done = run("gap", *MODELS, "--slices", copied, "--causal", "--full", *["--clean"] * clean)
    assert done.returncode == 0, done.stderr
    assert ("Recall gain beside causal recall" in done.stdout) != clean, "that is of all AR hits"
    view = ComparisonView(
        read_comparison(
            attribution.gap_path(
                copied, MODELS[0], MODELS[1:], attribution.GapQuestion(clean=clean)
            ),
            copied,
        )
    )
    assert [view.json()[name] for name in ("in_training", "clean")] == [facts, clean]
    caption = view.display_tables["gap"].caption
    assert share in caption
    assert (f"Left out (--clean): the {len(marked):,} tokens that are in it." in caption) == clean


def test_ablation_without_copies_counts_no_copied_token(copied, tokens):
    ablation = recallkit.ablate(
        "zoo:base-conv-selective", slices=copied, mixers="1", clean=True
    ).ablation
    assert ablation["tokens"].max() == (tokens["in_training"] == 0).sum()
