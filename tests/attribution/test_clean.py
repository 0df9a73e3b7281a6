"""The gap without tokens that are in the training text, and what is told of them."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recallkit
from recallkit import attribution
from recallkit.attribution.comparison import read_comparison
from recallkit.attribution.tables import attribute_gap
from recallkit.attribution.view import look
from recallkit.errors import UserError
from recallkit.slicing.definitions import PARTITION, parse_slices
from recallkit.slicing.view import manifest_of, what_is_copied
from recallkit.storage.artifacts import read_manifest
from tests.attribution.test_slices import GIVEN, KEEP, class_of, texts
from tests.attribution.test_tables import BEHIND_NLLS, REFERENCE_NLLS, SLICES, Corpus, assert_row, small_corpus
from tests.conftest import made_up_texts, write_jsonl

NGRAMS = {"13": {"fraction": 1.0, "sampled": 10, "found": 1}, "50": {"fraction": 1.0, "sampled": 0, "found": 0}}


def mark(corpus: Corpus, marks: list[int]) -> Corpus:
    """The same corpus with its tokens marked."""
    for token, of_token in zip(corpus.tokens, marks, strict=True):
        token["in_training"] = of_token
    table = pq.read_table(corpus.path).append_column("in_training", pa.array(marks, pa.int8()))
    known = {"tokens": sum(map(bool, marks)), "ar_hits": 0, "of_ar_hits": 1, "ngrams": NGRAMS}
    kept = {name: value for name, value in read_manifest(corpus.path).items() if name not in ("sequences_digest", "num_rows")}
    corpus._write("tokens", table, {**kept, "in_training": known})
    return corpus


@settings(max_examples=20)
@given(texts(), st.data())
def test_any_text_without_copies_is_what_loops_count(tmp_path_factory, drawn, data):
    rows, pairs, rows_per_group, reference, model = drawn
    corpus = Corpus(tmp_path_factory.mktemp("text"), rows, rows_per_group=rows_per_group, max_count=5, ids=pairs)
    marks = data.draw(st.lists(st.sampled_from([0, 0, 13, 50]), min_size=len(rows), max_size=len(rows)).filter(lambda m: 0 in m))
    mark(corpus, marks)
    paths = corpus.score("reference", reference), corpus.score("model", model)
    tables = attribute_gap(corpus.path, paths[0], [paths[1]], slices=parse_slices(GIVEN), num_resamples=20, clean=True)
    names = ["ALL", *sorted({t["source"] for t in corpus.tokens if not t["in_training"]})]
    assert tables.gap["source"].unique(maintain_order=True).to_list() == names
    for row in tables.gap.iter_rows(named=True):
        inside = lambda t, source=row["source"]: source in ("ALL", t["source"]) and not t["in_training"]  # noqa: E731
        keep = {**SLICES, **KEEP}[row["slice"]]
        assert_row(row, corpus.sums("model", lambda t, keep=keep, inside=inside: inside(t) and keep(t)), corpus.sums("model", inside))
        assert (row["bytes"], row["bpb_model"]) == (None, None)
    everything = corpus.sums("model", lambda t: not t["in_training"])
    for row in tables.by_partition.iter_rows(named=True):  # what is new in its context depends on the tokens that are left out
        keep = lambda t, name=row["slice"]: not t["in_training"] and class_of(corpus, t) == name  # noqa: E731
        assert_row(row, corpus.sums("model", keep), everything)
    for table in ("by_count", "by_match", "by_partition"):
        assert getattr(tables, table)["tokens"].sum() == everything[0]
    assert len(tables.by_partition) == len(PARTITION)


def test_labels_that_do_not_know_of_copies_and_a_text_that_is_all_copied_are_refused(tmp_path):
    corpus = small_corpus(tmp_path)
    paths = corpus.score("reference", REFERENCE_NLLS), corpus.score("behind", BEHIND_NLLS)
    for options in ({"slices": parse_slices(["new=in_training = 0"])}, {"clean": True}):
        with pytest.raises(UserError, match=r"no hashes of n-grams.*count the training text again with --force, then slice again"):
            attribute_gap(corpus.path, paths[0], [paths[1]], **options)
    mark(corpus, [13] * len(REFERENCE_NLLS))
    with pytest.raises(UserError, match="every token is in the training text"):
        attribute_gap(corpus.path, paths[0], [paths[1]], clean=True)


# -------------------------------------------------------------------------------------------------------- from end to end

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
    recallkit.slice(sources, folder / "slices", counts=folder / "counts.duckdb", max_count=20, seq_len=64)
    return folder / "slices"


def test_recall_in_all_hits_is_not_said_of_the_gap_without_copies(copied, run):
    for options, is_said in (((), True), (("--clean",), False)):
        done = run("gap", *MODELS, "--slices", copied, "--causal", *options)
        assert done.returncode == 0, done.stderr
        assert ("gone if neither model recalled there (`recallkit intervene`)" in " ".join(done.stdout.split())) == is_said


def test_clean_is_another_question(copied):
    plain, clean = (recallkit.gap(*MODELS, slices=copied, clean=flag) for flag in (False, True))
    tokens = pl.read_parquet(copied / "tokens.parquet")
    marked = tokens["in_training"] > 0
    assert 0.25 < marked.mean() < 0.5
    assert clean.gap["tokens"][0] == (~marked).sum() < plain.gap["tokens"][0]
    # The end token of its last document ends the text, but not the training text: there it is in no n-gram of both.
    assert clean.gap.filter(source="copied", slice="all")["tokens"].sum() <= 1
    folders = [attribution.gap_path(copied, MODELS[0], MODELS[1:], clean=flag) for flag in (False, True)]
    assert folders[0] != folders[1]
    assert [read_comparison(folder).manifest.get("clean") for folder in folders] == [None, True]
    assert read_comparison(folders[1]).tables.gap.equals(clean.gap)
    with pytest.raises(UserError, match="differs in clean"):
        recallkit.gap(*MODELS, slices=copied, clean=True, out=folders[0])
    # A slice of the same tokens has the same figures, but for its share of the tokens.
    by_slice = recallkit.gap(*MODELS, slices=copied, slice="new=in_training = 0").gap.filter(source="ALL", slice="new")
    for name in ("tokens", "nll_reference", "nll_model", "delta_nll"):
        assert by_slice[name][0] == pytest.approx(clean.gap[name][0], rel=1e-12)


def test_what_is_told(copied):
    found, tokens = manifest_of(copied)["in_training"], pl.read_parquet(copied / "tokens.parquet")
    marked = tokens.filter(pl.col("in_training") > 0)
    assert (found["tokens"], found["ar_hits"], found["of_ar_hits"]) == (len(marked), marked["ar_hit"].sum(), tokens["ar_hit"].sum())
    share = f"{100 * len(marked) / len(tokens):.1f} % of tokens"
    assert share in what_is_copied(manifest_of(copied))
    for clean in (False, True):
        recallkit.gap(*MODELS, slices=copied, clean=clean)
        folder = attribution.gap_path(copied, MODELS[0], MODELS[1:], clean=clean)
        seen = look(read_comparison(folder, copied))
        told = seen.json()
        assert (told["in_training"], told["clean"]) == (found, clean)
        caption = seen.shown["gap"].caption
        assert share in caption
        assert (f"Left out (--clean): the {len(marked):,} tokens found there." in caption) == clean


def test_ablation_without_copies_is_of_the_other_tokens(copied):
    losses = recallkit.ablate("zoo:base-conv-selective", slices=copied, mixers="1", clean=True).ablation
    tokens = pl.read_parquet(copied / "tokens.parquet")
    assert losses["tokens"].max() == (tokens["in_training"] == 0).sum() < len(tokens)
